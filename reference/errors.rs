//! Numbers that carry the error of their computation. If the reference runs on these numbers, every result has a bound of its
//! distance from the result of a correct kernel. Values are in f64; an [`ErrorModel`] propagates the errors of operands through
//! an operation.
//!
//! Every error model adds the rounding error of the operation itself, in units of u·|result| with u = [`U`] = 2⁻²⁴ for f32:
//!
//! | operation | units of rounding error |
//! |---|---|
//! | sum, product | 1 |
//! | quotient, square root | 3: enough for a multiplication by the reciprocal, and for `rsqrtf` |
//! | eˣ | 4 + 2·\|x\|: 2 ulp, and the rounding of x·log₂e in kernels that compute a power of 2 |
//! | ln(1 + x) | 4 |
//!
//! A model may have a tighter bound for a sum of many terms than the sum of the rounding errors of its additions. The
//! operators `==` and `<` compare the values only, not the errors.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::Real;
use crate::ops::linear::Product;
use crate::real::vectorized;

/// Unit roundoff of f32, relative (half a unit in the last place): 2⁻²⁴.
pub const U: f64 = 1.0 / (1 << 24) as f64;

/// Factor λ of the error bound of a sum: the bound is λ times the root of the sum of squared rounding errors. If rounding
/// errors are independent, at most one sum in 10¹³ exceeds the bound (Hoeffding: 2·e^(−λ²/2)). Sums of a tensor core, which
/// truncates, stay within the bound for fewer than 36,000 terms.
pub const LAMBDA: f64 = 8.0;

/// Rounding error of one sum or product, in units of [`U`]·|result|. The constants below are for other operations, in
/// the same units.
pub const ONE_ROUNDING: f64 = 1.0;
/// A quotient.
pub const QUOTIENT: f64 = 3.0;
/// A square root.
pub const ROOT: f64 = 3.0;
/// ln(1 + x).
pub const LOGARITHM: f64 = 4.0;
/// eˣ: the first number, and the second for each unit of |x|.
pub const EXPONENTIAL: [f64; 2] = [4.0, 2.0];

/// An f64 value with its error state, from which the error model `M` computes the error of the value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Number<M> {
    value: f64,
    model: M,
}

/// Error state of a [`Number`], and the rules that propagate errors through operations. Depending on the implementation, the
/// error of a number is a bound or a variance. The default methods are for bounds.
pub trait ErrorModel: Copy + Debug + Default + Send + Sync + 'static {
    /// Error state of the constant 0.
    const ZERO: Self;
    /// Error state of the constant 1.
    const ONE: Self = Self::ZERO;
    /// Error state of the constant −∞.
    const NEG_INFINITY: Self = Self::ZERO;
    /// Vector of numbers in a layout for fast dot products, see [`Self::dot`].
    type Row;

    /// Returns the error state of a number whose value is `value` and whose error is `error`.
    fn off(value: f64, error: f64) -> Self;

    /// Returns the error of a number: a bound, or a variance.
    fn error(x: Number<Self>) -> f64;

    /// Returns the unit roundoff of operations on a number with this error state.
    #[inline(always)]
    fn unit(self) -> f64 {
        U
    }

    /// Returns this error state with the given unit roundoff; unchanged if the model has only one unit roundoff.
    #[inline(always)]
    fn in_unit(self, _: f64) -> Self {
        self
    }

    /// Returns the error state of a result `value`. `brought` is the error propagated from the operands. The rounding of the
    /// result itself adds an error of `units`·`u`·|value|, with the unit roundoff `u`.
    fn rounded(value: f64, brought: f64, units: f64, u: f64) -> Self;

    /// Returns the error state of the sum a + b.
    fn sum(value: f64, a: Number<Self>, b: Number<Self>) -> Self;

    /// Returns the error that the operands propagate to a·b.
    #[inline(always)]
    fn product(a: Number<Self>, b: Number<Self>) -> f64 {
        let (of_a, of_b) = (a.error(), b.error());
        a.value.abs() * of_b + b.value.abs() * of_a + of_a * of_b
    }

    /// Returns the error that the operands propagate to a/b.
    fn quotient(value: f64, a: Number<Self>, b: Number<Self>) -> f64 {
        let (of_a, of_b) = (a.error(), b.error());
        let least = b.value.abs() - of_b;
        if least > 0.0 {
            (of_a + value.abs() * of_b) / least
        } else {
            f64::INFINITY
        }
    }

    /// Returns the error that x propagates to √x.
    fn root(value: f64, x: Number<Self>) -> f64 {
        let down = value - (x.value - x.error()).max(0.0).sqrt();
        let up = (x.value + x.error()).sqrt() - value;
        down.max(up)
    }

    /// Returns the error that x propagates to eˣ.
    fn exponential(value: f64, x: Number<Self>) -> f64 {
        value * x.error().exp_m1()
    }

    /// Returns the error that x propagates to ln(1 + x).
    fn logarithm(value: f64, x: Number<Self>) -> f64 {
        let least = (x.value - x.error()).ln_1p();
        match (value.is_finite(), least.is_nan()) {
            (false, _) => 0.0,
            (true, true) => f64::INFINITY,
            (true, false) => value - least,
        }
    }

    /// Creates the maximum or the minimum of a and b; `value` is the selected value. If a and b differ by more than the sum of
    /// their errors, the result has the error of the selected operand, otherwise the larger of the two errors.
    fn one_of(value: f64, a: Number<Self>, b: Number<Self>) -> Number<Self> {
        let (of_a, of_b) = (a.error(), b.error());
        let error = if (a.value - b.value).abs() > of_a + of_b {
            if value == a.value { of_a } else { of_b }
        } else {
            of_a.max(of_b)
        };
        Number::with(value, Self::off(value, error).in_unit(a.unit(b)))
    }

    /// Prepares a vector for [`dot`](Self::dot).
    fn row<'a>(numbers: impl Iterator<Item = &'a Number<Self>>) -> Self::Row;

    /// Returns the dot product of two rows of the same length.
    fn dot(a: &Self::Row, b: &Self::Row) -> Number<Self>;
}

