//! Numbers that carry the bound of the error of a computation in a type of any unit roundoff u, whose sums may be added in any order.
//!
//! An operation passes on the bounds of its operands to first order, so that sums in a type of few digits, whose error may be as large
//! as they are, leave a bound; and it adds its own rounding ([`reference::errors`]). A sum of many terms adds that of [`Terms`], which
//! looks at the terms one by one: their number, their sizes, and how many roundings move together.

use reference::Real;
use reference::errors::{ErrorModel, Number};
use safetensors::Dtype;

use super::drift::Equal;
use super::sum::Terms;
use super::{Call, half_spacing};

/// A number, and how far a kernel may be from it.
pub(super) type Near = Number<AnyOrder>;

/// The bound of an error, and the unit roundoff of the type that a kernel computes in; 0 of a constant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnyOrder {
    error: f64,
    u: f64,
}

impl Call {
    /// A number without an error, for a kernel that computes in the call's type.
    pub(super) fn exact(&self, value: f64) -> Near {
        self.near(value, 0.0)
    }

    /// A number that is known except for this error.
    pub(super) fn near(&self, value: f64, error: f64) -> Near {
        Near::with(value, AnyOrder { error, u: self.u })
    }

    /// The sum of terms that are exact, or products of two exact numbers.
    pub(super) fn sum(&self, terms: impl Iterator<Item = f64> + Clone) -> Near {
        let terms = Terms::of(terms, self.u);
        self.near(terms.sum, terms.error())
    }

    /// The sum of the products of the elements of two vectors.
    pub(super) fn dot(&self, a: &[f64], b: &[f64]) -> Near {
        let terms = Terms::dot(a, b, self.u);
        self.near(terms.sum, terms.error())
    }

    /// The sum of terms whose errors are added up, since they may share them.
    pub(super) fn sum_near(&self, terms: &[Near]) -> Near {
        let sum = self.sum(terms.iter().map(|term| term.value()));
        wider(sum, terms.iter().map(|term| term.error()).sum())
    }

    /// The sum of terms whose errors are independent, except those of equal terms.
    pub(super) fn sum_independent(&self, terms: &[Near]) -> Near {
        let sum = self.sum(terms.iter().map(|term| term.value()));
        let equal = Equal::of(terms.iter().map(|term| term.value()));
        wider(sum, equal.together(terms.iter().map(|term| term.error())))
    }
}

/// The exponentials of numbers less the largest of them, whose error all of them share; 0 of what is masked by −∞, though its error may
/// be infinite.
pub(super) fn powers(scores: &[Near]) -> Vec<Near> {
    let masked = |x: &Near| x.value() == f64::NEG_INFINITY;
    let seen = scores.iter().filter(|x| !masked(x)).copied();
    let most = seen.fold(Near::NEG_INFINITY, Near::max);
    let power = |x: &Near| if masked(x) { Near::ZERO } else { (*x - most).exp() };
    scores.iter().map(power).collect()
}

/// The number with an error more.
pub(super) fn wider(x: Near, error: f64) -> Near {
    let AnyOrder { error: own, u } = x.model();
    Near::with(x.value(), AnyOrder { error: own + error, u })
}

/// A number that follows from another, with its error and a step that may be lost below the normal numbers of f32.
pub(super) fn result(of: Near, value: f64, error: f64) -> Near {
    let u = of.model().u;
    let error = error + f64::from(f32::MIN_POSITIVE) * u;
    Near::with(value, AnyOrder { error, u })
}

/// The number as a type stores it: half a spacing more.
pub(super) fn stored(x: Near, dtype: Dtype) -> Near {
    wider(x, half_spacing(dtype, x.value().abs() + x.error()))
}

/// SiLU of a number, g/(1 + e^−g), and how far a kernel may be from it: the relative error of the exponential, (4 + 2|g|)·u, as far as
/// it counts in the sum, and 4u of the sum and the quotient. Where f32's exponential ends, at 2^127.5 in some libraries, 0 is right, too.
///
/// The error of the number itself is multiplied by the slope of SiLU; its second derivative is at most ½, so that ¼·error² is more than
/// the rest.
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
