//! Scales: how the largest magnitude of a block becomes the factor its elements are stored against.

/// The value of an E8M0 code: `2^(code-127)`, NaN for 255.
#[inline(always)]
pub(super) fn e8m0_value(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The E8M0 code of the smallest power of two that is not below `|x|`, by the bits of `x`; infinity saturates.
#[inline(always)]
pub(super) fn e8m0_ceil(x: f32) -> u8 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let (field, fraction) = (magnitude >> 23, magnitude & 0x7f_ffff);
    // 2^-127, the power of code 0, is the fraction 0x400000 of a subnormal.
    let up = if field == 0 {
        fraction > 0x40_0000
    } else {
        fraction != 0
    };
    if magnitude > 0x7f80_0000 {
        255
    } else {
        (field + u32::from(up)).min(254) as u8
    }
}
