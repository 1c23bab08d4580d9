//! Rounding (or another change) of a recurrent state when it is stored between tokens.

/// Sequence, head and token of a stored state. Stochastic rounding derives its random numbers from these indices, so that results
/// do not depend on the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Index of the sequence in its batch.
    pub sequence: usize,
    /// Index of the value head.
    pub head: usize,
    /// Index of the token within the sequence, counted from the start of this call.
    pub token: usize,
}

/// Change of a state when it is stored, e.g. rounding to bf16. The output of a token is computed from the state before the
/// change.
///
/// Closures `Fn(Token, &mut [T], usize)` implement this trait.
pub trait Store<T>: Sync {
    /// Changes the state of one head in place. The elements are in storage order, in rows of `cols` elements.
    fn store(&self, at: Token, state: &mut [T], cols: usize);

    /// Returns true if states are stored unchanged, so that [`Self::store`] need not be called.
    fn is_exact(&self) -> bool {
        false
    }
}

/// Stores states unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Unrounded;

impl<T> Store<T> for Unrounded {
    fn store(&self, _: Token, _: &mut [T], _: usize) {}

    fn is_exact(&self) -> bool {
        true
    }
}

impl<T, F: Fn(Token, &mut [T], usize) + Sync> Store<T> for F {
    fn store(&self, at: Token, state: &mut [T], cols: usize) {
        self(at, state, cols);
    }
}
