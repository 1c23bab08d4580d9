//! Expected outputs of operations on the caller's tensors, their error bounds, and comparisons of outputs with them.

use std::collections::BTreeMap;

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::exceptions::{PyAssertionError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use rayon::prelude::*;
use ulplab::ops::ON_TENSORS;
use ulplab_operations::expected::draw::Draw;
use ulplab_operations::expected::local::{self, Local};
use ulplab_operations::expected::mean_error::{Elements, MeanErrors};
use ulplab_operations::expected::sum::{Sums, Terms};
use ulplab_operations::expected::{Call, Given, Kind, Operation, Refused, Tensor};

use crate::tensor::{Array, named, names};
use crate::{compared, numbers, pool, wrong};

/// Returns a numpy array of this shape.
fn shaped<'py>(py: Python<'py>, values: Vec<f64>, shape: &[usize]) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
    PyArray1::from_vec(py, values).reshape(shape)
}

/// Returns the assumptions that a user may state about the rounding of sums: name, unit roundoff, and a clause for messages.
#[pyfunction]
pub fn sums() -> Vec<(&'static str, f64, &'static str)> {
    Sums::ALL
        .iter()
        .map(|one| (one.name, one.unit(), one.meaning))
        .collect()
}

/// Returns the local error of each ATen operation: name, kind, and the bound's units of the unit roundoff (relative, for each unit
/// of the operand's magnitude, absolute), which are 0 unless the kind is `units`.
#[pyfunction]
pub fn local_errors() -> Vec<(&'static str, &'static str, [f64; 3])> {
    let told = |(name, local)| {
        let (kind, units) = match local {
            Local::Exact => ("exact", [0.0; 3]),
            Local::Units(units) => ("units", [units.relative, units.slope, units.absolute]),
            Local::Sum => ("sum", [0.0; 3]),
            Local::Cast => ("cast", [0.0; 3]),
            Local::Steps => ("steps", [0.0; 3]),
            Local::Random => ("random", [0.0; 3]),
        };
        (name, kind, units)
    };
    local::all().map(told).collect()
}

/// Returns, for each row of terms, the factor by which equal roundings widen the error of the row's sum in any order. `u` is the
/// unit roundoff of an addition.
#[pyfunction]
pub fn widening<'py>(
    py: Python<'py>,
    terms: PyReadonlyArrayDyn<'py, f64>,
    u: f64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let cols = terms.as_array().shape().last().copied().unwrap_or(1).max(1);
    let terms = terms.as_slice()?;
    let of_row = |row: &[f64]| Terms::of(row.iter().copied(), u).widening();
    let factors: Vec<f64> = pool::run(py, || terms.par_chunks(cols).map(of_row).collect());
    Ok(PyArray1::from_vec(py, factors))
}

/// Returns the element type called `name`.
fn type_of(name: &str) -> PyResult<safetensors::Dtype> {
    let known = || names().join(", ");
    named(name).ok_or_else(|| wrong(format!("no type '{name}', expected one of {}", known())))
}

/// Returns the operation called `op`.
fn find(op: &str) -> PyResult<&'static Operation> {
    Operation::among(&ON_TENSORS, op).map_err(wrong)
}

/// Converts the arguments that Python passes (arrays, numbers and words) to a [`Call`] of an operation.
fn call(op: &str, given: &Bound<'_, PyDict>, dtype: &str, u: f64) -> PyResult<Call> {
    let operation = find(op)?;
    let mut all = BTreeMap::new();
    for (name, value) in given {
        let name: String = name.extract()?;
        let value = if let Ok(array) = value.cast::<Array>() {
            let array = array.get();
            Given::Tensor(Tensor {
                shape: array.shape.clone(),
                data: numbers::widened(array).map_err(|why| wrong(format!("{op}: '{name}': {why}")))?,
            })
        } else if let Ok(flag) = value.cast::<PyBool>() {
            Given::Number(f64::from(u8::from(flag.is_true())))
        } else if let Ok(number) = value.extract::<f64>() {
            Given::Number(number)
        } else if let Ok(word) = value.extract::<String>() {
            Given::Word(word)
        } else {
            let kind = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "{op}: '{name}' is a {kind}, expected a tensor, a number or a word"
            )));
        };
        all.insert(name, value);
    }
    no_bytes_for_codes(op, given)?;
    let dtype = type_of(dtype)?;
    let mut call = Call::new(operation, all, dtype).map_err(wrong)?;
    call.u = u;
    Ok(call)
}

