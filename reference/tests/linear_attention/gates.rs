//! Log decays and β out of what models compute.

use reference::ops::linear_attention::{Gate, L2_EPS, beta, l2_normalize};
use reference::{Real, Tensor};

use super::support::*;

/// Raw gates from one end of f32's useful range to the other, `[tokens, HV, K]` of 3 heads and 2 channels.
fn raw<T: Real>() -> Tensor<T> {
    let x = (-60..=60).map(|i| T::from_f64(f64::from(i) * 0.75));
    Tensor::new([20, 3, 2], x.take(120).collect())
}

const A_LOG: [f64; 3] = [0.0, 1.5, 2.75];
const DT_BIAS: [f64; 6] = [0.25, -0.5, 1.0, -2.0, 0.0, 3.0];

fn all<T: Real>(x: &[f64]) -> Vec<T> {
    x.iter().map(|&x| T::from_f64(x)).collect()
}

/// |got − want| / |want| everywhere; 0 only where 0 is wanted.
fn worst<T: Real>(got: &Tensor<T>, want: impl Fn(usize) -> f64) -> f64 {
    let off = |(i, &got): (usize, &T)| {
        let want = want(i);
        if got.into() == want {
            0.0
        } else {
            (got.into() - want).abs() / want.abs()
        }
    };
    got.data.iter().enumerate().map(off).fold(0.0, f64::max)
}

/// softplus(x) = max(x, 0) + ln(1 + e^−|x|), which does not overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// What f32 makes of x + dt_bias, which is exact here, passes through two exponentials and a logarithm. Beyond 20, softplus(x)
/// is x, which is 2e-9 · 1/20 less.
#[test]
fn softplus_form() {
    fn check<T: Real>(u: f64) {
        let (x, a_log, dt_bias) = (raw::<T>(), all(&A_LOG), all(&DT_BIAS));
        let gate = Gate::Softplus {
            x: &x,
            a_log: &a_log,
            dt_bias: Some(&dt_bias),
        };
        let g = gate.log_decay().expect("gates");
        let want = |i: usize| -A_LOG[i / 2 % 3].exp() * softplus(x.data[i].into() + DT_BIAS[i % 6]);
        within("softplus", worst(&g, want), 16.0 * u + 1.1e-10);
        // The literal logarithm of 1 + eˣ is 0 from x = −17 on in f32.
        assert!(g.data.iter().all(|&g| g < T::ZERO));
    }
    check::<f32>(U32);
    check::<f64>(U64);
}

/// One gate of each head, as GDN has them.
#[test]
fn gates_of_heads() {
    let x = Tensor::new([2, 3], vec![-1.0f64, 0.0, 1.0, 2.0, 3.0, 40.0]);
    let gate = |dt_bias| Gate::Softplus {
        x: &x,
        a_log: &A_LOG,
        dt_bias,
    };
    let bias = [0.5, -0.5, 2.0];
    let with = gate(Some(&bias)).log_decay().expect("gates");
    within(
        "with dt_bias",
        worst(&with, |i| -A_LOG[i % 3].exp() * softplus(x.data[i] + bias[i % 3])),
        16.0 * U64,
    );
    let without = gate(None).log_decay().expect("gates");
    within(
        "without",
        worst(&without, |i| -A_LOG[i % 3].exp() * softplus(x.data[i])),
        16.0 * U64,
    );
    assert_eq!(without.data[5], -A_LOG[2].exp() * 40.0);
}

