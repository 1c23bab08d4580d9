//! Operations whose error follows from the reference itself, which runs on numbers that carry it ([`Bounded`]).
//!
//! The error of such a number is that of a computation in f32. It is proportional to the unit roundoff, to first order, so that of
//! another type is as many times as large as its unit is; one percent is added for the rest.
//!
//! Such numbers count the roundings of a sum as independent. Where they are not, as with equal terms, the operation widens its bounds
//! by [`widening`](super::sum::widening): errors are carried on in proportion.

use reference::ops::rmsnorm::rmsnorm;
use reference::{Bounded, Tensor as Numbers};

use super::{Call, Output, Tensor, half_spacing};

/// A tensor's numbers, which are exact, in this shape.
pub(super) fn exact(tensor: &Tensor, shape: impl Into<Vec<usize>>) -> Numbers<Bounded> {
    Numbers::new(shape, numbers(&tensor.data))
}

/// Numbers that are exact.
pub(super) fn numbers(data: &[f64]) -> Vec<Bounded> {
    data.iter().map(|x| Bounded::new(*x, 0.0)).collect()
}

/// A number that a kernel has in f32.
pub(super) fn constant(call: &Call, name: &str) -> Bounded {
    reference::Real::from_f64(call.number(name))
}

/// The error of a number in the type that a kernel computes in.
pub(super) fn error(call: &Call, number: Bounded) -> f64 {
    let units = call.u / half_spacing(safetensors::Dtype::F32, 1.0);
    let error = number.error();
    match number.value().is_finite() {
        true if error.is_nan() => f64::INFINITY,
        true => 1.01 * error * units,
        // What is infinite or NaN meets only itself.
        false => 0.0,
    }
}

/// Norms rows by what the call has: `weight`, and nothing at all if `norm` is none. By a fault, rows are not divided by their root mean
/// squares.
pub(super) fn normed(call: &Call, rows: &mut Numbers<Bounded>, eps: Bounded, divided: bool) {
    if call.word("norm") == "none" {
        return;
    }
    let weight = call.optional("weight").map(|weight| numbers(&weight.data));
    match weight {
        weight if divided => rmsnorm(rows, weight.as_deref(), eps),
        Some(weight) => {
            let rows = rows.data.chunks_exact_mut(weight.len());
            rows.for_each(|row| row.iter_mut().zip(&weight).for_each(|(x, weight)| *x *= *weight));
        }
        None => {}
    }
}

/// An output of these numbers, in rows whose bounds are as many times as wide ([`super::sum::widening`]).
pub(super) fn output(
    call: &Call,
    name: &'static str,
    shape: Vec<usize>,
    numbers: &[Bounded],
    widenings: &[f64],
) -> Output {
    let of = |(row, widening): (&[Bounded], &f64)| -> Vec<(f64, f64)> {
        let of = |number: &Bounded| (number.value(), widening * error(call, *number));
        row.iter().map(of).collect()
    };
    let rows = numbers.chunks((numbers.len() / widenings.len().max(1)).max(1));
    let (value, error) = rows.zip(widenings).flat_map(of).unzip();
    Output::new(name, shape, value, error)
}
