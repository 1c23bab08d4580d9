//! Inputs of linear attention: packed sequences of q, k, v, log decays and β.

use std::cmp::Ordering;

use crate::{Real, Tensor};

/// Log decays g ≤ 0. A decay of −∞ clears the state.
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a, T> {
    /// One decay per token and value head, `[tokens, HV]`: GDN, simple GLA.
    Head(&'a Tensor<T>),
    /// One decay per token, value head and key channel, `[tokens, HV, K]`: KDA.
    Channel(&'a Tensor<T>),
    /// One decay per value head, the same for every token, `[HV]`: lightning attention, whose slopes s ≥ 0 are −g.
    Constant(&'a [T]),
}

/// Inputs of all sequences, concatenated along the first dimension.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// Index of the first token of each sequence, followed by the number of tokens: `[N + 1]`, ascending from 0.
    pub cu_seqlens: &'a [usize],
    /// Queries `[tokens, H, K]`, already normalised if the model normalises them.
    pub q: &'a Tensor<T>,
    /// Keys `[tokens, H, K]`, already normalised if the model normalises them.
    pub k: &'a Tensor<T>,
    /// Values `[tokens, HV, V]`.
    pub v: &'a Tensor<T>,
    /// Log decays.
    pub decay: Decay<'a, T>,
    /// Factor β of the delta rule, `[tokens, HV]`; `None` for a recurrence without the delta rule.
    pub beta: Option<&'a Tensor<T>>,
    /// Factor of q, usually K^−½.
    pub scale: T,
}

/// Sizes derived from the shapes of [`Inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of key heads, H.
    pub heads: usize,
    /// Number of value heads, HV, a multiple of H.
    pub value_heads: usize,
    /// Number of channels of a key, K.
    pub key_dim: usize,
    /// Number of channels of a value, V.
    pub value_dim: usize,
}

impl<T: Real> Inputs<'_, T> {
    /// Returns the number of tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.q.shape[0]
    }

    /// Checks that the shapes match, `cu_seqlens` ascends from 0 to the number of tokens and no log decay is positive. Returns
    /// the sizes.
    ///
    /// # Errors
    /// Returns a message about the first failed check, with the name of the input.
    pub fn check(&self) -> Result<Sizes, String> {
        let (&[tokens, heads, key_dim], &[_, value_heads, value_dim]) = (&self.q.shape[..], &self.v.shape[..]) else {
            let shapes = (&self.q.shape, &self.v.shape);
            return Err(format!(
                "q has shape {:?}, expected [tokens, H, K]; v has {:?}, expected [tokens, HV, V]",
                shapes.0, shapes.1
            ));
        };
        if [heads, key_dim, value_heads, value_dim].contains(&0) {
            return Err(format!(
                "q has shape {:?}, v {:?}: no size but the first may be 0",
                self.q.shape, self.v.shape
            ));
        }
        if value_heads % heads != 0 {
            return Err(format!(
                "{value_heads} value heads are no multiple of {heads} key heads"
            ));
        }
        has_shape("k", self.k, &[tokens, heads, key_dim])?;
        has_shape("v", self.v, &[tokens, value_heads, value_dim])?;
        if let Some(beta) = self.beta {
            has_shape("beta", beta, &[tokens, value_heads])?;
        }
        let decay = match self.decay {
            Decay::Head(g) => has_shape("the decay of heads", g, &[tokens, value_heads]).map(|()| &g.data[..]),
            Decay::Channel(g) => {
                has_shape("the decay of channels", g, &[tokens, value_heads, key_dim]).map(|()| &g.data[..])
            }
            Decay::Constant(g) if g.len() == value_heads => Ok(g),
            Decay::Constant(g) => Err(format!("{} constant decays for {value_heads} value heads", g.len())),
        }?;
        let not_at_most_0 = |g: &T| g.partial_cmp(&T::ZERO).is_none_or(Ordering::is_gt);
        if let Some(at) = decay.iter().position(not_at_most_0) {
            return Err(format!("log decay {at} is {:?}, expected at most 0", decay[at]));
        }
        let bounds = self.cu_seqlens;
        if bounds.first() != Some(&0) || bounds.last() != Some(&tokens) || !bounds.is_sorted() {
            return Err(format!("cu_seqlens {bounds:?} does not rise from 0 to {tokens} tokens"));
        }
        Ok(Sizes {
            heads,
            value_heads,
            key_dim,
            value_dim,
        })
    }

    /// Copies the inputs of one value head of a sequence.
    pub(super) fn head(&self, sequence: usize, value_head: usize) -> Head<T> {
        let tokens = self.cu_seqlens[sequence]..self.cu_seqlens[sequence + 1];
        let (heads, value_heads) = (self.q.shape[1], self.v.shape[1]);
        let key_head = value_head / (value_heads / heads);
        let rows = |from: &Tensor<T>, heads: usize, head: usize, width: usize| -> Vec<T> {
            let row = |token: usize| &from.data[(token * heads + head) * width..][..width];
            tokens.clone().flat_map(row).copied().collect()
        };
        let key_dim = self.q.cols();
        let (decay, decays) = match self.decay {
            Decay::Head(g) => (rows(g, value_heads, value_head, 1), 1),
            Decay::Channel(g) => (rows(g, value_heads, value_head, key_dim), key_dim),
            Decay::Constant(g) => (vec![g[value_head]; tokens.len()], 1),
        };
        Head {
            sequence,
            value_head,
            first_token: tokens.start,
            key_dim,
            value_dim: self.v.cols(),
            q: rows(self.q, heads, key_head, key_dim),
            k: rows(self.k, heads, key_head, key_dim),
            v: rows(self.v, value_heads, value_head, self.v.cols()),
            decay,
            decays,
            beta: self.beta.map(|beta| rows(beta, value_heads, value_head, 1)),
            scale: self.scale,
        }
    }
}

fn has_shape<T>(what: &str, tensor: &Tensor<T>, expected: &[usize]) -> Result<(), String> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(format!("{what} has shape {:?}, expected {expected:?}", tensor.shape))
}

/// Inputs of one value head of one sequence.
#[derive(Clone, Debug)]
pub struct Head<T> {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the value head.
    pub value_head: usize,
    /// Index of the sequence's first token among the tokens of all sequences.
    pub first_token: usize,
    /// Number of channels of a key, K.
    pub key_dim: usize,
    /// Number of channels of a value, V.
    pub value_dim: usize,
    /// Queries, `[tokens, K]`.
    pub q: Vec<T>,
    /// Keys, `[tokens, K]`.
    pub k: Vec<T>,
    /// Values, `[tokens, V]`.
    pub v: Vec<T>,
    /// Log decays `[tokens, decays]`.
    pub decay: Vec<T>,
    /// Number of log decays per token: 1 or K.
    pub decays: usize,
    /// Factor β, `[tokens]`; `None` without the delta rule.
    pub beta: Option<Vec<T>>,
    /// Factor of q.
    pub scale: T,
}

impl<T> Head<T> {
    /// Returns the number of tokens of the sequence.
    pub fn tokens(&self) -> usize {
        self.v.len() / self.value_dim
    }
}
