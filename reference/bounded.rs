//! Numbers that carry a bound of the error of their f32 computation: the reference run on [`Bounded`] says, of every number
//! that it computes, how far a right kernel may be from it.
//!
//! This is the running error analysis of Wilkinson (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.3), with values
//! in f64. Every operation adds to the error that its operands bring the error of its own rounding, with
//! u = 2⁻²⁴, half a unit in the last place of f32:
//!
//! | Operation | Error that it adds |
//! |---|---|
//! | sum s of n terms t | the smaller of (n − 1)·u·Σ\|t\|, the bound in whatever order they are added, one by one, in lanes, in a tree, or fused, and λ·u·√(n·(s² + Σt²)), which is likely ([`LAMBDA`]) |
//! | product | u·\|z\| |
//! | quotient, square root | 3·u·\|z\|: reciprocals that are multiplied, and `rsqrtf`, are within it |
//! | eˣ | (4 + 2·\|x\|)·u·\|z\|: two units in the last place, and the rounding of x·log₂e where it is computed as 2 to that |
//! | ln(1 + x) | 4·u·\|z\| |
//!
//! The likely bound is that of Higham and Mary (*A New Approach to Probabilistic Rounding Error Analysis*, 2019), where s² + Σt² is
//! the mean square of partial sums over all orders. It holds for each sum apart; errors that terms bring are added up, since terms
//! may share them.
//!
//! A result below the normal range of f32 is given one subnormal step more: kernels keep subnormal numbers. Comparisons are those of
//! the values: a branch is taken as the reference takes it. An error that cannot be bounded, such as that of a quotient by
//! what may be 0, is infinite or NaN: whoever judges by a bound must refuse one that is not finite.

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::Real;
use crate::ops::linear::Product;
use crate::real::vectorized;

/// Half a unit in the last place of f32, relative: 2⁻²⁴.
const U: f64 = 1.0 / (1 << 24) as f64;
/// Smallest step of f32, 2⁻¹⁴⁹.
const STEP: f64 = f32::from_bits(1) as f64;

/// How many times the root of the sum of squared roundings is taken for a bound: one sum in 10¹³ passes it if roundings are
/// independent (Hoeffding: 2·e^(−λ²/2)), and a tensor core, which truncates, is within it for fewer than 36,000 terms.
pub const LAMBDA: f64 = 8.0;

/// A number in f64, and how far its f32 computation may be from it.
///
/// A sum is not rounded before it is used: it has the number and the magnitudes of its terms, so that its bound does
/// not depend on their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounded {
    value: f64,
    /// What the terms bring, the sum's own rounding not counted.
    error: f64,
    /// Sum of the magnitudes of the terms.
    magnitude: f64,
    /// Sum of the squares of the terms, each as large as it may be.
    squares: f64,
    /// Number of terms: 1 if it is no sum, 0 for 0.
    terms: f64,
}

impl Bounded {
    /// A number that is known but for this error.
    pub fn new(value: f64, error: f64) -> Self {
        Self {
            value,
            error,
            magnitude: value.abs(),
            squares: (value.abs() + error).powi(2),
            terms: 1.0,
        }
    }

    /// A number that f32 has exactly.
    pub fn exact(value: f32) -> Self {
        Self::new(value.into(), 0.0)
    }

    /// The value.
    pub fn value(self) -> f64 {
        self.value
    }

    /// How far a computation in f32 may be from the value.
    pub fn error(self) -> f64 {
        if self.terms <= 1.0 {
            return self.error;
        }
        // A term may be off by its own error before it is added.
        let worst = (self.terms - 1.0) * (self.magnitude + self.error) * (1.0 + self.terms * U);
        let partial = (self.value.abs() + self.error).powi(2) + self.squares;
        self.error + U * worst.min(LAMBDA * (self.terms * partial).sqrt())
    }

    /// A result of one operation, which brings this error and rounds with this many u.
    fn rounded(value: f64, error: f64, units: f64) -> Self {
        Self::new(value, error + units * U * (value.abs() + error) + STEP)
    }
}

impl From<Bounded> for f64 {
    fn from(x: Bounded) -> Self {
        x.value
    }
}

impl PartialEq for Bounded {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialOrd for Bounded {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl Add for Bounded {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            error: self.error + other.error,
            magnitude: self.magnitude + other.magnitude,
            squares: self.squares + other.squares,
            terms: self.terms + other.terms,
        }
    }
}

impl Sub for Bounded {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Bounded {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self {
            value: -self.value,
            ..self
        }
    }
}

impl Mul for Bounded {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let (a, b) = (self.error(), other.error());
        let error = self.value.abs() * b + other.value.abs() * a + a * b;
        Self::rounded(self.value * other.value, error, 1.0)
    }
}

impl Div for Bounded {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let (a, b) = (self.error(), other.error());
        let (value, least) = (self.value / other.value, other.value.abs() - b);
        let error = if least > 0.0 {
            (a + value.abs() * b) / least
        } else {
            f64::INFINITY
        };
        Self::rounded(value, error, 3.0)
    }
}

