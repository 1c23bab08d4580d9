//! Quantization step by step, one scale and one element at a time. Callers use it to check the codes of another program, and to
//! find the first step in which that program diverges from a rule.

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

/// Step-by-step quantizer of a block format. If the format has global scales, the quantizer has one fixed f32 global scale.
pub struct Single {
    format: Format,
    scale: Scale,
    level: Level,
    repr: Repr,
    operation: Operation,
}

impl Single {
    /// Prepares the step-by-step quantization in a format whose stored global scale is `stored`. Returns `None` if the format has
    /// no scales, or has zero points.
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

    /// Returns the size of a scale in bytes.
    pub fn scale_bytes(&self) -> usize {
        self.scale.bytes()
    }

    /// Returns the code at index `at` of packed codes.
    pub fn code_at(&self, data: &[u8], at: usize) -> u32 {
        codes::code_at(data, self.format.element.stored_bits(), at).into()
    }

    /// Maps a code to a rank that grows with the value of the code; −0 ranks below +0.
    pub fn rank(&self, code: u32) -> i32 {
        let sign = 1 << (self.format.element.bits - 1);
        let magnitude = (code & (sign - 1)) as i32;
        if code & sign == 0 { magnitude } else { -1 - magnitude }
    }

    /// Returns the stored scale of a block with the largest magnitude `amax`, as the integer that its little-endian bytes
    /// represent. The integer grows with `amax`, and is largest for NaN.
    pub fn scale(&self, amax: f32) -> u32 {
        let mut stored = [0; 4];
        self.store(amax, &[], &mut stored[..self.scale.bytes()]);
        u32::from_le_bytes(stored)
    }

    /// Stores the scale of a block with largest magnitude `amax`. Rules that try several scales compare their errors on `block`.
    pub(super) fn store(&self, amax: f32, block: &[f32], stored: &mut [u8]) {
        let target = Target {
            level: self.level,
            ..Target::alone(self.format.element)
        };
        let amax = [amax.to_bits() & 0x7fff_ffff];
        let blocks = (block, block.len().max(1));
        self.scale.encode(&amax, blocks, &target, stored, &mut [0.0]);
    }

    /// Returns the factor or divisor of a block's elements, given the block's scale (as bits) and its largest magnitude.
    pub fn factor(&self, scale: u32, amax: f32) -> f32 {
        self.scale.factor(&scale.to_le_bytes(), amax.to_bits(), &self.level)
    }

    /// Scales an element by `factor`, without the cast to a code.
    pub fn scaled(&self, x: f32, factor: f32) -> f32 {
        self.operation.apply(factor, x)
    }

    /// Scales an element by `factor`, and returns its code.
    pub fn code(&self, x: f32, factor: f32) -> u32 {
        u32::from(self.repr.encode(self.scaled(x, factor)))
    }
}

impl Format {
    /// Returns the values to be quantized: `x`, rotated if the format has a rotation.
    pub fn rotated(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        if let Some(size) = self.rotation {
            rotate(&mut out, size);
        }
        out
    }

    /// Returns the global scale that the rule stores for the largest magnitude `amax`; `None` if the format has no global scale.
    pub fn global_of(&self, amax: f32) -> Option<f32> {
        self.second_level().map(|(rule, _)| rule.level(amax).stored)
    }

    /// Returns the bytes of the scale of a block with the largest magnitude `amax`. `global` is the stored global scale, if the
    /// format has one. Rules that try several scales compare their errors on `block`.
    pub fn scale_of(&self, amax: f32, block: &[f32], global: f32) -> Vec<u8> {
        let Some(single) = Single::new(self, global) else {
            return Vec::new();
        };
        let mut stored = vec![0; single.scale_bytes()];
        single.store(amax, block, &mut stored);
        stored
    }

    /// Returns the inputs of the cast: each value of `x` divided by its stored scale. If the format has a rotation, the caller
    /// has already rotated `x`.
    ///
    /// # Panics
    /// If the scales in `stored` do not fit `x`. Only scales are read from `stored`.
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
