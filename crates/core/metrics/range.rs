//! Limits on the values that metrics can take.

/// Largest difference of two f32 numbers, which may be elements, scores or logarithms of probabilities.
pub const DIFFERENCE: f64 = 2.0 * f32::MAX as f64;
/// Largest ratio of two norms: a [`DIFFERENCE`] over the smallest f32 above 0, times the square root of the largest number of
/// elements, 2⁶⁴.
pub const RATIO: f64 = DIFFERENCE / SMALLEST * 4_294_967_296.0;
/// Smallest f32 above 0, 2⁻¹⁴⁹.
pub const SMALLEST: f64 = f32::from_bits(1) as f64;
/// Largest count: the largest unsigned 64-bit integer. Times have the same limit, in nanoseconds.
pub const COUNT: f64 = u64::MAX as f64;
/// 20 log₁₀ of [`RATIO`], rounded up, in dB.
pub const DECIBELS: f64 = 1_870.0;
