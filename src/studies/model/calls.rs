//! The calls in which a model reads a text. Only the order of sums follows from them.

use std::num::NonZeroUsize;

use rand_chacha::rand_core::Rng;
use ulplab_core::random::stream;

/// The most tokens of a drawn call, as a power of two.
const LARGEST: u32 = 6;

/// The way in which a text is cut into calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// So many tokens in each.
    Even(NonZeroUsize),
    /// 1, 2, 4, … or 64 tokens in each, all equally likely. A call of one or two tokens is multiplied by dot products, a longer one in
    /// blocks, and experts and attention see other rows together: so each way of cutting sums in another order.
    Drawn { seed: u64, number: u64 },
}

impl Calls {
    /// The tokens of each call, of a window of so many.
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
