//! Rounding to either of the two codes next to a number: stochastic rounding goes up with a probability equal to the distance
//! from the code below, to 2^-32 of a step, and rounding towards zero never goes up.
//!
//! A random number is added to the part of the significand that a cast drops, and the carry decides.

use super::cast::Cast;
use super::minifloat::FloatCast;

/// True if the random number, added to the dropped part, gives a whole step.
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
