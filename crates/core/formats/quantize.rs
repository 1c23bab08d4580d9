//! Encoding and decoding of block formats.
//!
//! Rows are split into pieces that fit the L1 cache. Each piece takes four passes that vectorise: find the largest magnitudes,
//! compute the scales of all blocks, multiply by the factors, cast. For common elements and block widths, one loop does the last
//! two passes.

use std::ops::Range;

use super::amax;
use super::block::{Format, Group, Scaling};
use super::cast::INFINITY_BITS;
use super::codes;
use super::encoded::Encoded;
use super::hadamard::rotate_back;
use super::nvfp4::{Level, Nvfp4Rule};
use super::scale::{Scale, Target};
use super::zero_point::{Affine, Fitted};

/// Number of elements per piece, few enough for the L1 cache.
const PIECE: usize = 2048;

/// Source of the global scale above the block scales. Formats without a global scale ignore it.
#[derive(Clone, Copy, Debug)]
pub enum GlobalScale<'a> {
    /// Computed from the largest magnitude of the encoded tensor, or of each row.
    Own,
    /// Computed from this largest magnitude, which a calibration provides.
    Amax(f32),
    /// Global scales that are given in their stored form: one for each row, or one for the tensor.
    Stored(&'a [f32]),
}

/// Arguments of [`Format::store`], which is compiled for each instruction set. A closure would not work: the compiler might not
/// inline it into the code for wider registers.
pub struct Encode<'a> {
    /// Format of the encoded tensor.
    pub format: &'a Format,
    /// Elements of the tensor, in whole rows.
    pub x: &'a [f32],
    /// Number of columns of the tensor.
    pub cols: usize,
    /// The source of the global scales.
    pub global: GlobalScale<'a>,
}

impl pulp::WithSimd for Encode<'_> {
    type Output = Encoded;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> Encoded {
        let Self { format, x, .. } = self;
        match format.rotation {
            None => format.store(simd, x, self.cols, self.global),
            Some(_) => format.store(simd, &format.rotated(x), self.cols, self.global),
        }
    }
}

/// Arguments of [`Format::load`], which is compiled for each instruction set.
pub struct Decode<'a> {
    /// Format of the encoded tensor.
    pub format: &'a Format,
    /// The encoded tensor.
    pub encoded: &'a Encoded,
    /// Output: the decoded values.
    pub out: &'a mut [f32],
}

impl pulp::WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.format.load(simd, self.encoded, self.out);
        if let Some(size) = self.format.rotation {
            rotate_back(self.out, size);
        }
    }
}

impl Format {
    /// Encodes a `[rows, cols]` tensor.
    ///
    /// # Panics
    /// If [`Format::check`] refuses `cols`, or `x` is not a whole number of rows.
    pub fn encode(&self, x: &[f32], cols: usize, global: GlobalScale) -> Encoded {
        if let Err(why) = self.check(cols) {
            panic!("format '{self}': {why}");
        }
        assert_eq!(x.len() % cols, 0, "{} elements are not whole rows of {cols}", x.len());
        pulp::Arch::new().dispatch(Encode {
            format: self,
            x,
            cols,
            global,
        })
    }

