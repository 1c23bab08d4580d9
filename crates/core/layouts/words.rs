//! Moves words of 4 bytes between a matrix of scales and the tiles of a layout. The unit of work is a block of 16 rows × 64
//! bytes, which is transposed as 16 × 16 words. Blocks are converted from left to right, then from top to bottom. Tall tiles
//! (more than 64 rows) are converted down each column, for 256 rows at a time.

use std::ops::Deref;

use super::part::Part;

/// A block: 16 rows of 16 words.
#[repr(align(64))]
pub struct Block(pub [[u8; 64]; 16]);

const ZEROS: Block = Block([[0; 64]; 16]);

/// Transposes the 16 × 16 words of a block.
pub trait Transpose: Copy {
    /// Returns the block with rows and columns exchanged.
    fn transpose(self, block: Block) -> Block;
}

/// Transposes word by word, on any processor.
#[derive(Clone, Copy)]
pub struct Plain;

impl Transpose for Plain {
    #[inline(always)]
    fn transpose(self, block: Block) -> Block {
        let mut out = ZEROS;
        for (i, line) in block.0.iter().enumerate() {
            for (j, word) in line.as_chunks::<4>().0.iter().enumerate() {
                out.0[j][4 * i..4 * i + 4].copy_from_slice(word);
            }
        }
        out
    }
}

#[cfg(target_arch = "x86_64")]
impl Transpose for pulp::x86::V4 {
    #[inline(always)]
    fn transpose(self, block: Block) -> Block {
        let simd = self.avx512f;
        let mut v: [core::arch::x86_64::__m512i; 16] = pulp::cast(block.0);
        // Transposes 4 × 4 words within each of the four 128-bit lanes.
        for v in v.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *v;
            let (ab0, ab1) = (simd._mm512_unpacklo_epi32(a, b), simd._mm512_unpackhi_epi32(a, b));
            let (cd0, cd1) = (simd._mm512_unpacklo_epi32(c, d), simd._mm512_unpackhi_epi32(c, d));
            *v = [
                simd._mm512_unpacklo_epi64(ab0, cd0),
                simd._mm512_unpackhi_epi64(ab0, cd0),
                simd._mm512_unpacklo_epi64(ab1, cd1),
                simd._mm512_unpackhi_epi64(ab1, cd1),
            ];
        }
        // Transposes the lanes, 4 × 4. 0x88 takes the even lanes of both operands, 0xdd the odd lanes.
        for k in 0..4 {
            let [a, b, c, d] = [v[k], v[k + 4], v[k + 8], v[k + 12]];
            let (ab0, ab1) = (
                simd._mm512_shuffle_i32x4::<0x88>(a, b),
                simd._mm512_shuffle_i32x4::<0xdd>(a, b),
            );
            let (cd0, cd1) = (
                simd._mm512_shuffle_i32x4::<0x88>(c, d),
                simd._mm512_shuffle_i32x4::<0xdd>(c, d),
            );
            v[k] = simd._mm512_shuffle_i32x4::<0x88>(ab0, cd0);
            v[k + 4] = simd._mm512_shuffle_i32x4::<0x88>(ab1, cd1);
            v[k + 8] = simd._mm512_shuffle_i32x4::<0xdd>(ab0, cd0);
            v[k + 12] = simd._mm512_shuffle_i32x4::<0xdd>(ab1, cd1);
        }
        Block(pulp::cast(v))
    }
}

/// A computation that transposes blocks.
pub trait Work {
    fn run(self, by: impl Transpose);
}

/// Runs `work` with AVX-512 if the processor supports it, otherwise with [`Plain`].
pub fn dispatch(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        return simd.vectorize(With(work, simd));
    }
    work.run(Plain);
}

struct With<W, T>(W, T);

impl<W: Work, T: Transpose> pulp::NullaryFnOnce for With<W, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run(self.1);
    }
}

/// Conversion between one part of a matrix of scales and the tiles of this part in the buffer.
pub struct Convert<'a, M, T> {
    pub part: &'a Part,
    /// The matrix, and the number of bytes of each row of the matrix (`stride`).
    pub matrix: M,
    pub stride: usize,
    pub tiles: T,
}

