//! Quantization with other rounding directions than to nearest. Scales are the same as usual.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::{Format, Group, Scaling};
use super::element::Repr;
use super::encoded::Encoded;
use super::quantize::GlobalScale;
use super::single::Single;
use super::stochastic::{Between, carries};

/// The choice between the two codes next to a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The nearer code: the format's usual rounding.
    #[default]
    Nearest,
    /// The code with the smaller magnitude.
    TowardZero,
    /// Either code, with a probability proportional to the distance from the other.
    Stochastic,
}

impl Direction {
    /// True for the usual rounding.
    pub fn is_nearest(&self) -> bool {
        *self == Self::Nearest
    }
}

impl Format {
    /// Checks that [`Format::round_toward`] supports the format; the error says why not.
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

    /// Replaces `[rows, cols]` by the values that are read back after storing it with this rounding. `random` provides a
    /// random number per element if rounding is stochastic.
    ///
    /// # Panics
    /// If [`Format::check`] refuses `cols`, `x` is not a whole number of rows, or [`Format::has_directions`] refuses the
    /// format.
    pub fn round_toward(&self, direction: Direction, x: &mut [f32], cols: usize, random: impl FnOnce(&mut [u32])) {
        if direction == Direction::Nearest {
            return self.decode(&self.encode(x, cols, GlobalScale::Own), x);
        }
        let Repr::Float(cast) = self.element.repr else {
            panic!("format '{self}' rounds to nearest only");
        };
        let between = Between::new(cast);
        let mut encoded = self.scale_in_place(x, cols);
        let mut chance = vec![0; x.len()];
        if direction == Direction::Stochastic {
            random(&mut chance);
        }
        // With nothing added, there is no carry.
        let codes = x
            .iter()
            .zip(&chance)
            .map(|(&x, &chance)| between.code(x, |fraction| carries(fraction, chance)));
        if let Some(data) = encoded.parts.iter_mut().find(|part| part.name == "data") {
            data.bytes.resize(encoded.rows * self.data_bytes(cols), 0);
            pack(codes, self.element.stored_bits(), &mut data.bytes);
        }
        self.decode(&encoded, x);
    }

    /// Scales `x` in place for the cast, and returns the stored parts other than codes.
    fn scale_in_place(&self, x: &mut [f32], cols: usize) -> Encoded {
        let Some((Scaling { group, .. }, single)) = self.scaling.zip(Single::new(self, 1.0)) else {
            let rows = x.len() / cols;
            let parts = self.parts(rows, cols);
            return Encoded { rows, cols, parts };
        };
        let encoded = self.encode(x, cols, GlobalScale::Own);
        let (_, width) = group.tile(1, cols);
        let blocks = x.chunks_mut(cols).flat_map(|row| row.chunks_mut(width));
        let scales = encoded.part("scale").chunks_exact(single.scale_bytes());
        for (block, stored) in blocks.zip(scales) {
            let amax = block.iter().fold(0.0, |amax: f32, x| amax.max(x.abs()));
            let scale = stored.iter().rev().fold(0, |scale, byte| scale << 8 | u32::from(*byte));
            let factor = single.factor(scale, amax);
            block.iter_mut().for_each(|x| *x = single.scaled(*x, factor));
        }
        encoded
    }
}

/// Codes in memory order: of the two 4-bit codes in a byte, the first is in the lower half.
fn pack(codes: impl Iterator<Item = u16>, bits: usize, data: &mut [u8]) {
    match bits {
        4 => {
            data.fill(0);
            for (at, code) in codes.enumerate() {
                data[at / 2] |= (code << (4 * (at % 2))) as u8;
            }
        }
        8 => data.iter_mut().zip(codes).for_each(|(byte, code)| *byte = code as u8),
        _ => {
            for (bytes, code) in data.chunks_exact_mut(2).zip(codes) {
                bytes.copy_from_slice(&code.to_le_bytes());
            }
        }
    }
}
