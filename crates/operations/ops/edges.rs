//! Rows of edge values, which kernels easily get wrong.

/// The numbers of a row.
#[derive(Clone, Copy)]
pub(super) enum Edge {
    /// Random numbers.
    Random,
    Zeros,
    /// Random numbers times a factor.
    Times(f32),
    /// Random numbers and this one, whose column differs from row to row.
    One(f32),
    /// Random numbers and this one in the last column.
    Last(f32),
}

/// Gives the rows of `x` these kinds in turn. In the first row, the column of [`Edge::One`] is `first`.
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
    /// Random numbers times a power of two.
    pub fn scaled(power: i32) -> Self {
        Self::Times(2f32.powi(power))
    }
}
