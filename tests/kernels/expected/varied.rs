//! Numbers with the variance of their error.

use reference::Tensor;
use safetensors::Dtype;
use ulplab_swap_ffn::varied::{Variance, Varied, rounded, stored};

fn wave(len: usize, step: f64) -> Vec<f32> {
    (0..len).map(|at| (at as f64 * step).sin() as f32 * 1.5).collect()
}

/// A product of bf16 operands is as far from that of the numbers as its variance says, and no farther than it allows.
#[test]
fn rounded_operands_are_off_by_as_much_as_is_said() {
    let (rows, inner, outputs) = (40, 256, 30);
    let (x, w) = (wave(rows * inner, 0.7), wave(outputs * inner, 1.3));
    let exact = |x: &[f32]| x.iter().map(|x| Varied::exact(*x)).collect::<Vec<Varied>>();
    let weight = Tensor::new([outputs, inner], exact(&w));
    let given = exact(&x)
        .into_iter()
        .map(|x| rounded(x, Dtype::BF16, 1.0))
        .collect::<Vec<Varied>>();
    let said = weight.apply(&Tensor::new([rows, inner], given));
    let rounded: Vec<f32> = x.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    let weight = Tensor::new([outputs, inner], w);
    let got = weight.apply(&Tensor::new([rows, inner], rounded));
    let ratios = said.data.iter().zip(&got.data);
    let ratios: Vec<f64> = ratios
        .map(|(said, got)| (f64::from(*got) - said.value()).abs() / said.error())
        .collect();
    let largest = ratios.iter().copied().fold(0.0, f64::max);
    let mean = (ratios.iter().map(|ratio| ratio * ratio).sum::<f64>() / ratios.len() as f64).sqrt();
    assert!(largest < 0.8, "{largest}");
    // One standard deviation is an eighth of what is allowed; half a spacing is the most that a number may be off.
    assert!((0.04..0.15).contains(&mean), "{mean}");
}

#[test]
fn what_is_stored_exactly_has_no_error() {
    let exact = stored(Varied::exact(1.0 + 2f64.powi(-9)), Dtype::BF16);
    assert_eq!((exact.value(), exact.model().0), (1.0, 0.0));
    let inexact = stored(Varied::with(1.0, Variance(1e-9)), Dtype::BF16);
    assert!(inexact.model().0 > 1e-9);
}
