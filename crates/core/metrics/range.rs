//! Ends of the ranges of metrics.

/// The largest difference of two numbers in f32: of elements, scores, and logarithms of probabilities.
pub const DIFFERENCE: f64 = 2.0 * f32::MAX as f64;
/// The largest ratio of norms: a [`DIFFERENCE`] over the smallest f32 above 0, times the square root of 2⁶⁴ elements.
pub const RATIO: f64 = DIFFERENCE / SMALLEST * 4_294_967_296.0;
/// 2⁻¹⁴⁹.
pub const SMALLEST: f64 = f32::from_bits(1) as f64;
/// Counts have 64 bits, and so have times, in nanoseconds.
pub const COUNT: f64 = u64::MAX as f64;
/// 20 log₁₀ of [`RATIO`], rounded up.
pub const DECIBELS: f64 = 1_870.0;
