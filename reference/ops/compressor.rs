//! Compressors: one entry for every m tokens, pooled per channel by a softmax over tokens.
//!
//! Each token brings values kv and logits g (`ape[t mod m]` already added). Without overlap (HCA), entry w pools the m tokens
//! of window w. With overlap (CSA), channels are split [Ca | Cb] and entry w pools 2m slots: Ca of the window before and Cb
//! of its own, one softmax over all; the first entry has no window before and pools m. Norm, RoPE and rounding come after.

use rayon::prelude::*;

use crate::real::vectorized;
use crate::{Real, Tensor};

/// Streaming state: rows of tokens not yet pooled, and with overlap the window before them.
#[derive(Clone, Debug)]
pub struct Pool<T> {
    /// m, tokens per entry.
    rate: usize,
    overlap: bool,
    /// Channels of an entry; rows are twice as wide with overlap.
    dim: usize,
    values: Vec<T>,
    logits: Vec<T>,
    /// Token number of the first row kept.
    first: usize,
    /// Tokens seen.
    tokens: usize,
}

impl<T: Real> Pool<T> {
    /// Before the first token, with entries of `dim` channels for every `rate` tokens, overlapping or not.
    pub fn new(rate: usize, overlap: bool, dim: usize) -> Self {
        Self {
            rate,
            overlap,
            dim,
            values: Vec::new(),
            logits: Vec::new(),
            first: 0,
            tokens: 0,
        }
    }

    /// Tokens per entry.
    pub fn rate(&self) -> usize {
        self.rate
    }

    /// Entries complete so far.
    pub fn entries(&self) -> usize {
        self.tokens / self.rate
    }

    /// Rows kept of values and of logits: what a decode cache must hold.
    pub fn pending(&self) -> (&[T], &[T]) {
        (&self.values, &self.logits)
    }

    fn width(&self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    /// Takes the next tokens' rows `[tokens, width]` and gives the entries they complete, `[new, dim]`; width is `dim`, or `2 · dim` with
    /// overlap, and every call must have it.
    pub fn push(&mut self, values: &Tensor<T>, logits: &Tensor<T>) -> Tensor<T> {
        let before = self.entries();
        self.tokens += values.rows();
        let after = self.entries();
        let mut entries = Tensor::full([after - before, self.dim], T::ZERO);
        let (pool, made) = (&*self, entries.data.par_chunks_mut(self.dim).enumerate());
        made.for_each(|(i, entry)| pool.entry(before + i, &values.data, &logits.data, entry));

        let needed = self.needed();
        let done = (needed - self.first) * self.width();
        keep(&mut self.values, &values.data, done);
        keep(&mut self.logits, &logits.data, done);
        self.first = needed;
        entries
    }

    /// Pools one entry from the rows kept and the new ones after them.
    fn entry(&self, entry: usize, new_values: &[T], new_logits: &[T], out: &mut [T]) {
        // (token, first channel) of every slot.
        let own = entry * self.rate..(entry + 1) * self.rate;
        let (before, channel) = match self.overlap {
            true => (own.start.saturating_sub(self.rate)..own.start, self.dim),
            false => (0..0, 0),
        };
        let slots = before.map(|token| (token, 0)).chain(own.map(|token| (token, channel)));
        let slots = slots.map(|(token, channel)| {
            let start = (token - self.first) * self.width() + channel;
            match start.checked_sub(self.values.len()) {
                Some(start) => (&new_values[start..][..self.dim], &new_logits[start..][..self.dim]),
                None => (&self.values[start..][..self.dim], &self.logits[start..][..self.dim]),
            }
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

/// A pool as it was between two tokens.
impl<T: Real> Pool<T> {
    /// A pool like `other` that has seen `tokens` tokens; the rows that wait are still missing.
    pub(crate) fn restored(other: &Self, tokens: usize) -> Self {
        let mut pool = Self::new(other.rate, other.overlap, other.dim);
        pool.tokens = tokens;
        pool.first = pool.needed();
        pool
    }

    /// Token number of the first row that later entries pool: with overlap, the last window pooled is pooled again.
    fn needed(&self) -> usize {
        self.entries().saturating_sub(self.overlap.into()) * self.rate
    }

    /// The rows that wait: all tokens from [`Pool::first`] on.
    pub(crate) fn with_pending(self, values: Vec<T>, logits: Vec<T>) -> Self {
        Self { values, logits, ..self }
    }

    /// Token number of the first row that waits.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Channels of a row that waits.
    pub(crate) fn width_of_rows(&self) -> usize {
        self.width()
    }
}

/// Leaves of the elements kept and the new ones after them all but the first `done`.
fn keep<T: Copy>(kept: &mut Vec<T>, new: &[T], done: usize) {
    let old = done.min(kept.len());
    kept.drain(..old);
    kept.extend_from_slice(&new[done - old..]);
}
