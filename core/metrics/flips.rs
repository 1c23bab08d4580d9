use super::{Better, Eval, Logits, Metric, Show};

/// Undefined without targets.
const fn flips(
    name: &'static str,
    doc: &'static str,
    better: Better,
    show: Show,
    eval: fn(&Logits) -> Option<f64>,
) -> Metric {
    Metric::new(name, doc, better, show, Eval::Logits(eval))
}

fn of_targets(logits: &Logits, metric: impl FnOnce(&Logits) -> f64) -> Option<f64> {
    logits.judge(metric).filter(|_| logits.targets > 0)
}

/// Right → wrong.
pub const LOST: Metric = flips(
    "lost",
    "positions where the reference prefers the text's next token, and the candidate does not",
    Better::Lower,
    Show::Count,
    |logits| of_targets(logits, |logits| logits.lost as f64),
);

/// Wrong → right.
pub const GAINED: Metric = flips(
    "gained",
    "positions where the candidate prefers the text's next token, and the reference does not",
    Better::Higher,
    Show::Count,
    |logits| of_targets(logits, |logits| logits.gained as f64),
);

/// What accuracy in predicting the text's next token falls by; below 0 if it rises.
pub const NET_LOST: Metric = flips(
    "net_lost",
    "share of positions that are lost, less the share that is gained",
    Better::Lower,
    Show::Signed,
    |logits| of_targets(logits, |logits| (logits.lost as f64 - logits.gained as f64) / logits.targets as f64),
);
