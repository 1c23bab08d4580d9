use super::{Better, Eval, Metric, Show};

/// NaN and infinite elements of both tensors together. The one metric that such elements do not make NaN.
pub const NONFINITE: Metric = Metric {
    name: "nonfinite",
    doc: "NaN and infinite elements of both tensors together",
    unit: "",
    better: Better::Lower,
    show: Show::Count,
    eval: Eval::Pair(|pair| Some((pair.nonfinite_want + pair.nonfinite_got) as f64)),
};
