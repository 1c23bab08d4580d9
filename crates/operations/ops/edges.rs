//! Rows of edge values that kernels often get wrong.

/// Kind of edge values of a row.
#[derive(Clone, Copy)]
pub(super) enum Edge {
    /// Random numbers, left as they are.
    Random,
    Zeros,
    /// Random numbers, multiplied by this factor.
    Times(f32),
    /// Random numbers, with this value in one column. The column differs from row to row.
    One(f32),
    /// Random numbers, with this value in the last column.
    Last(f32),
}

/// Gives the rows of `x` the edge values of these kinds, in cyclic order: row i has kind i modulo the number of kinds. In row 0,
/// [`Edge::One`] sets column `first`.
pub(super) fn set(x: &mut [f32], cols: usize, first: usize, kinds: &[Edge]) {
    for (row, (x, kind)) in x.chunks_exact_mut(cols).zip(kinds.iter().cycle()).enumerate() {
        match *kind {
            Edge::Random => {}
            Edge::Zeros => x.fill(0.0),
            Edge::Times(factor) => x.iter_mut().for_each(|x| *x *= factor),
            Edge::One(value) => x[(first + row * 997) % cols] = value,
            Edge::Last(value) => x[cols - 1] = value,
        }
    }
}

impl Edge {
    /// Random numbers, multiplied by a power of two.
    pub fn scaled(power: i32) -> Self {
        Self::Times(2f32.powi(power))
    }
}
