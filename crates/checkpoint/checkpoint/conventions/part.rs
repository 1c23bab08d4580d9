//! Tensors that together store a quantized matrix (e.g. codes, scales, zero points): their names, and how codes are packed into
//! 32-bit words.

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

/// Ending of a tensor name, role of the tensor, and ending of the matrix name, e.g. `.scales`, `Scale` and `.weight`.
pub type Ending = (&'static str, Part, &'static str);

/// Role of a tensor in a quantized matrix.
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

/// Creates the [`Ending`] of tensors whose names have `ending` in place of the `.weight` of the matrix name.
pub const fn of_weight(ending: &'static str, part: Part) -> Ending {
    (ending, part, ".weight")
}

/// Ending of an activation scale or of a KV-cache scale.
pub const fn activation(ending: &'static str) -> Ending {
    of_weight(ending, Part::Activation)
}