    /// Decodes stored bytes to values.
    ///
    /// # Panics
    /// If `out` does not have `rows · cols` elements, or `encoded` has another format.
    pub fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        assert_eq!(out.len(), encoded.rows * encoded.cols, "elements of '{self}'");
        // An empty tensor has nothing to decode, and its rows may have any length.
        if out.is_empty() {
            return;
        }
        pulp::Arch::new().dispatch(Decode {
            format: self,
            encoded,
            out,
        });
    }

    #[inline(always)]
    fn store<S: pulp::Simd>(&self, simd: S, x: &[f32], cols: usize, global: GlobalScale) -> Encoded {
        let rows = x.len() / cols;
        let levels = self.levels(simd, x, cols, global);
        let mut data = vec![0; rows * self.data_bytes(cols)];
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        match self.scaling {
            None => codes::encode(simd, &self.repr(), self.element.bits, x, &mut data),
            Some(Scaling { group, scale }) => {
                let affine = self.zero_point();
                let zero_bytes = affine.map_or(0, |affine| affine.zero_bytes());
                let (down, tiles) = group.count(rows, cols);
                scales = vec![0; down * tiles * scale.bytes()];
                zeros = vec![0; down * tiles * zero_bytes];
                let (height, width) = group.tile(rows, cols);
                let strips = x
                    .chunks(height * cols)
                    .zip(data.chunks_mut(height * self.data_bytes(cols)))
                    .zip(scales.chunks_mut(tiles * scale.bytes()));
                let mut target = Target::alone(self.element);
                // Number of channels per piece. Encoding reads a piece twice: to find the largest magnitudes, and to cast. If
                // tiles have one row, a piece is so small that the second read finds it in the L1 cache.
                let across = match affine.is_none() && height == 1 {
                    true => span(width).min(cols),
                    false => cols,
                };
                let mut room = Room::new(across.div_ceil(width));
                for (strip, ((x, data), stored)) in strips.enumerate() {
                    target.level = level(&levels, strip);
                    let zeros = &mut zeros[strip * tiles * zero_bytes..][..tiles * zero_bytes];
                    let pieces = x
                        .chunks(height * across)
                        .zip(data.chunks_mut(height * self.data_bytes(across)))
                        .zip(stored.chunks_mut(across.div_ceil(width) * scale.bytes()));
                    for ((x, data), stored) in pieces {
                        let strip = (x, across.min(x.len()), width);
                        match affine {
                            Some(affine) => {
                                room.fit(simd, affine, strip, target.limits.max, [stored, &mut *zeros]);
                            }
                            None => {
                                let amax = measure(simd, strip, &mut room.amax);
                                scale.encode(amax, (x, width), &target, stored, &mut room.factors);
                            }
                        }
                        self.encode_strip(simd, scale, strip, &mut room, data);
                    }
                }
            }
        }
        let globals = || levels.iter().flat_map(|level| level.stored.to_le_bytes()).collect();
        let mut parts = self.parts(rows, cols);
        for part in &mut parts {
            part.bytes = match part.name {
                "data" => std::mem::take(&mut data),
                "scale" => std::mem::take(&mut scales),
                "zero" => std::mem::take(&mut zeros),
                _ => globals(),
            };
        }
        Encoded { rows, cols, parts }
    }

    /// Returns the encoding and decoding factors of the global scales: one element for each row, one for the whole tensor, or
    /// none if the format has no global scale.
    #[inline(always)]
    fn levels<S: pulp::Simd>(&self, simd: S, x: &[f32], cols: usize, global: GlobalScale) -> Vec<Level> {
        let Some((rule, group)) = self.second_level() else {
            return Vec::new();
        };
        let len = if group == Group::Token { cols } else { x.len().max(1) };
        let parts = x.chunks(len);
        match global {
            GlobalScale::Own => {
                let mut amax = vec![0; parts.len()];
                amax::of_blocks(simd, x, len, &mut amax);
                amax.iter().map(|amax| rule.level(f32::from_bits(*amax))).collect()
            }
            GlobalScale::Amax(amax) => parts.map(|_| rule.level(amax)).collect(),
            GlobalScale::Stored(stored) => {
                assert_eq!(stored.len(), parts.len(), "global scales of '{self}'");
                stored.iter().map(|stored| rule.stored_level(*stored)).collect()
            }
        }
    }

    /// Returns the factors of the global scales that an encoded tensor stores.
    pub(super) fn stored_levels(&self, encoded: &Encoded) -> Vec<Level> {
        let Some((rule, _)) = self.second_level() else {
            return Vec::new();
        };
        let globals = encoded.part("global").as_chunks().0.iter();
        globals
            .map(|bytes| rule.stored_level(f32::from_le_bytes(*bytes)))
            .collect()
    }

    pub(super) fn second_level(&self) -> Option<(&'static Nvfp4Rule, Group)> {
        match (self.scaling?.scale, self.global?) {
            (Scale::E4m3(rule), group) => Some((rule, group)),
            _ => None,
        }
    }

    /// Scales and casts the rows of a strip, which is one row of tiles. The tuple holds the elements, the number of channels of a
    /// row, and the number of channels of a tile.
    #[inline(always)]
    fn encode_strip<S: pulp::Simd>(
        &self,
        simd: S,
        scale: Scale,
        (x, cols, width): (&[f32], usize, usize),
        room: &mut Room,
        data: &mut [u8],
    ) {
        let element @ (repr, bits) = (&self.repr(), self.element.bits);
        let rows = x.chunks_exact(cols).zip(data.chunks_exact_mut(self.data_bytes(cols)));
        for (row, data) in rows {
            for (tile, part) in pieces(cols, width) {
                let data = &mut data[self.data_bytes(part.start)..self.data_bytes(part.end)];
                let (x, factors) = (&row[part], &room.factors[tile..]);
                let piece = &mut room.piece[..x.len()];
                match scale {
                    Scale::Affine(affine) => {
                        affine.apply::<false>((x, width), [factors, &room.shifts[tile..]], piece);
                        codes::encode(simd, repr, bits, piece, data);
                    }
                    _ => codes::encode_scaled(simd, element, (x, width), scale.division(), factors, piece, data),
                }
            }
        }
    }

    #[inline(always)]
    fn load<S: pulp::Simd>(&self, simd: S, encoded: &Encoded, out: &mut [f32]) {
        let (rows, cols) = (encoded.rows, encoded.cols);
        let data = encoded.part("data");
        assert_eq!(data.len(), rows * self.data_bytes(cols), "bytes of codes of '{self}'");
        let Some(Scaling { group, scale }) = self.scaling else {
            codes::decode(simd, &self.repr(), self.element.bits, data, out);
            return;
        };
        let (down, tiles) = group.count(rows, cols);
        let (stored, all) = (encoded.part("scale"), down * tiles * scale.bytes());
        assert_eq!(stored.len(), all, "bytes of scales of '{self}'");
        let affine = self.zero_point();
        let zero_bytes = affine.map_or(0, |affine| affine.zero_bytes());
        let (zeros, all) = (encoded.part("zero"), down * tiles * zero_bytes);
        assert_eq!(zeros.len(), all, "bytes of zero points of '{self}'");
        let levels = self.stored_levels(encoded);
        let (height, width) = group.tile(rows, cols);
        let strips = out
            .chunks_mut(height * cols)
            .zip(data.chunks(height * self.data_bytes(cols)))
            .zip(stored.chunks(tiles * scale.bytes()));
        let mut room = Room::new(tiles);
        for (strip, ((out, data), stored)) in strips.enumerate() {
            scale.decode(stored, &level(&levels, strip), &mut room.factors);
            if let Some(affine) = affine {
                let zeros = &zeros[strip * tiles * zero_bytes..][..tiles * zero_bytes];
                affine.read_zeros(zeros, &mut room.shifts);
            }
            self.decode_strip(simd, scale, (data, cols, width), &mut room, out);
        }
    }

    #[inline(always)]
    fn decode_strip<S: pulp::Simd>(
        &self,
        simd: S,
        scale: Scale,
        (data, cols, width): (&[u8], usize, usize),
        room: &mut Room,
        out: &mut [f32],
    ) {
        let repr = self.repr();
        let rows = out.chunks_exact_mut(cols).zip(data.chunks_exact(self.data_bytes(cols)));
        for (row, data) in rows {
            for (tile, part) in pieces(cols, width) {
                let data = &data[self.data_bytes(part.start)..self.data_bytes(part.end)];
                let (out, factors) = (&mut row[part], &room.factors[tile..]);
                let values = &mut room.piece[..out.len()];
                codes::decode(simd, &repr, self.element.bits, data, values);
                match scale {
                    Scale::Affine(affine) => {
                        affine.apply::<true>((values, width), [factors, &room.shifts[tile..]], out)
                    }
                    _ => codes::scale(simd, (values, width), scale.multiplication(), factors, out),
                }
            }
        }
    }
}

