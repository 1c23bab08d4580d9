//! Division of a text into several calls of a model, e.g. one call per token. The division changes only the order of sums, and
//! how often a recurrent state is rounded (after every call).

use std::num::NonZeroUsize;

use rand_chacha::rand_core::Rng;
use ulplab_core::random::stream;

/// Base-2 logarithm of the largest number of tokens in a call of random size.
const LARGEST: u32 = 6;

/// The way in which a text is divided into calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The same number of tokens in each call.
    Even(NonZeroUsize),
    /// Each call has 1, 2, 4, … or 64 tokens, all equally likely. Each division has another order of sums: one or two tokens
    /// are computed by dot products, more tokens in blocks; and the groups of rows that experts and attention process depend on
    /// the call.
    Drawn { seed: u64, number: u64 },
}

impl Calls {
    /// Returns the number of tokens of each call, for a window of `tokens` tokens.
    pub fn of(self, tokens: usize, window: &str) -> Vec<usize> {
        let mut left = tokens;
        let mut take = |most: usize| {
            let taken = most.min(left);
            left -= taken;
            (taken > 0).then_some(taken)
        };
        match self {
            Self::Even(size) => std::iter::from_fn(|| take(size.get())).collect(),
            Self::Drawn { seed, number } => {
                let mut rng = stream(seed, &format!("cuts {number} of {window}"));
                std::iter::from_fn(|| take(1 << (rng.next_u64() % u64::from(LARGEST + 1)))).collect()
            }
        }
    }
}
