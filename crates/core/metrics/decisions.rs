use super::{Better, Decisions, Eval, Metric, Show};

const fn share(name: &'static str, doc: &'static str, eval: fn(&Decisions) -> Option<f64>) -> Metric {
    Metric::new(name, doc, Better::Higher, Show::Share, Eval::Decisions(eval))
}

const fn flips(name: &'static str, doc: &'static str, show: Show, eval: fn(&Decisions) -> Option<f64>) -> Metric {
    Metric {
        better: Better::Lower,
        show,
        ..share(name, doc, eval)
    }
}

/// The agreement of gates.
pub const GATE_AGREEMENT: Metric = share(
    "gate_agreement",
    "share of rows whose gates are both open or both closed",
    |decisions| decisions.judge(|decisions| Some(decisions.same_gate as f64 / decisions.rows as f64)),
);

/// Undefined if no gate is open on both sides.
pub const BANK_AGREEMENT: Metric = share(
    "bank_agreement",
    "share of rows with both gates open in which both select the same bank",
    |decisions| {
        let open = decisions.both_open;
        decisions.judge(|decisions| (open > 0).then(|| decisions.same_bank as f64 / open as f64))
    },
);

/// Compared with the error of the logits, it distinguishes near-ties from other causes. 0 if nothing flipped.
pub const FLIP_MARGIN: Metric = flips(
    "flip_margin",
    "median margin, in the reference's logits, of flipped decisions",
    Show::Significant,
    |decisions| decisions.judge(|decisions| Some(decisions.median())),
);

/// The largest margin of a flipped decision.
pub const FLIP_MARGIN_MAX: Metric = flips(
    "flip_margin_max",
    "largest margin, in the reference's logits, of a flipped decision",
    Show::Significant,
    |decisions| decisions.judge(|decisions| Some(decisions.largest())),
);

/// Flips that a bound on the error of the logits does not explain.
pub const FLIPS_OUTSIDE: Metric = flips(
    "flips_outside",
    "number of flipped decisions whose margin in the reference is above the stated margin",
    Show::Count,
    |decisions| decisions.judge(|decisions| Some(decisions.outside as f64)),
);