/// Returns an error if an input has type uint8 where the operation expects codes of a format: uint8 elements would be read as
/// integers.
fn no_bytes_for_codes(op: &str, given: &Bound<'_, PyDict>) -> PyResult<()> {
    for (name, value) in given {
        let name: String = name.extract()?;
        let bytes = value
            .cast::<Array>()
            .is_ok_and(|array| array.get().dtype == safetensors::Dtype::U8);
        let types = if name.ends_with("_scale") {
            "float8_e8m0fnu or float8_e4m3fn".into()
        } else if given.contains(format!("{name}_scale"))? && !given.contains(format!("{name}_codes"))? {
            format!("float8_e4m3fn, say {name}_codes = \"e2m1\", or make integers of them, astype(\"int32\")")
        } else {
            continue;
        };
        if bytes {
            return Err(wrong(format!(
                "{op}: '{name}' is uint8: bytes that may be codes; view them as {types}"
            )));
        }
    }
    Ok(())
}

/// Returns all operations, each as a dictionary: name, description, inputs (name, kind, default, description), faults, the
/// classes of modules that compute the operation, and the names of the inputs that have one row per row of the output (with a
/// flag that is true if the first dimension counts the rows).
#[pyfunction]
pub fn operations(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let all = ON_TENSORS.iter().map(|operation| {
        let found = PyDict::new(py);
        found.set_item("name", operation.name)?;
        found.set_item("doc", operation.doc)?;
        let takes = operation.takes.iter().map(|takes| {
            let (kind, default) = match takes.kind {
                Kind::Tensor => ("tensor", String::new()),
                Kind::Optional => ("tensor", "None".into()),
                Kind::Number(default) if default.is_nan() => ("number", "None".into()),
                Kind::Number(default) => ("number", default.to_string()),
                Kind::Word(words) => ("word", format!("\"{}\"", words.join("\" | \""))),
            };
            (takes.name, kind, default, takes.doc)
        });
        found.set_item("takes", takes.collect::<Vec<_>>())?;
        let faults = operation.faults.iter().map(|fault| (fault.name, fault.doc));
        found.set_item("faults", faults.collect::<Vec<_>>())?;
        let rows = operation.rows.as_ref();
        found.set_item("rows", rows.map(|rows| (rows.inputs, rows.first_dimension)))?;
        found.set_item("modules", operation.modules)?;
        Ok(found)
    });
    all.collect()
}

/// Draws inputs for the first case of an operation from a seed. None if the operation has no cases.
#[pyfunction]
pub fn drawn<'py>(py: Python<'py>, op: &str, seed: u64) -> PyResult<Option<Bound<'py, PyDict>>> {
    let operation = find(op)?;
    let Some(cases) = operation.cases else {
        return Ok(None);
    };
    let sizes = cases.named(0);
    let size = |name: &str| sizes.iter().find(|(letter, _)| *letter == name).map(|(_, size)| *size);
    let given = PyDict::new(py);
    for drawn in Draw::inputs((operation.name, cases), seed, &size, &|_| None).map_err(wrong)? {
        let dtype = if drawn.whole { "int32" } else { "float32" };
        let array = shaped(py, drawn.data, &drawn.shape)?.call_method1("astype", (dtype,))?;
        given.set_item(drawn.name, array)?;
    }
    for (name, number) in cases.numbers {
        given.set_item(name, number)?;
    }
    Ok(Some(given))
}

/// An output: its name, expected values, error bounds before rounding to the stored type, and true if a correct output must equal
/// the values bit for bit.
type Output<'py> = (
    &'static str,
    Bound<'py, PyArrayDyn<f64>>,
    Bound<'py, PyArrayDyn<f64>>,
    bool,
);

/// Returns the outputs of an operation, or of one of its planted faults.
#[pyfunction]
#[pyo3(signature = (op, given, dtype, u, fault=None))]
pub fn expected<'py>(
    py: Python<'py>,
    op: &str,
    given: &Bound<'py, PyDict>,
    dtype: &str,
    u: f64,
    fault: Option<&str>,
) -> PyResult<Vec<Output<'py>>> {
    let call = call(op, given, dtype, u)?;
    let operation = call.operation();
    let known = operation.faults.iter().find(|known| Some(known.name) == fault);
    if let (Some(fault), None) = (fault, known) {
        let all: Vec<&str> = operation.faults.iter().map(|fault| fault.name).collect();
        return Err(wrong(format!("{op} has no fault '{fault}'; it has {}", all.join(", "))));
    }
    let call = call.with(known.map(|fault| fault.name), None);
    let outputs = pool::run(py, || (operation.compute)(&call)).map_err(wrong)?;
    let output = |output: ulplab_operations::expected::Output| {
        let value = shaped(py, output.value, &output.shape)?;
        let error = shaped(py, output.error, &output.shape)?;
        Ok((output.name, value, error, output.exact))
    };
    outputs.into_iter().map(output).collect()
}

