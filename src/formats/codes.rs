//! The hot loops: largest magnitudes, and casts to and from packed codes.
//!
//! They run over long slices, whatever the size of a block, so that they vectorise.

use super::element::{Cast, Element, Repr};
use super::scale::Quotient;

/// Bits of the largest magnitude; NaN beats infinity beats finite values.
#[inline(always)]
pub(super) fn amax(x: &[f32]) -> u32 {
    x.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max)
}

/// Divides by the scale.
#[inline(always)]
pub(super) fn divide(x: &mut [f32], quotient: Quotient) {
    x.iter_mut().for_each(|x| *x = quotient.apply(*x));
}

/// The codes of `x`, packed: 16-bit codes little-endian, of two 4-bit codes the first in the low nibble.
#[inline(always)]
pub(super) fn encode(element: &Element, x: &[f32], out: &mut [u8]) {
    match (element.repr, element.bits) {
        (Repr::Float(float), 4) => encode_nibbles(float, x, out),
        (Repr::Float(float), 8) => encode_bytes(float, x, out),
        (Repr::Float(float), _) => encode_words(float, x, out),
        (Repr::Integer(integer), 4) => encode_nibbles(integer, x, out),
        (Repr::Integer(integer), _) => encode_bytes(integer, x, out),
        (Repr::Power, _) => unreachable!("formats admit no elements that are scales"),
    }
}

/// The values of packed codes.
#[inline(always)]
pub(super) fn decode(element: &Element, packed: &[u8], out: &mut [f32]) {
    match (element.repr, element.bits) {
        (Repr::Float(float), 4) => decode_nibbles(float, packed, out),
        (Repr::Float(float), 8) => decode_bytes(float, packed, out),
        (Repr::Float(float), _) => decode_words(float, packed, out),
        (Repr::Integer(integer), 4) => decode_nibbles(integer, packed, out),
        (Repr::Integer(integer), _) => decode_bytes(integer, packed, out),
        (Repr::Power, _) => unreachable!("formats admit no elements that are scales"),
    }
}

#[inline(always)]
fn encode_nibbles(cast: impl Cast, x: &[f32], out: &mut [u8]) {
    for ([first, second], byte) in x.as_chunks().0.iter().zip(out) {
        *byte = (cast.encode(*first) | cast.encode(*second) << 4) as u8;
    }
}

#[inline(always)]
fn encode_bytes(cast: impl Cast, x: &[f32], out: &mut [u8]) {
    for (x, byte) in x.iter().zip(out) {
        *byte = cast.encode(*x) as u8;
    }
}

#[inline(always)]
fn encode_words(cast: impl Cast, x: &[f32], out: &mut [u8]) {
    for (x, word) in x.iter().zip(out.as_chunks_mut().0) {
        *word = (cast.encode(*x) as u16).to_le_bytes();
    }
}

#[inline(always)]
fn decode_nibbles(cast: impl Cast, packed: &[u8], out: &mut [f32]) {
    for ([first, second], byte) in out.as_chunks_mut().0.iter_mut().zip(packed) {
        *first = cast.decode(u32::from(byte & 0xf));
        *second = cast.decode(u32::from(byte >> 4));
    }
}

#[inline(always)]
fn decode_bytes(cast: impl Cast, packed: &[u8], out: &mut [f32]) {
    for (x, byte) in out.iter_mut().zip(packed) {
        *x = cast.decode(u32::from(*byte));
    }
}

#[inline(always)]
fn decode_words(cast: impl Cast, packed: &[u8], out: &mut [f32]) {
    for (x, word) in out.iter_mut().zip(packed.as_chunks().0) {
        *x = cast.decode(u32::from(u16::from_le_bytes(*word)));
    }
}