#[test]
fn lower_bound_form() {
    fn check<T: Real>(u: f64) {
        let (x, a_log, dt_bias) = (raw::<T>(), all::<T>(&A_LOG), all::<T>(&DT_BIAS));
        for a_log in [Some(&a_log[..]), None] {
            let gate = Gate::LowerBound {
                x: &x,
                a_log,
                dt_bias: Some(&dt_bias),
                bound: T::from_f64(-5.0),
            };
            let g = gate.log_decay().expect("gates");
            let exponent = |i: usize| {
                let factor = a_log.map_or(1.0, |_| A_LOG[i / 2 % 3].exp());
                factor * (x.data[i].into() + DT_BIAS[i % 6])
            };
            // |exponent|·u is the relative error of its exponential; far below −80, f32 has no value left for it.
            let scalar = |i: usize| {
                if exponent(i) < -80.0 {
                    g.data[i].into()
                } else {
                    -5.0 / (1.0 + (-exponent(i)).exp())
                }
            };
            within("lower bound", worst(&g, scalar), 400.0 * u);
            assert!(g.data.iter().all(|&g| g <= T::ZERO && g >= T::from_f64(-5.0)));
            assert!(
                (0..120)
                    .filter(|&i| exponent(i) < -80.0)
                    .all(|i| g.data[i].into().abs() < 1e-33)
            );
        }
    }
    check::<f32>(U32);
    check::<f64>(U64);
}

#[test]
fn gates_that_do_not_fit() {
    let x = Tensor::full([4, 3, 2], 0.0f32);
    let flat = Tensor::full([12], 0.0f32);
    let softplus = |x, a_log, dt_bias| Gate::Softplus { x, a_log, dt_bias }.log_decay();
    let lower = |bound| {
        let gate = Gate::LowerBound {
            x: &x,
            a_log: None,
            dt_bias: None,
            bound,
        };
        gate.log_decay()
    };
    let errors = [
        (softplus(&x, &[0.0; 2], None), "2 a_log for 3 value heads"),
        (
            softplus(&x, &[0.0; 3], Some(&[0.0; 3])),
            "3 dt_bias for 3 value heads of 2 gates",
        ),
        (
            softplus(&flat, &[0.0; 3], None),
            "the raw gate has shape [12], expected [tokens, HV] or [tokens, HV, K]",
        ),
        (
            lower(0.0),
            "the lower bound of gates is 0.0, expected below 0 and finite",
        ),
        (lower(f32::NEG_INFINITY), "the lower bound of gates is -inf"),
        (lower(f32::NAN), "the lower bound of gates is NaN"),
    ];
    for (got, want) in errors {
        let got = got.expect_err(want);
        assert!(got.starts_with(want), "{got}");
    }
    assert!(softplus(&x, &[0.0; 3], Some(&[0.0; 6])).is_ok() && lower(-5.0).is_ok());
}

#[test]
fn beta_of_logits() {
    let logits = Tensor::new([1, 5], vec![-200.0f32, -1.0, 0.0, 1.0, 200.0]);
    let single = |x: f64| 1.0 / (1.0 + (-x).exp());
    let once = beta(&logits, false);
    let twice = beta(&logits, true);
    assert_eq!((once.data[0], once.data[2], once.data[4]), (0.0, 0.5, 1.0));
    within(
        "sigmoid",
        worst(&once, |i| if i == 0 { 0.0 } else { single(logits.data[i].into()) }),
        4.0 * U32,
    );
    assert!(
        once.data
            .iter()
            .zip(&twice.data)
            .all(|(once, twice)| 2.0 * once == *twice)
    );
}

/// ε stands beside the sum, not below the root's maximum: rows far shorter than its root are scaled by 1000 and no more.
#[test]
fn normalised() {
    let rows = [[3.0, 4.0, 0.0], [0.0; 3], [3e-6, 4e-6, 0.0], [3e3, 0.0, -4e3]];
    let mut x = Tensor::new([4, 3], rows.concat());
    l2_normalize(&mut x, L2_EPS);
    let want = |i: usize| {
        let row = rows[i / 3];
        row[i % 3] / (row.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt()
    };
    within("l2", worst(&x, want), 4.0 * U64);
    assert!((x.data[6] - 3e-3).abs() < 1e-7, "{}", x.data[6]);
}
