//! Rows of a problem that do not depend on each other: batches of some of them, and of so many that addresses are large.

use std::ops::Range;

use super::{Buffer, Case, Inputs, Op, Problem};

/// Rows that are computed independently: each must have the same bits whatever other rows there are, and wherever it is among
/// them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The size that counts the rows.
    pub dim: &'static str,
    /// The buffers that have the rows as a dimension, and which one it is; the others are shared by all rows.
    pub buffers: Vec<(&'static str, usize)>,
    /// The number of rows, if they can only be repeated all together: because their sizes differ, because they lie in tiles,
    /// because two of them must not have one state, or because a result depends on all of them. Buffers may then have any number
    /// of parts for each row.
    together: Option<usize>,
    /// Sizes besides `dim` that grow with the rows.
    sizes: Vec<&'static str>,
    /// Buffers that all rows share, and that are there again for each repetition.
    pools: Vec<&'static str>,
    /// Buffers of numbers that name places of other buffers.
    naming: Vec<Naming>,
    /// Outputs of which only so many bytes are those of rows: what is left behind them lies behind those of all repetitions.
    used: Vec<(&'static str, usize)>,
}

/// Integers that name places of another buffer, such as slots of a pool. Where all rows are there again, the numbers of a
/// repetition must name the places of that repetition.
#[derive(Clone, Copy, Debug)]
struct Naming {
    buffer: &'static str,
    /// How many places the other buffer has, which is how far apart the numbers of two repetitions are.
    places: usize,
    /// How many of the numbers are there once, behind all others: 1 for starts of sequences and the end of the last, else 0.
    last: usize,
}

/// What the buffers of a problem may take on a card when its rows are repeated.
pub const MOST_REPEATED: usize = 56 << 30;
/// What they may take with scratch.
pub const MOST_WITH_SCRATCH: usize = 64 << 30;
/// What 32 bits count: the elements, and the bytes, of a buffer that a kernel must be able to pass.
const COUNTED: usize = 1 << 32;
/// What a grid has in its second dimension: rows that a kernel must be able to pass.
const GRID: usize = 1 << 16;

impl Batch {
    /// Rows that `dim` counts, the first dimension of these buffers.
    pub fn new(dim: &'static str, buffers: &[&'static str]) -> Self {
        let none = Self {
            dim,
            buffers: Vec::new(),
            together: None,
            sizes: Vec::new(),
            pools: Vec::new(),
            naming: Vec::new(),
            used: Vec::new(),
        };
        none.along(0, buffers)
    }

    /// With buffers that have the rows as dimension `axis`.
    #[must_use]
    pub fn along(mut self, axis: usize, buffers: &[&'static str]) -> Self {
        self.buffers.extend(buffers.iter().map(|name| (*name, axis)));
        self
    }

    /// With `rows` rows that can only be repeated all together; these sizes grow with them.
    #[must_use]
    pub fn together(mut self, rows: usize, sizes: &[&'static str]) -> Self {
        self.together = Some(rows);
        self.sizes.extend(sizes);
        self
    }

    /// With indices of rows into a pool of so many places, which is there once for all rows; those below 0 name no place.
    #[must_use]
    pub fn pool(mut self, indices: &'static str, pool: &'static str, places: usize) -> Self {
        self.pools.push(pool);
        self.numbers(indices, places, 0)
    }

    /// With the ends of groups that rows are divided into, of which the last one is the number of `rows`.
    #[must_use]
    pub fn ends(self, buffer: &'static str, rows: usize) -> Self {
        self.along(0, &[buffer]).numbers(buffer, rows, 0)
    }

    /// With the first of the `tokens` that each row has, and the end of the last row.
    #[must_use]
    pub fn starts(self, buffer: &'static str, tokens: usize) -> Self {
        self.numbers(buffer, tokens, 1)
    }

    /// With an output whose rows take only its first `used` bytes: where they are there again, what is left follows all of them.
    #[must_use]
    pub fn used(mut self, output: &'static str, used: usize) -> Self {
        self.used.push((output, used));
        self
    }

    /// The parts of an output of so many bytes, each of which is repeated by itself where all rows are.
    pub fn parts(&self, output: &str, bytes: usize) -> [Range<usize>; 2] {
        let used = self.used.iter().find(|(name, _)| *name == output);
        let used = used.map_or(bytes, |(_, used)| *used);
        [0..used, used..bytes]
    }

    fn numbers(mut self, buffer: &'static str, places: usize, last: usize) -> Self {
        self.naming.push(Naming { buffer, places, last });
        self
    }

    /// The dimension of a buffer that is the rows, if one is.
    fn axis(&self, buffer: &Buffer) -> Option<usize> {
        let found = self.buffers.iter().find(|(name, _)| *name == buffer.name);
        found.map(|(_, axis)| *axis)
    }

    /// The number of rows in a buffer, and the number of blocks of rows, each of which has all of them.
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

    /// A buffer with all rows this many times.
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

    /// The dimension of a buffer that grows where all rows are repeated, if one does.
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
    /// The number of rows that do not depend on each other, if there are such.
    pub fn rows(&self) -> Option<usize> {
        let batch = self.batch.as_ref()?;
        let counted = || self.buffers.iter().find_map(|buffer| batch.rows_in(buffer));
        let rows = batch.together.or_else(|| counted().map(|[rows, _]| rows));
        rows.filter(|rows| *rows > 0)
    }

    /// The problem, without judgements, of some rows of the batch, in this order; none if no rows are independent, or if they can
    /// only be repeated all together. A row may be there more than once.
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

    /// The problem, without judgements, of all rows this many times, one batch behind the other; the contents of a buffer are
    /// there once, and repeat, but for numbers that name rows. None if no rows are independent, or if a buffer has them more than
    /// once, in blocks of all rows: what is repeated would not be the whole buffer.
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

    /// How often rows must be repeated so that they pass what a grid counts, and each buffer of rows passes 2³² elements, or, if that
    /// is too much, 2³¹ elements and 2³² bytes. What cannot pass while all buffers take at most [`MOST_REPEATED`] bytes does not
    /// count.
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

    /// Whether a buffer has more bytes than 32 bits address.
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

/// Inputs and judgements of a case. Of the cases that have the same keys, the first of at least three rows of random numbers is
/// also run with its rows repeated until addresses are large ([`Problem::large`]), and so is one that [`Op::also_large`] names.
///
/// # Errors
/// What the operation says of the case.
pub fn problem_with(op: &dyn Op, case: &Case, data: &super::Data) -> Result<Problem, String> {
    let mut problem = op.problem(case, data)?;
    let dim = problem.batch.as_ref().map(|batch| batch.dim);
    let fits = |other: &Case| {
        let rows = dim.and_then(|dim| other.dims.iter().find(|(name, _)| *name == dim));
        other.inputs == Inputs::Random && !other.timed && rows.is_some_and(|(_, rows)| *rows >= 3)
    };
    let first = || {
        op.cases()
            .into_iter()
            .find(|other| other.keys == case.keys && fits(other))
    };
    problem.large = fits(case) && (op.also_large(case) || first().is_some_and(|first| first.name == case.name));
    Ok(problem)
}
