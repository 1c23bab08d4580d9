//! Encoding and decoding of block formats with zero points.

use super::amax;
use super::block::{Format, Group};
use super::cast::INFINITY_BITS;
use super::codec::Encoded;
use super::codes;
use super::quantize::{PIECE, span};
use super::zero_point::{Affine, Fitted};

/// The smallest and largest values of a strip of tiles, from which scales and zero points are computed.
struct Ranges {
    lo: Vec<f32>,
    hi: Vec<f32>,
    /// Bits of the largest magnitude, which reveal NaN and infinities.
    amax: Vec<u32>,
}

impl Ranges {
    fn new(tiles: usize) -> Self {
        Self {
            lo: vec![0.0; tiles],
            hi: vec![0.0; tiles],
            amax: vec![0; tiles],
        }
    }

    /// Finds the ranges of a strip of rows of `cols` channels, in tiles of `width`.
    #[inline(always)]
    fn measure<S: pulp::Simd>(&mut self, simd: S, x: &[f32], cols: usize, width: usize) {
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
}

/// The scale and zero point of each tile of a strip, and a buffer for a piece of a row.
struct Room {
    first: Vec<f32>,
    second: Vec<f32>,
    piece: Vec<f32>,
}

impl Room {
    fn new(tiles: usize) -> Self {
        Self {
            first: vec![0.0; tiles],
            second: vec![0.0; tiles],
            piece: vec![0.0; PIECE],
        }
    }
}

impl Format {
    /// Writes the codes of rows of `cols` channels, and returns the bytes of scales and zero points. A tile at the edge has
    /// the range of the elements it holds.
    #[inline(always)]
    pub(super) fn store_affine<S: pulp::Simd>(
        &self,
        simd: S,
        affine: Affine,
        group: Group,
        x: &[f32],
        cols: usize,
        data: &mut [u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let rows = x.len() / cols;
        let (down, tiles) = group.count(rows, cols);
        let (height, width) = group.tile(rows, cols);
        let (bytes, zero_bytes) = (affine.bytes(), affine.zero_bytes());
        let mut scales = vec![0; down * tiles * bytes];
        let mut zeros = vec![0; down * tiles * zero_bytes];
        let (repr, bits, top) = (self.repr(), self.element.bits, self.element.max());
        let (mut ranges, mut room) = (Ranges::new(tiles), Room::new(tiles));
        let mut fitted = vec![Fitted::default(); tiles];
        let strips = x
            .chunks(height * cols)
            .zip(data.chunks_mut(height * self.data_bytes(cols)))
            .zip(
                scales
                    .chunks_mut(tiles * bytes)
                    .zip(zeros.chunks_mut(tiles * zero_bytes)),
            );
        for ((x, data), (scales, zeros)) in strips {
            ranges.measure(simd, x, cols, width);
            for (tile, fitted) in fitted.iter_mut().enumerate() {
                *fitted = if ranges.amax[tile] >= INFINITY_BITS {
                    Affine::NAN
                } else {
                    affine.fit(ranges.lo[tile], ranges.hi[tile], top)
                };
                (room.first[tile], room.second[tile]) = (fitted.factor, fitted.shift);
            }
            affine.write(&fitted, scales, zeros);
            let Room { first, second, piece } = &mut room;
            for (row, data) in x.chunks_exact(cols).zip(data.chunks_exact_mut(self.data_bytes(cols))) {
                let numbers = first
                    .chunks(span(width) / width)
                    .zip(second.chunks(span(width) / width));
                let spans = row
                    .chunks(span(width))
                    .zip(data.chunks_mut(self.data_bytes(span(width))));
                for ((x, data), (factors, shifts)) in spans.zip(numbers) {
                    for (x, data) in x.chunks(PIECE).zip(data.chunks_mut(self.data_bytes(PIECE))) {
                        let piece = &mut piece[..x.len()];
                        affine.forward(x, width, factors, shifts, piece);
                        codes::encode(simd, &repr, bits, piece, data);
                    }
                }
            }
        }
        (scales, zeros)
    }

    /// Decodes stored bytes to values.
    #[inline(always)]
    pub(super) fn load_affine<S: pulp::Simd>(
        &self,
        simd: S,
        affine: Affine,
        group: Group,
        encoded: &Encoded,
        out: &mut [f32],
    ) {
        let (rows, cols) = (encoded.rows, encoded.cols);
        let (down, tiles) = group.count(rows, cols);
        let (height, width) = group.tile(rows, cols);
        let (bytes, zero_bytes) = (affine.bytes(), affine.zero_bytes());
        let (scales, zeros) = (encoded.part("scale"), encoded.part("zero"));
        assert_eq!(scales.len(), down * tiles * bytes, "bytes of scales of '{self}'");
        assert_eq!(
            zeros.len(),
            down * tiles * zero_bytes,
            "bytes of zero points of '{self}'"
        );
        let (repr, bits) = (self.repr(), self.element.bits);
        let mut room = Room::new(tiles);
        let strips = out
            .chunks_mut(height * cols)
            .zip(encoded.part("data").chunks(height * self.data_bytes(cols)))
            .zip(scales.chunks(tiles * bytes).zip(zeros.chunks(tiles * zero_bytes)));
        for ((out, data), (scales, zeros)) in strips {
            affine.read_scales(scales, &mut room.first);
            affine.read_zeros(zeros, &mut room.second);
            let Room { first, second, piece } = &mut room;
            for (row, data) in out.chunks_exact_mut(cols).zip(data.chunks_exact(self.data_bytes(cols))) {
                let numbers = first
                    .chunks(span(width) / width)
                    .zip(second.chunks(span(width) / width));
                let spans = row
                    .chunks_mut(span(width))
                    .zip(data.chunks(self.data_bytes(span(width))));
                for ((out, data), (scales, zeros)) in spans.zip(numbers) {
                    for (out, data) in out.chunks_mut(PIECE).zip(data.chunks(self.data_bytes(PIECE))) {
                        let piece = &mut piece[..out.len()];
                        codes::decode(simd, &repr, bits, data, piece);
                        affine.back(piece, width, scales, zeros, out);
                    }
                }
            }
        }
    }
}
