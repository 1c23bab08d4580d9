//! Inputs of a user's operation: random numbers, or tensors recorded at sites of a model.

use rayon::prelude::*;
use safetensors::Dtype;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use ulplab_core::tensorfile::Tensor;
use ulplab_operations::ops::Data;
use ulplab_operations::ops::data::{is_real, number_bytes};

/// Values of an input tensor, rounded to the tensor's type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// N(0, 1).
    #[default]
    Normal,
    /// Uniformly distributed from the first number to the second.
    Uniform([f64; 2]),
    /// Log-uniformly distributed magnitudes from the first number (above 0) to the second, with random signs.
    LogUniform([f64; 2]),
    /// Half of the values are ±0, ±1, neighbours of 1, the smallest numbers, and powers of two up to 2^±20; the others are N(0,
    /// 1). All values are finite.
    Edges,
    /// Integers from the first number to the second, both included.
    Integers([i64; 2]),
    /// Tensors at these sites of the model. Their rows are taken in equal number from every layer.
    Site(String),
}

impl Values {
    /// Returns an error if a parameter is invalid, or if the type `dtype` cannot represent the values. Without `dtype`, only the
    /// parameters are checked.
    pub fn check(&self, dtype: Option<Dtype>) -> Result<(), String> {
        match *self {
            Self::Uniform([from, to]) if !(from < to && (to - from).is_finite()) => Err(format!(
                "uniform = [{from}, {to}], expected two finite numbers, the smaller one first"
            )),
            Self::LogUniform([from, to]) if !(0.0 < from && from < to && to.is_finite()) => Err(format!(
                "log_uniform = [{from}, {to}], expected two numbers above 0, the smaller one first"
            )),
            Self::Integers([from, to]) if from > to => {
                Err(format!("integers = [{from}, {to}], expected the smaller one first"))
            }
            Self::Integers([from, to]) => match dtype.map(holds) {
                Some([least, most]) if from < least || to > most => Err(format!(
                    "integers = [{from}, {to}], expected numbers from {least} to {most}, which it holds"
                )),
                _ => Ok(()),
            },
            _ if dtype.is_some_and(|dtype| !is_real(dtype)) => {
                Err("values of an integer type are { integers = [least, most] }".into())
            }
            _ => Ok(()),
        }
    }

    /// Makes a tensor of this shape, and returns its values as bytes of type `dtype`.
    pub fn draw(&self, purpose: &str, dtype: Dtype, shape: &[usize], data: &Data) -> Result<Vec<u8>, String> {
        let len = shape.iter().product();
        let normal = || data.normal(purpose, len).into_par_iter().map(f64::from);
        let even = || uniform(purpose, len, data);
        let values: Vec<f64> = match *self {
            Self::Normal => normal().collect(),
            Self::Uniform([from, to]) => even().map(|x| from + x * (to - from)).collect(),
            Self::LogUniform([from, to]) => {
                let size = |x: f64| (from.ln() + x * (to.ln() - from.ln())).exp();
                // Map random numbers below 0.5 to negative values, and the others to positive values.
                let signed = |x: f64| if x < 0.5 { -size(2.0 * x) } else { size(2.0 * x - 1.0) };
                even().map(signed).collect()
            }
            Self::Edges => {
                let edges = edges(dtype);
                let edge = |at: usize| (at / 3).is_multiple_of(2).then(|| edges[at % edges.len()]);
                normal().enumerate().map(|(at, x)| edge(at).unwrap_or(x)).collect()
            }
            Self::Integers([from, to]) => {
                let count = to.abs_diff(from).saturating_add(1);
                let bits = bits(purpose, len, data);
                let whole = |bits: u64| i128::from(from) + ((u128::from(bits) * u128::from(count)) >> 64) as i128;
                return Ok(bits.map(whole).flat_map_iter(|x| whole_bytes(x, dtype)).collect());
            }
            Self::Site(ref pattern) => {
                let cols = shape.last().copied().unwrap_or(1);
                let rows = data.site_rows(pattern, len / cols, cols)?;
                rows.into_iter().map(f64::from).collect()
            }
        };
        let bytes = values.into_par_iter().flat_map_iter(|x| number_bytes(x, dtype));
        Ok(bytes.collect())
    }
}

/// Converts the numbers of a tensor to f64. The result is exact, except for integers of more than 53 bits.
///
/// # Panics
/// Panics if the type is none of [`DTYPES`](ulplab_operations::ops::data::DTYPES).
pub fn numbers(name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Vec<f64> {
    let tensor = Tensor {
        name,
        dtype,
        shape,
        bytes,
    };
    tensor.to_f64().expect("types are checked")
}

/// Returns the range in which a type represents every integer exactly; both ends are included.
fn holds(dtype: Dtype) -> [i64; 2] {
    match dtype {
        dtype if is_real(dtype) => {
            let most = 2 << float(dtype).0;
            [-most, most]
        }
        Dtype::I32 => [i32::MIN.into(), i32::MAX.into()],
        Dtype::I16 => [i16::MIN.into(), i16::MAX.into()],
        Dtype::I8 => [i8::MIN.into(), i8::MAX.into()],
        Dtype::U8 => [0, u8::MAX.into()],
        _ => [i64::MIN, i64::MAX],
    }
}

/// Returns the stored significand bits of a type of real numbers, and the base-2 exponent of its smallest normal number.
fn float(dtype: Dtype) -> (i32, i32) {
    match dtype {
        Dtype::F64 => (52, -1022),
        Dtype::F32 => (23, -126),
        Dtype::BF16 => (7, -126),
        Dtype::F16 => (10, -14),
        Dtype::F8_E5M2 => (2, -14),
        _ => (3, -6),
    }
}

fn whole_bytes(x: i128, dtype: Dtype) -> Vec<u8> {
    match dtype {
        dtype if is_real(dtype) => number_bytes(x as f64, dtype),
        dtype => x.to_le_bytes()[..dtype.bitsize() / 8].to_vec(),
    }
}

fn bits(purpose: &str, len: usize, data: &Data) -> impl IndexedParallelIterator<Item = u64> {
    let bytes = data.bytes(purpose, 8 * len);
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    Vec::from_iter(words).into_par_iter()
}

/// Makes random numbers from 0 (included) to 1 (excluded).
fn uniform(purpose: &str, len: usize, data: &Data) -> impl IndexedParallelIterator<Item = f64> {
    bits(purpose, len, data).map(|bits| (bits >> 11) as f64 / (1u64 << 53) as f64)
}

/// Returns numbers that kernels often compute wrongly: zeros, neighbours of 1, the smallest normal and subnormal numbers, and
/// powers of two far from 1.
fn edges(dtype: Dtype) -> Vec<f64> {
    let (digits, least) = float(dtype);
    let subnormal = least - digits;
    let two = |power: i32| 2f64.powi(power);
    let far = 20.min(-least);
    let mut edges = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.0 + two(-digits),
        1.0 - two(-digits - 1),
        two(least),
        two(subnormal),
    ];
    edges.extend([-3.0 * two(subnormal), -two(-far)]);
    // At most 2^8, because E4M3 has no larger power of two (E5M2 and f16 have up to 2^15).
    edges.push(two(far.min(8)));
    edges
}
