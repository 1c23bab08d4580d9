//! The diagonal state-space model: its forms against the sum they stand for, and what rounding does to them near |a| = 1.

use std::f64::consts::TAU;

use proptest::prelude::*;
use reference::ops::diagonal_ssm::DiagonalSsm;
use reference::ops::store::Token;
use reference::{Real, Tensor};

const U32: f64 = 1.0 / (1 << 24) as f64;
const U64: f64 = f64::EPSILON / 2.0;

/// Parameters and inputs in f32's set.
#[derive(Clone, Debug)]
struct Case {
    a: Tensor<f64>,
    b: Tensor<f64>,
    c: Tensor<f64>,
    u: Tensor<f64>,
    state: Tensor<f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Outcome<T> {
    y: Tensor<T>,
    state: Tensor<T>,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Recurrent,
    Folded,
    Chunked(usize),
}

impl Case {
    /// `a` of two uniform numbers; the rest normal. The state starts at 0.
    fn random(heads: usize, states: usize, steps: usize, seed: u64, a: impl Fn(f64, f64) -> f64) -> Self {
        let mut seed = seed;
        let mut uniform = || {
            seed = seed
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let mixed = (seed ^ (seed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            ((mixed ^ (mixed >> 33)) >> 11) as f64 / 2f64.powi(53) + 2f64.powi(-54)
        };
        let mut draw = |shape: [usize; 2], of: &dyn Fn(f64, f64) -> f64| {
            let data = (0..shape[0] * shape[1]).map(|_| f64::from(of(uniform(), uniform()) as f32));
            Tensor::new(shape, data.collect())
        };
        let parameters = [heads, states];
        Self {
            a: draw(parameters, &a),
            b: draw(parameters, &normal),
            c: draw(parameters, &normal),
            u: draw([heads, steps], &normal),
            state: Tensor::full(parameters, 0.0),
        }
    }

    fn run<T: Real>(&self, form: Form) -> Result<Outcome<T>, String> {
        let [a, b, c] = [&self.a, &self.b, &self.c].map(Tensor::cast::<T>);
        let ssm = DiagonalSsm { a: &a, b: &b, c: &c };
        let (u, mut state) = (self.u.cast(), self.state.cast());
        let y = match form {
            Form::Recurrent => ssm.recurrent(&u, &mut state, None),
            Form::Folded => ssm.folded(&u, &mut state, None),
            Form::Chunked(chunk) => ssm.chunked(&u, &mut state, chunk),
        }?;
        Ok(Outcome { y, state })
    }

    fn steps(&self) -> usize {
        self.u.cols()
    }

    /// The same with other inputs.
    fn between(&self, steps: std::ops::Range<usize>) -> Self {
        let rows = self.u.data.chunks_exact(self.steps());
        let u = rows.flat_map(|row| &row[steps.clone()]).copied().collect();
        Self {
            u: Tensor::new([self.u.rows(), steps.len()], u),
            ..self.clone()
        }
    }

    /// Σ |c b a^{t−s} u_s| + |c a^{t+1} x| of all t: what errors are relative to.
    fn size(&self) -> f64 {
        let magnitude = |x: &Tensor<f64>| Tensor::new(x.shape.clone(), x.data.iter().map(|x| x.abs()).collect());
        let [a, b, c, u, state] = [&self.a, &self.b, &self.c, &self.u, &self.state].map(magnitude);
        let all = Self { a, b, c, u, state }
            .run::<f64>(Form::Recurrent)
            .expect("a good case");
        top(&all.y.data).max(top(&all.state.data))
    }
}

fn normal(a: f64, b: f64) -> f64 {
    (-2.0 * a.ln()).sqrt() * (b * TAU).cos()
}

fn top<T: Real>(x: &[T]) -> f64 {
    x.iter().map(|&x| x.into().abs()).fold(0.0, f64::max)
}

/// Farthest of y and of the states.
fn farthest<T: Real, U: Real>(got: &Outcome<T>, want: &Outcome<U>) -> f64 {
    let got = got.y.data.iter().chain(&got.state.data).map(|&x| x.into());
    let want = want.y.data.iter().chain(&want.state.data).map(|&x| x.into());
    let difference = got.zip(want).map(|(a, b)| (a - b).abs());
    difference.fold(0.0, |top, x| if x.is_nan() { f64::INFINITY } else { top.max(x) })
}

/// ‖got − want‖ / ‖want‖ of each head's y, ascending.
fn errors<T: Real>(got: &Tensor<T>, want: &Tensor<f64>) -> Vec<f64> {
    let of_head = |head: usize| {
        let difference = got
            .row(head)
            .iter()
            .zip(want.row(head))
            .map(|(&a, &b)| (a.into() - b).powi(2));
        (difference.sum::<f64>() / want.row(head).iter().map(|x| x * x).sum::<f64>()).sqrt()
    };
    let mut errors: Vec<f64> = (0..got.rows()).map(of_head).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

fn median(errors: &[f64]) -> f64 {
    errors[errors.len() / 2]
}

/// a on both sides of 0 up to a bit beyond 1, and 0 itself.
fn cases() -> impl Strategy<Value = Case> {
    (1..4usize, 1..40usize, 1..150usize, any::<u64>(), any::<bool>()).prop_map(
        |(heads, states, steps, seed, started)| {
            let a = |x: f64, y: f64| if y < 0.1 { 0.0 } else { 2.02 * x - 1.01 };
            let mut case = Case::random(heads, states, steps, seed, a);
            if started {
                case.state = Case::random(heads, states, 1, !seed, normal).a;
            }
            case
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// y_t = Σ_{s≤t} Σ_n c b a^{t−s} u_s + Σ_n c a^{t+1} x_0. An error of every step and state, and of the powers here.
    #[test]
    fn all_forms_are_the_sum(case in cases(), chunk in 1..70usize) {
        let y = |head: usize, t: usize| {
            let [a, b, c] = [&case.a, &case.b, &case.c].map(|of| of.row(head));
            (0..a.len())
                .map(|n| {
                    let inputs = (0..=t).map(|s| b[n] * a[n].powi((t - s) as i32) * case.u.row(head)[s]).sum::<f64>();
                    c[n] * (inputs + a[n].powi(t as i32 + 1) * case.state.row(head)[n])
                })
                .sum::<f64>()
        };
        let bound = 4.0 * (case.steps() + case.a.cols()) as f64 * case.size();
        for form in [Form::Recurrent, Form::Folded, Form::Chunked(chunk)] {
            let got = case.run::<f64>(form).expect("a good case");
            for head in 0..case.a.rows() {
                for t in 0..case.steps() {
                    prop_assert!((got.y.row(head)[t] - y(head, t)).abs() <= bound * U64, "{form:?} {head} {t}");
                }
            }
            let steps = case.run::<f64>(Form::Recurrent).expect("a good case");
            prop_assert!(farthest(&got, &steps) <= bound * U64, "{form:?}");
            let single = case.run::<f32>(form).expect("a good case");
            prop_assert!(farthest(&single, &got) <= bound * U32, "{form:?}");
        }
    }

    #[test]
    fn steps_go_on_from_their_state(case in cases(), cut in 0.0..1.0f64, chunk in 1..20usize) {
        let at = (case.steps() as f64 * cut) as usize;
        for (form, exact) in [(Form::Recurrent, at), (Form::Chunked(chunk), at / chunk * chunk)] {
            let first = case.between(0..exact).run::<f64>(form).expect("a good case");
            let rest = Case { state: first.state, ..case.between(exact..case.steps()) };
            let second = rest.run::<f64>(form).expect("a good case");
            let whole = case.run::<f64>(form).expect("a good case");
            prop_assert_eq!(&second.state, &whole.state);
            for head in 0..case.a.rows() {
                prop_assert_eq!(&[first.y.row(head), second.y.row(head)].concat()[..], whole.y.row(head));
            }
        }
    }
}

/// Where a lies, as a function of two uniform numbers.
type Regime = (&'static str, fn(f64, f64) -> f64);

/// 1 − a between two powers of ten, evenly in its logarithm.
fn near_one(from: i32, to: i32, x: f64) -> f64 {
    1.0 - 10f64.powf(f64::from(from) + f64::from(to - from) * x)
}

const REGIMES: [Regime; 4] = [
    ("normal / 8", |x, y| normal(x, y) / 8.0),
    ("(0, 0.95)", |x, _| 0.95 * x),
    ("1 - a in 1e-3..1e-1", |x, _| near_one(-3, -1, x)),
    ("1 - a in 1e-5..1e-3", |x, _| near_one(-5, -3, x)),
];

fn long(regime: Regime) -> Case {
    Case::random(32, 32, 8192, 5, regime.1)
}

/// Rounding to nearest is a random walk of errors u·|x|, filtered like the input: u / √(1 − a²) of the state, which the
/// input's own walk cancels out. Chunks round 32 times less often, and are as good only if a^T is.
#[test]
fn rounding_near_one() {
    for regime in REGIMES {
        let case = long(regime);
        let want = case.run::<f64>(Form::Recurrent).expect("a good case").y;
        let error = |form: Form| median(&errors(&case.run::<f32>(form).expect("a good case").y, &want));
        let [steps, folded] = [Form::Recurrent, Form::Folded].map(error);
        let [short, chunks, long] = [16, 32, 128].map(|chunk| error(Form::Chunked(chunk)));
        println!(
            "{}: {steps:.1e}, folded {folded:.1e}; chunks {short:.1e} {chunks:.1e} {long:.1e}",
            regime.0
        );
        assert!(
            [steps, folded, short, chunks, long]
                .into_iter()
                .all(|error| error <= 5e-6)
        );
        assert!(chunks <= 2.0 * steps);
        let double = case.run::<f64>(Form::Chunked(32)).expect("a good case").y;
        // In f64 the powers carry some roundings of their own.
        assert!(median(&errors(&double, &want)) <= 2e-5 * U64 / U32);
    }
}

fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Between 1 − 2⁻⁹ and 1 there is no bf16: a rounds to 1, and the model is another.
#[test]
fn a_is_no_bf16() {
    for regime in &REGIMES[2..] {
        let mut case = long(*regime);
        let want = case.run::<f64>(Form::Recurrent).expect("a good case").y;
        case.a.data.iter_mut().for_each(|a| *a = f64::from(bf16(*a as f32)));
        assert!(case.a.data.contains(&1.0));
        let got = case.run::<f64>(Form::Recurrent).expect("a good case").y;
        let error = median(&errors(&got, &want));
        println!("{}: {error:.1e}", regime.0);
        assert!(error > 0.3, "{error}");
    }
}

/// A state in bf16 no longer sees increments below half its last place. What y reads has not been stored yet, so that a
/// state that forgets at once is hardly off; one that remembers is by many per cent.
#[test]
fn states_in_bf16() {
    let bounds = [(1e-4, 6e-4), (1e-3, 5e-3), (1e-2, 5e-2), (3e-2, 2e-1)];
    for (regime, (least, most)) in REGIMES.into_iter().zip(bounds) {
        let case = long(regime);
        let want = case.run::<f64>(Form::Recurrent).expect("a good case").y;
        let [a, b, c, u] = [&case.a, &case.b, &case.c, &case.u].map(Tensor::cast::<f32>);
        let ssm = DiagonalSsm { a: &a, b: &b, c: &c };
        let store = |_: Token, state: &mut [f32], _: usize| state.iter_mut().for_each(|x| *x = bf16(*x));
        let got = ssm
            .recurrent(&u, &mut case.state.cast(), Some(&store))
            .expect("a good case");
        let error = median(&errors(&got, &want));
        println!("{}: {error:.1e}", regime.0);
        assert!((least..=most).contains(&error), "{}: {error:e}", regime.0);
    }
}

/// The calls of a store: every head, every step, all N states.
#[test]
fn states_are_stored_step_by_step() {
    let case = Case::random(2, 3, 4, 1, |x, _| x);
    let [a, b, c, u] = [&case.a, &case.b, &case.c, &case.u].map(Tensor::cast::<f64>);
    let ssm = DiagonalSsm { a: &a, b: &b, c: &c };
    for folded in [false, true] {
        let calls = std::sync::Mutex::new(Vec::new());
        let store = |at: Token, state: &mut [f64], cols: usize| {
            calls
                .lock()
                .expect("no panic")
                .push((at.sequence, at.head, at.token, state.len(), cols));
            state.fill(0.0);
        };
        let mut state = case.state.cast();
        let y = if folded {
            ssm.folded(&u, &mut state, Some(&store))
        } else {
            ssm.recurrent(&u, &mut state, Some(&store))
        };
        let mut calls = calls.into_inner().expect("no panic");
        calls.sort();
        let all = (0..2).flat_map(|head| (0..4).map(move |step| (0, head, step, 3, 3)));
        assert_eq!(calls, all.collect::<Vec<_>>());
        assert_eq!(state, case.state);
        // From 0 every time, y is the input times c·b.
        for (head, y) in y.expect("a good case").data.chunks(4).enumerate() {
            let weight: f64 = b.row(head).iter().zip(c.row(head)).map(|(b, c)| b * c).sum();
            let size: f64 = b.row(head).iter().zip(c.row(head)).map(|(b, c)| (b * c).abs()).sum();
            let off = |(y, u): (&f64, &f64)| (y - weight * u).abs() <= 4.0 * U64 * size * u.abs();
            assert!(y.iter().zip(u.row(head)).all(off));
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let case = Case::random(5, 8, 100, 3, |x, _| x);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| [Form::Recurrent, Form::Folded, Form::Chunked(32)].map(|form| case.run::<f32>(form)))
    };
    assert!(run(1) == run(2) && run(1) == run(3));
}

/// Bad input is an error that says what is wrong, and changes nothing.
#[test]
fn bad_input() {
    let good = Case::random(2, 3, 4, 1, |x, _| x);
    let wrong = |edit: &dyn Fn(&mut Case), form: Form, want: &str| {
        let mut case = good.clone();
        edit(&mut case);
        assert_eq!(case.run::<f32>(form).err().as_deref(), Some(want));
    };
    let flat = || Tensor::full([6], 0.0);
    wrong(
        &|case| case.a = flat(),
        Form::Recurrent,
        "a has shape [6], expected [heads, N]; u has [2, 4], expected [heads, S]",
    );
    wrong(
        &|case| case.u = flat(),
        Form::Recurrent,
        "a has shape [2, 3], expected [heads, N]; u has [6], expected [heads, S]",
    );
    wrong(
        &|case| case.b = flat(),
        Form::Folded,
        "b has shape [6], expected [2, 3]",
    );
    wrong(
        &|case| case.c = Tensor::full([3, 2], 0.0),
        Form::Folded,
        "c has shape [3, 2], expected [2, 3]",
    );
    wrong(
        &|case| case.state = flat(),
        Form::Chunked(8),
        "the state has shape [6], expected [2, 3]",
    );
    wrong(
        &|case| case.u = Tensor::full([3, 4], 0.0),
        Form::Chunked(8),
        "a has shape [2, 3] and u [3, 4]: one row each for every head",
    );
    wrong(&|_| (), Form::Chunked(0), "chunks of 0 steps");

    let mut case = good;
    case.b.data[4] = 0.0;
    assert!(case.run::<f32>(Form::Folded).is_ok(), "from 0 nothing is divided");
    case.state.data[4] = 0.5;
    assert_eq!(
        case.run::<f32>(Form::Folded),
        Err("head 1, state 1: b is 0 and the state 0.5".into())
    );
    assert!(case.run::<f32>(Form::Recurrent).is_ok() && case.run::<f32>(Form::Chunked(3)).is_ok());
}
