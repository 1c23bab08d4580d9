//! The native part of the Python module `ulplab`; what users call is in `python/ulplab`, which documents it.

mod cuda;
mod expected;
mod numbers;
mod pool;
mod program;
mod quantized;
mod tensor;

use half::{bf16, f16};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use safetensors::Dtype;
use tensor::Array;
use ulplab_core::close::{Allowed, Comparison, compare};
use ulplab_core::metrics::{Better, Metric, Pair, unravel};

/// A mistake of the caller's, as Python has it.
fn wrong(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// What a comparison found, as a dictionary.
fn found<'py>(py: Python<'py>, comparison: &Comparison, shape: &[usize]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("elements", comparison.elements)?;
    found.set_item("outside", comparison.outside)?;
    found.set_item("nan", comparison.nan)?;
    found.set_item("infinite", comparison.infinite)?;
    found.set_item("unbounded", comparison.unbounded)?;
    found.set_item("judged", comparison.judged())?;
    found.set_item("finite", comparison.finite)?;
    found.set_item("zeros_pass", comparison.zeros_pass)?;
    found.set_item("constant", comparison.constant.is_some())?;
    let worst = comparison.worst.map(|worst| {
        (
            unravel(worst.index, shape),
            worst.got,
            worst.want,
            worst.bound,
            worst.ratio(),
        )
    });
    found.set_item("worst", worst)?;
    Ok(found)
}

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
    use super::expected::{bounds, expected, judge, operations};
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

    /// The names of `valid` that a wrong one may stand for, as the end of an error message.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value)]
    fn did_you_mean(wrong: &str, valid: Vec<String>) -> String {
        ulplab_core::error::did_you_mean(wrong, valid.iter().map(String::as_str))
    }

    /// Whether memory of CUDA devices can be read: the driver is there. It is loaded by the first call.
    #[pyfunction]
    fn reads_cuda() -> bool {
        cuda::available()
    }

    /// Compares element by element in f64: |got - want| <= atol + rtol * |want|.
    #[pyfunction]
    fn close<'py>(
        py: Python<'py>,
        got: &Bound<'py, Array>,
        want: &Bound<'py, Array>,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (got, want) = (got.get(), want.get());
        same_shape(got, want)?;
        let allowed = Allowed::Tolerance { rtol, atol };
        let of_chunk = |a: &[u8], b: &[u8]| {
            macro_rules! of {
                ($type:ty) => {
                    if let (Some(a), Some(b)) = (numbers::typed::<$type>(a), numbers::typed::<$type>(b)) {
                        return Ok(compare(a, b, allowed, equal_nan));
                    }
                };
            }
            match (got.dtype, want.dtype) {
                (Dtype::BF16, Dtype::BF16) => {
                    of!(bf16);
                }
                (Dtype::F16, Dtype::F16) => {
                    of!(f16);
                }
                (Dtype::F32, Dtype::F32) => {
                    of!(f32);
                }
                (Dtype::F64, Dtype::F64) => {
                    of!(f64);
                }
                _ => {}
            }
            let a = numbers::widened_bytes(got.dtype, a)?;
            let b = numbers::widened_bytes(want.dtype, b)?;
            Ok::<_, String>(compare(&a, &b, allowed, equal_nan))
        };
        let comparison = pool::run(py, || {
            let mut all = Comparison::default();
            tensor::together(got, want, |a, b| {
                all.append(of_chunk(a, b)?);
                Ok(())
            })?;
            Ok(all)
        });
        found(py, &comparison.map_err(|why: String| wrong(why))?, &got.shape)
    }

    /// How many elements of two tensors of one type and shape have other bits.
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

    /// The number that all elements are, if there are several and they are the same; zeros of both signs are.
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

    /// Why no numbers can break a limit of a metric, or of `atol` and `rtol`; None if some can. `higher`: it is a lower limit.
    #[pyfunction]
    fn vacuous(name: &str, limit: f64, higher: bool) -> Option<String> {
        let better = if higher { Better::Higher } else { Better::Lower };
        ulplab_core::vacuous::vacuous(name, ulplab_core::metrics::Bound { better, value: limit })
    }

    /// Why no finite numbers of the types of two tensors can break an upper limit of their difference; None if some can.
    #[pyfunction]
    fn vacuous_between(name: &str, limit: f64, got: &Array, want: &Array) -> Option<String> {
        let bound = ulplab_core::metrics::Bound {
            better: Better::Lower,
            value: limit,
        };
        ulplab_core::vacuous::vacuous_between(name, bound, [want.dtype, got.dtype])
    }

    /// The names of all types of elements.
    #[pyfunction]
    fn types() -> Vec<&'static str> {
        tensor::NAMES.to_vec()
    }

    /// Where the elements of a mask that are not 0 are, and which bits all of them share: `("all in columns 2 to 3", 1)`.
    #[pyfunction]
    fn pattern(py: Python<'_>, mask: &Bound<'_, Array>) -> PyResult<(String, u16)> {
        let mask = mask.get();
        if mask.dtype != Dtype::U8 {
            return Err(wrong("a mask has elements of uint8"));
        }
        let kinds = mask.bytes().map_err(wrong)?;
        let found = pool::run(py, || {
            ulplab_operations::ops::judge::pattern::find(&mask.shape, false, &|at| kinds[at] != 0, &|at| {
                kinds[at].into()
            })
        });
        Ok((found.place, found.kinds))
    }

    /// Metrics of two tensors by name, in f64; None where one is not defined.
    #[pyfunction]
    fn metrics(
        py: Python<'_>,
        got: &Bound<'_, Array>,
        want: &Bound<'_, Array>,
        names: Vec<String>,
    ) -> PyResult<Vec<Option<f64>>> {
        let (got, want) = (got.get(), want.get());
        same_shape(got, want)?;
        let metrics = names.iter().map(|name| Metric::find(name));
        let metrics: Vec<&Metric> = metrics.collect::<Result<_, _>>().map_err(wrong)?;
        let measured = pool::run(py, || {
            let (got, want) = (numbers::widened(got)?, numbers::widened(want)?);
            let pair = Pair::new(&want, &got);
            Ok(metrics.iter().map(|metric| metric.measure(&pair)).collect())
        });
        measured.map_err(|why: String| wrong(why))
    }
}
