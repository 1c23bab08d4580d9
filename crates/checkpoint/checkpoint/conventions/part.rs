//! Parts of quantized matrices: their names, and the order of codes in words.

/// Order of codes in 32-bit words. K is the number of input channels, N the number of output channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `[K · bits / 32, N]`: a word holds consecutive input channels (GPTQ).
    Inputs,
    /// `[K, N · bits / 32]`: a word holds output channels, the even ones first (AWQ).
    Outputs,
    /// `[N, K · bits / 32]`: a word holds consecutive input channels (compressed-tensors).
    Rows,
}

/// Ending of a tensor name, the part that it marks, and the ending that replaces it in the name of the matrix.
pub type Ending = (&'static str, Part, &'static str);

/// A part of a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Codes of the elements.
    Codes,
    /// Scales of groups of elements.
    Scale,
    /// The global scale, which multiplies the scales of the groups.
    Global,
    /// Zero points of groups of elements.
    Zero,
    /// Index of the group of each input channel.
    GroupIndex,
    /// Tensor that stores the shape of the matrix.
    Shape,
    /// A scale of the activations that the matrix is multiplied by, or of a KV cache.
    Activation,
}

/// Returns an ending that takes the place of `.weight` in the name of the matrix.
pub const fn of_weight(ending: &'static str, part: Part) -> Ending {
    (ending, part, ".weight")
}

/// Ending of an activation scale or of a KV-cache scale.
pub const fn activation(ending: &'static str) -> Ending {
    of_weight(ending, Part::Activation)
}
