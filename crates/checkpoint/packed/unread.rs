//! Describes quantized tensors of other libraries that ulplab recognises by names and types, but cannot read.

use safetensors::Dtype;

use super::{Buffers, parts};
use ulplab_core::error::Error;
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Tensor, TensorFile};

/// Name endings of zero points that ulplab recognises but cannot read.
const ZERO_POINTS: [&str; 2] = [".qzeros", "_zero_point"];

/// Explains why the format of the codes is unknown, and what the user can do.
pub(super) fn unknown_format(file: &TensorFile, name: &str, buffers: &Buffers) -> String {
    if is_words(&buffers.data) {
        return words(&buffers.data);
    }
    let zero_points = ZERO_POINTS.map(|ending| [format!("{name}{ending}"), format!("{name}_weight{ending}")]);
    if let Some(zero) = zero_points.iter().flatten().find_map(|name| file.get(name)) {
        let (zero, only) = (zero.name, "zero points are read only as `ulplab quantize` writes them");
        return format!("has zero points in '{zero}', and {only}");
    }
    let example = match buffers.data.dtype {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => "fp8_out_channel",
        Dtype::I8 => "int8_token",
        _ => "nvfp4",
    };
    let shapes = buffers.shapes();
    format!("the file does not say its format, nor do {shapes}; give --format, e.g. --format {example}, or --skip it")
}

/// Returns the error for a file in which no quantized tensor is found or selected.
pub fn nothing(file: &TensorFile, only: &[String], skip: &[String]) -> Error {
    let selected = |name: &str| selects(only, skip, name);
    let path = file.path().display();
    let words_of = || file.tensors().find(|tensor| selected(tensor.name) && is_words(tensor));
    let what = match (parts(file).map(|parts| parts.len()), words_of()) {
        (Ok(1..), _) => format!("--only and --skip select no quantized tensor of {path}, though there are some"),
        (_, Some(tensor)) => format!("{path}: tensor '{}': {}", tensor.name, words(&tensor)),
        _ => format!(
            "no quantized tensor in {path}; name the tensors with --data, --scale and --global, and give --format"
        ),
    };
    Error::NothingSelected(what)
}

/// True if the tensor holds several narrow codes per word, judged by its type and by the names that AWQ, GPTQ and
/// compressed-tensors use.
fn is_words(tensor: &Tensor) -> bool {
    let ending = tensor.name.ends_with("qweight") || tensor.name.ends_with("_packed");
    ending && matches!(tensor.dtype, Dtype::I32 | Dtype::U32 | Dtype::I64)
}

fn words(tensor: &Tensor) -> String {
    let (dtype, layouts) = (
        tensor.dtype,
        "as AWQ, GPTQ and compressed-tensors pack them, each in an order of its own",
    );
    format!("codes packed into words of {dtype}, {layouts}: these are not read")
}
