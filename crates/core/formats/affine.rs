//! Scales and zero points of the tiles of a strip.

use super::amax;
use super::cast::INFINITY_BITS;
use super::quantize::Room;
use super::zero_point::{Affine, Fitted};

impl Room {
    /// Finds the smallest and largest values of the tiles of a strip of rows of `cols` channels, in tiles of `width`.
    #[inline(always)]
    fn measure_ranges<S: pulp::Simd>(&mut self, simd: S, x: &[f32], cols: usize, width: usize) {
        self.lo.fill(f32::INFINITY);
        self.hi.fill(f32::NEG_INFINITY);
        self.amax.fill(0);
        for row in x.chunks_exact(cols) {
            amax::of_blocks(simd, row, width, &mut self.amax);
            let ranges = self.lo.iter_mut().zip(&mut self.hi);
            if width == 1 {
                for (x, (lo, hi)) in row.iter().zip(ranges) {
                    (*lo, *hi) = (lo.min(*x), hi.max(*x));
                }
            } else {
                for (block, (lo, hi)) in row.chunks(width).zip(ranges) {
                    let range = (*lo, *hi);
                    (*lo, *hi) = block.iter().fold(range, |(lo, hi), x| (lo.min(*x), hi.max(*x)));
                }
            }
        }
    }

    /// Stores the scales and zero points of the tiles of a strip for codes up to `top`, and keeps the numbers of the encoding. A tile
    /// at the edge has the range of the elements it holds.
    #[inline(always)]
    pub(super) fn fit<S: pulp::Simd>(
        &mut self,
        simd: S,
        affine: Affine,
        (x, cols, width): (&[f32], usize, usize),
        top: f32,
        [scales, zeros]: [&mut [u8]; 2],
    ) {
        self.measure_ranges(simd, x, cols, width);
        let fitted: Vec<Fitted> = (0..self.amax.len())
            .map(|tile| match self.amax[tile] >= INFINITY_BITS {
                true => Affine::NAN,
                false => affine.fit(self.lo[tile], self.hi[tile], top),
            })
            .collect();
        for (tile, fitted) in fitted.iter().enumerate() {
            (self.factors[tile], self.shifts[tile]) = (fitted.factor, fitted.shift);
        }
        affine.write(&fitted, scales, zeros);
    }
}
