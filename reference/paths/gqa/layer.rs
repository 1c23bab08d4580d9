//! One decoder layer: a token mixer (attention or a delta rule) and a feed-forward layer, each with a norm.

use super::Context;
use super::mlp::Mlp;
use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::{Real, Tensor};

/// The part of a layer that mixes tokens: attention or a delta rule.
pub(in crate::paths) trait Mixer<T: Real>: Send + Sync {
    /// Returns the memory (KV cache or state) before the first token.
    fn memory(&self) -> Memory<T>;

    /// Maps inputs `[T, hidden]` to outputs `[T, hidden]` and updates `memory`, which must have been made by [`Self::memory`].
    ///
    /// # Errors
    /// Returns an error if a hook at a site has changed the shape of a tensor.
    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String>;
}

/// State of one layer for one sequence between calls: a KV cache or a recurrent state.
#[derive(Clone, Debug)]
pub(in crate::paths) enum Memory<T> {
    /// Keys and values of attention, one row per cached token.
    Cache(KvCache<T>),
    /// State of a delta rule: two tensors of fixed sizes.
    State([Tensor<T>; 2]),
}

impl<T: Real> Memory<T> {
    /// Returns true if both memories have the same variant and sizes.
    pub fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cache(own), Self::Cache(other)) => own.fits(other),
            (Self::State(own), Self::State(other)) => {
                own.each_ref().map(|x| &x.shape) == other.each_ref().map(|x| &x.shape)
            }
            _ => false,
        }
    }
}

pub(in crate::paths) struct Layer<T: Real> {
    /// Weight of the norm of the mixer's input, or of the mixer's output if `norm_after` is true.
    pub mixer_norm: Vec<T>,
    pub mixer: Box<dyn Mixer<T>>,
    /// Weight of the norm of the feed-forward layer's input, or of its output if `norm_after` is true.
    pub mlp_norm: Vec<T>,
    pub mlp: Mlp<T>,
    /// True if the norms are applied to the outputs of mixer and feed-forward layer, false if to their inputs.
    pub norm_after: bool,
    /// True if hooks are called with the result of each norm before the multiplication by the norm's weight.
    pub norm_before_weight: bool,
    /// Factor of the outputs that are added to the residual stream; `None` for no factor.
    pub residual_multiplier: Option<T>,
    /// Index of the layer's RoPE in the model's list of RoPEs; `None` if the layer has no RoPE.
    pub rope: Option<usize>,
    pub eps: T,
}

impl<T: Real> Layer<T> {
    /// Runs the layer on the residual stream `[T, hidden]`, in place.
    ///
    /// # Errors
    /// Returns the errors of [`Mixer::forward`].
    pub fn forward(&self, x: &mut Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<(), String> {
        cx.pass(INPUT, x);
        let sites = [ATTENTION_NORMED, ATTENTION_INPUT, ATTENTION_OUTPUT];
        self.add(x, &self.mixer_norm, sites, cx, |x, cx| {
            self.mixer.forward(x, memory, cx)
        })?;
        let sites = [MLP_NORMED, MLP_INPUT, MLP_OUTPUT];
        self.add(x, &self.mlp_norm, sites, cx, |x, cx| Ok(self.mlp.forward(x, cx)))?;
        cx.pass(OUTPUT, x);
        Ok(())
    }

    /// Applies RMSNorm to each row, in place; `normed` is the site of the result before the multiplication by the weight.
    fn norm(&self, x: &mut Tensor<T>, weight: &[T], normed: &'static str, cx: &mut Context<'_, T>) {
        if !self.norm_before_weight {
            return cx.rmsnorm(x, Some(weight), self.eps);
        }
        cx.rmsnorm(x, None, self.eps);
        cx.pass(normed, x);
        for row in x.data.chunks_exact_mut(weight.len()) {
            row.iter_mut().zip(weight).for_each(|(x, &w)| *x *= w);
        }
    }

    /// Runs a part of the layer (mixer or feed-forward layer) with its norm, and adds the result to the residual stream `x`. The
    /// three sites are: the norm's result before its weight, the input of the part, and the output of the part.
    fn add<'a>(
        &self,
        x: &mut Tensor<T>,
        norm: &[T],
        [normed, input_site, output_site]: [&'static str; 3],
        cx: &mut Context<'a, T>,
        part: impl FnOnce(&Tensor<T>, &mut Context<'a, T>) -> Result<Tensor<T>, String>,
    ) -> Result<(), String> {
        let mut input = x.clone();
        if !self.norm_after {
            self.norm(&mut input, norm, normed, cx);
        }
        cx.pass(input_site, &mut input);
        let mut output = part(&input, cx)?;
        cx.pass(output_site, &mut output);
        if self.norm_after {
            self.norm(&mut output, norm, normed, cx);
        }
        let pairs = x.data.iter_mut().zip(&output.data);
        match self.residual_multiplier {
            Some(scale) => pairs.for_each(|(x, &y)| *x += y * scale),
            None => pairs.for_each(|(x, &y)| *x += y),
        }
        Ok(())
    }
}
