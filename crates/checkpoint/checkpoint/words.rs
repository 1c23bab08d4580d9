//! Narrow integers packed into 32-bit words, as AWQ, GPTQ and compressed-tensors store them.

use safetensors::Dtype;

use super::config::Scheme;
use super::conventions::Packing;
use super::parts::Parts;
use ulplab_core::formats::Group;
use ulplab_core::tensorfile::{Flaw, Tensor};

/// A quantized matrix of `outputs` rows and `inputs` columns whose types and shapes were checked.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    packing: Packing,
    /// Number of bits of a code: 4 or 8.
    pub bits: usize,
    /// Number of output channels, i.e. rows of the matrix.
    pub outputs: usize,
    /// Number of input channels, i.e. columns of the matrix.
    pub inputs: usize,
    /// Number of consecutive input channels that share a scale.
    pub group: usize,
    /// Scales of groups of input channels.
    pub scale: Tensor<'a>,
    /// Number that is added to each stored zero point.
    pub offset: i32,
    codes: &'a [u8],
    zeros: Option<&'a [u8]>,
    index: Option<Tensor<'a>>,
}

/// Order of codes in a word of AWQ: position of each of eight consecutive output channels.
const INTERLEAVED: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl<'a> Words<'a> {
    /// Checks the types and shapes of a matrix whose codes are in 32-bit words. `scheme` is the scheme that the configuration
    /// states.
    ///
    /// # Errors
    /// Returns an error if a shape or type fits no matrix of 4 or 8 bits, or contradicts the configuration.
    pub fn new(parts: &Parts<'a>, packing: Packing, scheme: Option<Scheme>) -> Result<Self, Flaw> {
        let codes = parts.codes.expect("words have codes");
        let scale = parts.scale.expect("words have scales");
        let (&[high, wide], true) = (codes.shape, is_words(&codes)) else {
            return Err(unexpected(&codes, "a matrix of I32".into()));
        };
        let (&[down, across], true) = (scale.shape, scale.is_floating()) else {
            return Err(unexpected(&scale, "a matrix of floating-point numbers".into()));
        };
        let declared = parts.shape.and_then(|shape| shape.to_f64());
        let declared: Option<Vec<usize>> = declared.map(|sizes| sizes.into_iter().map(|size| size as usize).collect());
        // Derive the number of codes per word from the ratio of an unpacked to a packed dimension. The result is used if the
        // configuration does not state the number of bits.
        let per = match (packing, declared.as_deref(), parts.zero.map(|zero| zero.shape)) {
            (Packing::Outputs, ..) => across.checked_div(wide),
            (Packing::Rows, Some(&[_, inputs]), _) => inputs.checked_div(wide),
            (Packing::Inputs, _, Some(&[_, packed])) => across.checked_div(packed),
            _ => None,
        };
        let stated = scheme.map(|scheme| scheme.bits);
        let is_read = |bits: &usize| [4, 8].contains(bits);
        let bits = per.and_then(|per| 32usize.checked_div(per)).filter(is_read);
        let Some(bits) = stated.or(bits).filter(is_read) else {
            let said = stated.map_or(String::new(), |bits| format!(", and the configuration says {bits}"));
            return Err(unexpected(&codes, format!("words with codes of 4 or 8 bits{said}")));
        };
        let per = 32 / bits;
        let declared_inputs = declared.as_ref().and_then(|shape| shape.get(1).copied());
        let (outputs, inputs, groups) = match packing {
            Packing::Inputs => (wide, high * per, down),
            Packing::Outputs => (wide * per, high, down),
            Packing::Rows => (high, declared_inputs.unwrap_or(wide * per), across),
        };
        let words = Self {
            packing,
            bits,
            outputs,
            inputs,
            group: inputs.checked_div(groups).unwrap_or(0),
            scale,
            offset: 0,
            codes: codes.bytes,
            zeros: parts.zero.map(|zero| zero.bytes),
            index: parts.index,
        };
        if packing == Packing::Outputs && bits != 4 {
            return Err(unexpected(&codes, "words with codes of 4 bits".into()));
        }
        if packing == Packing::Rows
            && (wide != inputs.div_ceil(per) || declared.is_some_and(|shape| shape != [outputs, inputs]))
        {
            let shape = parts.shape.and_then(|shape| shape.to_f64()).unwrap_or_default();
            let expected = format!("{bits}-bit codes of a matrix of shape {shape:?}");
            return Err(unexpected(&codes, expected));
        }
        let group = match scheme.and_then(|scheme| scheme.group) {
            Some(Group::Tile { rows: 1, cols }) => cols.min(inputs.max(1)),
            Some(Group::Token | Group::Tensor) => inputs.max(1),
            _ => words.group.max(1),
        };
        let want = words.oriented(inputs.div_ceil(group), outputs);
        if scale.shape != want {
            let expected = format!("{want:?}: a scale for every {group} of {inputs} inputs of {outputs} outputs");
            return Err(unexpected(&scale, expected));
        }
        if let Some(zero) = parts.zero {
            let want = words.oriented(inputs.div_ceil(group), outputs.div_ceil(per));
            if zero.shape != want || !is_words(&zero) {
                let expected = format!("I32 {want:?}: {bits}-bit zero points of as many groups");
                return Err(unexpected(&zero, expected));
            }
        }
        if let Some(index) = parts.index
            && (index.shape != [inputs] || !matches!(index.dtype, Dtype::I32 | Dtype::I64))
        {
            return Err(unexpected(&index, format!("I32 [{inputs}]: the group of each input")));
        }
        Ok(Self { group, ..words })
    }

    fn oriented(&self, groups: usize, outputs: usize) -> Vec<usize> {
        match self.packing {
            Packing::Rows => vec![outputs, groups],
            _ => vec![groups, outputs],
        }
    }

    /// Number of groups of input channels.
    pub fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// Index of the group of each input channel; an entry is `None` if its stored index is out of range.
    pub fn columns(&self) -> Vec<Option<usize>> {
        let groups = self.groups();
        match self.index {
            None => (0..self.inputs).map(|input| Some(input / self.group)).collect(),
            Some(index) => {
                let group = |group: i128| usize::try_from(group).ok().filter(|group| *group < groups);
                index.integers().map(group).collect()
            }
        }
    }

    /// Flat index of the entry of (`group`, `output`) in a tensor of scales or zero points with `outputs` entries for each group.
    pub fn index_of(&self, group: usize, output: usize, outputs: usize) -> usize {
        match self.packing {
            Packing::Rows => output * self.groups() + group,
            _ => group * outputs + output,
        }
    }

    /// Returns the stored code of an element. With `other`, swaps the two possible orders of codes in a word: AWQ words are read
    /// in sequence, all other words in AWQ order.
    pub fn code(&self, output: usize, input: usize, other: bool) -> u32 {
        let per = 32 / self.bits;
        let (word, place) = match self.packing {
            Packing::Inputs => (input / per * self.outputs + output, input % per),
            Packing::Outputs => (input * (self.outputs / per) + output / per, output % per),
            Packing::Rows => (output * self.inputs.div_ceil(per) + input / per, input % per),
        };
        self.field(self.codes, word, place, other)
    }

    /// Returns the zero point of a group and an output channel, with the offset added; `None` if the file stores no zero points.
    pub fn zero(&self, group: usize, output: usize, other: bool) -> Option<i32> {
        let per = 32 / self.bits;
        let word = self.index_of(group, output / per, self.outputs.div_ceil(per));
        Some(self.field(self.zeros?, word, output % per, other) as i32 + self.offset)
    }

    fn field(&self, bytes: &[u8], word: usize, place: usize, other: bool) -> u32 {
        let interleaved = (self.packing == Packing::Outputs) != other && self.bits == 4;
        let place = if interleaved { INTERLEAVED[place] } else { place };
        let word: [u8; 4] = bytes[word * 4..][..4].try_into().expect("four bytes");
        u32::from_le_bytes(word) >> (place * self.bits) & ((1u64 << self.bits) - 1) as u32
    }

    /// Zero point of a file that stores no zero points: half of the range of the codes.
    pub fn middle(&self) -> u32 {
        1 << (self.bits - 1)
    }

    /// Describes bits and group size, e.g. `int4/b128 in words`.
    pub fn words(&self) -> String {
        format!("int{}/b{} in words", self.bits, self.group)
    }
}

/// Describes type and shape of a tensor, e.g. `I32 [4, 8]`.
pub fn shown(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype, tensor.shape)
}

/// Returns the flaw that a tensor has another type or shape than expected.
pub fn unexpected(tensor: &Tensor, expected: String) -> Flaw {
    Flaw {
        subject: tensor.name.into(),
        found: shown(tensor),
        expected,
    }
}

/// True if the elements of a tensor are 32-bit words.
pub fn is_words(tensor: &Tensor) -> bool {
    matches!(tensor.dtype, Dtype::I32 | Dtype::U32)
}
