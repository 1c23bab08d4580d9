//! Rotary positions of interleaved pairs.

use reference::Tensor;
use reference::ops::rope::{Rope, Yarn, frequencies};

#[test]
fn published_yarn_frequencies() {
    let yarn = Yarn {
        factor: 16.0,
        original_positions: 65536.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
    };
    let f = frequencies(64, 1.6e5, Some(yarn));
    let plain = frequencies(64, 1.6e5, None);
    assert_eq!(f[..16], plain[..16]);
    let close = |got: f32, want: f64| (f64::from(got) / want - 1.0).abs() < 2.0 * f64::from(f32::EPSILON);
    assert!(
        close(f[16], 2.265_625e-3) && close(f[24], 1.953_125e-5) && close(f[31], 5.680_529_036_9e-7),
        "{f:?}"
    );
}

#[test]
fn inverse_undoes() {
    let mut rope = Rope::<f64>::new(frequencies(8, 1e4, None));
    rope.extend(1000);
    let start: Vec<f64> = (0..2 * 3 * 12).map(|i| (i as f64).sin()).collect();
    let mut x = Tensor::new([2, 3, 12], start.clone());
    rope.apply(&mut x, 3, |token| 998 + token, false);
    assert_eq!(x.data[..4], start[..4], "channels without position stay");
    assert_ne!(x.data[4..12], start[4..12]);
    rope.apply(&mut x, 3, |token| 998 + token, true);
    assert!(
        x.data
            .iter()
            .zip(&start)
            .all(|(a, b)| (a - b).abs() < 4.0 * f64::EPSILON)
    );
}
