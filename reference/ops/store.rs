//! Rounding (or another change) of a recurrent state after each token, as if the state were written to memory between tokens.

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

/// Function that changes the state of one head in place when it is stored, e.g. rounds it to bf16; `None` stores states unchanged.
/// The elements are in storage order; the last argument is their number per row. The output of a token is computed from the
/// state before the change.
pub type Store<'a, T> = Option<&'a (dyn Fn(Token, &mut [T], usize) + Sync + 'a)>;
