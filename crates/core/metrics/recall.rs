use super::{Better, Choice, Eval, Metric, Show};

/// How [`Choice`] treats ties and rows without a real choice.
const fn share(name: &'static str, doc: &'static str, eval: fn(&Choice) -> Option<f64>) -> Metric {
    Metric::new(name, doc, Better::Higher, Show::Share, Eval::Choice(eval))
}

/// Mean over contested rows of |A ∩ B| / |A|, A the reference's selection, B the candidate's.
pub const RECALL: Metric = share(
    "recall",
    "share of the reference's top-k that the candidate also selected",
    |choice| choice.judge(|choice| choice.recall / choice.rows as f64),
);

/// The recall of the worst row.
pub const RECALL_MIN: Metric = share("recall_min", "recall of the worst row", |choice| {
    choice.judge(|choice| choice.recall_min)
});

/// Mean over contested rows of the share of the reference's mass (attention, gate) on A that lies on A ∩ B. Swapped items
/// are near the threshold, so this is nearer to 1 than the recall.
pub const RECALL_MASS: Metric = share(
    "recall_mass",
    "recall weighted by the mass the reference gives each item",
    |choice| {
        let mass = choice.recall_mass?;
        choice.judge(|choice| mass / choice.rows as f64)
    },
);

/// Share of contested rows with the same set.
pub const AGREEMENT: Metric = share(
    "agreement",
    "share of rows in which both select the same set",
    |choice| choice.judge(|choice| choice.equal as f64 / choice.rows as f64),
);
