use super::{Better, Eval, Metric, Show};

/// Share of positions where greedy decoding picks the same token.
///
/// The candidate's choice is its first largest logit; if the reference has several largest logits, any of them is right.
pub const TOP1: Metric = Metric {
    name: "top1",
    doc: "share of positions where both models prefer the same token",
    unit: "",
    better: Better::Higher,
    show: Show::Share,
    eval: Eval::Logits(|logits| logits.judge(|logits| logits.agree as f64 / logits.rows as f64)),
};
