use super::{Better, Eval, Metric, Show};

/// max |x − y|. It is an extreme value, so it grows with the number of elements.
pub const MAX_ABS: Metric = Metric {
    name: "max_abs",
    doc: "largest absolute error of an element",
    unit: "",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Pair(|pair| pair.judge(|pair| pair.max_abs)),
};
