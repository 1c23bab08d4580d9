//! Sources of test inputs: random numbers, activations and weights of a model, and tensors from the user's file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use reference::{Bounded, Tensor};
use safetensors::Dtype;

use super::judge::numbers;
use super::{Case, Inputs};
use ulplab_core::formats::{E4M3, E5M2};
use ulplab_core::random::stream;
use ulplab_core::tensorfile::TensorFile;

/// Activations that were recorded at one site of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Index of the decoder layer, from 0; `None` if the site is outside of the layers.
    pub layer: Option<u32>,
    /// Number of columns.
    pub cols: usize,
    /// Activations `[rows, cols]`, row-major.
    pub values: Vec<f32>,
}

/// Function that looks up the activations at all sites that match a pattern. A site is a named tensor of the model.
pub type Sites<'a> = dyn Fn(&str) -> Result<Vec<Rows>, String> + Send + Sync + 'a;

/// Source of test inputs: random numbers that depend on the seed and on a purpose string, and activations of the model.
pub struct Data<'a> {
    seed: u64,
    sites: &'a Sites<'a>,
    checkpoint: Option<PathBuf>,
    /// Cache of activations by pattern: each lookup runs the model, and many cases use the same pattern.
    found: Mutex<BTreeMap<String, Arc<Vec<Rows>>>>,
}

/// Number of elements drawn from one random stream. The size is fixed, so that the numbers do not depend on the number of
/// threads.
const CHUNK: usize = 1 << 16;

impl<'a> Data<'a> {
    /// Creates a source that draws with `seed` and looks up activations with `sites`.
    pub fn new(seed: u64, sites: &'a Sites<'a>) -> Self {
        Self {
            seed,
            sites,
            checkpoint: None,
            found: Mutex::default(),
        }
    }

    /// Sets the folder of the model's weights.
    #[must_use]
    pub fn with_checkpoint(self, folder: Option<&Path>) -> Self {
        Self {
            checkpoint: folder.map(Path::to_path_buf),
            ..self
        }
    }

    /// Seed of the random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Folder of the model's weights.
    ///
    /// # Errors
    /// Returns an error if the user has given no model.
    pub fn checkpoint(&self) -> Result<&Path, String> {
        let folder = self.checkpoint.as_deref();
        folder.ok_or_else(|| "the case needs the weights of a model, and no model is given".into())
    }

    /// Draws `len` numbers from N(0, 1). The same purpose gives the same numbers.
    pub fn normal(&self, purpose: &str, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
            let mut rng = stream(self.seed, &format!("{purpose}/{chunk}"));
            values.iter_mut().for_each(|x| *x = StandardNormal.sample(&mut rng));
        });
        values
    }

    /// Draws a tensor of this shape from N(0, 1).
    pub fn tensor(&self, purpose: &str, shape: &[usize]) -> Tensor<f32> {
        Tensor::new(shape, self.normal(purpose, shape.iter().product()))
    }

    /// Draws `len` numbers from a normal distribution with this mean and standard deviation.
    pub fn around(&self, purpose: &str, len: usize, mean: f32, deviation: f32) -> Vec<f32> {
        let mut values = self.normal(purpose, len);
        values.iter_mut().for_each(|x| *x = mean + deviation * *x);
        values
    }

    /// Draws `len` random bytes.
    pub fn bytes(&self, purpose: &str, len: usize) -> Vec<u8> {
        use rand_chacha::rand_core::Rng;
        let mut bytes = vec![0; len];
        bytes.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, bytes)| {
            stream(self.seed, &format!("{purpose}/{chunk}")).fill_bytes(bytes);
        });
        bytes
    }

    /// Draws `len` random 32-bit words.
    pub fn words(&self, purpose: &str, len: usize) -> Vec<u32> {
        let bytes = self.bytes(purpose, 4 * len);
        let words = bytes.as_chunks().0.iter();
        words.map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    /// Bytes of the tensor `name` in the user's file; `None` if the case reads no file or the file lacks the tensor.
    ///
    /// # Errors
    /// Returns an error if the tensor has another type or shape.
    pub fn given(&self, case: &Case, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Option<Vec<u8>>, String> {
        let Inputs::File(path) = case.inputs else {
            return Ok(None);
        };
        let file = TensorFile::open(path).map_err(|error| error.to_string())?;
        let Some(found) = file.get(name) else {
            return Ok(None);
        };
        if (found.dtype, found.shape) == (dtype, shape) {
            return Ok(Some(found.bytes.to_vec()));
        }
        let (is, has) = (found.dtype, found.shape);
        Err(format!("{path}: '{name}' is {is} {has:?}, expected {dtype} {shape:?}"))
    }

    /// Returns the values of the f32 tensor `name` in the user's file, or the result of `drawn` if the file lacks the tensor.
    pub fn given_or(
        &self,
        case: &Case,
        name: &str,
        shape: &[usize],
        drawn: impl FnOnce() -> Vec<f32>,
    ) -> Result<Vec<f32>, String> {
        let given = self.given(case, name, Dtype::F32, shape)?;
        Ok(given.map_or_else(drawn, |bytes| f32_values(&bytes, Dtype::F32)))
    }

    /// Looks up the activations at a site of the model: one entry per layer that has the site, in the order of layers.
    pub fn site(&self, pattern: &str) -> Result<Arc<Vec<Rows>>, String> {
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(rows) = found.get(pattern) {
            return Ok(rows.clone());
        }
        let rows = Arc::new((self.sites)(pattern)?);
        found.insert(pattern.into(), rows.clone());
        Ok(rows)
    }

    /// Activations at a site as one matrix `[rows, cols]`, with the same number of tokens from every layer that has the site.
    pub fn site_rows(&self, pattern: &str, rows: usize, cols: usize) -> Result<Vec<f32>, String> {
        let layers = self.site(pattern)?;
        let each = rows.div_ceil(layers.len().max(1)) * cols;
        let mut values = Vec::with_capacity(rows * cols);
        for layer in layers.iter() {
            if layer.cols != cols || layer.values.len() < each {
                let found = layer.values.len() / layer.cols.max(1);
                return Err(format!(
                    "site '{pattern}' has {found} rows of {} in a layer, but the case takes {} of {cols}",
                    layer.cols,
                    each / cols
                ));
            }
            values.extend_from_slice(&layer.values[..each]);
        }
        if values.len() < rows * cols {
            return Err(format!("no layer has a site '{pattern}'"));
        }
        values.truncate(rows * cols);
        Ok(values)
    }
}

/// Rounds values in place to bfloat16, to nearest even.
pub fn round_to_bf16(values: &mut [f32]) {
    values
        .par_iter_mut()
        .for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
}

/// Rounds values in place to `dtype`, which is bfloat16 or f32 (no change).
pub(super) fn round_to(dtype: Dtype, values: &mut [f32]) {
    if dtype == Dtype::BF16 {
        round_to_bf16(values);
    }
}

/// Encodes values as little-endian bfloat16, rounded to nearest even.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    each_bytes(values, |x| half::bf16::from_f32(x).to_le_bytes())
}

