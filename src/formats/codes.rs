//! The hot loops: largest magnitudes, divisions, and casts to and from packed codes.
//!
//! They run over long slices, whatever the size of a block, so that they vectorise.

use super::element::{BF16_CAST, Cast, E2M1_CAST, E4M3_CAST, E5M2_CAST, Repr};
use super::scale::Quotient;

/// Bits of the largest magnitude; NaN beats infinity beats finite values.
#[inline(always)]
pub(super) fn amax(x: &[f32]) -> u32 {
    let bits = |x: &f32| x.to_bits() & 0x7fff_ffff;
    // Sixteen maxima side by side; blocks are mostly multiples of 16.
    let (chunks, rest) = x.as_chunks::<16>();
    let mut lanes = [0; 16];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = bits(x).max(*lane);
        }
    }
    rest.iter().map(bits).chain(lanes).fold(0, u32::max)
}

/// Divides blocks of `width` elements, the last of which may be short, by their scales.
#[inline(always)]
pub(super) fn divide(x: &[f32], width: usize, quotients: &[Quotient], out: &mut [f32]) {
    for ((x, out), quotient) in x.chunks(width).zip(out.chunks_mut(width)).zip(quotients) {
        let Quotient { factor, divide, zero } = *quotient;
        if divide {
            x.iter().zip(out).for_each(|(x, out)| *out = x / factor + zero);
        } else {
            x.iter().zip(out).for_each(|(x, out)| *out = x * factor + zero);
        }
    }
}

/// Calls `$loop` with the cast as a constant where it is a common one.
macro_rules! specialised {
    ($repr:expr, $loop:ident, $($argument:expr),+) => {
        match *$repr {
            Repr::Float(E4M3_CAST) => $loop(E4M3_CAST, $($argument),+),
            Repr::Float(E5M2_CAST) => $loop(E5M2_CAST, $($argument),+),
            Repr::Float(E2M1_CAST) => $loop(E2M1_CAST, $($argument),+),
            Repr::Float(BF16_CAST) => $loop(BF16_CAST, $($argument),+),
            Repr::Float(cast) => $loop(cast, $($argument),+),
            Repr::Integer(cast) => $loop(cast, $($argument),+),
            Repr::Power(cast) => $loop(cast, $($argument),+),
        }
    };
}

/// The codes of `x`, packed: 16-bit codes little-endian, of two 4-bit codes the first in the low nibble, 6-bit codes one
/// per byte.
#[inline(always)]
pub(super) fn encode(repr: &Repr, bits: u32, x: &[f32], out: &mut [u8]) {
    specialised!(repr, encode_with, bits, x, out);
}

/// The values of packed codes.
#[inline(always)]
pub(super) fn decode(repr: &Repr, bits: u32, packed: &[u8], out: &mut [f32]) {
    specialised!(repr, decode_with, bits, packed, out);
}

#[inline(always)]
fn encode_with(cast: impl Cast, bits: u32, x: &[f32], out: &mut [u8]) {
    match bits {
        4 => {
            for ([first, second], byte) in x.as_chunks().0.iter().zip(out) {
                *byte = (cast.encode(*first) | cast.encode(*second) << 4) as u8;
            }
        }
        16 => {
            for (x, word) in x.iter().zip(out.as_chunks_mut().0) {
                *word = (cast.encode(*x) as u16).to_le_bytes();
            }
        }
        _ => {
            for (x, byte) in x.iter().zip(out) {
                *byte = cast.encode(*x) as u8;
            }
        }
    }
}

#[inline(always)]
fn decode_with(cast: impl Cast, bits: u32, packed: &[u8], out: &mut [f32]) {
    match bits {
        4 => {
            for ([first, second], byte) in out.as_chunks_mut().0.iter_mut().zip(packed) {
                *first = cast.decode(u32::from(byte & 0xf));
                *second = cast.decode(u32::from(byte >> 4));
            }
        }
        16 => {
            for (x, word) in out.iter_mut().zip(packed.as_chunks().0) {
                *x = cast.decode(u32::from(u16::from_le_bytes(*word)));
            }
        }
        _ => {
            for (x, byte) in out.iter_mut().zip(packed) {
                *x = cast.decode(u32::from(*byte));
            }
        }
    }
}
