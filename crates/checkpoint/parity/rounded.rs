//! Roundings of f32 that a kernel may apply by mistake, e.g. to bf16 before the cast to the code.

use half::{bf16, f16};

use ulplab_core::formats::Element;

/// Rounds to the nearest bf16.
pub fn to_bf16(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Truncates to bf16.
pub fn cut_to_bf16(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

/// Rounds to the nearest f16.
pub fn to_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Rounds to the nearest TF32, ties to even.
pub fn to_tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let half = 0xfff + (x.to_bits() >> 13 & 1);
    cut_to_tf32(f32::from_bits(x.to_bits() + half))
}

/// Truncates to TF32.
pub fn cut_to_tf32(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & !0x1fff)
}

/// Rounds to the nearest value of an element type.
pub fn through(element: &Element, x: f32) -> f32 {
    element.decode(element.encode(x))
}

/// Rounds a magnitude down to a power of two.
pub fn to_power_below(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7f80_0000)
}

/// Rounds a magnitude up to a power of two.
pub fn to_power_above(x: f32) -> f32 {
    to_power_below(f32::from_bits(x.to_bits() + 0x7f_ffff))
}

/// Rounds a magnitude to the nearest power of two: down if the significand is below 1.5, else up.
pub fn to_power(x: f32) -> f32 {
    to_power_below(f32::from_bits(x.to_bits() + 0x40_0000))
}
