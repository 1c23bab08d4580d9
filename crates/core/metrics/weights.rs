//! The size of weights that a recipe stores in other formats.

use super::{Better, Eval, Metric, Show};

/// Bits per weight of those that a recipe rounds, their scales included; scales per tensor are not counted.
pub const WEIGHT_BITS: Metric = Metric {
    name: "weight_bits",
    doc: "stored bits per weight of the weights that are rounded, including their share of the scales",
    unit: "bit",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Kernel,
};

/// All weights of a model in 10⁶ bytes: rounded ones as they are stored, the others in bf16.
pub const WEIGHT_MEGABYTES: Metric = Metric {
    name: "weight_megabytes",
    doc: "10⁶ bytes of all weights of the model: rounded ones in their formats, the others in bf16",
    unit: "MB",
    ..WEIGHT_BITS
};