/// Encodes values as little-endian f32.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    each_bytes(values, f32::to_le_bytes)
}

fn each_bytes<const N: usize>(values: &[f32], of: impl Fn(f32) -> [u8; N] + Sync) -> Vec<u8> {
    let mut bytes = vec![0; N * values.len()];
    let pairs = values.par_iter().zip(bytes.par_chunks_exact_mut(N));
    pairs.for_each(|(x, bytes)| bytes.copy_from_slice(&of(*x)));
    bytes
}

/// Encodes values as little-endian i32.
pub fn i32_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Decodes little-endian i32 bytes.
pub fn i32_values(bytes: &[u8]) -> Vec<i32> {
    let (chunks, _) = bytes.as_chunks();
    chunks.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

/// Decodes numbers of the type `dtype` to f32.
pub fn f32_values(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    numbers(dtype, bytes).into_iter().map(|x| x as f32).collect()
}

/// Encodes values as little-endian bytes of `dtype`, which is f32 or bfloat16 (rounded to nearest even).
pub fn float_bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => bf16_bytes(values),
        _ => f32_bytes(values),
    }
}

/// Element types, with their names in test cases.
pub const DTYPES: &[(&str, Dtype)] = &[
    ("f64", Dtype::F64),
    ("f32", Dtype::F32),
    ("bf16", Dtype::BF16),
    ("f16", Dtype::F16),
    ("f8_e4m3", Dtype::F8_E4M3),
    ("f8_e5m2", Dtype::F8_E5M2),
    ("i64", Dtype::I64),
    ("i32", Dtype::I32),
    ("i16", Dtype::I16),
    ("i8", Dtype::I8),
    ("u8", Dtype::U8),
];

/// The element type with this name; `None` if the name is unknown.
pub fn dtype_named(name: &str) -> Option<Dtype> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// True for floating-point types; the other [`DTYPES`] are integer types.
pub fn is_real(dtype: Dtype) -> bool {
    use Dtype::{BF16, F8_E4M3, F8_E5M2, F16, F32, F64};
    matches!(dtype, F64 | F32 | BF16 | F16 | F8_E4M3 | F8_E5M2)
}

/// Encodes a number as little-endian bytes of `dtype`. For float types other than f64, the number is first rounded to f32.
pub fn number_bytes(x: f64, dtype: Dtype) -> Vec<u8> {
    let narrow = x as f32;
    match dtype {
        Dtype::F64 => x.to_le_bytes().into(),
        Dtype::F32 => narrow.to_le_bytes().into(),
        Dtype::BF16 => half::bf16::from_f32(narrow).to_le_bytes().into(),
        Dtype::F16 => half::f16::from_f32(narrow).to_le_bytes().into(),
        Dtype::F8_E4M3 => vec![E4M3.encode(narrow) as u8],
        Dtype::F8_E5M2 => vec![E5M2.encode(narrow) as u8],
        _ => (x as i128).to_le_bytes()[..dtype.bitsize() / 8].into(),
    }
}

/// Turns values into a tensor of [`Bounded`] numbers with error 0.
pub fn exact(shape: impl Into<Vec<usize>>, values: &[f32]) -> Tensor<Bounded> {
    Tensor::new(shape, values.par_iter().map(|x| Bounded::exact(*x)).collect())
}

/// Converts values to f64.
pub fn widened(values: &[f32]) -> Vec<f64> {
    values.par_iter().map(|x| f64::from(*x)).collect()
}
