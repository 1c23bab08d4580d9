//! Change of a recurrent state when it is stored between tokens.

/// Owner of a stored state: stochastic rounding draws by it, so that the order of work does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Number of the sequence in its batch.
    pub sequence: usize,
    /// Value head.
    pub head: usize,
    /// Within the sequence, from where this call started.
    pub token: usize,
}

/// Change of a state when it is stored: rounding to bf16, say. The output of a token has read the state before.
///
/// Closures `Fn(Token, &mut [T], usize)` are such stores.
pub trait Store<T>: Sync {
    /// Changes the state of one head in place. It comes in the order it is stored in, in rows of `cols` elements.
    fn store(&self, at: Token, state: &mut [T], cols: usize);

    /// Returns whether it changes nothing and need not be called.
    fn is_exact(&self) -> bool {
        false
    }
}

/// States are kept as they are.
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
