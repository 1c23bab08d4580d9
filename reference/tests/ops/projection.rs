//! Linear layers that keep their weights narrow.

use half::bf16;
use reference::Tensor;
use reference::ops::projection::{PANEL, Projection, ROWS};

/// Weights that bf16 holds, that f32 holds, and that neither holds; more outputs than a panel and more rows than a block.
#[test]
fn what_is_kept_narrow_is_multiplied_as_it_was() {
    let (rows, inputs, outputs) = (ROWS + 3, 5, PANEL + 7);
    let wave = |n: usize, step: f64| (0..n).map(move |i| (i as f64 * step).sin());
    let x = Tensor::new([rows, inputs], wave(rows * inputs, 0.7).collect());
    let narrow: [fn(f64) -> f64; 3] = [|w| bf16::from_f32(w as f32).to_f64(), |w| f64::from(w as f32), |w| w];
    for (at, narrow) in narrow.into_iter().enumerate() {
        let weight = Tensor::new([outputs, inputs], wave(outputs * inputs, 1.3).map(narrow).collect());
        let bias: Vec<f64> = wave(outputs, 2.1).collect();
        let got = Projection::new(weight.clone(), Some(bias.clone()));
        let kept = ["weight: Bf16(", "weight: F32(", "weight: Own("][at];
        assert!(format!("{got:?}").contains(kept), "{kept}");
        assert_eq!(got.row(PANEL + 2), weight.row(PANEL + 2));
        let got = got.apply(&x);
        let mut want = weight.apply(&x);
        for row in 0..rows {
            want.row_mut(row).iter_mut().zip(&bias).for_each(|(y, &b)| *y += b);
        }
        for (a, b) in got.data.iter().zip(&want.data) {
            assert!((a - b).abs() < 1e-14, "{a} {b}");
        }
    }
}
