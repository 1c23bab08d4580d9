//! Rows of a problem that do not depend on each other: batches of some of them, and of so many that addresses are large.

use super::{Buffer, Case, Inputs, Op, Problem, Role};

/// Rows that are computed independently: each must have the same bits whatever other rows there are, and wherever it is among
/// them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The size that counts the rows.
    pub dim: &'static str,
    /// The buffers that have the rows as a dimension, and which one it is; the others are shared by all rows.
    pub buffers: Vec<(&'static str, usize)>,
}

/// What a problem may take on a card, scratch included, when its rows are repeated.
pub const MOST_REPEATED: usize = 32 << 30;
/// Elements and bytes of a buffer, and rows, that a kernel must be able to pass: what `int` counts, what 32 bits address, and what
/// a grid has in its second dimension.
const PASSED: (usize, usize, usize) = (1 << 31, 1 << 32, 1 << 16);

impl Batch {
    /// Rows that `dim` counts, the first dimension of these buffers.
    pub fn new(dim: &'static str, buffers: &[&'static str]) -> Self {
        let none = Vec::new();
        Self { dim, buffers: none }.along(0, buffers)
    }

    /// With buffers that have the rows as dimension `axis`.
    #[must_use]
    pub fn along(mut self, axis: usize, buffers: &[&'static str]) -> Self {
        self.buffers.extend(buffers.iter().map(|name| (*name, axis)));
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
}

impl Problem {
    /// The number of rows that do not depend on each other, if there are such.
    pub(crate) fn rows(&self) -> Option<usize> {
        let batch = self.batch.as_ref()?;
        let rows = self.buffers.iter().find_map(|buffer| batch.rows_in(buffer));
        rows.map(|[rows, _]| rows).filter(|rows| *rows > 0)
    }

    /// The problem, without judgements, of some rows of the batch, in this order; none if no rows are independent. A row may
    /// be there more than once.
    pub fn of_rows(&self, case: &Case, rows: &[usize]) -> Option<(Case, Self)> {
        let batch = self.batch.as_ref()?;
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
    /// there once, and repeat. None if no rows are independent, or if they are not the first dimension of their buffers.
    pub fn repeated(&self, case: &Case, times: usize) -> Option<(Case, Self)> {
        let (batch, rows) = (self.batch.as_ref()?, self.rows()?);
        if batch.buffers.iter().any(|(_, axis)| *axis != 0) {
            return None;
        }
        self.with_rows(case, rows * times, |buffer| {
            let mut buffer = buffer.clone();
            if batch.axis(&buffer).is_some() {
                buffer.shape[0] *= times;
            }
            buffer
        })
    }

    /// How often rows must be repeated so that they, and the largest buffer of rows that kernels read and the largest that they
    /// write, pass what 32 bits and a grid can count, or until all buffers take [`MOST_REPEATED`] bytes.
    pub fn times_to_large(&self) -> Option<usize> {
        let (batch, rows) = (self.batch.as_ref()?, self.rows()?);
        let of_rows = || self.buffers.iter().filter(|buffer| batch.axis(buffer).is_some());
        let (elements, bytes, grid) = PASSED;
        let largest = |written: bool| {
            let sizes = of_rows().filter(|buffer| (buffer.role != Role::In) == written);
            let element = |buffer: &Buffer| buffer.dtype.bitsize().div_ceil(8);
            let needed = |buffer: &Buffer| bytes.max(elements * element(buffer)) / buffer.size().max(1) + 1;
            sizes.max_by_key(|buffer| buffer.size()).map_or(1, needed)
        };
        let each: usize = of_rows().map(Buffer::size).sum();
        let needed = largest(false).max(largest(true)).max(grid / rows + 1);
        let most = (MOST_REPEATED / each.max(1)).min(i32::MAX as usize / rows);
        Some(needed.min(most)).filter(|times| *times > 1)
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
/// also run with its rows repeated until addresses are large ([`Problem::large`]).
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
    problem.large = fits(case) && first().is_some_and(|first| first.name == case.name);
    Ok(problem)
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::super::data::f32_bytes;
    use super::*;

    #[test]
    fn rows_are_repeated_until_reads_and_writes_are_large() {
        let case = Case {
            name: "three".into(),
            keys: vec![],
            dims: vec![("T", 3)],
            inputs: Inputs::Random,
            timed: false,
        };
        let x = Buffer::f32("x", &[3, 100], &[1.0; 300]);
        let weight = Buffer::f32("weight", &[100], &[1.0; 100]);
        let y = Buffer::output("y", Dtype::BF16, &[3, 100]);
        let problem = Problem {
            batch: Some(Batch::new("T", &["x", "y"])),
            ..Problem::new(vec![x, weight, y], vec![])
        };
        let times = problem.times_to_large().unwrap();
        let (large, of) = problem.repeated(&case, times).unwrap();
        assert_eq!(large.dim("T"), 3 * times);
        let [x, weight, y] = &of.buffers[..] else { panic!() };
        // 2³¹ elements of y, which is 4 GiB; one time less would not do.
        assert!(y.size() > 1 << 32 && y.size() - problem.buffers[2].size() <= 1 << 32);
        assert_eq!((x.size(), &x.bytes), (2 * y.size(), &f32_bytes(&[1.0; 300])));
        assert_eq!(weight.shape, [100]);
    }

    #[test]
    fn rows_that_take_much_are_repeated_as_far_as_they_fit() {
        let x = Buffer::f32("x", &[4, 1 << 22], &vec![0.0; 4 << 22]);
        let y = Buffer::output("y", Dtype::F32, &[4, 1]);
        let problem = Problem {
            batch: Some(Batch::new("B", &["x", "y"])),
            ..Problem::new(vec![x, y], vec![])
        };
        let times = problem.times_to_large().unwrap();
        assert!(times * ((64 << 20) + 16) <= MOST_REPEATED && times > MOST_REPEATED / (65 << 20));
    }
}