impl AddAssign for Bounded {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl MulAssign for Bounded {
    #[inline(always)]
    fn mul_assign(&mut self, other: Self) {
        *self = *self * other;
    }
}

impl Real for Bounded {
    const ZERO: Self = Self {
        value: 0.0,
        error: 0.0,
        magnitude: 0.0,
        squares: 0.0,
        terms: 0.0,
    };
    const ONE: Self = Self {
        value: 1.0,
        error: 0.0,
        magnitude: 1.0,
        squares: 1.0,
        terms: 1.0,
    };
    const NEG_INFINITY: Self = Self {
        value: f64::NEG_INFINITY,
        error: 0.0,
        magnitude: 0.0,
        squares: 0.0,
        terms: 1.0,
    };

    /// The number as it is; that f32 does not have it is part of its error.
    fn from_f64(x: f64) -> Self {
        let error = (x - f64::from(x as f32)).abs();
        Self::new(x, if x.is_finite() { error } else { 0.0 })
    }

    fn sqrt(self) -> Self {
        let (value, error) = (self.value.sqrt(), self.error());
        let down = value - (self.value - error).max(0.0).sqrt();
        let up = (self.value + error).sqrt() - value;
        Self::rounded(value, down.max(up), 3.0)
    }

    fn ln_1p(self) -> Self {
        let (value, error) = (self.value.ln_1p(), self.error());
        let least = (self.value - error).ln_1p();
        let moved = if least.is_nan() { f64::INFINITY } else { value - least };
        Self::rounded(value, if value.is_finite() { moved } else { 0.0 }, 4.0)
    }

    fn exp(self) -> Self {
        let value = self.value.exp();
        if self.value == f64::NEG_INFINITY {
            return Self::new(value, 0.0);
        }
        Self::rounded(value, value * self.error().exp_m1(), 4.0 + 2.0 * self.value.abs())
    }

    fn max(self, other: Self) -> Self {
        Self::one_of(self, other, self.value.max(other.value))
    }

    fn min(self, other: Self) -> Self {
        Self::one_of(self, other, self.value.min(other.value))
    }

    fn larger(self, other: Self) -> Self {
        Self::one_of(
            self,
            other,
            if self.value < other.value {
                other.value
            } else {
                self.value
            },
        )
    }

    fn smaller(self, other: Self) -> Self {
        Self::one_of(
            self,
            other,
            if self.value > other.value {
                other.value
            } else {
                self.value
            },
        )
    }

    fn exp_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.exp());
    }

    fn product(product: &Product<'_, Self>, y: &mut [Self]) {
        let [x, w, y_stride] = [product.x_stride, product.w_strides.0, product.y_stride];
        let rows: Vec<Parts> = (0..product.m)
            .map(|row| Parts::of(product.x[row * x..].iter().take(product.k)))
            .collect();
        for column in 0..product.n {
            let w = product.w[column * w..].iter().step_by(product.w_strides.1);
            let w = Parts::of(w.take(product.k));
            for (row, x) in rows.iter().enumerate() {
                let y = &mut y[row * y_stride + column];
                let sum = vectorized!({ x.dot(&w) });
                *y = if product.add { *y + sum } else { sum };
            }
        }
    }
}

impl Bounded {
    /// The larger or the smaller of two numbers: it moves no farther than either of them, and only one counts if their
    /// errors leave no doubt which it is.
    fn one_of(a: Self, b: Self, value: f64) -> Self {
        let (a_error, b_error) = (a.error(), b.error());
        let error = if (a.value - b.value).abs() > a_error + b_error {
            if value == a.value { a_error } else { b_error }
        } else {
            a_error.max(b_error)
        };
        Self::new(value, error)
    }
}

/// Values and errors of a vector, apart, so that many are multiplied at a time.
struct Parts {
    values: Vec<f64>,
    errors: Vec<f64>,
}

impl Parts {
    fn of<'a>(numbers: impl Iterator<Item = &'a Bounded>) -> Self {
        let (values, errors) = numbers.map(|x| (x.value, x.error())).unzip();
        Self { values, errors }
    }

    /// The sum of the products of two vectors of one length, as [`Mul`] and [`Add`] bound it.
    #[inline(always)]
    fn dot(&self, other: &Self) -> Bounded {
        let ((x, x_rest), (x_errors, x_errors_rest)) =
            (self.values.as_chunks::<LANES>(), self.errors.as_chunks::<LANES>());
        let ((w, w_rest), (w_errors, w_errors_rest)) =
            (other.values.as_chunks::<LANES>(), other.errors.as_chunks::<LANES>());
        let mut lanes = Lanes::default();
        for i in 0..x.len() {
            for lane in 0..LANES {
                lanes.add(lane, [x[i][lane], x_errors[i][lane]], [w[i][lane], w_errors[i][lane]]);
            }
        }
        for i in 0..x_rest.len() {
            lanes.add(i, [x_rest[i], x_errors_rest[i]], [w_rest[i], w_errors_rest[i]]);
        }
        Bounded {
            value: lanes.value.iter().sum(),
            error: lanes.error.iter().sum(),
            magnitude: lanes.magnitude.iter().sum(),
            squares: lanes.squares.iter().sum(),
            terms: self.values.len() as f64,
        }
    }
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
