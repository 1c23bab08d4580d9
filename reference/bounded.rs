//! Bound of the error of a computation in f32, by the running error analysis of Wilkinson (Higham, *Accuracy and Stability of
//! Numerical Algorithms*, §3.3). Each operation propagates the error bounds of its operands, including products of errors, and
//! adds the bound of its own rounding ([`crate::errors`]).
//!
//! For a sum s of n terms t, with the unit roundoff u ([`U`]), the rounding bound is the smaller of two bounds:
//! * (n − 1)·u·Σ|t| holds for any order of additions: one by one, in SIMD lanes, in a tree, or fused;
//! * λ·u·√(n·(s² + Σt²)) holds with high probability (λ is [`LAMBDA`]). It follows from the bound of Higham and Mary (*A New
//!   Approach to Probabilistic Rounding Error Analysis*, 2019): s² + Σt² is more than the mean square of the partial sums, taken
//!   over all orders of the additions.
//!
//! The probabilistic bound applies to each sum separately. The error bounds of the terms are added, since the errors of the terms
//! may be correlated.
//!
//! The bound of every result includes one subnormal step, since results below the normal range of f32 are rounded to such steps;
//! kernels are assumed to keep subnormal numbers. If an error cannot be bounded (a quotient whose divisor may be 0), its bound is
//! infinite or NaN: callers that judge a kernel must reject a bound that is not finite.

use crate::errors::{ErrorModel, LAMBDA, Number, U};

/// Smallest positive number of f32, 2⁻¹⁴⁹.
const STEP: f64 = f32::from_bits(1) as f64;

/// An f64 value with a bound of its distance from the result of the same computation in f32.
pub type Bounded = Number<Bound>;

/// State from which the error bound of a number is computed.
///
/// The rounding error of a sum is added only when the sum is used. Until then, statistics of the terms are collected, so that
/// the bound does not depend on the order of the additions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// Sum of the error bounds of the terms, without the rounding of the sum itself.
    error: f64,
    /// Sum of the magnitudes of the terms.
    magnitude: f64,
    /// Σ (|t| + e)² over the terms t, where e is the error bound of t.
    squares: f64,
    /// Number of terms: 1 for a number that is not a sum, 0 for the constant 0.
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
        // Bound Σ|t| by magnitude + error, since each computed term may differ from its exact value by its error.
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

    /// Computes a dot product with the same error bound as separate products and sums of [`Bounded`] numbers.
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

/// Values and errors of a vector in separate arrays, so that several products can be computed at a time (SIMD).
#[derive(Debug)]
pub struct Parts {
    values: Vec<f64>,
    errors: Vec<f64>,
}

const LANES: usize = 8;

/// Partial sums of a dot product, one per SIMD lane.
#[derive(Default)]
struct Lanes {
    value: [f64; LANES],
    error: [f64; LANES],
    magnitude: [f64; LANES],
    squares: [f64; LANES],
}

impl Lanes {
    /// Adds the product of two numbers to a lane. Each number is given as [value, error].
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
