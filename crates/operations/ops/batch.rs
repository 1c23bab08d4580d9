//! Independent rows of a problem: batches of some of them, and batches so large that addresses pass 32 bits.

use std::ops::Range;

use super::{Buffer, Case, Problem};

/// Independent rows: each must have the same bits in any batch and at any place in it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The size that counts the rows.
    pub dim: &'static str,
    /// The buffers that have the rows as a dimension, with its number; all rows share the others.
    pub buffers: Vec<(&'static str, usize)>,
    /// The number of rows, if they can only be repeated as a whole: because their sizes differ, because they lie in tiles, because
    /// two of them must not share a state, or because a result depends on all of them. Buffers may then have any number of parts for
    /// each row.
    together: Option<usize>,
    /// Further sizes that grow with the rows.
    sizes: Vec<&'static str>,
    /// Buffers that all rows share; each repetition has its own.
    pools: Vec<&'static str>,
    /// Buffers of numbers that name places of other buffers.
    naming: Vec<Naming>,
    /// Outputs with padding behind this many bytes of rows; repetitions are inserted before the padding.
    used: Vec<(&'static str, usize)>,
}

/// Integers that name places of another buffer, such as slots of a pool. The numbers of a repetition must name its own places.
#[derive(Clone, Copy, Debug)]
struct Naming {
    buffer: &'static str,
    /// Number of places of the other buffer: the difference between the numbers of two repetitions.
    places: usize,
    /// Number of last numbers that are not repeated: 1 for starts of sequences and the end of the last, else 0.
    last: usize,
}

/// The most bytes of the buffers of a problem with repeated rows.
pub const MOST_REPEATED: usize = 56 << 30;
/// The most bytes of these buffers and scratch.
pub const MOST_WITH_SCRATCH: usize = 64 << 30;
/// The number of elements, or bytes, that 32 bits count. Kernels must be able to pass it.
const COUNTED: usize = 1 << 32;
/// The largest second dimension of a grid. Kernels must be able to take more rows.
const GRID: usize = 1 << 16;

impl Batch {
    /// Rows that `dim` counts: the first dimension of these buffers.
    pub fn new(dim: &'static str, buffers: &[&'static str]) -> Self {
        let none = Self { dim, ..Self::default() };
        none.along(0, buffers)
    }

    /// Adds buffers that have the rows as dimension `axis`.
    #[must_use]
    pub fn along(mut self, axis: usize, buffers: &[&'static str]) -> Self {
        self.buffers.extend(buffers.iter().map(|name| (*name, axis)));
        self
    }

    /// Declares that the `rows` rows of the problem can only be repeated as a whole. The sizes named `sizes` grow with the rows.
    #[must_use]
    pub fn together(mut self, rows: usize, sizes: &[&'static str]) -> Self {
        self.together = Some(rows);
        self.sizes.extend(sizes);
        self
    }

    /// Adds indices of rows into a pool with this many places, which all rows share; negative indices name no place.
    #[must_use]
    pub fn pool(mut self, indices: &'static str, pool: &'static str, places: usize) -> Self {
        self.pools.push(pool);
        self.numbers(indices, places, 0)
    }

    /// Adds the ends of groups of rows; the last end is the number of `rows`.
    #[must_use]
    pub fn ends(self, buffer: &'static str, rows: usize) -> Self {
        self.along(0, &[buffer]).numbers(buffer, rows, 0)
    }

    /// Adds the first of each row's `tokens`, and the end of the last row.
    #[must_use]
    pub fn starts(self, buffer: &'static str, tokens: usize) -> Self {
        self.numbers(buffer, tokens, 1)
    }

    /// Declares an output with padding after `used` bytes; repetitions are inserted before it.
    #[must_use]
    pub fn used(mut self, output: &'static str, used: usize) -> Self {
        self.used.push((output, used));
        self
    }

    /// The two parts of an output with this many bytes, rows and padding. Repetition repeats each of them by itself.
    pub fn parts(&self, output: &str, bytes: usize) -> [Range<usize>; 2] {
        let used = self.used.iter().find(|(name, _)| *name == output);
        let used = used.map_or(bytes, |(_, used)| *used);
        [0..used, used..bytes]
    }

    fn numbers(mut self, buffer: &'static str, places: usize, last: usize) -> Self {
        self.naming.push(Naming { buffer, places, last });
        self
    }

    /// The dimension of a buffer that counts the rows; `None` if no dimension does.
    fn axis(&self, buffer: &Buffer) -> Option<usize> {
        let found = self.buffers.iter().find(|(name, _)| *name == buffer.name);
        found.map(|(_, axis)| *axis)
    }

    /// The number of rows in a buffer, and the number of blocks that each have all rows.
    pub(crate) fn rows_in(&self, buffer: &Buffer) -> Option<[usize; 2]> {
        let axis = self.axis(buffer)?;
        Some([buffer.shape[axis], buffer.shape[..axis].iter().product()])
    }

    /// A buffer, and bytes of its shape, with only these rows.
    pub(crate) fn picked(&self, buffer: &Buffer, bytes: &[u8], rows: &[usize]) -> (Vec<usize>, Vec<u8>) {
        let mut shape = buffer.shape.clone();
        let (Some(axis), Some([count, blocks])) = (self.axis(buffer), self.rows_in(buffer)) else {
            return (shape, bytes.to_vec());
        };
        shape[axis] = rows.len();
        let each = bytes.len() / (blocks * count).max(1);
        let mut picked = Vec::with_capacity(blocks * rows.len() * each);
        for block in 0..blocks {
            for row in rows {
                picked.extend_from_slice(&bytes[(block * count + row) * each..][..each]);
            }
        }
        (shape, picked)
    }

    /// A buffer with all rows repeated this many times.
    fn repeated(&self, buffer: &Buffer, times: usize) -> Buffer {
        let mut buffer = buffer.clone();
        if let Some(naming) = self.naming.iter().find(|naming| naming.buffer == buffer.name) {
            buffer.bytes = naming.repeated(&buffer, times);
            buffer.shape = vec![buffer.bytes.len() * 8 / buffer.dtype.bitsize()];
        } else if let Some(axis) = self.repeats(&buffer) {
            buffer.shape[axis] *= times;
        }
        buffer
    }

    /// The dimension of a buffer that grows when rows are repeated; `None` if no dimension does.
    fn repeats(&self, buffer: &Buffer) -> Option<usize> {
        let pool = || self.pools.contains(&buffer.name).then_some(0);
        self.axis(buffer).or_else(pool)
    }
}

impl Naming {
    /// The numbers of all repetitions, little-endian.
    fn repeated(&self, buffer: &Buffer, times: usize) -> Vec<u8> {
        let size = buffer.dtype.bitsize() / 8;
        let number = |bytes: &[u8]| {
            let mut wide = [if bytes[size - 1] >= 0x80 { 0xff } else { 0 }; 8];
            wide[..size].copy_from_slice(bytes);
            i64::from_le_bytes(wide)
        };
        let numbers: Vec<i64> = buffer.bytes.chunks_exact(size).map(number).collect();
        let period = numbers.len() - self.last;
        let named = |at: usize| match numbers[at % period] {
            none if none < 0 => none,
            number => number + (at / period * self.places) as i64,
        };
        let bytes = (0..period * times + self.last).flat_map(|at| named(at).to_le_bytes().into_iter().take(size));
        bytes.collect()
    }
}

impl Problem {
    /// The number of independent rows; `None` if there are none.
    pub fn rows(&self) -> Option<usize> {
        let batch = self.batch.as_ref()?;
        let counted = || self.buffers.iter().find_map(|buffer| batch.rows_in(buffer));
        let rows = batch.together.or_else(|| counted().map(|[rows, _]| rows));
        rows.filter(|rows| *rows > 0)
    }

    /// The problem, without judgements, of some rows of the batch, in this order; a row may occur several times. `None` if no rows are
    /// independent, or if they can only be repeated as a whole.
    pub fn of_rows(&self, case: &Case, rows: &[usize]) -> Option<(Case, Self)> {
        let batch = self.batch.as_ref().filter(|batch| batch.together.is_none())?;
        self.with_rows(case, rows.len(), |buffer| {
            let (shape, bytes) = batch.picked(buffer, &buffer.bytes, rows);
            Buffer {
                shape,
                bytes,
                ..buffer.clone()
            }
        })
    }

    /// The problem, without judgements, of all rows repeated this many times, one batch behind the other. A buffer has its contents once,
    /// and they repeat, except numbers that name rows. `None` if no rows are independent, or if a buffer has them in several blocks:
    /// repeated rows would not be the whole buffer.
    pub fn repeated(&self, case: &Case, times: usize) -> Option<(Case, Self)> {
        let (batch, rows) = (self.batch.as_ref()?, self.rows()?);
        let mut blocks = self.buffers.iter().filter_map(|buffer| batch.rows_in(buffer));
        if blocks.any(|[_, blocks]| blocks != 1) {
            return None;
        }
        let (mut case, problem) = self.with_rows(case, rows * times, |buffer| batch.repeated(buffer, times))?;
        let sizes = case.dims.iter_mut().filter(|(name, _)| batch.sizes.contains(name));
        sizes.for_each(|(_, size)| *size *= times as i64);
        Some((case, problem))
    }

    /// The number of repetitions with which rows exceed a grid, and each buffer of rows exceeds 2³² elements or, if that is too much,
    /// 2³¹ elements and 2³² bytes. A limit that cannot be exceeded with at most [`MOST_REPEATED`] bytes in all buffers does not count.
    pub fn times_to_large(&self) -> Option<usize> {
        let (batch, rows) = (self.batch.as_ref()?, self.rows()?);
        let of_rows = || self.buffers.iter().filter(|buffer| batch.repeats(buffer).is_some());
        let each: usize = of_rows().map(Buffer::size).sum();
        let most = (MOST_REPEATED / each.max(1)).min(i32::MAX as usize / rows);
        let needed = |buffer: &Buffer| {
            let element = buffer.dtype.bitsize().div_ceil(8);
            let bytes = [COUNTED * element, COUNTED.max(COUNTED / 2 * element)];
            // A whole repetition lies behind.
            let times = bytes.map(|bytes| bytes / buffer.size().max(1) + 2);
            times.into_iter().find(|times| *times <= most)
        };
        let grid = Some(GRID / rows + 1).filter(|times| *times <= most);
        of_rows()
            .filter_map(needed)
            .chain(grid)
            .max()
            .filter(|times| *times > 1)
    }

    /// True if a buffer has more bytes than 32 bits address.
    pub fn passes_32_bits(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.size() > COUNTED)
    }

    fn with_rows(&self, case: &Case, rows: usize, buffer: impl Fn(&Buffer) -> Buffer) -> Option<(Case, Self)> {
        let mut case = case.clone();
        let dim = self.batch.as_ref()?.dim;
        let (_, size) = case.dims.iter_mut().find(|(name, _)| *name == dim)?;
        *size = rows as i64;
        let problem = Self {
            buffers: self.buffers.iter().map(buffer).collect(),
            scalars: self.scalars.clone(),
            batch: None,
            judges: Vec::new(),
            large: false,
            ..*self
        };
        Some((case, problem))
    }
}
