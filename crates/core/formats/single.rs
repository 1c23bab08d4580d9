//! The single steps of quantization, and block formats one scale and one element at a time: for judging codes that another program
//! chose, and for finding where its bytes diverge from a rule's.

use super::amax;
use super::block::{Format, Scaling};
use super::cast::Operation;
use super::codes;
use super::element::Repr;
use super::encoded::Encoded;
use super::hadamard::rotate;
use super::nvfp4::Level;
use super::quantize::level;
use super::scale::{Scale, Target};

/// A block format with one scale per block, and a given f32 global scale if the format has one.
pub struct Single {
    format: Format,
    scale: Scale,
    level: Level,
    repr: Repr,
    operation: Operation,
}

impl Single {
    /// `None` if the format has no scales, or has zero points.
    pub fn new(format: &Format, stored: f32) -> Option<Self> {
        let Scaling { scale, .. } = format.scaling.filter(|_| format.zero_point().is_none())?;
        let rule = format.second_level();
        let level = rule.map_or(Level::ONE, |(rule, _)| rule.stored_level(stored));
        Some(Self {
            format: *format,
            scale,
            level,
            repr: format.repr(),
            operation: scale.division(),
        })
    }

    /// Bytes of a scale.
    pub fn scale_bytes(&self) -> usize {
        self.scale.bytes()
    }

    /// The code at an index of packed codes.
    pub fn code_at(&self, data: &[u8], at: usize) -> u32 {
        codes::code_at(data, self.format.element.stored_bits(), at).into()
    }

    /// A code mapped to a number that grows with its value; −0 is below +0.
    pub fn rank(&self, code: u32) -> i32 {
        let sign = 1 << (self.format.element.bits - 1);
        let magnitude = (code & (sign - 1)) as i32;
        if code & sign == 0 { magnitude } else { -1 - magnitude }
    }

    /// The little-endian bytes of the scale of a block with that largest magnitude. Scales grow with it; NaN is last.
    pub fn scale(&self, amax: f32) -> u32 {
        let mut stored = [0; 4];
        self.store(amax, &[], &mut stored[..self.scale.bytes()]);
        u32::from_le_bytes(stored)
    }

    /// Stores the scale of a block with that largest magnitude. Rules that try several scales try them on `block`.
    pub(super) fn store(&self, amax: f32, block: &[f32], stored: &mut [u8]) {
        let target = Target {
            level: self.level,
            ..Target::alone(self.format.element)
        };
        let amax = [amax.to_bits() & 0x7fff_ffff];
        let blocks = (block, block.len().max(1));
        self.scale.encode(&amax, blocks, &target, stored, &mut [0.0]);
    }

    /// The factor or divisor of elements for a scale.
    pub fn factor(&self, scale: u32, amax: f32) -> f32 {
        self.scale.factor(&scale.to_le_bytes(), amax.to_bits(), &self.level)
    }

    /// An element scaled by a factor, before its cast.
    pub fn scaled(&self, x: f32, factor: f32) -> f32 {
        self.operation.apply(factor, x)
    }

    /// The code of an element for a factor.
    pub fn code(&self, x: f32, factor: f32) -> u32 {
        u32::from(self.repr.encode(self.scaled(x, factor)))
    }
}

impl Format {
    /// The values that are rounded: `x`, rotated if the format has a rotation.
    pub fn rotated(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        if let Some(size) = self.rotation {
            rotate(&mut out, size);
        }
        out
    }

    /// The global scale that a rule stores for a largest magnitude; `None` if the format has none.
    pub fn global_of(&self, amax: f32) -> Option<f32> {
        self.second_level().map(|(rule, _)| rule.level(amax).stored)
    }

    /// The bytes of the scale for a block with largest magnitude `amax` and a stored global scale if there is one. Rules
    /// that try several scales try them on `block`.
    pub fn scale_of(&self, amax: f32, block: &[f32], global: f32) -> Vec<u8> {
        let Some(single) = Single::new(self, global) else {
            return Vec::new();
        };
        let mut stored = vec![0; single.scale_bytes()];
        single.store(amax, block, &mut stored);
        stored
    }

    /// The inputs of the cast: each value of `x`, after any rotation, divided by its stored scale.
    ///
    /// # Panics
    /// If `stored`, of which only the scales are read, does not fit.
    pub fn quotients(&self, x: &[f32], stored: &Encoded) -> Vec<f32> {
        let (rows, cols) = (stored.rows, stored.cols);
        let mut out = x.to_vec();
        let Some(Scaling { group, scale }) = self.scaling else {
            return out;
        };
        let (levels, operation) = (self.stored_levels(stored), scale.division());
        let (height, width) = group.tile(rows, cols);
        let across = group.count(rows, cols).1;
        let scales = stored.part("scale").chunks(across * scale.bytes());
        for (strip, (out, scales)) in out.chunks_mut(height * cols).zip(scales).enumerate() {
            for (tile, bytes) in scales.chunks_exact(scale.bytes()).enumerate() {
                let columns = tile * width..cols.min((tile + 1) * width);
                let rows = out.chunks_exact(cols).map(|row| amax::of(&row[columns.clone()]));
                let factor = scale.factor(bytes, rows.max().unwrap_or(0), &level(&levels, strip));
                for row in out.chunks_exact_mut(cols) {
                    let tile = row[columns.clone()].iter_mut();
                    tile.for_each(|x| *x = operation.apply(factor, *x));
                }
            }
        }
        out
    }
}
