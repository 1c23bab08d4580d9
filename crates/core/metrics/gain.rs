/// Relative errors (`relative_l2`) of a layer's input and output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Relative error of the layer's input.
    pub entering: f64,
    /// Relative error of the layer's output.
    pub leaving: f64,
    /// Elements of the layer's output.
    pub n: u64,
}

metrics! {
    /// The factor by which a layer amplifies the error of its input, its own error included: above 1, errors grow from layer
    /// to layer. Undefined if the input has no error.
    GAIN "gain" "" Lower Significant [0.0, RATIO * RATIO]
        Gain(|gain| (gain.entering != 0.0).then(|| gain.leaving / gain.entering));
        "relative error of a layer's output over that of its input"
}
