//! Compressors of the KV cache: m tokens are pooled to one cache entry, a weighted mean whose weights are, for each channel, a
//! softmax over the tokens.
//!
//! Each token t has values kv and logits g, to which the position bias `ape[t mod m]` is already added. Window w consists of m
//! tokens, from token w·m on. Without overlap (heavily compressed attention, HCA), entry w pools window w. With overlap
//! (compressed sparse attention, CSA), the channels of a token are split into two halves [Ca | Cb], and entry w pools 2m vectors
//! by one softmax: Ca of the tokens of window w − 1 and Cb of the tokens of window w. The first entry has no previous window and
//! pools m vectors. Norm, RoPE and rounding are applied afterwards by the caller.

use rayon::prelude::*;

use crate::real::vectorized;
use crate::{Real, Tensor};

/// Sizes of a compressor, which pools the rows of tokens to cache entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pooling {
    /// Number of tokens per entry, m.
    pub rate: usize,
    pub overlap: bool,
    /// Number of channels of an entry; rows of tokens are twice as wide with overlap.
    pub dim: usize,
}

/// Streaming state: the rows of tokens that are not yet pooled and, with overlap, the rows of the previous window.
#[derive(Clone, Debug)]
pub struct Pool<T> {
    sizes: Pooling,
    /// Values and logits of the stored tokens.
    pending: [Tensor<T>; 2],
    /// Number of tokens seen so far.
    tokens: usize,
}

impl<T: Real> Pool<T> {
    /// Creates the state before the first token, for entries of `dim` channels per `rate` tokens, with or without overlap.
    pub fn new(rate: usize, overlap: bool, dim: usize) -> Self {
        let sizes = Pooling { rate, overlap, dim };
        Self {
            sizes,
            pending: sizes.pending(),
            tokens: 0,
        }
    }

    /// Returns the stored rows of values and of logits, which the next entries will pool. To continue a sequence, a decoder needs
    /// these rows in addition to the completed entries.
    pub fn pending(&self) -> &[Tensor<T>; 2] {
        &self.pending
    }

    /// Adds the rows of the next tokens, `[tokens, width]`, and returns the entries that these tokens complete, `[new, dim]`.
    /// The width is `dim`, or `2 · dim` with overlap, and must be the same in every call.
    pub fn push(&mut self, values: &Tensor<T>, logits: &Tensor<T>) -> Tensor<T> {
        let entries = self.sizes.push(self.tokens, self.pending.each_mut(), [values, logits]);
        self.tokens += values.rows();
        entries
    }
}

impl Pooling {
    /// Returns the number of channels of a stored row.
    pub fn width(self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    /// Returns the index of the oldest token whose row must still be stored after `tokens` tokens: the first token of the next
    /// entry or, with overlap, of the last complete window, since the next entry pools that window again.
    pub fn needed(self, tokens: usize) -> usize {
        (tokens / self.rate).saturating_sub(self.overlap.into()) * self.rate
    }

    /// Returns empty rows of values and of logits, the state before the first token.
    pub fn pending<T: Real>(self) -> [Tensor<T>; 2] {
        [0; 2].map(|rows| Tensor::full([rows, self.width()], T::ZERO))
    }

    /// Implements [`Pool::push`]. `tokens` is the number of earlier tokens, and `kept` has the stored rows of earlier tokens.
    pub fn push<T: Real>(self, tokens: usize, kept: [&mut Tensor<T>; 2], new: [&Tensor<T>; 2]) -> Tensor<T> {
        let (first, before) = (self.needed(tokens), tokens / self.rate);
        let tokens = tokens + new[0].rows();
        let mut entries = Tensor::full([tokens / self.rate - before, self.dim], T::ZERO);
        let (old, made) = (kept.each_ref(), entries.data.par_chunks_mut(self.dim).enumerate());
        made.for_each(|(i, entry)| self.entry(before + i, first, old, new, entry));

        let done = (self.needed(tokens) - first) * self.width();
        for (kept, new) in kept.into_iter().zip(new) {
            let old = done.min(kept.data.len());
            kept.data.drain(..old);
            kept.data.extend_from_slice(&new.data[done - old..]);
            kept.shape[0] = kept.data.len() / self.width();
        }
        entries
    }

    /// Pools one entry from the stored rows, which begin at token `first`, and the new rows that follow them.
    fn entry<T: Real>(
        self,
        entry: usize,
        first: usize,
        kept: [&&mut Tensor<T>; 2],
        new: [&Tensor<T>; 2],
        out: &mut [T],
    ) {
        // A slot of the softmax is the part of a token's row that this entry pools: the index of the token, and the first channel
        // of the part.
        let own = entry * self.rate..(entry + 1) * self.rate;
        let (before, channel) = match self.overlap {
            true => (own.start.saturating_sub(self.rate)..own.start, self.dim),
            false => (0..0, 0),
        };
        let slots = before.map(|token| (token, 0)).chain(own.map(|token| (token, channel)));
        let slots = slots.map(|(token, channel)| {
            let row = token - first;
            let [values, logits] = match row.checked_sub(kept[0].rows()) {
                Some(row) => new.map(|new| new.row(row)),
                None => kept.map(|kept| kept.row(row)),
            };
            (&values[channel..][..self.dim], &logits[channel..][..self.dim])
        });
        let slots: Vec<(&[T], &[T])> = slots.collect();
        vectorized!({
            let mut top = vec![T::NEG_INFINITY; self.dim];
            for (_, logits) in &slots {
                top.iter_mut().zip(*logits).for_each(|(top, &g)| *top = top.max(g));
            }
            let mut sum = vec![T::ZERO; self.dim];
            let mut weight = vec![T::ZERO; self.dim];
            for (values, logits) in &slots {
                let shifted = weight.iter_mut().zip(*logits).zip(&top);
                shifted.for_each(|((weight, &g), &top)| *weight = g - top);
                T::exp_all(&mut weight);
                for (((out, sum), &weight), &value) in out.iter_mut().zip(&mut sum).zip(&weight).zip(*values) {
                    *sum += weight;
                    *out += weight * value;
                }
            }
            out.iter_mut().zip(&sum).for_each(|(out, &sum)| *out = *out / sum);
        });
    }
}
