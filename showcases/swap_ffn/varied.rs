//! Numbers that carry the variance of their error. The reference runs on these numbers to bound the distance of a kernel that
//! rounds the operands of products. Such rounding errors are larger than those of sums and average out, so a worst-case bound
//! would be too wide.
//!
//! An operation adds the square of its rounding error to the variance ([`reference::errors`]). The additions in a sum s of n
//! products t add a variance of at least n·u²·(s² + Σt²), which holds for any order; u is the unit roundoff
//! ([`Terms::variance`]). Errors of the terms of a sum are taken as independent; products of equal numbers are taken to have
//! equal errors. Both operands of a product or a quotient may have the same error, so the variance is then at most twice that of
//! independent errors. A kernel's number must be within λ = 8 standard deviations of the reference's.

use reference::errors::{ErrorModel, LAMBDA, Number, U};
use safetensors::Dtype;

use ulplab_operations::expected::drift::Equal;
use ulplab_operations::expected::half_spacing;
use ulplab_operations::expected::sum::Terms;

/// A number with the variance of its error.
pub type Varied = Number<Variance>;

/// The variance of an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variance(pub f64);

/// Returns the variance of the sum of two errors with variances `a` and `b` that may be correlated: 2 (a + b) if neither is 0,
/// else a + b.
fn both(a: f64, b: f64) -> f64 {
    if a > 0.0 && b > 0.0 { 2.0 * (a + b) } else { a + b }
}

/// Returns the number after it is stored as `dtype`. An exact f32 number is rounded. A number with an error keeps its value and
/// gets the variance of rounding, because its error may change the direction of the rounding.
pub fn stored(x: Varied, dtype: Dtype) -> Varied {
    let single = x.value() as f32;
    let exact = x.model().0 == 0.0 && f64::from(single) == x.value();
    match dtype {
        Dtype::BF16 if exact => Varied::exact(half::bf16::from_f32(single).to_f64()),
        Dtype::F16 if exact => Varied::exact(half::f16::from_f32(single).to_f64()),
        Dtype::F32 if exact => x,
        _ => rounded(x, dtype, 1.0),
    }
}

/// Adds to a number x the error of rounding x / `scale` to a type. This error is up to half a spacing, uniformly distributed.
pub fn rounded(x: Varied, dtype: Dtype, scale: f64) -> Varied {
    let half = scale * half_spacing(dtype, (x.value() / scale).abs());
    Varied::with(x.value(), Variance(x.model().0 + half * half / 3.0))
}

impl ErrorModel for Variance {
    const ZERO: Self = Self(0.0);
    type Row = Parts;

    fn off(_: f64, error: f64) -> Self {
        Self(error * error)
    }

    fn error(x: Varied) -> f64 {
        LAMBDA * x.model().0.sqrt()
    }

    fn rounded(value: f64, brought: f64, units: f64, u: f64) -> Self {
        Self(brought + (units * u * value).powi(2))
    }

    fn sum(value: f64, a: Varied, b: Varied) -> Self {
        Self::rounded(value, a.model().0 + b.model().0, 1.0, U)
    }

    fn product(a: Varied, b: Varied) -> f64 {
        both(a.value().powi(2) * b.model().0, b.value().powi(2) * a.model().0)
    }

    fn quotient(value: f64, a: Varied, b: Varied) -> f64 {
        both(a.model().0, value.powi(2) * b.model().0) / b.value().powi(2)
    }

    fn root(_: f64, x: Varied) -> f64 {
        match x.model().0 {
            0.0 => 0.0,
            variance => variance / (4.0 * x.value()),
        }
    }

    fn exponential(value: f64, x: Varied) -> f64 {
        match value {
            0.0 => 0.0,
            _ => value.powi(2) * x.model().0,
        }
    }

    fn logarithm(_: f64, x: Varied) -> f64 {
        x.model().0 / (1.0 + x.value()).powi(2)
    }

    fn one_of(value: f64, a: Varied, b: Varied) -> Varied {
        if a.value() == value || value.is_nan() { a } else { b }
    }

    fn row<'a>(numbers: impl Iterator<Item = &'a Varied>) -> Parts {
        let (values, variances): (Vec<f64>, Vec<f64>) = numbers.map(|x| (x.value(), x.model().0)).unzip();
        let exact = variances.iter().all(|variance| *variance == 0.0);
        let equal = (!exact).then(|| Equal::of(values.iter().copied()));
        Parts {
            values,
            variances,
            equal,
        }
    }

    fn dot(a: &Parts, b: &Parts) -> Varied {
        let terms = Terms::dot(&a.values, &b.values, U);
        let carried = |of: &Parts, values: &Parts| match &of.equal {
            None => 0.0,
            Some(equal) => {
                let pairs = values.values.iter().zip(&of.variances);
                equal.sums(pairs.map(|(x, variance)| x * variance.sqrt())).1
            }
        };
        let carried = both(carried(a, b), carried(b, a));
        Varied::with(terms.sum, Variance(carried + terms.variance()))
    }
}

/// Values and variances of the elements of a vector.
#[derive(Debug)]
pub struct Parts {
    values: Vec<f64>,
    variances: Vec<f64>,
    /// Groups of equal numbers, which have equal errors; `None` if all numbers are exact.
    equal: Option<Equal>,
}
