//! Numbers with an error bound, for computations with any unit roundoff u. Computations may add the terms of a sum in any order.
//!
//! An operation on these numbers propagates the bounds of its operands to first order, and adds its own rounding error
//! ([`reference::errors`]). A first-order bound exists even for sums in a short type such as bf16, whose error may be as large as
//! the sum. The rounding error of a sum of many terms is that of [`Terms`]: it depends on the number and the sizes of the terms,
//! and on how many of their rounding errors are equal.

use reference::Real;
use reference::errors::{ErrorModel, Number};
use safetensors::Dtype;

use super::drift::Equal;
use super::sum::Terms;
use super::{Call, half_spacing};

/// A number with a bound of the error that a kernel may make.
pub(super) type Near = Number<AnyOrder>;

/// Error bound of a number, and unit roundoff of the type in which the kernel computes; `u` is 0 for constants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnyOrder {
    error: f64,
    u: f64,
}

impl Call {
    /// Creates a number without an error, for a kernel that computes with the unit roundoff of the call.
    pub(super) fn exact(&self, value: f64) -> Near {
        self.near(value, 0.0)
    }

    /// Creates a number with this error bound, for a kernel that computes with the unit roundoff of the call.
    pub(super) fn near(&self, value: f64, error: f64) -> Near {
        Near::with(value, AnyOrder { error, u: self.u })
    }

    /// Returns the sum of `terms` and its error bound. Each term is exact, or is the product of two exact numbers.
    pub(super) fn sum(&self, terms: impl Iterator<Item = f64> + Clone) -> Near {
        let terms = Terms::of(terms, self.u);
        self.near(terms.sum, terms.error())
    }

    /// Returns the dot product of two exact vectors, with its error bound.
    pub(super) fn dot(&self, a: &[f64], b: &[f64]) -> Near {
        let terms = Terms::dot(a, b, self.u);
        self.near(terms.sum, terms.error())
    }

    /// Returns the sum of terms with errors. The errors of the terms are added up, because they may have a common cause.
    pub(super) fn sum_near(&self, terms: &[Near]) -> Near {
        let sum = self.sum(terms.iter().map(|term| term.value()));
        wider(sum, terms.iter().map(|term| term.error()).sum())
    }

    /// Returns the sum of terms whose errors are independent, except that terms of equal value have equal errors.
    pub(super) fn sum_independent(&self, terms: &[Near]) -> Near {
        let sum = self.sum(terms.iter().map(|term| term.value()));
        let equal = Equal::of(terms.iter().map(|term| term.value()));
        wider(sum, equal.together(terms.iter().map(|term| term.error())))
    }
}

/// Returns the exponentials e^(x − max) of all scores x. All exponentials share the error of the maximum. A score of −∞ is
/// masked: its exponential is 0, even if the score's error bound is infinite.
pub(super) fn powers(scores: &[Near]) -> Vec<Near> {
    let masked = |x: &Near| x.value() == f64::NEG_INFINITY;
    let seen = scores.iter().filter(|x| !masked(x)).copied();
    let most = seen.fold(Near::NEG_INFINITY, Near::max);
    let power = |x: &Near| if masked(x) { Near::ZERO } else { (*x - most).exp() };
    scores.iter().map(power).collect()
}

/// Adds `error` to the error bound of a number.
pub(super) fn wider(x: Near, error: f64) -> Near {
    let AnyOrder { error: own, u } = x.model();
    Near::with(x.value(), AnyOrder { error: own + error, u })
}

/// Creates a result with the unit roundoff u of `of`, an operand of the operation. Kernels also round subnormal results, so the
/// error bound grows by u times the smallest normal f32.
pub(super) fn result(of: Near, value: f64, error: f64) -> Near {
    let u = of.model().u;
    let error = error + f64::from(f32::MIN_POSITIVE) * u;
    Near::with(value, AnyOrder { error, u })
}

/// Returns a number after a kernel has stored it as `dtype`: half a spacing of the type is added to the error bound.
pub(super) fn stored(x: Near, dtype: Dtype) -> Near {
    wider(x, half_spacing(dtype, x.value().abs() + x.error()))
}

/// SiLU, g/(1 + e^−g), with an error bound. The relative error has two parts. The exponential errs by (4 + 2|g|)·u, which counts
/// in proportion to its share of the sum 1 + e^−g. The sum and the quotient add 4u. In some libraries, an f32 exponential
/// overflows from 2^127.5 on; if it may overflow, the bound also admits the result 0.
///
/// The error of g itself is multiplied by the slope of SiLU. The second derivative is at most ½, so ¼·error² bounds the
/// remainder.
pub(super) fn silu(x: Near) -> Near {
    let (g, error, u) = (x.value(), x.error(), x.model().u);
    let power = (-g).exp();
    let sigmoid = 1.0 / (1.0 + power);
    let value = g / (1.0 + power);
    let relative = match power > 2f64.powf(127.4) {
        true => 1.0,
        false => ((4.0 + 2.0 * g.abs()) * (1.0 - sigmoid) + 4.0) * u,
    };
    let slope = (sigmoid * (1.0 + g * (1.0 - sigmoid))).abs();
    result(x, value, value.abs() * relative + slope * error + 0.25 * error * error)
}

impl ErrorModel for AnyOrder {
    const ZERO: Self = Self { error: 0.0, u: 0.0 };
    type Row = Vec<Near>;

    fn off(_: f64, error: f64) -> Self {
        Self { error, u: 0.0 }
    }

    fn error(x: Near) -> f64 {
        x.model().error
    }

    fn unit(self) -> f64 {
        self.u
    }

    fn in_unit(self, u: f64) -> Self {
        Self { u, ..self }
    }

    fn rounded(value: f64, brought: f64, units: f64, u: f64) -> Self {
        let error = brought + units * u * (value.abs() + brought);
        Self { error, u }
    }

    fn sum(value: f64, a: Near, b: Near) -> Self {
        let u = a.model().u.max(b.model().u);
        Self::rounded(value, a.error() + b.error(), 1.0, u)
    }

    fn product(a: Near, b: Near) -> f64 {
        a.value().abs() * b.error() + b.value().abs() * a.error()
    }

    fn quotient(value: f64, a: Near, b: Near) -> f64 {
        (a.error() + value.abs() * b.error()) / b.value().abs()
    }

    fn root(value: f64, x: Near) -> f64 {
        match x.error() {
            0.0 => 0.0,
            error => error / (2.0 * value),
        }
    }

    fn exponential(value: f64, x: Near) -> f64 {
        value * x.error()
    }

    fn row<'a>(numbers: impl Iterator<Item = &'a Near>) -> Vec<Near> {
        numbers.copied().collect()
    }

    fn dot(a: &Vec<Near>, b: &Vec<Near>) -> Near {
        let of = |numbers: &[Near]| numbers.iter().map(|x| x.value()).collect::<Vec<f64>>();
        let u = a.iter().chain(b).fold(0.0, |u, x| f64::max(u, x.model().u));
        let terms = Terms::dot(&of(a), &of(b), u);
        let brought = a.iter().zip(b).map(|(a, b)| Self::product(*a, *b)).sum::<f64>();
        let error = terms.error() + brought * (1.0 + u);
        Near::with(terms.sum, Self { error, u })
    }
}
