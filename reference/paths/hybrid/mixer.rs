//! The part of a layer that mixes tokens: full attention, attention over latents, or the delta rule.

use super::delta::{DeltaRule, DeltaState};
use super::latent::LatentAttention;
use crate::ops::grouped_attention::KvCache;
use crate::paths::gqa::Context;
use crate::paths::gqa::attention::Attention;
use crate::paths::gqa::layer::Mixer;
use crate::{Real, Tensor};

pub(super) enum AnyMixer<T> {
    Full(Attention<T>),
    Latent(LatentAttention<T>),
    Delta(Box<DeltaRule<T>>),
}

/// Memory of a layer.
#[derive(Clone, Debug)]
pub(super) enum Memory<T> {
    Full(KvCache<T>),
    Delta(DeltaState<T>),
}

impl<T: Real> Mixer<T> for AnyMixer<T> {
    type Memory = Memory<T>;

    fn memory(&self) -> Memory<T> {
        match self {
            Self::Full(attention) => Memory::Full(attention.memory()),
            Self::Latent(attention) => Memory::Full(attention.memory()),
            Self::Delta(rule) => Memory::Delta(rule.memory()),
        }
    }

    fn fits(&self, memory: &Memory<T>) -> bool {
        match (self, memory) {
            (Self::Full(attention), Memory::Full(cache)) => attention.fits(cache),
            (Self::Latent(attention), Memory::Full(cache)) => attention.fits(cache),
            (Self::Delta(rule), Memory::Delta(state)) => rule.fits(state),
            _ => false,
        }
    }

    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String> {
        match (self, memory) {
            (Self::Full(attention), Memory::Full(cache)) => attention.forward(x, cache, cx),
            (Self::Latent(attention), Memory::Full(cache)) => attention.forward(x, cache, cx),
            (Self::Delta(rule), Memory::Delta(state)) => rule.forward(x, state, cx),
            _ => Err(format!(
                "the state has a layer {} of another type",
                cx.layer.unwrap_or(0)
            )),
        }
    }
}
