//! Size of the weights that a recipe (a choice of formats for the tensors of a model) rounds to other formats.

metrics! {
    /// Scales that a whole tensor shares are not counted.
    WEIGHT_BITS "weight_bits" "bit" Lower Significant [0.0, COUNT] Kernel;
        "stored bits per weight of the weights that are rounded, including their share of the scales"

    WEIGHT_MEGABYTES "weight_megabytes" "MB" Lower Significant [0.0, COUNT] Kernel;
        "10⁶ bytes of all weights of the model: rounded ones in their formats, the others in bf16"
}
