//! Compressors: one entry for every m tokens, pooled per channel by a softmax over tokens.
//!
//! Each token brings values kv and logits g (`ape[t mod m]` already added). Without overlap (HCA), entry w pools the m tokens
//! of window w. With overlap (CSA), channels are split [Ca | Cb] and entry w pools 2m slots: Ca of the window before and Cb
//! of its own, one softmax over all; the first entry has no window before and pools m. Norm, RoPE and rounding come after.

use rayon::prelude::*;

use crate::real::vectorized;
use crate::{Real, Tensor};

/// Sizes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pooling {
    /// m, tokens per entry.
    pub rate: usize,
    pub overlap: bool,
    /// Channels of an entry; rows are twice as wide with overlap.
    pub dim: usize,
}

/// Streaming state: rows of tokens not yet pooled, and with overlap the window before them.
#[derive(Clone, Debug)]
pub struct Pool<T> {
    sizes: Pooling,
    /// Values and logits.
    pending: [Tensor<T>; 2],
    /// Tokens seen.
    tokens: usize,
}

impl<T: Real> Pool<T> {
    /// Before the first token, with entries of `dim` channels for every `rate` tokens, overlapping or not.
    pub fn new(rate: usize, overlap: bool, dim: usize) -> Self {
        let sizes = Pooling { rate, overlap, dim };
        Self {
            sizes,
            pending: sizes.pending(),
            tokens: 0,
        }
    }

    /// Rows kept of values and of logits: what a decode cache must hold.
    pub fn pending(&self) -> &[Tensor<T>; 2] {
        &self.pending
    }

    /// Takes the next tokens' rows `[tokens, width]` and gives the entries they complete, `[new, dim]`; width is `dim`, or `2 · dim` with
    /// overlap, and every call must have it.
    pub fn push(&mut self, values: &Tensor<T>, logits: &Tensor<T>) -> Tensor<T> {
        let entries = self.sizes.push(self.tokens, self.pending.each_mut(), [values, logits]);
        self.tokens += values.rows();
        entries
    }
}

impl Pooling {
    /// Channels of a row that waits.
    pub fn width(self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    /// Token number of the first row that later entries pool after so many tokens: with overlap, the last window pooled is pooled again.
    pub fn needed(self, tokens: usize) -> usize {
        (tokens / self.rate).saturating_sub(self.overlap.into()) * self.rate
    }

    /// No rows of values and of logits, before the first token.
    pub fn pending<T: Real>(self) -> [Tensor<T>; 2] {
        [0; 2].map(|rows| Tensor::full([rows, self.width()], T::ZERO))
    }

    /// [`Pool::push`] after so many tokens, with the rows that are kept of them.
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

    /// Pools one entry from the rows kept, of tokens from `first` on, and the new ones after them.
    fn entry<T: Real>(
        self,
        entry: usize,
        first: usize,
        kept: [&&mut Tensor<T>; 2],
        new: [&Tensor<T>; 2],
        out: &mut [T],
    ) {
        // (token, first channel) of every slot.
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
