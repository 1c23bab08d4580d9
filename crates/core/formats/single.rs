//! Block formats one scale and one element at a time, for judging codes that another program chose.

use super::block::{Format, Scaling};
use super::cast::Operation;
use super::codes;
use super::element::Repr;
use super::nvfp4::Level;
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
        let level = format
            .second_level()
            .map_or(Level::ONE, |(rule, _)| rule.stored_level(stored));
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
