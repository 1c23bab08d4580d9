//! Numbers with the variance of the error of their computation. The reference that runs on them says how far a kernel may be from
//! it that rounds what it multiplies: such errors are larger than those of sums, average out, and would be bounded too widely if each
//! were as large as it may be.
//!
//! | operation | variance that it adds |
//! |---|---|
//! | sum of n products t | that of a sum in any order: n·u²·(s² + Σt²) or more ([`Terms::variance`](super::sum::Terms::variance)) |
//! | product, one addition | (u·z)² |
//! | quotient, square root | (3u·z)² |
//! | eˣ, ln(1 + x) | ((4 + 2\|x\|)·u·z)², (4u·z)² |
//!
//! with u = 2⁻²⁴. Errors of the terms of a sum are taken as independent, those of products of equal numbers as equal; where both operands
//! of a product or a quotient have errors, which may be those of one number, the variance is at most twice that of independent ones. A
//! number is within λ = 8 standard deviations.

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use reference::ops::linear::Product;
use reference::{LAMBDA, Real};
use safetensors::Dtype;

use super::drift::Equal;
use super::half_spacing;

/// Half a unit in the last place of f32, relative.
const U: f64 = 1.0 / (1 << 24) as f64;

/// A number and the variance of its error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Varied {
    /// The number.
    pub value: f64,
    /// The variance of its error.
    pub variance: f64,
}

impl Varied {
    /// A number that is exact.
    pub fn exact(value: f64) -> Self {
        Self { value, variance: 0.0 }
    }

    /// How far a computation may be from it.
    pub fn error(self) -> f64 {
        LAMBDA * self.variance.sqrt()
    }

    /// The number, as some type stores it: the nearest of it may be any that its error allows, and one that is exact is rounded if f32
    /// has it.
    pub fn stored(self, dtype: Dtype) -> Self {
        let single = self.value as f32;
        let exact = self.variance == 0.0 && f64::from(single) == self.value;
        match dtype {
            Dtype::BF16 if exact => Self::exact(half::bf16::from_f32(single).to_f64()),
            Dtype::F16 if exact => Self::exact(half::f16::from_f32(single).to_f64()),
            Dtype::F32 if exact => self,
            _ => self.rounded(dtype),
        }
    }

    /// The number with the error of rounding it to a type: up to half a spacing, all of it equally likely.
    pub fn rounded(self, dtype: Dtype) -> Self {
        let half = half_spacing(dtype, self.value.abs());
        Self {
            variance: self.variance + half * half / 3.0,
            ..self
        }
    }

    /// A result that brings this variance and rounds with this many u.
    fn of(value: f64, variance: f64, units: f64) -> Self {
        Self {
            value,
            variance: variance + (units * U * value).powi(2),
        }
    }
}

/// The variance of two errors that are added up.
fn both(a: f64, b: f64) -> f64 {
    if a > 0.0 && b > 0.0 { 2.0 * (a + b) } else { a + b }
}

impl From<Varied> for f64 {
    fn from(x: Varied) -> Self {
        x.value
    }
}

impl PartialEq for Varied {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialOrd for Varied {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl Add for Varied {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::of(self.value + other.value, self.variance + other.variance, 1.0)
    }
}

impl Sub for Varied {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Varied {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            value: -self.value,
            ..self
        }
    }
}

impl Mul for Varied {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let (a, b) = (self.value.powi(2) * other.variance, other.value.powi(2) * self.variance);
        Self::of(self.value * other.value, both(a, b), 1.0)
    }
}

impl Div for Varied {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let carried = both(self.variance, value.powi(2) * other.variance) / other.value.powi(2);
        Self::of(value, carried, 3.0)
    }
}

impl AddAssign for Varied {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl MulAssign for Varied {
    fn mul_assign(&mut self, other: Self) {
        *self = *self * other;
    }
}

impl Real for Varied {
    const ZERO: Self = Self {
        value: 0.0,
        variance: 0.0,
    };
    const ONE: Self = Self {
        value: 1.0,
        variance: 0.0,
    };
    const NEG_INFINITY: Self = Self {
        value: f64::NEG_INFINITY,
        variance: 0.0,
    };

    /// The number as it is; that f32 does not have it is its error.
    fn from_f64(x: f64) -> Self {
        let error = x - f64::from(x as f32);
        Self {
            value: x,
            variance: if x.is_finite() { error * error } else { 0.0 },
        }
    }

    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let carried = if self.variance > 0.0 {
            self.variance / (4.0 * self.value)
        } else {
            0.0
        };
        Self::of(value, carried, 3.0)
    }

    fn ln_1p(self) -> Self {
        Self::of(self.value.ln_1p(), self.variance / (1.0 + self.value).powi(2), 4.0)
    }

    fn exp(self) -> Self {
        let value = self.value.exp();
        if value == 0.0 {
            return Self::ZERO;
        }
        Self::of(value, value.powi(2) * self.variance, 4.0 + 2.0 * self.value.abs())
    }

    fn max(self, other: Self) -> Self {
        if other.value > self.value || self.value.is_nan() {
            other
        } else {
            self
        }
    }

    fn min(self, other: Self) -> Self {
        if other.value < self.value || self.value.is_nan() {
            other
        } else {
            self
        }
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
                let sum = x.dot(&w);
                *y = if product.add { *y + sum } else { sum };
            }
        }
    }
}

/// Values and variances of a vector, apart.
struct Parts {
    values: Vec<f64>,
    variances: Vec<f64>,
    /// Which of them are equal, and have equal errors; none if all are exact.
    equal: Option<Equal>,
}

impl Parts {
    fn of<'a>(numbers: impl Iterator<Item = &'a Varied>) -> Self {
        let (values, variances): (Vec<f64>, Vec<f64>) = numbers.map(|x| (x.value, x.variance)).unzip();
        let exact = variances.iter().all(|variance| *variance == 0.0);
        let equal = (!exact).then(|| Equal::of(values.iter().copied()));
        Self {
            values,
            variances,
            equal,
        }
    }

    /// The sum of the products of two vectors of one length.
    fn dot(&self, other: &Self) -> Varied {
        let terms = super::sum::Terms::dot(&self.values, &other.values, U);
        let carried = |of: &Self, values: &Self| match &of.equal {
            None => 0.0,
            Some(equal) => {
                let pairs = values.values.iter().zip(&of.variances);
                equal.sums(pairs.map(|(x, variance)| x * variance.sqrt())).1
            }
        };
        let carried = both(carried(self, other), carried(other, self));
        Varied {
            value: terms.sum,
            variance: carried + terms.variance(),
        }
    }
}
