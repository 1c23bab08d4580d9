//! Noise as large as the error of a rounding.

use ulplab::backend::rounding::noise::{Noise, rounded_or_noise};

fn distance(x: &[f32], y: &[f32]) -> f64 {
    let each = x.iter().zip(y).map(|(x, y)| (f64::from(*y) - f64::from(*x)).powi(2));
    each.sum::<f64>().sqrt()
}

#[test]
fn noise_is_so_many_times_the_error_of_each_row() {
    let exact: Vec<f32> = (0..96).map(|i| (i as f32 * 0.37).sin()).collect();
    let round = |values: &mut [f32]| values[..64].iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
    let with = |seed, gain: Option<f64>| {
        let mut values = exact.clone();
        rounded_or_noise(gain.map(|gain| Noise { seed, gain }), "x", &mut values, 32, round);
        values
    };
    let (rounded, noise) = (with(1, None), with(1, Some(3.0)));
    for row in [0..32, 32..64] {
        let [error, size] = [&rounded, &noise].map(|x| distance(&exact[row.clone()], &x[row.clone()]));
        assert!(error > 0.0 && (size / error - 3.0).abs() < 1e-5, "{size} {error}");
    }
    assert_eq!(noise[64..], exact[64..], "what is not rounded has no noise");
    assert_eq!(noise, with(1, Some(3.0)));
    assert_ne!(noise, with(2, Some(3.0)));
}

#[test]
fn a_gain_is_a_size_beside_noise() {
    assert_eq!(Noise::asked(false, None, 1).ok(), Some(None));
    assert_eq!(
        Noise::asked(true, None, 1).ok(),
        Some(Some(Noise { seed: 1, gain: 1.0 }))
    );
    for (noise, gain) in [(false, 1.0), (true, 0.0), (true, f64::INFINITY), (true, f64::NAN)] {
        assert!(Noise::asked(noise, Some(gain), 1).is_err(), "{noise} {gain}");
    }
}
