//! Rounding in other ways than to nearest: stochastic rounding goes up with a probability equal to the distance from the
//! code below, and rounding towards zero never goes up.
//!
//! Random bits are added to the part of the significand that a cast drops, and the carry decides. Variants with fewer than
//! 32 random bits are biased towards zero by less than one random step (2^-16 or 2^-8 of a code), because the dropped part
//! is truncated to as many bits.

use super::cast::Cast;
use super::element::{Element, Repr};
use super::minifloat::FloatCast;

/// Rounds with 32 random bits: up with a probability equal to the distance from the code below, to 2^-32 of a step.
///
/// Saturates like the element's own cast, also for infinities. Elements that are not floats round to nearest.
pub fn stochastic(element: &Element, x: f32, random: u32) -> u16 {
    round(element, x, |fraction| carries(fraction, random))
}

/// Rounds towards zero: the bits below the code's are truncated. Otherwise like [`stochastic`].
pub fn toward_zero(element: &Element, x: f32) -> u16 {
    round(element, x, |_| false)
}

/// Rounds with eight random bits: up if `⌊256·f⌋ + random ≥ 256`, where `f` is the distance of the magnitude from the code
/// below, in steps. This is TransformerEngine's software implementation.
///
/// Saturates like the element's own cast, also for infinities. Elements that are not floats round to nearest.
pub fn stochastic_byte(element: &Element, x: f32, random: u8) -> u16 {
    round(element, x, |fraction| (fraction >> 24) + u32::from(random) >= 1 << 8)
}

/// Rounds four numbers with 32 random bits, as PTX `cvt.rs.satfinite.{e4m3x4, e5m2x4, e3m2x4, e2m3x4, e2m1x4}.f32` does
/// by a published reverse engineering. A **model**: not checked against the instruction, which sm_100a and sm_103a have.
///
/// `x[0]` is the number whose code comes first in memory (the instruction's last operand). Each number uses 16 bits, but
/// two numbers use the same bits, once reversed: they are not independent.
pub fn stochastic_hardware(element: &Element, x: [f32; 4], random: u32) -> [u16; 4] {
    let bits = if element.bits == 4 {
        let [b0, b1, b2, b3] = random.to_le_bytes();
        let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        let reversed = |high: u8, low: u8| pair(high.reverse_bits(), low.reverse_bits());
        [pair(b2, b0), reversed(b0, b2), pair(b3, b1), reversed(b1, b3)]
    } else {
        let (low, high) = (random as u16, (random >> 16) as u16);
        [low, low.reverse_bits(), high, high.reverse_bits()]
    };
    std::array::from_fn(|i| {
        round(element, x[i], |fraction| {
            (fraction >> 16) + u32::from(bits[i]) >= 1 << 16
        })
    })
}

/// The code of the magnitude below `x`, or the next one if `up` says so for the distance, in 2^-32 of a step.
fn round(element: &Element, x: f32, up: impl Fn(u32) -> bool) -> u16 {
    match element.repr {
        Repr::Float(cast) => Between::new(cast).code(x, up),
        _ => element.encode(x),
    }
}

/// Whether the random number, added to the dropped part, gives a whole step.
#[inline(always)]
pub(super) fn carries(fraction: u32, random: u32) -> bool {
    fraction.checked_add(random).is_none()
}

/// A float cast that chooses between the two codes next to a number.
#[derive(Clone, Copy)]
pub(super) struct Between {
    cast: FloatCast,
    /// The code of −0, as the cast has it.
    sign: u32,
}

impl Between {
    pub fn new(cast: FloatCast) -> Self {
        Self {
            cast,
            sign: cast.encode(-0.0),
        }
    }

    /// The code of the magnitude below `x`, or the next one if `up` says so for the distance, in 2^-32 of a step.
    #[inline(always)]
    pub fn code(&self, x: f32, up: impl Fn(u32) -> bool) -> u16 {
        let float = &self.cast.float;
        let (below, fraction) = float.truncate(x);
        // NaN and infinities are beyond it too.
        if below >= float.max {
            let largest = self.cast.decode(float.max).copysign(x);
            return self.cast.encode(if x.is_nan() { x } else { largest }) as u16;
        }
        let code = below + u32::from(up(fraction));
        (code | (self.sign * u32::from(x.is_sign_negative()))) as u16
    }
}
