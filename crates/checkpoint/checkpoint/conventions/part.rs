//! Parts of quantized matrices: their names, and the order of codes in words.

/// The order of codes in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `[K · bits / 32, N]`: consecutive input channels in a word (GPTQ).
    Inputs,
    /// `[K, N · bits / 32]`: output channels in a word, the even ones first (AWQ).
    Outputs,
    /// `[N, K · bits / 32]`: consecutive input channels in a word (compressed-tensors).
    Rows,
}

/// The end of a tensor's name, the part of a quantized matrix that it marks, and the end of the name of the matrix in its place.
pub type Ending = (&'static str, Part, &'static str);

/// A part of a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Codes of the elements.
    Codes,
    /// Scales of groups of elements.
    Scale,
    /// The scale above them.
    Global,
    /// Zero points.
    Zero,
    /// The group of each input channel.
    GroupIndex,
    /// The shape of the matrix.
    Shape,
    /// A scale of the activations that the matrix is multiplied by, or of a KV cache.
    Activation,
}

/// A part whose ending stands in the place of `.weight`.
pub const fn of_weight(ending: &'static str, part: Part) -> Ending {
    (ending, part, ".weight")
}

/// A scale of activations or caches.
pub const fn activation(ending: &'static str) -> Ending {
    of_weight(ending, Part::Activation)
}
