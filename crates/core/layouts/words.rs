//! Moves words between the rows of a matrix and tiles, 16 rows × 64 bytes at a time: as 16 × 16 words, transposed. A row is done before the
//! rows below, unless tiles are tall: a column of them is then done for 256 rows before the next column.

use std::ops::Deref;

use super::part::Part;

/// 16 lines of 16 words.
#[repr(align(64))]
pub struct Block(pub [[u8; 64]; 16]);

const ZEROS: Block = Block([[0; 64]; 16]);

/// Something that exchanges rows and columns of the words of a block.
pub trait Transpose: Copy {
    /// The block with its rows as columns.
    fn transpose(self, block: Block) -> Block;
}

/// Word by word, on any machine.
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
        // In each of four lanes: 4 lines × 4 words.
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
        // 4 × 4 lanes: 0x88 takes the even lanes of both, 0xdd the odd ones.
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

/// Work on blocks.
pub trait Work {
    fn run(self, by: impl Transpose);
}

/// Does `work` with the widest registers there are.
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

/// A conversion between a matrix and the tiles of a part.
pub struct Convert<'a, M, T> {
    pub part: &'a Part,
    /// The matrix, and bytes of its rows.
    pub matrix: M,
    pub stride: usize,
    pub tiles: T,
}

/// Writes the tiles of a part, padding too.
pub type Pack<'a> = Convert<'a, &'a [u8], &'a mut [u8]>;
/// Writes a part of the matrix from its tiles.
pub type Unpack<'a> = Convert<'a, &'a mut [u8], &'a [u8]>;

/// One direction of a conversion, block by block.
pub trait Blocks {
    /// Converts a whole block of `N` bytes in a tile: from byte `first` of these rows on, at this line of the tiles.
    fn whole<const N: usize>(&mut self, by: impl Transpose, rows: &[usize; 16], line: usize, first: usize);

    /// Converts any `len` bytes of the rows of a band, from byte `first` on.
    fn edge(&mut self, by: impl Transpose, band: &Band, first: usize, len: usize);
}

/// Up to 16 rows that are next to each other in tiles.
pub struct Band {
    /// Their beginnings in the matrix; `None` for padding.
    rows: [Option<usize>; 16],
    /// Their beginning in the first tile of the part that has them, and their bytes of a tile.
    line: usize,
    bytes: usize,
}

/// The bands of a part, of which the first in each tile has `first` rows if that is not 0.
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

/// Bands of a tall part that are converted together, column by column: 1 KB of each column.
const TOGETHER: usize = 16;

/// The bands of a tall part, as many as are converted together. Those behind the first begin at a line of the cache in each column of
/// tiles at this address, if columns are whole lines.
fn lots(part: &Part, stride: usize, tiles: usize) -> impl Iterator<Item = Vec<Band>> {
    let first = tiles.wrapping_neg() % 64 / 4;
    let mut bands = bands(part, stride, first);
    let lot = move || Some(bands.by_ref().take(TOGETHER).collect::<Vec<_>>());
    std::iter::from_fn(lot).take_while(|lot| !lot.is_empty())
}

impl Band {
    /// Bytes of each row that lie in whole blocks: of `N` bytes in a tile, without padding.
    fn whole<const N: usize>(&self, width: usize) -> usize {
        match self.bytes == N && self.rows[..N / 4].iter().all(Option::is_some) {
            true => width / 64 * 64,
            false => 0,
        }
    }

    /// The beginnings of its rows in the matrix, 0 for padding, and of its line in the tiles.
    fn starts(&self) -> ([usize; 16], usize) {
        (self.rows.map(|row| row.unwrap_or(0)), self.line)
    }
}

impl<M, T> Convert<'_, M, T>
where
    Self: Blocks,
{
    /// Bytes of a tile.
    fn size(&self) -> usize {
        4 * self.part.height()
    }

    /// Converts the blocks of a band that are whole with `N` bytes in a tile; returns the bytes of each row in them.
    #[inline(always)]
    fn band<const N: usize>(&mut self, by: impl Transpose, band: &Band) -> usize {
        let (whole, (rows, line)) = (band.whole::<N>(self.part.bytes.len()), band.starts());
        for first in (0..whole).step_by(64) {
            self.whole::<N>(by, &rows, line, first);
        }
        whole
    }

    /// Converts any blocks of a band, from byte `start` of the rows on.
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
            // Heights of 128 and 8 rows.
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
