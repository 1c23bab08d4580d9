//! Points at which a chunked kernel rounds.

/// Intermediates of a chunked kernel; names as in [`Chunked`](super::Chunked).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intermediate {
    /// q `[L, K]`, before the scale.
    Query,
    /// k `[L, K]`.
    Key,
    /// v `[L, V]`.
    Value,
    /// β `[L, 1]`.
    Beta,
    /// Operands `[rows, K]` of the products A and P are made of: q and k, decayed towards an anchor where decays are of
    /// channels.
    ScoreOperand,
    /// A `[L, L]`.
    A,
    /// P `[L, L]`.
    P,
    /// Operands of the products that the inverse is made of, blocks of at most [`BLOCK`](super::BLOCK) rows.
    InverseOperand,
    /// (I + A)⁻¹ `[L, L]`.
    Inverse,
    /// β v `[L, V]`.
    BetaValue,
    /// β exp(G) k `[L, K]`.
    BetaKey,
    /// U `[L, V]`.
    U,
    /// W `[L, K]`.
    W,
    /// exp(G) q `[L, K]`.
    DecayedQuery,
    /// exp(G_L − G) k `[L, K]`.
    DecayedKey,
    /// The copy of the state `[K, V]` that enters the matrix products.
    StateOperand,
    /// N `[L, V]`.
    PseudoValue,
    /// The state `[K, V]` as it is carried to the next chunk.
    State,
    /// o `[L, V]`.
    Output,
}

impl Intermediate {
    /// All of them, in the order of the computation.
    pub const ALL: [Self; 19] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Beta,
        Self::ScoreOperand,
        Self::A,
        Self::P,
        Self::InverseOperand,
        Self::Inverse,
        Self::BetaValue,
        Self::BetaKey,
        Self::U,
        Self::W,
        Self::DecayedQuery,
        Self::DecayedKey,
        Self::StateOperand,
        Self::PseudoValue,
        Self::State,
        Self::Output,
    ];
}

/// Log decays below this are taken for it: its exponential is 0 in f64 too, and sums stay small, so that a difference that
/// does not reach across such a decay keeps its last places. Also takes −∞, whose differences are NaN.
pub const FORGOTTEN: f64 = -750.0;

/// Rounding of the intermediates of [`Chunked`](super::Chunked); every default leaves them as they are.
pub trait Policy<T>: Sync {
    /// Rounds an intermediate, a row-major matrix of `cols` columns, in place.
    fn round(&self, _what: Intermediate, _values: &mut [T], _cols: usize) {}

    /// Adds a token's log decay to the running sum of its chunk: returns G_i, given `sum` = G_{i−1} and `decay` = g_i.
    fn add_decay(&self, sum: f64, decay: f64) -> f64 {
        sum + decay.max(FORGOTTEN)
    }
}

/// Nothing is rounded beyond the scalar's own rounding, and decays are summed in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl<T> Policy<T> for Exact {}
