//! Test batches made from the independent rows of a problem (the inputs and checks of a test). Tests run kernels on small batches
//! of chosen rows, and on batches with more elements than 32 bits can address.

use std::ops::Range;

use super::{Buffer, Case, Problem};

/// Rows of a problem that do not depend on each other. The output bits of a row must be the same in every batch and at every
/// position in a batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Name of the size that holds the number of rows.
    pub dim: &'static str,
    /// Names of the buffers with a dimension for the rows, each with the index of that dimension. Rows share all other buffers.
    pub buffers: Vec<(&'static str, usize)>,
    /// Number of rows, if a test can only repeat all rows together; `None` if it can pick single rows. A test cannot pick single
    /// rows if they differ in size, share a tile, or have a state (which a row that is picked twice would share), or if a result
    /// depends on all rows. The row dimension of a buffer may differ from this number.
    together: Option<usize>,
    /// Names of other sizes of the case that grow in proportion to the number of rows.
    sizes: Vec<&'static str>,
    /// Names of pools: buffers that all rows share and address by index. If rows are repeated, each repetition has its own pools.
    pools: Vec<&'static str>,
    /// Integer buffers with indices into other buffers.
    naming: Vec<Naming>,
    /// Outputs with padding, each with the number of bytes before the padding. Repeated rows are inserted before the padding.
    used: Vec<(&'static str, usize)>,
}

/// Buffer of indices into another buffer, such as slots of a pool. If a test repeats the rows, each repetition has its own copy
/// of that other buffer.
#[derive(Clone, Copy, Debug)]
struct Naming {
    buffer: &'static str,
    /// Number of elements that the indices can address. The indices of a repetition are larger by this number than those of the
    /// repetition before.
    places: usize,
    /// Number of entries at the end that are not repeated: 1 for an array of sequence starts, because its last entry is the end
    /// of the last sequence; else 0.
    last: usize,
}

/// Maximum total size, in bytes, of all buffers when a test repeats the rows of a problem.
pub const MOST_REPEATED: usize = 56 << 30;
/// Maximum total size, in bytes, of all buffers and of the kernel's scratch memory when a test repeats the rows of a problem.
pub const MOST_WITH_SCRATCH: usize = 64 << 30;
/// Number of elements or bytes that a 32-bit index can address. Large cases exceed it, to find kernels whose indices overflow.
const COUNTED: usize = 1 << 32;
/// Largest `gridDim.y` plus one. Large cases have more rows, to find kernels that need a block in y for each row.
const GRID: usize = 1 << 16;

impl Batch {
    /// Creates a batch: the size `dim` is the number of rows, and the rows are the first dimension of `buffers`.
    pub fn new(dim: &'static str, buffers: &[&'static str]) -> Self {
        let none = Self { dim, ..Self::default() };
        none.along(0, buffers)
    }

    /// Adds buffers in which the dimension with the index `axis` counts the rows.
    #[must_use]
    pub fn along(mut self, axis: usize, buffers: &[&'static str]) -> Self {
        self.buffers.extend(buffers.iter().map(|name| (*name, axis)));
        self
    }

    /// Declares that a test can only repeat all `rows` rows together. The sizes named in `sizes` then grow in proportion to the
    /// rows.
    #[must_use]
    pub fn together(mut self, rows: usize, sizes: &[&'static str]) -> Self {
        self.together = Some(rows);
        self.sizes.extend(sizes);
        self
    }

    /// Adds the index buffer `indices`. For each row, it holds a slot of the buffer `pool`, which has `places` slots and is
    /// shared by all rows. A negative index means no slot.
    #[must_use]
    pub fn pool(mut self, indices: &'static str, pool: &'static str, places: usize) -> Self {
        self.pools.push(pool);
        self.numbers(indices, places, 0)
    }

    /// Adds an index buffer with the end of each group of rows; the last end equals `rows`.
    #[must_use]
    pub fn ends(self, buffer: &'static str, rows: usize) -> Self {
        self.along(0, &[buffer]).numbers(buffer, rows, 0)
    }

    /// Adds an index buffer with the index of the first token of each row, followed by the number of all tokens, `tokens`.
    #[must_use]
    pub fn starts(self, buffer: &'static str, tokens: usize) -> Self {
        self.numbers(buffer, tokens, 1)
    }

    /// Declares that an output has padding after its first `used` bytes. A test that repeats the rows inserts the repetitions
    /// before the padding.
    #[must_use]
    pub fn used(mut self, output: &'static str, used: usize) -> Self {
        self.used.push((output, used));
        self
    }

    /// Splits an output of `bytes` bytes into rows and padding. Each of these two ranges is repeated separately.
    pub fn parts(&self, output: &str, bytes: usize) -> [Range<usize>; 2] {
        let used = self.used.iter().find(|(name, _)| *name == output);
        let used = used.map_or(bytes, |(_, used)| *used);
        [0..used, used..bytes]
    }

    fn numbers(mut self, buffer: &'static str, places: usize, last: usize) -> Self {
        self.naming.push(Naming { buffer, places, last });
        self
    }

    /// Index of the dimension of a buffer that counts the rows; `None` if no dimension counts rows.
    fn axis(&self, buffer: &Buffer) -> Option<usize> {
        let found = self.buffers.iter().find(|(name, _)| *name == buffer.name);
        found.map(|(_, axis)| *axis)
    }

    /// Number of rows in a buffer, and the product of the dimensions before the rows; `None` if the buffer has no rows.
    pub(crate) fn rows_in(&self, buffer: &Buffer) -> Option<[usize; 2]> {
        let axis = self.axis(buffer)?;
        Some([buffer.shape[axis], buffer.shape[..axis].iter().product()])
    }

    /// Picks the rows with the indices `rows` from a buffer with contents `bytes`. Returns the new shape and the new bytes.
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

    /// Returns this buffer for a problem whose rows are repeated `times` times. The shape covers all repetitions. An index buffer
    /// gets the bytes of all repetitions; other buffers keep the bytes of one repetition.
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

    /// Index of the dimension of a buffer that grows when rows are repeated; `None` if the buffer stays the same.
    fn repeats(&self, buffer: &Buffer) -> Option<usize> {
        let pool = || self.pools.contains(&buffer.name).then_some(0);
        self.axis(buffer).or_else(pool)
    }
}

impl Naming {
    /// Returns the indices of all repetitions as little-endian bytes.
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
    /// Number of independent rows; `None` if the rows depend on each other.
    pub fn rows(&self) -> Option<usize> {
        let batch = self.batch.as_ref()?;
        let counted = || self.buffers.iter().find_map(|buffer| batch.rows_in(buffer));
        let rows = batch.together.or_else(|| counted().map(|[rows, _]| rows));
        rows.filter(|rows| *rows > 0)
    }

    /// Makes a problem from the given rows in the given order, without checks of the outputs. A row may occur several times.
    /// Returns `None` if rows depend on each other or can only be repeated together.
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

    /// Makes a problem with all rows repeated `times` times, one batch after the other, without checks of the outputs. A buffer
    /// holds the bytes of only one repetition, which the caller copies for all others; only index buffers hold all repetitions.
    /// Returns `None` if rows depend on each other, or if rows are not the first dimension of a buffer: repeating all bytes of
    /// such a buffer would not repeat its rows.
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

    /// Returns how often a test must repeat the rows, so that the number of rows exceeds the largest grid dimension, and each
    /// buffer with rows has more than 2³² elements. If that takes more than [`MOST_REPEATED`] bytes, 2³¹ elements and 2³² bytes
    /// suffice for a buffer. A requirement that still takes too much memory is dropped; `None` if all are dropped.
    pub fn times_to_large(&self) -> Option<usize> {
        let (batch, rows) = (self.batch.as_ref()?, self.rows()?);
        let of_rows = || self.buffers.iter().filter(|buffer| batch.repeats(buffer).is_some());
        let each: usize = of_rows().map(Buffer::size).sum();
        let most = (MOST_REPEATED / each.max(1)).min(i32::MAX as usize / rows);
        let needed = |buffer: &Buffer| {
            let element = buffer.dtype.bitsize().div_ceil(8);
            let bytes = [COUNTED * element, COUNTED.max(COUNTED / 2 * element)];
            // Add two repetitions, so that at least one whole repetition lies beyond the limit.
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

    /// True if a buffer has more bytes than a 32-bit offset can address.
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