/// Scratch memory for a strip, which is one row of tiles across all channels.
struct Room {
    /// Bits of the largest magnitude of each tile, which also show NaN and infinities.
    amax: Vec<u32>,
    /// Smallest value (`lo`) and largest value (`hi`) of each tile, for zero points.
    lo: Vec<f32>,
    hi: Vec<f32>,
    /// Two numbers per tile: factor and shift when encoding, scale and zero point when decoding.
    factors: Vec<f32>,
    shifts: Vec<f32>,
    piece: Vec<f32>,
}

impl Room {
    fn new(tiles: usize) -> Self {
        let zeros = || vec![0.0; tiles];
        Self {
            amax: vec![0; tiles],
            lo: zeros(),
            hi: zeros(),
            factors: zeros(),
            shifts: zeros(),
            piece: vec![0.0; PIECE],
        }
    }

    /// Finds the smallest and largest value of each tile in a strip. A row has `cols` channels, and a tile has `width` channels.
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

    /// Computes scale and zero point of each tile in a strip of rows, for codes up to `top`, and stores both numbers. Keeps the
    /// factor and the shift of each tile for the encoding. A partial tile at the edge has the range of its own elements, without
    /// padding.
    #[inline(always)]
    fn fit<S: pulp::Simd>(
        &mut self,
        simd: S,
        affine: Affine,
        (x, cols, width): (&[f32], usize, usize),
        top: f32,
        [scales, zeros]: [&mut [u8]; 2],
    ) {
        self.measure_ranges(simd, x, cols, width);
        let mut fitted: Vec<Fitted> = vec![Affine::NAN; self.amax.len()];
        for (tile, fitted) in fitted.iter_mut().enumerate() {
            if self.amax[tile] < INFINITY_BITS {
                *fitted = affine.fit(self.lo[tile], self.hi[tile], top);
            }
            (self.factors[tile], self.shifts[tile]) = (fitted.factor, fitted.shift);
        }
        affine.write(&fitted, scales, zeros);
    }
}

