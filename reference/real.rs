//! Scalar types in which models compute: f32, f64, and numbers that carry the error of their computation.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::ops::linear::Product;

/// Scalar of a computation: f32, f64 (to check f32), or [`Bounded`](crate::Bounded), which carries the error bound of f32.
pub trait Real:
    Copy
    + Send
    + Sync
    + 'static
    + Debug
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Into<f64>
{
    /// The constant 0.
    const ZERO: Self;
    /// The constant 1.
    const ONE: Self;
    /// The constant −∞.
    const NEG_INFINITY: Self;

    /// Rounds x to the nearest value of this type, ties to even.
    fn from_f64(x: f64) -> Self;
    /// Returns √x, correctly rounded.
    fn sqrt(self) -> Self;
    /// Returns ln(1 + x).
    fn ln_1p(self) -> Self;
    /// Returns eˣ: within 2 ulp in f32, the standard library's result in f64.
    fn exp(self) -> Self;
    /// Returns the larger number; if one number is NaN, the other number.
    fn max(self, other: Self) -> Self;
    /// Returns the smaller number; if one number is NaN, the other number.
    fn min(self, other: Self) -> Self;
    /// Returns the larger number; NaN if `self` is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
    /// Returns the smaller number; NaN if `self` is NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self > other { other } else { self }
    }
    /// Replaces every x of a slice by eˣ. The f32 form is vectorised if it is inlined into a `vectorized!` expression.
    fn exp_all(x: &mut [Self]);

    /// Writes the matrix product `product` to `y`, or adds it to `y`. Call [`Product::run`] instead, which checks the sizes.
    fn product(product: &Product<'_, Self>, y: &mut [Self]);

    /// Returns 1 / (1 + e⁻ˣ).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

/// Evaluates an expression in code compiled for the widest SIMD vectors of the machine. The result has the same bits on every
/// machine that rounds by IEEE 754: operations are neither fused nor reordered. A function that the expression calls is
/// compiled this way only if it is inlined.
#[macro_export]
macro_rules! vectorized {
    ($work:expr) => {
        // Without `inline(always)`, the versions for all vector widths would call one copy of the closure, compiled for the
        // narrowest vectors.
        $crate::real::dispatch(
            #[inline(always)]
            || $work,
        )
    };
}
pub use vectorized;

/// Implements [`vectorized`]. `work` is `FnMut`, since an `FnOnce` would be called through a shim that is not inlined.
#[doc(hidden)]
#[inline(always)]
pub fn dispatch<R>(work: impl FnMut() -> R) -> R {
    pulp::Arch::new().dispatch(Inlined(work))
}

struct Inlined<F>(F);

impl<R, F: FnMut() -> R> pulp::NullaryFnOnce for Inlined<F> {
    type Output = R;

    #[inline(always)]
    fn call(mut self) -> R {
        (self.0)()
    }
}

/// Implements [`Real`] for a float type, given its exponential function and its kernel of the `gemm` crates.
macro_rules! real {
    ($($float:ident, $exp:path, $gemm:ident;)*) => {$(
        impl Real for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $float::NEG_INFINITY;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as Self
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $float::sqrt(self)
            }
            #[inline(always)]
            fn ln_1p(self) -> Self {
                $float::ln_1p(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $float::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                $float::min(self, other)
            }
            #[inline(always)]
            fn exp_all(x: &mut [Self]) {
                for x in x {
                    *x = $exp(*x);
                }
            }

            fn product(product: &Product<'_, Self>, y: &mut [Self]) {
                product.by_dots_or_gemm($gemm::gemm::$float::get_gemm_fn(), y);
            }
        }
    )*};
}
real! { f32, exp, gemm_f32; f64, f64::exp, gemm_f64; }

/// Returns eˣ in f32 without branches, within 2 ulp (tested over the whole range): x = n·ln 2 + r with |r| ≤ ln 2 / 2, Cephes'
/// polynomial for eʳ, and 2ⁿ applied in two halves so that subnormal results and overflow are correct.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5·2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // Outside of this range, e^x is 0 or infinite anyway; `clamp` keeps NaN.
    let x = x.clamp(-104.0, 89.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    p * power(half) * power(n.wrapping_sub(half))
}
