//! Python functions for number formats and layouts of scales, and for finding the rule that made stored bytes.

use numpy::PyArray1;
use pyo3::prelude::*;
use safetensors::Dtype;
use ulplab_checkpoint::packed::{block_format, check_layout};
use ulplab_checkpoint::parity;
use ulplab_core::formats::{self, Encoded, Format, GlobalScale};
use ulplab_core::layouts::{LAYOUTS, Layout};

use crate::tensor::{Array, name};
use crate::{numbers, pool, wrong};

/// A part of a quantized tensor: its name, bytes, type and shape.
type Part<'py> = (&'static str, Bound<'py, PyArray1<u8>>, &'static str, Vec<usize>);

fn rows_and_cols(shape: &[usize]) -> PyResult<(usize, usize)> {
    match shape.split_last() {
        Some((cols, rows)) if *cols > 0 => Ok((rows.iter().product(), *cols)),
        _ => Err(wrong(format!(
            "the tensor is {shape:?}, expected [..., C] with columns"
        ))),
    }
}

/// Converts the elements of a tensor to f32, which quantizers read. Returns an error for f64 elements.
fn read(array: &Array) -> Result<Vec<f32>, String> {
    match array.dtype {
        Dtype::F64 => Err("elements are float64, expected float32 or fewer bits, as quantizers read".into()),
        _ => Ok(numbers::widened(array)?.into_iter().map(|x| x as f32).collect()),
    }
}

/// Quantizes a tensor to a format, and returns its parts.
#[pyfunction]
#[pyo3(signature = (x, format, amax=None))]
pub fn encode<'py>(
    py: Python<'py>,
    x: &Bound<'py, Array>,
    format: &str,
    amax: Option<f32>,
) -> PyResult<Vec<Part<'py>>> {
    let x = x.get();
    let (_, cols) = rows_and_cols(&x.shape)?;
    let format = block_format(format).map_err(wrong)?;
    format.check(cols).map_err(wrong)?;
    let global = amax.map_or(GlobalScale::Own, GlobalScale::Amax);
    let encoded = pool::run(py, || Ok(format.encode(&read(x)?, cols, global)));
    let encoded = encoded.map_err(|why: String| wrong(why))?;
    let part = |part: formats::Part| {
        (
            part.name,
            PyArray1::from_vec(py, part.bytes),
            name(part.dtype),
            part.shape,
        )
    };
    Ok(encoded.parts.into_iter().map(part).collect())
}

/// Decodes stored parts to numbers, in row-major order.
#[pyfunction]
pub fn decode<'py>(
    py: Python<'py>,
    parts: Vec<Bound<'py, Array>>,
    rows: usize,
    cols: usize,
    format: &str,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let format = block_format(format).map_err(wrong)?;
    format.check(cols).map_err(wrong)?;
    let mut wanted = format.parts(rows, cols);
    if wanted.len() != parts.len() {
        let names: Vec<&str> = wanted.iter().map(|part| part.name).collect();
        return Err(wrong(format!(
            "{} parts are given, expected {}",
            parts.len(),
            names.join(", ")
        )));
    }
    for (wanted, found) in wanted.iter_mut().zip(&parts) {
        let bytes = found.get().bytes().map_err(wrong)?;
        let expected = wanted.shape.iter().product::<usize>() * wanted.dtype.bitsize() / 8;
        if bytes.len() != expected {
            let (name, found) = (wanted.name, bytes.len());
            return Err(wrong(format!("'{name}' has {found} bytes, expected {expected}")));
        }
        wanted.bytes = bytes.into_owned();
    }
    let encoded = Encoded {
        rows,
        cols,
        parts: wanted,
    };
    let mut values = vec![0.0; rows * cols];
    pool::run(py, || format.decode(&encoded, &mut values));
    Ok(PyArray1::from_vec(py, values))
}

/// Returns the layout called `name`. The prefix `blocked_` may be left out.
fn layout_of(name: &str) -> PyResult<&'static Layout> {
    let found = Layout::find(&format!("blocked_{name}"));
    found.or_else(|_| Layout::find(name)).map_err(wrong)
}

/// Puts scales `[rows, cols]` of 1 or 4 bytes each in the order of a layout.
#[pyfunction]
pub fn place<'py>(py: Python<'py>, scales: &Bound<'py, Array>, layout: &str) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let scales = scales.get();
    let placement = layout_of(layout)?.place(&scales.shape, &[]).map_err(wrong)?;
    let placed = placement.forward(&scales.bytes().map_err(wrong)?).map_err(wrong)?;
    Ok(PyArray1::from_vec(py, placed))
}

/// Returns scales `[rows, cols]` of one byte each from bytes in a layout's order, and the number of non-zero padding bytes.
#[pyfunction]
pub fn unplace<'py>(
    py: Python<'py>,
    placed: &Bound<'py, Array>,
    rows: usize,
    cols: usize,
    layout: &str,
) -> PyResult<(Bound<'py, PyArray1<u8>>, usize)> {
    let placement = layout_of(layout)?.place(&[rows, cols], &[]).map_err(wrong)?;
    let placed = placed.get().bytes().map_err(wrong)?;
    if placed.len() != placement.len() {
        let (found, expected) = (placed.len(), placement.len());
        return Err(wrong(format!(
            "{found} scales, expected {expected}: {rows} x {cols} in the layout {layout}"
        )));
    }
    let scales = placement.inverse(&placed).map_err(wrong)?;
    // Writes the scales in the layout again, with zeros as padding. So only non-zero padding differs from `placed`.
    let clean = placement.forward(&scales).map_err(wrong)?;
    let stale = clean
        .iter()
        .zip(&*placed)
        .filter(|(clean, placed)| clean != placed)
        .count();
    Ok((PyArray1::from_vec(py, scales), stale))
}

