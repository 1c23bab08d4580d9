//! The native part of the Python module `ulplab`. Users call `python/ulplab`, which documents the module.

mod compared;
mod cuda;
mod expected;
mod limits;
mod numbers;
mod pool;
mod program;
mod quantized;
mod tensor;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensor::Array;

/// Returns a Python `ValueError` for a mistake of the caller.
fn wrong(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// Returns an error if two tensors have different shapes.
fn same_shape(got: &Array, want: &Array) -> PyResult<()> {
    match got.shape == want.shape {
        true => Ok(()),
        false => Err(wrong(format!(
            "shapes differ: got {:?}, want {:?}",
            got.shape, want.shape
        ))),
    }
}

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::compared::{close, compare, pattern};
    #[pymodule_export]
    use super::expected::{
        bounds, drawn, expected, judge, local_errors, mean_errors, operations, rounded, sums, widening,
    };
    #[pymodule_export]
    use super::limits::{floats, limits, metrics, tolerated, vacuous, vacuous_between};
    #[pymodule_export]
    use super::numbers::widen;
    #[pymodule_export]
    use super::pool::{after_fork, before_fork};
    #[pymodule_export]
    use super::program::main;
    #[pymodule_export]
    use super::quantized::{decode, diagnose, encode, place, unplace, with_rule};
    #[pymodule_export]
    use super::tensor::Array;

    /// Number of standard deviations that a bound allows.
    #[pymodule_export]
    const LAMBDA: f64 = ulplab_operations::expected::local::LAMBDA;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        pool::imported();
        Ok(())
    }

    /// The version of ulplab.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Returns the names in `valid` that are similar to a wrong name, as the end of an error message.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value)]
    fn did_you_mean(wrong: &str, valid: Vec<String>) -> String {
        ulplab_core::error::did_you_mean(wrong, valid.iter().map(String::as_str))
    }

    /// True if the CUDA driver is available, so that memory of CUDA devices can be read. The first call loads the driver.
    #[pyfunction]
    fn reads_cuda() -> bool {
        cuda::available()
    }

    /// Returns the number of elements with different bits in two tensors of the same type and shape.
    #[pyfunction]
    fn differing(py: Python<'_>, a: &Bound<'_, Array>, b: &Bound<'_, Array>) -> PyResult<usize> {
        let (a, b) = (a.get(), b.get());
        same_shape(a, b)?;
        if a.dtype != b.dtype {
            return Err(wrong("elements are of two types"));
        }
        let size = (a.dtype.bitsize() / 8).max(1);
        let mut count = 0;
        let counted = pool::run(py, || {
            tensor::together(a, b, |a, b| {
                if a != b {
                    count += a.chunks(size).zip(b.chunks(size)).filter(|(a, b)| a != b).count();
                }
                Ok(())
            })?;
            Ok(count)
        });
        counted.map_err(|why: String| wrong(why))
    }

    /// Returns the value that all elements share. `None` if two elements differ in a bit, or if there are fewer than two elements.
    /// +0 and −0 count as the same value.
    #[pyfunction]
    fn constant(py: Python<'_>, x: &Bound<'_, Array>) -> PyResult<Option<f64>> {
        let x = x.get();
        let found = pool::run(py, || {
            let bytes = x.bytes()?;
            let size = (x.dtype.bitsize() / 8).max(1);
            let first = &bytes[..size.min(bytes.len())];
            let value = |element| Ok::<_, String>(numbers::widened_bytes(x.dtype, element)?.first().copied());
            let number = value(first)?;
            for element in bytes.chunks(size) {
                if element != first && !(number == Some(0.0) && value(element)? == number) {
                    return Ok(None);
                }
            }
            Ok(number.filter(|_| x.len() > 1))
        });
        found.map_err(|why: String| wrong(why))
    }

    /// The names of all types of elements.
    #[pyfunction]
    fn types() -> Vec<&'static str> {
        tensor::names().to_vec()
    }
}