/// Writes the tiles of a part, including padding, from the matrix.
pub type Pack<'a> = Convert<'a, &'a [u8], &'a mut [u8]>;
/// Writes a part of the matrix from its tiles.
pub type Unpack<'a> = Convert<'a, &'a mut [u8], &'a [u8]>;

/// Conversion of blocks in one direction: from the matrix to the tiles, or back.
pub trait Blocks {
    /// Converts a whole block, which takes `N` bytes of each tile. The block begins at byte `first` of each row, and at byte
    /// `line` of the tiles. `rows` holds the offsets of the rows in the matrix.
    fn whole<const N: usize>(&mut self, by: impl Transpose, rows: &[usize; 16], line: usize, first: usize);

    /// Converts `len` bytes (at most 64) of each row of a band, from byte `first` of the row on.
    fn edge(&mut self, by: impl Transpose, band: &Band, first: usize, len: usize);
}

/// Up to 16 rows that are adjacent in a tile: the tile holds one word (4 bytes) of each row, one after the other.
pub struct Band {
    /// Offset of each row in the matrix, in bytes; `None` for padding.
    rows: [Option<usize>; 16],
    /// Offset of the band in the tiles of the part (`line`), and size of the band in each tile (`bytes`), both in bytes.
    line: usize,
    bytes: usize,
}

/// Returns the bands (groups of up to 16 rows) of a part. If `first` is not 0, the first band of each tile has only `first` rows.
fn bands(part: &Part, stride: usize, first: usize) -> impl Iterator<Item = Band> {
    let (height, across) = (part.height(), part.across());
    let tops = (0..part.rows.len()).step_by(height);
    tops.flat_map(move |top| {
        let words = (first > 0).then_some(0).into_iter().chain((first..height).step_by(16));
        words.map(move |word| {
            let len = if word < first { first } else { (height - word).min(16) };
            Band {
                rows: std::array::from_fn(|i| {
                    let row = part.rows.start + top + part.tile.row(word + i);
                    (i < len && row < part.rows.end).then(|| row * stride + part.bytes.start)
                }),
                line: (top * across + word) * 4,
                bytes: len * 4,
            }
        })
    })
}

/// Number of bands (of 16 rows) of a tall tile that are converted together, column by column: 1 KB of each column.
const TOGETHER: usize = 16;

/// Returns the bands (of 16 rows) of a part with tall tiles, in groups that are converted together. `tiles` is the address of the
/// tiles. If they do not begin at a cache line, the first band is shorter, so that all later bands of the first tile begin at a
/// cache line. The same holds for later tiles if the size of a tile is a multiple of a cache line.
fn lots(part: &Part, stride: usize, tiles: usize) -> impl Iterator<Item = Vec<Band>> {
    let first = tiles.wrapping_neg() % 64 / 4;
    let mut bands = bands(part, stride, first);
    let lot = move || Some(bands.by_ref().take(TOGETHER).collect::<Vec<_>>());
    std::iter::from_fn(lot).take_while(|lot| !lot.is_empty())
}

impl Band {
    /// Returns the number of bytes of each row that can be moved in whole blocks: `width`, rounded down to a multiple of 64.
    /// Returns 0 if the band has padding, or does not have `N / 4` rows.
    fn whole<const N: usize>(&self, width: usize) -> usize {
        match self.bytes == N && self.rows[..N / 4].iter().all(Option::is_some) {
            true => width / 64 * 64,
            false => 0,
        }
    }

    /// Returns the offsets of the rows in the matrix, 0 for padding, and the offset of the band in the tiles.
    fn starts(&self) -> ([usize; 16], usize) {
        (self.rows.map(|row| row.unwrap_or(0)), self.line)
    }
}

impl<M, T> Convert<'_, M, T>
where
    Self: Blocks,
{
    /// Returns the number of bytes of a tile.
    fn size(&self) -> usize {
        4 * self.part.height()
    }

    /// Converts the whole blocks of a band that takes `N` bytes of a tile; returns the number of bytes of each row that were
    /// converted.
    #[inline(always)]
    fn band<const N: usize>(&mut self, by: impl Transpose, band: &Band) -> usize {
        let (whole, (rows, line)) = (band.whole::<N>(self.part.bytes.len()), band.starts());
        for first in (0..whole).step_by(64) {
            self.whole::<N>(by, &rows, line, first);
        }
        whole
    }

    /// Converts the partial blocks of a band, from byte `start` of the rows on.
    #[inline(always)]
    fn edges(&mut self, by: impl Transpose, band: &Band, start: usize) {
        let width = self.part.bytes.len();
        for first in (start..width).step_by(64) {
            self.edge(by, band, first, (width - first).min(64));
        }
    }
}

