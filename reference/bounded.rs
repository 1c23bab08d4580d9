//! The bound of the error of a computation in f32, by the running error analysis of Wilkinson (Higham, *Accuracy and Stability of
//! Numerical Algorithms*, §3.3). An operation passes on the bounds of its operands to all orders, and adds its own rounding
//! ([`crate::errors`]).
//!
//! A sum s of n terms t adds the smaller of (n − 1)·u·Σ|t|, the bound for any order of additions, one by one, in lanes, in a
//! tree, or fused, and λ·u·√(n·(s² + Σt²)), which is likely ([`LAMBDA`]). The likely bound is that of Higham and Mary (*A New Approach to
//! Probabilistic Rounding Error Analysis*, 2019), where s² + Σt² is the mean square of partial sums over all orders. It holds for each
//! sum apart; errors that terms bring are added up, since terms may share them.
//!
//! A result below the normal range of f32 is given one subnormal step more: kernels keep subnormal numbers. An error that cannot be
//! bounded, such as that of a quotient by what may be 0, is infinite or NaN: a judge must refuse one that is not finite.

use crate::errors::{ErrorModel, LAMBDA, Number, U};

/// Smallest step of f32, 2⁻¹⁴⁹.
const STEP: f64 = f32::from_bits(1) as f64;

/// A number, and the bound of the error of its computation in f32.
pub type Bounded = Number<Bound>;

/// Statistics of the error of a number.
///
/// A sum is not rounded before it is used: it has the magnitudes of its terms, so that its bound does not depend on their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// The error that the terms bring, without the sum's own rounding.
    error: f64,
    /// Sum of the magnitudes of the terms.
    magnitude: f64,
    /// Sum of the squares of the terms, each as large as it may be.
    squares: f64,
    /// Number of terms: 1 for a number that is not a sum, 0 for 0.
    terms: f64,
}

impl ErrorModel for Bound {
    const ZERO: Self = Self {
        error: 0.0,
        magnitude: 0.0,
        squares: 0.0,
        terms: 0.0,
    };
    const ONE: Self = Self {
        magnitude: 1.0,
        squares: 1.0,
        terms: 1.0,
        ..Self::ZERO
    };
    const NEG_INFINITY: Self = Self {
        terms: 1.0,
        ..Self::ZERO
    };
    type Row = Parts;

    #[inline(always)]
    fn off(value: f64, error: f64) -> Self {
        Self {
            error,
            magnitude: value.abs(),
            squares: (value.abs() + error).powi(2),
            terms: 1.0,
        }
    }

    #[inline(always)]
    fn error(x: Bounded) -> f64 {
        let sum = x.model();
        if sum.terms <= 1.0 {
            return sum.error;
        }
        // A term may be off by its own error before it is added.
        let worst = (sum.terms - 1.0) * (sum.magnitude + sum.error) * (1.0 + sum.terms * U);
        let partial = (x.value().abs() + sum.error).powi(2) + sum.squares;
        sum.error + U * worst.min(LAMBDA * (sum.terms * partial).sqrt())
    }

    #[inline(always)]
    fn rounded(value: f64, brought: f64, units: f64, u: f64) -> Self {
        Self::off(value, brought + units * u * (value.abs() + brought) + STEP)
    }

    #[inline(always)]
    fn sum(_: f64, a: Bounded, b: Bounded) -> Self {
        let (a, b) = (a.model(), b.model());
        Self {
            error: a.error + b.error,
            magnitude: a.magnitude + b.magnitude,
            squares: a.squares + b.squares,
            terms: a.terms + b.terms,
        }
    }

    fn row<'a>(numbers: impl Iterator<Item = &'a Bounded>) -> Parts {
        let (values, errors) = numbers.map(|x| (x.value(), x.error())).unzip();
        Parts { values, errors }
    }

    /// The sum as products and sums of single numbers bound it.
    #[inline(always)]
    fn dot(a: &Parts, b: &Parts) -> Bounded {
        let ((x, x_rest), (x_errors, x_errors_rest)) = (a.values.as_chunks::<LANES>(), a.errors.as_chunks::<LANES>());
        let ((w, w_rest), (w_errors, w_errors_rest)) = (b.values.as_chunks::<LANES>(), b.errors.as_chunks::<LANES>());
        let mut lanes = Lanes::default();
        for i in 0..x.len() {
            for lane in 0..LANES {
                lanes.add(lane, [x[i][lane], x_errors[i][lane]], [w[i][lane], w_errors[i][lane]]);
            }
        }
        for i in 0..x_rest.len() {
            lanes.add(i, [x_rest[i], x_errors_rest[i]], [w_rest[i], w_errors_rest[i]]);
        }
        let sum = Self {
            error: lanes.error.iter().sum(),
            magnitude: lanes.magnitude.iter().sum(),
            squares: lanes.squares.iter().sum(),
            terms: a.values.len() as f64,
        };
        Bounded::with(lanes.value.iter().sum(), sum)
    }
}

/// Values and errors of a vector, apart, so that many are multiplied at a time.
#[derive(Debug)]
pub struct Parts {
    values: Vec<f64>,
    errors: Vec<f64>,
}

const LANES: usize = 8;

/// Sums of products, in parts that are computed side by side.
#[derive(Default)]
struct Lanes {
    value: [f64; LANES],
    error: [f64; LANES],
    magnitude: [f64; LANES],
    squares: [f64; LANES],
}

impl Lanes {
    /// Adds the product of two numbers with their errors.
    #[inline(always)]
    fn add(&mut self, lane: usize, [x, x_error]: [f64; 2], [w, w_error]: [f64; 2]) {
        let term = x * w;
        let brought = x.abs() * w_error + w.abs() * x_error + x_error * w_error;
        let error = brought + U * (term.abs() + brought) + STEP;
        self.value[lane] += term;
        self.error[lane] += error;
        self.magnitude[lane] += term.abs();
        self.squares[lane] += (term.abs() + error) * (term.abs() + error);
    }
}
