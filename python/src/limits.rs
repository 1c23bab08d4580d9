//! Metrics of whole tensors, and limits on these metrics.

use std::cell::OnceCell;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use safetensors::Dtype;
use ulplab::statistics::binomial;
use ulplab_core::metrics::{Better, Metric, Pair, ULP_MAX, divergence};
use ulplab_core::tensorfile::Tensor;
use ulplab_operations::expected::half_spacing;

use crate::tensor::{Array, name, named, names};
use crate::{numbers, pool, same_shape, wrong};

/// Metrics on which a caller can set a limit.
const LIMITED: [&str; 8] = ["cosine", "sqnr", "diff", "relative_l2", "nsr", "max_abs", "ulp", "kl"];

/// Converts a number to a bound on a metric, or on `rtol` or `atol`.
fn bound(metric: &str, value: f64) -> ulplab_core::metrics::Bound {
    let metric = if metric == "ulp" { ULP_MAX.name } else { metric };
    let better = Metric::find(metric).map_or(Better::Lower, |metric| metric.better);
    ulplab_core::metrics::Bound { better, value }
}

/// Returns the metrics that a limit can be given for, each with true if larger values are better.
#[pyfunction]
pub fn limits() -> Vec<(&'static str, bool)> {
    let higher = |name: &str| bound(name, 0.0).better == Better::Higher;
    LIMITED.map(|name| (name, higher(name))).to_vec()
}

/// Returns the reason why no numbers can violate a limit on a metric, `atol` or `rtol`. None if some numbers can.
#[pyfunction]
pub fn vacuous(metric: &str, limit: f64) -> Option<String> {
    ulplab_core::vacuous::vacuous(metric, bound(metric, limit))
}

/// Returns the reason why a limit on the difference of two tensors always passes: the largest numbers of both types are too small
/// to exceed the limit. None if finite numbers can exceed the limit.
#[pyfunction]
pub fn vacuous_between(metric: &str, limit: f64, got: &Array, want: &Array) -> Option<String> {
    ulplab_core::vacuous::vacuous_between(metric, bound(metric, limit), [want.dtype, got.dtype])
}

fn is_floating(dtype: Dtype) -> bool {
    half_spacing(dtype, 1.0) > 0.0
}

/// The names of the floating-point types.
#[pyfunction]
pub fn floats() -> Vec<&'static str> {
    names()
        .into_iter()
        .filter(|name| named(name).is_some_and(is_floating))
        .collect()
}

/// Returns the raw integer codes of the elements of a tensor.
fn codes(array: &Array) -> Result<Vec<u64>, String> {
    let (bytes, shape) = (array.bytes()?, [array.len()]);
    let (name, dtype) = ("", array.dtype);
    let tensor = Tensor {
        name,
        dtype,
        shape: &shape,
        bytes: &bytes,
    };
    Ok(tensor.codes().collect())
}

/// Returns the metrics of two tensors by name, in f64; None if a metric is not defined. If `equal_nan`, NaN equals NaN in the
/// metric ulp.
#[pyfunction]
pub fn metrics(
    py: Python<'_>,
    got: &Bound<'_, Array>,
    want: &Bound<'_, Array>,
    names: Vec<String>,
    equal_nan: bool,
) -> PyResult<Vec<Option<f64>>> {
    let (got, want) = (got.get(), want.get());
    same_shape(got, want)?;
    if names.iter().any(|name| name == "ulp") && !(got.dtype == want.dtype && is_floating(got.dtype)) {
        let [got, want] = [got, want].map(|array| name(array.dtype));
        let types = floats().join(", ");
        let wrong = format!("ulp: got is {got}, want is {want}, expected the same type, one of {types}");
        return Err(PyTypeError::new_err(wrong));
    }
    let measured: Result<Vec<Option<f64>>, String> = pool::run(py, || {
        let (got_numbers, want_numbers) = (numbers::widened(got)?, numbers::widened(want)?);
        let pair = OnceCell::new();
        let one = |name: &String| match (name.as_str(), want.shape.last()) {
            ("ulp", _) => {
                let of_got = codes(got)?.into_iter().zip(got_numbers.iter().copied());
                let of_want = codes(want)?.into_iter().zip(want_numbers.iter().copied());
                let width = got.dtype.bitsize() as u32;
                Ok(Some(ulplab_core::metrics::most_apart(
                    width, of_got, of_want, equal_nan,
                )))
            }
            ("kl", cols) => Ok(cols.and_then(|cols| divergence(&want_numbers, &got_numbers, *cols))),
            (name, _) => {
                let metric = Metric::find(name).map_err(|error| error.to_string())?;
                Ok(metric.measure(pair.get_or_init(|| Pair::new(&want_numbers, &got_numbers))))
            }
        };
        names.iter().map(one).collect()
    });
    measured.map_err(wrong)
}

/// Returns k such that the k-th largest of `draws` values is a threshold with a false-alarm rate of at most `alarms`, at this
/// confidence; 0 if `draws` is too small. Also returns the smallest number of draws for which k is at least 1.
#[pyfunction]
pub fn tolerated(draws: usize, alarms: f64, confidence: f64) -> (usize, u64) {
    let counts: Vec<usize> = (0..draws).collect();
    let tolerated = counts.partition_point(|count| binomial::rate_above(*count, draws, confidence) <= alarms);
    (tolerated, binomial::draws_for(alarms, confidence))
}
