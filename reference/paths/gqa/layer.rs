//! One decoder layer: a mixer of tokens and a feed-forward layer, each with its norm.

use super::Context;
use super::mlp::Mlp;
use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::{Real, Tensor};

/// A part of a layer that mixes tokens: attention, or what stands in its place.
pub(in crate::paths) trait Mixer<T: Real>: Send + Sync {
    /// Returns the memory before the first token.
    fn memory(&self) -> Memory<T>;

    /// Inputs `[T, hidden]` → outputs `[T, hidden]`; the memory, which has the type and sizes of its own, takes in the tokens.
    ///
    /// # Errors
    /// Shapes that somebody at a site has changed.
    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String>;
}

/// The memory of one sequence between calls.
#[derive(Clone, Debug)]
pub(in crate::paths) enum Memory<T> {
    /// Keys and values.
    Cache(KvCache<T>),
    /// Tensors of fixed sizes.
    State([Tensor<T>; 2]),
}

impl<T: Real> Memory<T> {
    /// Returns whether it has the type and sizes of another.
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
    /// Weight of the norm of the stream that the mixer is fed, or of what it adds to the stream.
    pub mixer_norm: Vec<T>,
    pub mixer: Box<dyn Mixer<T>>,
    /// Weight of the same norm of the feed-forward layer.
    pub mlp_norm: Vec<T>,
    pub mlp: Mlp<T>,
    /// True if a norm follows the part that it is the norm of.
    pub norm_after: bool,
    /// The result of a norm passes at a site before it is multiplied by the weight.
    pub norm_before_weight: bool,
    /// Factor of what is added to the stream, if there is one.
    pub residual_multiplier: Option<T>,
    /// Number of its RoPE among those of the model, if it has one.
    pub rope: Option<usize>,
    pub eps: T,
}

impl<T: Real> Layer<T> {
    /// The stream `[T, hidden]` through the layer, in place.
    ///
    /// # Errors
    /// They are those of [`Mixer::forward`].
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

    /// The norm of rows, in place; `normed` is the site before the weight.
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

    /// Adds to the stream what a part of the layer gives for it. The sites are those of its norm, its input and its output.
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
