//! Exponentials in f32.

use reference::Real;

/// |got − e^x| in units of the last place of the exact value.
fn error(x: f32, got: f32) -> f64 {
    let exact = f64::from(x).exp();
    let exponent = exact.log2().floor().max(-126.0);
    (f64::from(got) - exact).abs() / (exponent - 23.0).exp2()
}

fn exp(x: f32) -> f32 {
    Real::exp(x)
}

#[test]
fn exp_is_within_two_ulp() {
    let mut worst = (0.0, 0.0f32);
    // Every 61st float in [-104, 88.7], both signs, subnormal results included.
    for bits in (0..=88.7f32.to_bits()).step_by(61) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            worst = if error(x, exp(x)) > worst.0 {
                (error(x, exp(x)), x)
            } else {
                worst
            };
        }
    }
    for step in 0..200_000 {
        let x = -88.0 - step as f32 * 8e-5;
        worst = if error(x, exp(x)) > worst.0 {
            (error(x, exp(x)), x)
        } else {
            worst
        };
    }
    assert!(worst.0 <= 2.0, "{} ulp at {}", worst.0, worst.1);
}

#[test]
fn exp_at_the_ends() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(-200.0), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(88.8), f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
    let mut many = [f32::NAN, 0.0, f32::NEG_INFINITY, 1.0, -1.0, 3.0, 100.0, -50.0, 0.5];
    let one_by_one = many.map(exp);
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || f32::exp_all(&mut many),
    );
    assert_eq!(many.map(f32::to_bits), one_by_one.map(f32::to_bits));
}
