use super::{Better, Eval, Metric, Show};

/// Relative errors (`relative_l2`) of what enters a layer and of what leaves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Relative error of the layer's input.
    pub entering: f64,
    /// Relative error of the layer's output.
    pub leaving: f64,
    /// Elements of the tensor that leaves.
    pub n: u64,
}

/// By how much a layer amplifies the error it is fed, its own error included: above 1, errors grow from layer to layer.
/// Not defined where nothing wrong enters.
pub const GAIN: Metric = Metric {
    name: "gain",
    doc: "relative error of a layer's output over that of its input",
    unit: "",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Gain(|gain| (gain.entering != 0.0).then(|| gain.leaving / gain.entering)),
};
