//! Quantization with rounding directions other than to nearest. Scales do not depend on the direction.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::{Format, Group};
use super::cast::Cast;
use super::element::Repr;
use super::minifloat::FloatCast;
use super::quantize::GlobalScale;

/// Rounding direction: the choice between the two codes next to a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The nearer code: the format's usual rounding.
    #[default]
    Nearest,
    /// The code with the smaller magnitude.
    TowardZero,
    /// Either code, with a probability proportional to the number's distance from the other code.
    Stochastic,
}

impl Direction {
    /// True for rounding to nearest.
    pub fn is_nearest(&self) -> bool {
        *self == Self::Nearest
    }
}

impl Format {
    /// Checks that [`Format::round_toward`] supports the format; the error gives the reason.
    pub fn has_directions(&self) -> Result<(), String> {
        let float = matches!(self.element.repr, Repr::Float(_));
        let plain = self.convention.is_none() && self.rotation.is_none() && self.global.is_none();
        let of_rows = matches!(
            self.scaling.map(|scaling| scaling.group),
            None | Some(Group::Token | Group::Tile { rows: 1, .. })
        );
        if float && plain && of_rows {
            return Ok(());
        }
        Err(format!(
            "format '{self}' rounds to nearest only; other directions are for floats alone or under scales of parts of rows"
        ))
    }

    /// Rounds a `[rows, cols]` tensor in place in the given direction: encodes it, and decodes the stored bytes. For stochastic
    /// rounding, `random` fills a slice with one random number per element.
    ///
    /// # Panics
    /// If [`Format::check`] refuses `cols`, `x` is not a whole number of rows, or [`Format::has_directions`] refuses the format.
    pub fn round_toward(&self, direction: Direction, x: &mut [f32], cols: usize, random: impl FnOnce(&mut [u32])) {
        if direction == Direction::Nearest {
            return self.decode(&self.encode(x, cols, GlobalScale::Own), x);
        }
        let Repr::Float(cast) = self.element.repr else {
            panic!("format '{self}' rounds to nearest only");
        };
        let sign = cast.encode(-0.0);
        let mut encoded = self.encode(x, cols, GlobalScale::Own);
        x.copy_from_slice(&self.quotients(x, &encoded));
        let mut chance = vec![0; x.len()];
        if direction == Direction::Stochastic {
            random(&mut chance);
        }
        let codes = x.iter().zip(&chance);
        let codes = codes.map(|(&x, &chance)| next_to(cast, sign, x, chance));
        if let Some(data) = encoded.parts.iter_mut().find(|part| part.name == "data") {
            pack(codes, self.element.stored_bits(), &mut data.bytes);
        }
        self.decode(&encoded, x);
    }
}

/// Rounds x to one of the two codes next to |x|, and adds the sign of x; `sign` is the code of −0. The lower code has the largest
/// value not above |x|. The distance from this value to |x| is a fraction of the step to the upper code, in 32 bits. The upper
/// code is chosen if the sum of this fraction and `random` overflows. So its probability is the fraction, accurate to 2^-32; with
/// `random` = 0, the lower code is always chosen.
#[inline(always)]
fn next_to(cast: FloatCast, sign: u32, x: f32, random: u32) -> u16 {
    let (below, fraction) = cast.float.truncate(x);
    // `below` is also at least `max` if x is a NaN or an infinity.
    if below >= cast.float.max {
        let largest = cast.decode(cast.float.max).copysign(x);
        return cast.encode(if x.is_nan() { x } else { largest }) as u16;
    }
    let code = below + u32::from(fraction.checked_add(random).is_none());
    (code | (sign * u32::from(x.is_sign_negative()))) as u16
}

/// Packs codes in memory order: the first of two 4-bit codes is in the low half of the byte.
fn pack(codes: impl Iterator<Item = u16>, bits: usize, data: &mut [u8]) {
    data.fill(0);
    for (at, code) in codes.enumerate() {
        let parts = (code << (at * bits % 8)).to_le_bytes();
        let bytes = data[at * bits / 8..].iter_mut();
        bytes.zip(parts).for_each(|(byte, part)| *byte |= part);
    }
}
