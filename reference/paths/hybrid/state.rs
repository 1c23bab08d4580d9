//! State of a sequence between calls: keys and values of full attention, and two states of each delta rule.

use crate::ops::grouped_attention::KvCache;
use crate::ops::rope_half::HalfRope;
use crate::{Real, Tensor, paths};

/// The caches and states of one sequence.
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) layers: Vec<Memory<T>>,
    pub(super) tokens: usize,
    /// None where attention has no positions.
    pub(super) rope: Option<HalfRope<T>>,
}

/// Memory of a layer.
#[derive(Clone, Debug)]
pub(super) enum Memory<T> {
    Full(KvCache<T>),
    Delta(DeltaState<T>),
}

/// Memory of a delta rule.
#[derive(Clone, Debug)]
pub(super) struct DeltaState<T> {
    /// `[kernel − 1, channels]`, what the convolution was fed of the last tokens.
    pub conv: Tensor<T>,
    /// `[HV, K, V]`.
    pub matrices: Tensor<T>,
}

impl<T: Real> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn boxed(&self) -> Box<dyn paths::State<T>> {
        Box::new(self.clone())
    }
}