impl<M, T: Deref<Target = [u8]>> Work for Convert<'_, M, T>
where
    Self: Blocks,
{
    #[inline(always)]
    fn run(mut self, by: impl Transpose) {
        if self.part.is_tall() {
            let width = self.part.bytes.len();
            for lot in lots(self.part, self.stride, self.tiles.as_ptr().addr()) {
                let whole = lot.iter().filter(|band| band.whole::<64>(64) > 0);
                let starts: Vec<([usize; 16], usize)> = whole.map(Band::starts).collect();
                for first in (0..width / 64 * 64).step_by(64) {
                    for (rows, line) in &starts {
                        self.whole::<64>(by, rows, *line, first);
                    }
                }
                for band in &lot {
                    self.edges(by, band, band.whole::<64>(width));
                }
            }
            return;
        }
        for band in bands(self.part, self.stride, 0) {
            // A whole block takes 64 bytes (16 rows) of a tile of 128 rows, and all 32 bytes of a tile of 8 rows.
            let done = self.band::<64>(by, &band) + self.band::<32>(by, &band);
            self.edges(by, &band, done);
        }
    }
}

impl Blocks for Pack<'_> {
    #[inline(always)]
    fn whole<const N: usize>(&mut self, by: impl Transpose, rows: &[usize; 16], line: usize, first: usize) {
        let mut block = ZEROS;
        for (line, row) in block.0[..N / 4].iter_mut().zip(rows) {
            line.copy_from_slice(&self.matrix[row + first..][..64]);
        }
        let (block, size) = (by.transpose(block), self.size());
        let tiles = &mut self.tiles[line + first * size / 4..][..15 * size + N];
        for t in 0..16 {
            tiles[t * size..][..N].copy_from_slice(&block.0[t][..N]);
        }
    }

    #[inline(always)]
    fn edge(&mut self, by: impl Transpose, band: &Band, first: usize, len: usize) {
        let mut block = ZEROS;
        for (line, row) in block.0.iter_mut().zip(band.rows) {
            if let Some(row) = row {
                line[..len].copy_from_slice(&self.matrix[row + first..][..len]);
            }
        }
        let (block, size) = (by.transpose(block), self.size());
        let tiles = &mut self.tiles[band.line + first * size / 4..];
        for (line, tile) in block.0.iter().zip(tiles.chunks_mut(size)).take(len.div_ceil(4)) {
            tile[..band.bytes].copy_from_slice(&line[..band.bytes]);
        }
    }
}

impl Blocks for Unpack<'_> {
    #[inline(always)]
    fn whole<const N: usize>(&mut self, by: impl Transpose, rows: &[usize; 16], line: usize, first: usize) {
        let (mut block, size) = (ZEROS, self.size());
        let tiles = &self.tiles[line + first * size / 4..][..15 * size + N];
        for t in 0..16 {
            block.0[t][..N].copy_from_slice(&tiles[t * size..][..N]);
        }
        let block = by.transpose(block);
        for (line, row) in block.0[..N / 4].iter().zip(rows) {
            self.matrix[row + first..][..64].copy_from_slice(line);
        }
    }

    #[inline(always)]
    fn edge(&mut self, by: impl Transpose, band: &Band, first: usize, len: usize) {
        let (mut block, size) = (ZEROS, self.size());
        let tiles = &self.tiles[band.line + first * size / 4..];
        for (line, tile) in block.0.iter_mut().zip(tiles.chunks(size)).take(len.div_ceil(4)) {
            line[..band.bytes].copy_from_slice(&tile[..band.bytes]);
        }
        let block = by.transpose(block);
        for (line, row) in block.0.iter().zip(band.rows) {
            if let Some(row) = row {
                self.matrix[row + first..][..len].copy_from_slice(&line[..len]);
            }
        }
    }
}
