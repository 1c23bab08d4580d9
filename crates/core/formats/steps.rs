//! The single steps of quantization, for finding where another program's bytes diverge from a rule's.

use super::amax;
use super::block::{Format, Scaling};
use super::encoded::Encoded;
use super::hadamard::rotate;
use super::quantize::level;
use super::single::Single;

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
                    row[columns.clone()]
                        .iter_mut()
                        .for_each(|x| *x = operation.apply(factor, *x));
                }
            }
        }
        out
    }
}
