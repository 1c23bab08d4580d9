//! Element-by-element comparison of tensors, and the position of the elements outside their bounds.

use half::{bf16, f16};
use numpy::PyReadonlyArrayDyn;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;
use safetensors::Dtype;
use ulplab_core::close::{Allowed, Comparison, compare as compare_all, inside, ratio};
use ulplab_core::metrics::unravel;
use ulplab_operations::ops::judge::pattern::find;

use crate::tensor::{Array, name, together};
use crate::{numbers, pool, same_shape, wrong};

/// Elements whose error is at least `FAR` times their bound are far outside of the bound. Elements outside of their bound whose
/// error is less than `JUST` times the bound are just outside.
const FAR: f64 = 10.0;
const JUST: f64 = 2.0;

/// Position and properties of the elements outside their bounds.
#[derive(IntoPyObject)]
pub struct Place {
    /// Description of the position, e.g. `all in columns 2 to 3`.
    place: String,
    /// Properties that all elements outside their bounds share, as bits: 2 for NaN, 4 for 0, 8 for the opposite sign.
    kinds: u16,
    /// Number and position of the elements far outside of their bounds. `None` if this position equals `place`, or if none or all
    /// of the elements outside their bounds are far outside.
    far: Option<(usize, String)>,
    /// Number of elements just outside of their bounds: their error is less than `JUST` times their bound.
    just: usize,
}

impl Place {
    /// Returns the position of the elements outside of their bounds; `None` if all elements are within their bounds, or if the
    /// tensor is a single number.
    pub fn new(got: &[f64], want: &[f64], allowed: Allowed, equal_nan: bool, shape: &[usize]) -> Option<Self> {
        let bound = |at: usize| allowed.at(at, want[at]);
        let outside = |at: usize| !inside(got[at], want[at], bound(at), equal_nan);
        let outside: Vec<bool> = (0..got.len()).into_par_iter().map(outside).collect();
        let all = outside.iter().filter(|outside| **outside).count();
        if shape.is_empty() || all == 0 {
            return None;
        }
        let kinds = |at: usize| {
            let (got, want) = (got[at], want[at]);
            let flipped = (got + want).abs() <= bound(at) && got * want < 0.0;
            1 + 2 * u16::from(got.is_nan()) + 4 * u16::from(got == 0.0) + 8 * u16::from(flipped)
        };
        let (place, shared) = find(shape, false, &|at| outside[at], &kinds);
        let ratio_at = |at: usize| ratio(got[at], want[at], bound(at));
        let is_far = |at: usize| outside[at] && ratio_at(at) >= FAR;
        let far = (0..got.len()).filter(|at| is_far(*at)).count();
        let far = (0 < far && far < all).then(|| (far, find(shape, false, &is_far, &kinds).0));
        Some(Self {
            far: far.filter(|(_, of_far)| *of_far != place),
            just: (0..got.len()).filter(|at| outside[*at] && ratio_at(*at) < JUST).count(),
            place,
            kinds: shared,
        })
    }
}

/// Describes the position of the true elements of a boolean tensor, e.g. `"all in columns 2 to 3"`.
#[pyfunction]
pub fn pattern(py: Python<'_>, mask: &Bound<'_, Array>) -> PyResult<String> {
    let mask = mask.get();
    if mask.dtype != Dtype::BOOL {
        return Err(wrong(format!(
            "a mask has elements of {}, expected bool",
            name(mask.dtype)
        )));
    }
    let bytes = mask.bytes().map_err(wrong)?;
    let (place, _) = pool::run(py, || find(&mask.shape, false, &|at| bytes[at] != 0, &|_| 0));
    Ok(place)
}

/// Returns the result of a comparison as a dictionary.
pub fn found<'py>(py: Python<'py>, comparison: &Comparison, shape: &[usize]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("elements", comparison.elements)?;
    found.set_item("outside", comparison.outside)?;
    found.set_item("nan", comparison.nan)?;
    found.set_item("infinite", comparison.infinite)?;
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

/// Same as [`found`], for numbers with bounds. Adds the largest ratio of error to bound, and the position of the elements outside
/// of their bounds.
pub fn with_bounds<'py>(
    py: Python<'py>,
    comparison: &Comparison,
    [got, value, bound]: [&[f64]; 3],
    shape: &[usize],
) -> PyResult<Bound<'py, PyDict>> {
    let ratio_at = |at: usize| ratio(got[at], value[at], bound[at]);
    let (largest, place) = pool::run(py, || {
        let largest = (0..got.len()).into_par_iter().map(ratio_at).reduce(|| 0.0, f64::max);
        (largest, Place::new(got, value, Allowed::Bounds(bound), true, shape))
    });
    let found = found(py, comparison, shape)?;
    found.set_item("ratio", largest)?;
    found.set_item("place", place)?;
    Ok(found)
}

/// Compares numbers with expected values, element by element: |got - value| <= bound. NaN equals NaN.
#[pyfunction]
pub fn compare<'py>(
    py: Python<'py>,
    got: PyReadonlyArrayDyn<'py, f64>,
    value: PyReadonlyArrayDyn<'py, f64>,
    bound: PyReadonlyArrayDyn<'py, f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let numbers = [got.as_slice()?, value.as_slice()?, bound.as_slice()?];
    let comparison = compare_all(numbers[0], numbers[1], Allowed::Bounds(numbers[2]), true);
    with_bounds(py, &comparison, numbers, got.as_array().shape())
}

/// Compares element by element in f64: |got - want| <= atol + rtol * |want|.
#[pyfunction]
pub fn close<'py>(
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
            ($($dtype:ident $type:ty),*) => {
                match (got.dtype, want.dtype) {
                    $((Dtype::$dtype, Dtype::$dtype) => {
                        if let (Some(a), Some(b)) = (numbers::typed::<$type>(a), numbers::typed::<$type>(b)) {
                            return Ok(compare_all(a, b, allowed, equal_nan));
                        }
                    })*
                    _ => {}
                }
            };
        }
        of!(BF16 bf16, F16 f16, F32 f32, F64 f64);
        let a = numbers::widened_bytes(got.dtype, a)?;
        let b = numbers::widened_bytes(want.dtype, b)?;
        Ok::<_, String>(compare_all(&a, &b, allowed, equal_nan))
    };
    let (comparison, place) = pool::run(py, || {
        let mut all = Comparison::default();
        together(got, want, |a, b| {
            all.append(of_chunk(a, b)?);
            Ok(())
        })?;
        let place = match all.outside {
            0 => None,
            _ => Place::new(
                &numbers::widened(got)?,
                &numbers::widened(want)?,
                allowed,
                equal_nan,
                &got.shape,
            ),
        };
        Ok((all, place))
    })
    .map_err(|why: String| wrong(why))?;
    let found = found(py, &comparison, &got.shape)?;
    found.set_item("place", place)?;
    Ok(found)
}
