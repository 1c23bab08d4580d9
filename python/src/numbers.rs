//! Converts the elements of tensors to f64.

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use safetensors::Dtype;
use ulplab_core::tensorfile::Tensor;

use crate::tensor::{Array, name};
use crate::{pool, wrong};

/// The largest magnitude up to which f64 represents every integer exactly.
const MOST_INTEGER: i128 = 1 << 53;

/// Views the bytes of a tensor as elements of type `T`; `None` if they are not aligned. The caller has checked the type.
pub fn typed<T: Copy>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: all bit patterns are valid values of the types that this function is called with.
    let (before, elements, behind) = unsafe { bytes.align_to::<T>() };
    (before.is_empty() && behind.is_empty()).then_some(elements)
}

/// Converts all elements of a tensor to f64.
///
/// # Errors
/// Returns the errors of [`widened_bytes`], and an error if a device cannot be read.
pub fn widened(array: &Array) -> Result<Vec<f64>, String> {
    widened_bytes(array.dtype, &array.bytes()?)
}

/// Converts elements of a type to f64.
///
/// # Errors
/// Returns an error for integers that f64 cannot represent, and for types that are not numbers.
pub fn widened_bytes(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f64>, String> {
    // Convert E8M0 here, because `Tensor` does not: tensor files use E8M0 only for scales.
    if dtype == Dtype::F8_E8M0 {
        let power = |code: &u8| match code {
            255 => f64::NAN,
            code => 2f64.powi(i32::from(*code) - 127),
        };
        return Ok(bytes.iter().map(power).collect());
    }
    let tensor = Tensor {
        name: "",
        dtype,
        shape: &[bytes.len() / (dtype.bitsize() / 8)],
        bytes,
    };
    if matches!(dtype, Dtype::I64 | Dtype::U64)
        && let Some(x) = tensor.integers().find(|x| x.abs() > MOST_INTEGER)
    {
        return Err(format!(
            "an element is {x}, expected integers of at most 2^53, which f64 has exactly"
        ));
    }
    let numbers = tensor.to_f64();
    numbers.ok_or_else(|| format!("elements are {}, expected numbers", name(dtype)))
}

/// Converts all elements to f64, as an array of the same shape.
#[pyfunction]
pub fn widen<'py>(py: Python<'py>, x: &Bound<'py, Array>) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
    let x = x.get();
    let numbers = pool::run(py, || widened(x)).map_err(wrong)?;
    PyArray1::from_vec(py, numbers).reshape(x.shape.as_slice())
}
