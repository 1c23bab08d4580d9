use super::{Better, Eval, Metric, Show};

/// Largest lead of the reference's first choice over the candidate's, in the reference's own logits, where the two
/// differ: the log of how many times likelier the overturned token was. 0 if nothing flipped.
///
/// `top1` counts flips, near-ties included; this shows whether one of them overturned a clear preference.
pub const FLIP_GAP: Metric = Metric {
    name: "flip_gap",
    doc: "largest lead, in the reference's logits, of a top choice that the candidate changed",
    unit: "nats",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Logits(|logits| logits.judge(|logits| logits.flip_gap)),
};
