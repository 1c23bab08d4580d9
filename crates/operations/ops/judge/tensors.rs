//! Converts checks of outputs to tensors and sentences, for users who debug a kernel outside of this program.

use std::borrow::Cow;
use std::path::Path;

use rayon::prelude::*;
use safetensors::Dtype;
use ulplab_core::tensorfile::{Metadata, Slot, write_safetensors};

use super::{Judge, Rms, Rule};

/// A tensor that will be written to a file.
pub struct Tensor<'a> {
    /// Name of the tensor.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape, counted in elements.
    pub shape: Vec<usize>,
    /// Contents, row-major and little-endian.
    pub bytes: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Copies the rows `first..end`. A row consists of the elements along the last dimension.
    pub fn rows(&self, first: usize, end: usize) -> Self {
        let cols = self.shape.last().copied().unwrap_or(1);
        let row = cols * self.dtype.bitsize() / 8;
        Self {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: vec![end - first, cols],
            bytes: Cow::Owned(self.bytes[first * row..end * row].to_vec()),
        }
    }

    /// Number of rows. A row consists of the elements along the last dimension.
    pub fn row_count(&self) -> usize {
        self.shape.iter().product::<usize>() / self.shape.last().copied().unwrap_or(1).max(1)
    }
}

/// Writes tensors to a safetensors file.
///
/// # Errors
/// Returns an error if two tensors have the same name, or if the file cannot be written.
pub fn write(file: &Path, tensors: &[Tensor], metadata: &Metadata) -> ulplab_core::error::Result<()> {
    let slot = |tensor: &Tensor| Slot::new(&tensor.name, tensor.dtype, &tensor.shape[..]);
    write_safetensors(file, tensors.iter().map(slot).collect(), metadata, |writer| {
        let mut tensors = tensors.iter();
        tensors.try_for_each(|tensor| writer.put(&tensor.name, &tensor.bytes))
    })
}

fn f64_bytes(values: &[f64]) -> Cow<'static, [u8]> {
    values
        .par_iter()
        .flat_map_iter(|x| x.to_le_bytes())
        .collect::<Vec<u8>>()
        .into()
}

impl Judge {
    /// Expected values: in the type of the output if bits are compared, else as f64. For codes, these are the numbers that the
    /// codes represent. `None` if the expected values depend on the outputs.
    pub fn wanted(&self) -> Option<Tensor<'_>> {
        match &self.rule {
            Rule::Equal { want, .. } => Some(self.tensor(self.dtype, Cow::Borrowed(want))),
            rule => Some(self.tensor(Dtype::F64, f64_bytes(rule.numbers()?))),
        }
    }

    fn tensor<'a>(&self, dtype: Dtype, bytes: Cow<'a, [u8]>) -> Tensor<'a> {
        Tensor {
            name: self.output.into(),
            dtype,
            shape: self.shape.clone(),
            bytes,
        }
    }

    /// Error bound of each element, as f64; `None` if bits are compared or if the bounds depend on the outputs.
    pub fn bound(&self) -> Option<Tensor<'_>> {
        self.rule.numbers()?;
        Some(self.tensor(Dtype::F64, f64_bytes(&self.bounds()?)))
    }

    /// Name of the kind of requirement, e.g. `equal bits`.
    pub fn kind(&self) -> &'static str {
        match &self.rule {
            Rule::Equal { .. } => "equal bits",
            Rule::Within { .. } => "element bound",
            Rule::Rms(_) => "root mean square",
            Rule::Admissible { .. } => "admissible codes",
            Rule::Finite => "finite",
            Rule::Parts(_) => "parts",
        }
    }

    /// Sentence that states the requirement on the output.
    pub fn how(&self) -> String {
        let more = |is: bool, text: &'static str| if is { text } else { "" };
        match &self.rule {
            Rule::Equal { any_nan, also, .. } => format!(
                "bits must be equal{}{}",
                more(also.is_some(), ", or those of another admissible rounding"),
                more(!any_nan.is_empty(), "; any NaN matches any other")
            ),
            Rule::Within { together, .. } => format!(
                "each element must be within its bound{}",
                more(together.is_some(), ", and all errors are judged together, too")
            ),
            Rule::Rms(Rms { bar, usual, .. }) => format!(
                "the root-mean-square error of each group of rows must be at most {bar} times the root mean square of the \
                 expected values{}",
                more(
                    usual.is_some(),
                    "; rows, elements and the gain of each group are judged, too"
                )
            ),
            Rule::Admissible { format, .. } => {
                format!("codes and scales of {format} must be admissible for numbers within their bounds")
            }
            Rule::Finite => "each element must be finite".into(),
            Rule::Parts(_) => "the expected values depend on the outputs".into(),
        }
    }
}
