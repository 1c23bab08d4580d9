//! Roundings of f32 that a program may do by mistake, or once too often.

use half::{bf16, f16};

use ulplab_core::formats::Element;

/// To the nearest bf16.
pub fn to_bf16(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// To a bf16 by cutting off bits.
pub fn cut_to_bf16(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

/// To the nearest f16.
pub fn to_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// To the nearest TF32, ties to even.
pub fn to_tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let half = 0xfff + (x.to_bits() >> 13 & 1);
    cut_to_tf32(f32::from_bits(x.to_bits() + half))
}

/// To a TF32 by cutting off bits.
pub fn cut_to_tf32(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & !0x1fff)
}

/// To the nearest number of an element.
pub fn through(element: &Element, x: f32) -> f32 {
    element.decode(element.encode(x))
}

/// A magnitude down to a power of two.
pub fn to_power_below(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7f80_0000)
}

/// A magnitude up to a power of two.
pub fn to_power_above(x: f32) -> f32 {
    to_power_below(f32::from_bits(x.to_bits() + 0x7f_ffff))
}

/// A magnitude to the nearest power of two.
pub fn to_power(x: f32) -> f32 {
    to_power_below(f32::from_bits(x.to_bits() + 0x40_0000))
}
