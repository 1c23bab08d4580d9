//! Intermediates of chunked linear attention, and the [`Policy`] that rounds the intermediates as a kernel does.

/// Intermediates of a chunked kernel, named as in [`Chunked`](super::Chunked).
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
    /// Operands `[rows, K]` of the products that give A and P: q or k on the left, k on the right. If decays are per channel,
    /// left operands are multiplied by exp(G − G_a) and right operands by exp(G_a − G). G are the running sums of the log decays,
    /// and G_a is the sum at an anchor row a.
    ScoreOperand,
    /// A `[L, L]`.
    A,
    /// P `[L, L]`.
    P,
    /// Operands of the matrix products by which I + A is inverted, in blocks of at most [`BLOCK`](super::BLOCK) rows.
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
    /// Keys decayed to the end of the chunk, exp(G_L − G) k, `[L, K]`.
    DecayedKey,
    /// Copy of the state `[K, V]` that is an operand of matrix products.
    StateOperand,
    /// N `[L, V]`.
    PseudoValue,
    /// State `[K, V]` that is passed to the next chunk.
    State,
    /// o `[L, V]`.
    Output,
}

impl Intermediate {
    /// All intermediates, in the order of the computation.
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

/// Lower limit of log decays: a smaller decay is replaced by −750, whose exponential is 0 even in f64. The limit keeps running
/// sums small, so that differences of later sums keep their precision. It also avoids the NaN of −∞ − (−∞).
pub const FORGOTTEN: f64 = -750.0;

/// Rounding of the intermediates of [`Chunked`](super::Chunked). The default methods do not round.
pub trait Policy<T>: Sync {
    /// Rounds an intermediate, a row-major matrix of `cols` columns, in place.
    fn round(&self, _what: Intermediate, _values: &mut [T], _cols: usize) {}

    /// Adds the log decay of a token to the running sum of its chunk: returns G_i, given `sum` = G_{i−1} and `decay` = g_i.
    fn add_decay(&self, sum: f64, decay: f64) -> f64 {
        sum + decay.max(FORGOTTEN)
    }
}

/// Policy without rounding of intermediates (except to the scalar type); decays are summed in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl<T> Policy<T> for Exact {}