/// Returns the bits of the largest magnitude of each tile in a strip of rows.
#[inline(always)]
fn measure<'a, S: pulp::Simd>(simd: S, (x, cols, width): (&[f32], usize, usize), amax: &'a mut [u32]) -> &'a [u32] {
    let amax = &mut amax[..cols.div_ceil(width)];
    amax.fill(0);
    for row in x.chunks_exact(cols) {
        amax::of_blocks(simd, row, width, amax);
    }
    amax
}

/// Returns the number of channels that are processed together: as many whole tiles as fit [`PIECE`] elements, or one large tile.
const fn span(width: usize) -> usize {
    if width < PIECE { PIECE / width * width } else { width }
}

/// Splits a row into parts, each processed in one step. A part covers whole tiles of `width` channels, or lies within one tile.
/// Returns the index of the first tile of each part, and its channels.
#[inline(always)]
fn pieces(cols: usize, width: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let span = span(width);
    (0..cols).step_by(span).flat_map(move |start| {
        let end = cols.min(start + span);
        let parts = (start..end).step_by(PIECE);
        parts.map(move |first| (start / width, first..end.min(first + PIECE)))
    })
}

/// Returns the factors of the global scale for a strip (one row of tiles). If each row has its own global scale, a strip is a
/// single row.
pub(super) fn level(levels: &[Level], strip: usize) -> Level {
    match levels {
        [] => Level::ONE,
        [level] => *level,
        levels => levels[strip],
    }
}
