use super::{Better, Eval, Metric, Show};

/// Number of NaN and infinite elements in both tensors. It is the only metric that is not NaN if there are such elements.
pub const NONFINITE: Metric = Metric {
    name: "nonfinite",
    doc: "number of NaN and infinite elements in both tensors",
    unit: "",
    better: Better::Lower,
    show: Show::Count,
    eval: Eval::Pair(|pair| Some((pair.nonfinite_want + pair.nonfinite_got) as f64)),
};
