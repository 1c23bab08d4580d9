//! One decoder layer: full attention or delta rule, and a feed-forward layer, each behind its norm.

use super::delta::DeltaRule;
use super::latent::LatentAttention;
use super::sites::*;
use super::state::Memory;
use crate::ops::grouped_attention::KvCache;
use crate::paths::gqa::attention::Attention;
use crate::paths::gqa::context::Context;
use crate::paths::gqa::mlp::Mlp;
use crate::{Real, Tensor};

pub(super) struct Layer<T> {
    /// Weights of the norm before the mixer. Families with zero-centred norms add 1 to these and to those of all other norms.
    pub mixer_norm: Vec<T>,
    pub mixer: Mixer<T>,
    pub mlp_norm: Vec<T>,
    pub mlp: Mlp<T>,
    pub eps: T,
}

/// Part of a layer that mixes tokens.
pub(super) enum Mixer<T> {
    /// Attention, and how many heads of keys and values are cached.
    Full(Attention<T>, usize),
    Latent(LatentAttention<T>),
    Delta(Box<DeltaRule<T>>),
}

impl<T: Real> Layer<T> {
    /// Returns the memory before the first token.
    pub fn memory(&self) -> Memory<T> {
        match &self.mixer {
            Mixer::Full(attention, cached) => Memory::Full(empty(attention, *cached)),
            Mixer::Latent(attention) => Memory::Full(attention.cache()),
            Mixer::Delta(rule) => Memory::Delta(rule.state()),
        }
    }

    /// Returns whether a memory has its type and sizes.
    pub fn fits(&self, memory: &Memory<T>) -> bool {
        match (&self.mixer, memory) {
            (Mixer::Full(attention, cached), Memory::Full(cache)) => cache.fits(&empty(attention, *cached)),
            (Mixer::Latent(attention), Memory::Full(cache)) => cache.fits(&attention.cache()),
            (Mixer::Delta(rule), Memory::Delta(state)) => rule.fits(state),
            _ => false,
        }
    }

    /// The stream `[T, hidden]` through the layer, in place.
    ///
    /// # Errors
    /// The memory of a layer of another type, and shapes that somebody at a site has changed.
    pub fn forward(&self, x: &mut Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<(), String> {
        cx.pass(INPUT, x);
        let mut input = x.clone();
        cx.rmsnorm(&mut input, Some(&self.mixer_norm), self.eps);
        cx.pass(ATTENTION_INPUT, &mut input);
        let mut output = match (&self.mixer, memory) {
            (Mixer::Full(attention, _), Memory::Full(cache)) => attention.forward(&input, cache, cx),
            (Mixer::Latent(attention), Memory::Full(cache)) => attention.forward(&input, cache, cx),
            (Mixer::Delta(rule), Memory::Delta(state)) => rule.forward(&input, state, cx)?,
            _ => return Err(format!("the state has a layer {} of another type", cx.layer)),
        };
        cx.pass(ATTENTION_OUTPUT, &mut output);
        add(x, &output);

        let mut input = x.clone();
        cx.rmsnorm(&mut input, Some(&self.mlp_norm), self.eps);
        cx.pass(MLP_INPUT, &mut input);
        let mut output = self.mlp.forward(&input, cx);
        cx.pass(MLP_OUTPUT, &mut output);
        add(x, &output);
        cx.pass(OUTPUT, x);
        Ok(())
    }
}

fn empty<T: Real>(attention: &Attention<T>, heads: usize) -> KvCache<T> {
    KvCache::new(heads, [attention.head_dim; 2])
}

fn add<T: Real>(x: &mut Tensor<T>, more: &Tensor<T>) {
    x.data.iter_mut().zip(&more.data).for_each(|(x, &y)| *x += y);
}
