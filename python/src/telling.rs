//! Inputs that show faults, made from an example of a call, and smaller ones.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use safetensors::Dtype;
use ulplab_operations::expected::telling::{self as maker, Telling};
use ulplab_operations::expected::{Call, Given};

use crate::expected::{call, shaped};
use crate::tensor::Array;
use crate::{pool, wrong};

/// Inputs: arguments by name, a description, true if sums are exact in any order, and the faults that they show.
type Inputs<'py> = (Bound<'py, PyDict>, String, bool, Vec<&'static str>);

/// Returns the arguments of a call: tensors in f64, numbers and words.
fn arguments<'py>(py: Python<'py>, given: BTreeMap<String, Given>) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, value) in given {
        match value {
            Given::Tensor(tensor) => all.set_item(name, shaped(py, tensor.data, &tensor.shape)?)?,
            Given::Number(number) => all.set_item(name, number)?,
            Given::Word(word) => all.set_item(name, word)?,
        }
    }
    Ok(all)
}

/// Returns the element types of all tensors.
fn types(given: &Bound<'_, PyDict>) -> PyResult<BTreeMap<String, Dtype>> {
    let mut types = BTreeMap::new();
    for (name, value) in given {
        if let Ok(array) = value.cast::<Array>() {
            types.insert(name.extract()?, array.get().dtype);
        }
    }
    Ok(types)
}

/// Makes at most `budget` inputs that show faults, from an example. `dtype` is the type of the output, `vary` has the numbers that
/// may differ from the example.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "a call, and what is asked of it")]
pub fn telling<'py>(
    py: Python<'py>,
    op: &str,
    given: &Bound<'py, PyDict>,
    dtype: &str,
    u: f64,
    vary: Option<Vec<String>>,
    budget: usize,
    seed: u64,
) -> PyResult<Vec<Inputs<'py>>> {
    let (call, types) = (call(op, given, dtype, u)?, types(given)?);
    let found = pool::run(py, || maker::telling(&call, &types, vary.as_deref(), (budget, seed))).map_err(wrong)?;
    let inputs = |one: Telling| Ok((arguments(py, one.given)?, one.why, one.exact, one.faults));
    found.into_iter().map(inputs).collect()
}

/// Returns the faults of an operation that a call's inputs show, and those that they do not show.
#[pyfunction]
pub fn shows(
    py: Python<'_>,
    op: &str,
    given: &Bound<'_, PyDict>,
    dtype: &str,
    u: f64,
) -> PyResult<(Vec<&'static str>, Vec<&'static str>)> {
    let call = call(op, given, dtype, u)?;
    let shown = pool::run(py, || {
        let right = (call.operation().compute)(&call)?;
        Ok(maker::shows(&call, &right))
    });
    let shown = shown.map_err(|why: String| wrong(why))?;
    let faults = call.operation().faults.iter();
    let faults = faults.filter(|fault| fault.needs.is_none_or(|needs| call.has(needs)) && !shown.contains(&fault.name));
    let hidden = faults.map(|fault| fault.name).collect();
    Ok((shown, hidden))
}

/// Returns the sizes of a call's dimensions by letter.
#[pyfunction]
pub fn sizes(op: &str, given: &Bound<'_, PyDict>) -> PyResult<Vec<(String, usize)>> {
    Ok(maker::sizes(&call(op, given, "float32", 0.0)?))
}

/// Returns the arguments of a call with another size of a letter; None if the operation refuses it.
#[pyfunction]
pub fn cut<'py>(
    py: Python<'py>,
    op: &str,
    given: &Bound<'py, PyDict>,
    letter: &str,
    size: usize,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let call = call(op, given, "float32", 0.0)?;
    let made: Option<Call> = pool::run(py, || maker::cut(&call, letter, size));
    made.map(|made| arguments(py, made.arguments())).transpose()
}
