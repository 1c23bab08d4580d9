//! Compares the unquantized tensors of two files: each must exist in both files and be equal.

use serde_json::json;

use crate::packed::rounded;
use ulplab_core::error::{Error, Result, counted, did_you_mean};
use ulplab_core::metrics::unravel;
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Tensor, TensorFile};

use safetensors::Dtype;

/// The tensors of two files, paired by their names.
#[derive(Default)]
pub struct Pairing<'a> {
    /// Tensors of both files, in the order of the first file.
    pub pairs: Vec<(Tensor<'a>, Tensor<'a>)>,
    /// Tensors that only one file has: the side of the file ("want" or "got"), and the name of the tensor.
    pub unmatched: Vec<(&'static str, &'a str)>,
}

impl<'a> Pairing<'a> {
    /// Pairs the tensors for which `selected(side, name)` is true; `side` is "want" for a tensor of the first file and "got" for
    /// one of the second.
    pub fn new(want: &'a TensorFile, got: &'a TensorFile, selected: impl Fn(&str, &str) -> bool) -> Self {
        let mut all = Self::default();
        for tensor in want.tensors().filter(|tensor| selected("want", tensor.name)) {
            match got.get(tensor.name) {
                Some(other) => all.pairs.push((tensor, other)),
                None => all.unmatched.push(("want", tensor.name)),
            }
        }
        let extra = got.tensors().map(|tensor| tensor.name);
        let extra = extra.filter(|name| want.get(name).is_none() && selected("got", name));
        all.unmatched.extend(extra.map(|name| ("got", name)));
        all
    }
}

/// The tensors of two files that are neither codes nor scales of a quantized tensor, paired by name.
#[derive(Default)]
pub struct Copies<'a> {
    all: Pairing<'a>,
    /// Names of activation scales in the second file, which have no counterpart in the first file.
    activations: Vec<&'a str>,
}

/// Counts of a comparison of unquantized tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Number of tensors that are equal in both files.
    pub alike: usize,
    /// Number of tensors that both files have.
    pub all: usize,
    /// Number of tensors that only one file has.
    pub unmatched: usize,
}

/// Description of the difference between two tensors, and the number of elements that differ; `None` if they could not be
/// compared.
type Difference = (String, Option<usize>);

impl<'a> Copies<'a> {
    /// Pairs the selected tensors by name. Leaves out tensors of `want` that `got` stores quantized (`is_source`), and the codes
    /// and scales in `got` (`is_part`).
    pub fn find(
        want: &'a TensorFile,
        got: &'a TensorFile,
        (only, skip): (&[String], &[String]),
        is_source: impl Fn(&str) -> bool,
        is_part: impl Fn(&str) -> bool,
    ) -> Self {
        let quantized = |file: &str, name: &str| if file == "want" { is_source(name) } else { is_part(name) };
        let mut all = Pairing::new(want, got, |file, name| {
            selects(only, skip, name) && !quantized(file, name)
        });
        // Activation scales are stored next to their codes: `l.input_scale` next to `l.weight`.
        let of_activations = |name: &str| name.ends_with("input_scale") || name.ends_with("input_global_scale");
        let is_activation = |(file, name): &(&str, &str)| *file == "got" && of_activations(name);
        let activations: Vec<_> = all.unmatched.extract_if(.., |one| is_activation(one)).collect();
        let activations = activations.into_iter().map(|(_, name)| name).collect();
        Self { all, activations }
    }

    /// Returns an error if a tensor is in only one file, unless this is `allowed`.
    pub fn check(&self, allowed: bool, want: &TensorFile, got: &TensorFile) -> Result<()> {
        match self.all.unmatched.is_empty() || allowed {
            true => Ok(()),
            false => Err(unmatched(&self.all.unmatched, want, got)),
        }
    }