/// Returns the error bounds of values after they are stored as `dtype`. `error` are the error bounds before.
#[pyfunction]
pub fn bounds<'py>(
    py: Python<'py>,
    value: PyReadonlyArrayDyn<'py, f64>,
    error: PyReadonlyArrayDyn<'py, f64>,
    dtype: &str,
) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
    let dtype = type_of(dtype)?;
    let shape = value.as_array().shape().to_vec();
    let (value, error) = (value.as_slice()?, error.as_slice()?);
    let bounds = value
        .iter()
        .zip(error)
        .map(|(value, error)| ulplab_operations::expected::bound(dtype, *value, *error));
    shaped(py, bounds.collect(), &shape)
}

/// Rounds each value to the nearest number of a type, ties to even.
#[pyfunction]
pub fn rounded<'py>(
    py: Python<'py>,
    value: PyReadonlyArrayDyn<'py, f64>,
    dtype: &str,
) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
    let dtype = type_of(dtype)?;
    let rounded = value
        .as_slice()?
        .iter()
        .map(|value| ulplab_operations::expected::rounded(dtype, *value));
    shaped(py, rounded.collect(), value.as_array().shape())
}

/// Returns the mean and the mean square of the errors of an output ([`MeanErrors`]). None if the operation has no independent
/// rows, or the output has no elements.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "four arrays, and what they are of")]
pub fn mean_errors<'py>(
    py: Python<'py>,
    op: &str,
    got: PyReadonlyArrayDyn<'py, f64>,
    value: PyReadonlyArrayDyn<'py, f64>,
    error: PyReadonlyArrayDyn<'py, f64>,
    bound: PyReadonlyArrayDyn<'py, f64>,
    dtype: &str,
    u: f64,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let dtype = type_of(dtype)?;
    let Some(rows) = &find(op)?.rows else {
        return Ok(None);
    };
    let elements = Elements {
        got: got.as_slice()?,
        value: value.as_slice()?,
        error: error.as_slice()?,
        bound: bound.as_slice()?,
        cols: value.as_array().shape().last().copied().unwrap_or(1).max(1),
    };
    if elements.value.is_empty() {
        return Ok(None);
    }
    let errors = pool::run(py, || MeanErrors::new(rows, &elements, dtype, u));
    let found = PyDict::new(py);
    found.set_item("elements", errors.elements)?;
    found.set_item("rows", errors.rows)?;
    found.set_item("gain", errors.gain)?;
    found.set_item("offset", errors.offset)?;
    found.set_item("allowed", errors.allowed)?;
    found.set_item("relative_gain", errors.relative_gain)?;
    found.set_item("square", errors.square)?;
    found.set_item("square_allowed", errors.square_allowed)?;
    Ok(Some(found))
}

/// Compares an output with the expected output of an operation. If they differ, names the faults that the output resembles.
#[pyfunction]
#[pyo3(signature = (op, got, given, u, output=None))]
pub fn judge<'py>(
    py: Python<'py>,
    op: &str,
    got: &Bound<'py, Array>,
    given: &Bound<'py, PyDict>,
    u: f64,
    output: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let got = got.get();
    let call = call(op, given, crate::tensor::name(got.dtype), u)?;
    let judged = pool::run(py, || {
        let numbers = numbers::widened(got).map_err(Refused::Call)?;
        let judged = ulplab_operations::expected::judge(&call, output, &numbers, &got.shape, got.dtype)?;
        Ok((judged, numbers))
    });
    let (judged, numbers) = judged.map_err(|refused| match refused {
        Refused::Call(why) => wrong(why),
        Refused::Shape(why) => PyAssertionError::new_err(why),
    })?;
    let expected = &judged.expected;
    let result = compared::with_bounds(
        py,
        &judged.comparison,
        [&numbers, &expected.value, &judged.bounds],
        &got.shape,
    )?;
    result.set_item("output", judged.expected.name)?;
    result.set_item("exact", judged.expected.exact)?;
    result.set_item("got", shaped(py, numbers, &got.shape)?)?;
    result.set_item("value", shaped(py, judged.expected.value, &got.shape)?)?;
    result.set_item("error", shaped(py, judged.expected.error, &got.shape)?)?;
    result.set_item("bound", shaped(py, judged.bounds, &got.shape)?)?;
    let like = judged
        .like
        .into_iter()
        .map(|like| (like.what, like.outside, like.wider));
    result.set_item("together", judged.together)?;
    result.set_item("like", like.collect::<Vec<(String, usize, bool)>>())?;
    Ok(result)
}
