//! NaN and infinities: their number in a tensor, and the index of the first one.

use std::fmt;

use serde::{Deserialize, Serialize};

use ulplab_core::metrics::unravel;

/// Counts of the NaN and infinities of a tensor that has at least one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nonfinite {
    /// Number of NaN.
    pub nan: u64,
    /// Number of infinities of either sign.
    pub inf: u64,
    /// Index of the first NaN or infinity, one number per dimension.
    pub first: Vec<u64>,
}

impl Nonfinite {
    /// Counts NaN and infinities; `None` if all values are finite. `values` are consecutive elements of a tensor of shape
    /// `shape`, the first of them at flat index `start`.
    pub fn count(values: &[f32], start: usize, shape: &[usize]) -> Option<Self> {
        let first = values.iter().position(|x| !x.is_finite())?;
        let rest = &values[first..];
        Some(Self {
            nan: rest.iter().filter(|x| x.is_nan()).count() as u64,
            inf: rest.iter().filter(|x| x.is_infinite()).count() as u64,
            first: unravel(start + first, shape),
        })
    }

    /// Number of NaN and infinities together.
    pub fn total(&self) -> u64 {
        self.nan + self.inf
    }

    /// Adds the counts of a later piece of the same tensor to `all`, which keeps the index of its first NaN or infinity.
    pub fn add(all: &mut Option<Self>, later: Option<Self>) {
        match (all.as_mut(), later) {
            (Some(all), Some(later)) => {
                all.nan += later.nan;
                all.inf += later.inf;
            }
            (None, later) => *all = later,
            (Some(_), None) => {}
        }
    }
}

impl fmt::Display for Nonfinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nan, inf, first } = self;
        match (nan, inf) {
            (nan, 0) => write!(f, "{nan} NaN")?,
            (0, inf) => write!(f, "{inf} infinite")?,
            (nan, inf) => write!(f, "{nan} NaN and {inf} infinite")?,
        }
        write!(f, ", the first at {first:?}")
    }
}