    /// Compares both tensors of every pair, and passes a description of each difference to `print`.
    pub fn compare(&self, json: bool, mut print: impl FnMut(&str) -> Result<(), Error>) -> Result<Copied> {
        let mut copied = Copied {
            all: self.all.pairs.len(),
            unmatched: self.all.unmatched.len(),
            ..Copied::default()
        };
        for (want, got) in &self.all.pairs {
            let difference = difference(want, got);
            copied.alike += usize::from(difference.is_none());
            let (words, count) = difference.unzip();
            let (name, dtype, shape) = (want.name, got.dtype, got.shape);
            match (json, words) {
                (true, words) => {
                    let (alike, differing) = (words.is_none(), count.flatten());
                    let record = json!({ "type": "copy", "name": name, "alike": alike, "differing": differing, "detail": words });
                    print(&format!("{record}\n"))?;
                }
                (false, None) => {}
                (false, Some(words)) => {
                    let not = "not quantized, and not the source's";
                    print(&format!("{name}  {dtype}  {shape:?}\n  {not}: {words}\n"))?;
                }
            }
        }
        if let ([first, ..], false) = (&self.activations[..], json) {
            let count = counted(self.activations.len(), "scale");
            print(&format!("{count} of activations not judged, the first is {first}\n"))?;
        }
        Ok(copied)
    }
}

/// Compares a tensor with its source (`want`): by bytes if the types are equal, else with the values of the source rounded to the
/// type of the tensor. `None` if they are equal.
fn difference(want: &Tensor, got: &Tensor) -> Option<Difference> {
    if want.shape != got.shape {
        return Some((format!("want shape {:?}, got {:?}", want.shape, got.shape), None));
    }
    let of = want.shape.iter().product::<usize>();
    let place = |at: usize| unravel(at, want.shape);
    if want.dtype == got.dtype {
        if want.bytes == got.bytes {
            return None;
        }
        // Compare types narrower than a byte by bytes, not by elements.
        let size = (want.dtype.bitsize() / 8).max(1);
        let pairs = want.bytes.chunks(size).zip(got.bytes.chunks(size));
        let wrong = pairs.enumerate().filter(|(_, (a, b))| a != b);
        let wrong: Vec<usize> = wrong.map(|(at, _)| at).collect();
        let first = wrong.first().copied().unwrap_or(0);
        let show = |tensor: &Tensor| {
            let bytes = tensor.bytes.get(first * size..(first + 1) * size).unwrap_or_default();
            let one = Tensor { bytes, ..*tensor };
            let value = one.to_f64().and_then(|values| values.first().copied());
            value.map_or(format!("bytes {bytes:02x?}"), |value| format!("{value:?}"))
        };
        let (unit, place) = match want.dtype.bitsize() {
            ..8 => ("bytes", vec![first as u64]),
            _ => ("elements", place(first)),
        };
        let (count, all, want, got) = (wrong.len(), want.bytes.len() / size, show(want), show(got));
        let words = format!("{count} of {all} {unit} differ, first at {place:?}: want {want}, got {got}");
        return Some((words, Some(count)));
    }
    let numbers = (want.is_floating() && got.is_floating()).then(|| want.to_f64().zip(got.to_f64()));
    let Some((a, b)) = numbers.flatten() else {
        return Some((format!("want type {}, got {}", want.dtype, got.dtype), None));
    };
    let alike = |want: f64, found: f64| {
        // Round f64 to 16-bit types through f32, as PyTorch does.
        let rounded = match got.dtype {
            Dtype::F64 => want,
            dtype => f64::from(rounded(want as f32, dtype)),
        };
        rounded.to_bits() == found.to_bits() || (rounded.is_nan() && found.is_nan())
    };
    let wrong: Vec<usize> = (0..of).filter(|at| !alike(a[*at], b[*at])).collect();
    let first = *wrong.first()?;
    let (count, to, at, want, got) = (wrong.len(), got.dtype, place(first), a[first], b[first]);
    let words = format!(
        "{count} of {of} elements are not those of the source rounded to {to}, first at {at:?}: want {want:?}, got {got:?}"
    );
    Some((words, Some(count)))
}

/// Returns an error that names the first few tensors that only one file has.
pub fn unmatched(tensors: &[(&str, &str)], want: &TensorFile, got: &TensorFile) -> Error {
    const SHOWN: usize = 5;
    let are = if tensors.len() == 1 { "is" } else { "are" };
    let count = counted(tensors.len(), "tensor");
    let mut lines = vec![format!(
        "{count} {are} in one file only (--allow-unmatched ignores them):"
    )];
    for (side, name) in tensors.iter().take(SHOWN) {
        let (file, other) = if *side == "want" { (want, got) } else { (got, want) };
        let hint = did_you_mean(name, other.tensors().map(|tensor| tensor.name));
        lines.push(format!("  '{name}' only in {}{hint}", file.path().display()));
    }
    if tensors.len() > SHOWN {
        lines.push(format!("  and {} more", tensors.len() - SHOWN));
    }
    Error::Usage(lines.join("\n"))
}