impl<M: ErrorModel> Number<M> {
    /// Creates a number with the given error state.
    #[inline(always)]
    pub fn with(value: f64, model: M) -> Self {
        Self { value, model }
    }

    /// Creates a number with this error.
    #[inline(always)]
    pub fn new(value: f64, error: f64) -> Self {
        Self::with(value, M::off(value, error))
    }

    /// Creates a number without an error.
    pub fn exact(value: impl Into<f64>) -> Self {
        Self::new(value.into(), 0.0)
    }

    /// Returns the value.
    #[inline(always)]
    pub fn value(self) -> f64 {
        self.value
    }

    /// Returns the error state of the number.
    #[inline(always)]
    pub fn model(self) -> M {
        self.model
    }

    /// Returns the error by the model: for a bound, the largest distance of the value from the result of a correct kernel.
    #[inline(always)]
    pub fn error(self) -> f64 {
        M::error(self)
    }

    /// Creates the rounded result of an operation, see [`ErrorModel::rounded`]. `u` is the largest unit roundoff of the operands.
    #[inline(always)]
    fn rounded(value: f64, brought: f64, units: f64, u: f64) -> Self {
        Self::with(value, M::rounded(value, brought, units, u))
    }

    #[inline(always)]
    fn unit(self, other: Self) -> f64 {
        self.model.unit().max(other.model.unit())
    }
}

impl<M> From<Number<M>> for f64 {
    fn from(x: Number<M>) -> Self {
        x.value
    }
}

impl<M> PartialEq for Number<M> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<M> PartialOrd for Number<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<M: ErrorModel> Add for Number<M> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let value = self.value + other.value;
        Self::with(value, M::sum(value, self, other))
    }
}

impl<M: ErrorModel> Sub for Number<M> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl<M> Neg for Number<M> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self {
            value: -self.value,
            ..self
        }
    }
}

impl<M: ErrorModel> Mul for Number<M> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let value = self.value * other.value;
        Self::rounded(value, M::product(self, other), ONE_ROUNDING, self.unit(other))
    }
}

impl<M: ErrorModel> Div for Number<M> {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        Self::rounded(value, M::quotient(value, self, other), QUOTIENT, self.unit(other))
    }
}

impl<M: ErrorModel> AddAssign for Number<M> {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl<M: ErrorModel> MulAssign for Number<M> {
    #[inline(always)]
    fn mul_assign(&mut self, other: Self) {
        *self = *self * other;
    }
}

impl<M: ErrorModel> Real for Number<M> {
    const ZERO: Self = Self {
        value: 0.0,
        model: M::ZERO,
    };
    const ONE: Self = Self {
        value: 1.0,
        model: M::ONE,
    };
    const NEG_INFINITY: Self = Self {
        value: f64::NEG_INFINITY,
        model: M::NEG_INFINITY,
    };

    /// Keeps the value x in f64. Its error is the distance of x to the nearest f32, or 0 if x is infinite or NaN.
    fn from_f64(x: f64) -> Self {
        let error = (x - f64::from(x as f32)).abs();
        Self::new(x, if x.is_finite() { error } else { 0.0 })
    }

    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Self::rounded(value, M::root(value, self), ROOT, self.model.unit())
    }

    fn ln_1p(self) -> Self {
        let value = self.value.ln_1p();
        Self::rounded(value, M::logarithm(value, self), LOGARITHM, self.model.unit())
    }

    fn exp(self) -> Self {
        let value = self.value.exp();
        if self.value == f64::NEG_INFINITY {
            return Self::new(value, 0.0);
        }
        let brought = M::exponential(value, self);
        Self::rounded(
            value,
            brought,
            EXPONENTIAL[0] + EXPONENTIAL[1] * self.value.abs(),
            self.model.unit(),
        )
    }

    fn max(self, other: Self) -> Self {
        M::one_of(self.value.max(other.value), self, other)
    }

    fn min(self, other: Self) -> Self {
        M::one_of(self.value.min(other.value), self, other)
    }

    fn larger(self, other: Self) -> Self {
        M::one_of(self.value.larger(other.value), self, other)
    }

    fn smaller(self, other: Self) -> Self {
        M::one_of(self.value.smaller(other.value), self, other)
    }

    fn exp_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.exp());
    }

    fn product(product: &Product<'_, Self>, y: &mut [Self]) {
        let [x, w, y_stride] = [product.x_stride, product.w_strides.0, product.y_stride];
        let rows: Vec<M::Row> = (0..product.m)
            .map(|row| M::row(product.x[row * x..][..product.k].iter()))
            .collect();
        for column in 0..product.n {
            let w = &product.w[column * w..];
            let w = match product.w_strides.1 {
                1 => M::row(w[..product.k].iter()),
                stride => M::row(w.iter().step_by(stride).take(product.k)),
            };
            for (row, x) in rows.iter().enumerate() {
                let y = &mut y[row * y_stride + column];
                let sum = vectorized!({ M::dot(x, &w) });
                *y = if product.add { *y + sum } else { sum };
            }
        }
    }
}