/// The result of `diagnose`: true if a rule explains all bytes, the names of the rules that reproduce every byte, the conclusion,
/// the findings, and a warning.
type Diagnosed = ((bool, Vec<String>), String, Vec<String>, Option<String>);

/// Looks for the rule (how scales are computed and values are rounded) that made stored codes, scales and global scales.
#[pyfunction]
#[pyo3(signature = (x, stored, format, layout=None, named=false))]
pub fn diagnose(
    py: Python<'_>,
    x: &Bound<'_, Array>,
    stored: (Bound<'_, Array>, Bound<'_, Array>, Vec<f32>),
    format: &str,
    layout: Option<&str>,
    named: bool,
) -> PyResult<Diagnosed> {
    let x = x.get();
    let (rows, cols) = rows_and_cols(&x.shape)?;
    let format = block_format(format).map_err(wrong)?;
    format.check(cols).map_err(wrong)?;
    if format.zero_point().is_some() {
        return Err(wrong(format!(
            "not judged: '{format}' has zero points, which are not taken here; `ulplab compare --parity` reads them from files"
        )));
    }
    let layout = layout.map(layout_of).transpose()?;
    let (data, scale, global) = stored;
    let (data, scale) = (data.get().bytes().map_err(wrong)?, scale.get().bytes().map_err(wrong)?);
    let stored = parity::StoredBytes {
        data: &data,
        scale: &scale,
        global,
        layout,
    };
    whole(&stored, &format, rows, cols).map_err(wrong)?;
    let diagnosis = pool::run(py, || {
        let x = read(x)?;
        let diagnosis = parity::diagnose(&x, cols, &stored, &format, named);
        // Compares the errors of two rules, the found rule and the format's best rule, unless the caller names a rule.
        let cost = (!named).then(|| parity::cost::measure(parity::Source::slice(&x), cols, &stored, &diagnosis));
        Ok((diagnosis, cost.flatten()))
    });
    let (diagnosis, cost) = diagnosis.map_err(|why: String| wrong(why))?;
    let exact = diagnosis.exact.iter().map(|candidate| candidate.name());
    let said = diagnosis.findings.iter().map(|finding| finding.detail.clone());
    let warning = cost.filter(parity::cost::Cost::is_far).map(|cost| cost.words());
    Ok((
        (diagnosis.explained(), exact.collect()),
        diagnosis.conclusion(),
        said.collect(),
        warning,
    ))
}

/// Checks that the codes, scales and global scales are complete for a tensor of this shape. Incomplete parts cannot be diagnosed.
fn whole(stored: &parity::StoredBytes, format: &Format, rows: usize, cols: usize) -> Result<(), String> {
    if rows == 0 {
        return Err(format!("not judged: the tensor [0, {cols}] has no elements"));
    }
    let parts = format.parts(rows, cols);
    let bytes = |part: &formats::Part| part.shape.iter().product::<usize>() * part.dtype.bitsize() / 8;
    let expected = |name: &str| parts.iter().find(|part| part.name == name);
    for (what, name, found) in [
        ("codes", "data", stored.data.len()),
        ("scales", "scale", stored.scale.len()),
        ("global_scale", "global", 4 * stored.global.len()),
    ] {
        let part = expected(name);
        let mut wanted = part.map_or(0, bytes);
        let mut of = part.map_or_else(
            || format!("'{format}' has none"),
            |part| format!("{} {:?}", dtype(part), part.shape),
        );
        if let (Some(layout), "scale", Some(part)) = (stored.layout, name, part) {
            let size = part.dtype.bitsize() / 8;
            check_layout(layout, size)?;
            wanted = layout.place(&part.shape, &[])?.len();
            of = format!("{of} in the layout {}", layout.name);
        }
        if found != wanted {
            let placed = part.filter(|_| name == "scale" && stored.layout.is_none());
            let layouts = placed.map_or(String::new(), |part| placed_in(part, found));
            return Err(format!(
                "not judged: {what} has {found} bytes, expected {wanted}: {of} for a tensor [{rows}, {cols}]{layouts}"
            ));
        }
    }
    if let (Some(_), None) = (stored.layout, format.scaling) {
        return Err(format!("'{format}' has no scales, so no layout of them"));
    }
    Ok(())
}

fn dtype(part: &formats::Part) -> &'static str {
    name(part.dtype)
}

/// Returns a hint that names the layouts in which the scales have this number of bytes.
fn placed_in(part: &formats::Part, bytes: usize) -> String {
    let size = part.dtype.bitsize() / 8;
    let fits = |layout: &&Layout| {
        check_layout(layout, size).is_ok() && layout.place(&part.shape, &[]).is_ok_and(|placed| placed.len() == bytes)
    };
    let names: Vec<&str> = LAYOUTS.iter().filter(fits).map(|layout| layout.name).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; layouts that have {bytes} are {}: say layout=", names.join(", ")),
    }
}

/// Returns the format string of a format with another rule for its scales.
#[pyfunction]
pub fn with_rule(format: &str, rule: &str) -> PyResult<String> {
    let format = block_format(format).map_err(wrong)?;
    Ok(format.with_rule(rule).map_err(wrong)?.to_string())
}
