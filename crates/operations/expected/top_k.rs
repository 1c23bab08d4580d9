//! Top-K: the k largest elements of every row, largest first, and their indices. NaN counts as largest, as in torch.
//!
//! Nothing is computed, so values and indices are exact. Equal elements are in the order of their indices, or (`ties`) in any
//! order that uses each index once.

use rayon::prelude::*;
use reference::ops::top_k::top_k;

use super::{Call, Choice, Operation, Output, faults, takes};

pub(super) const TOP_K: Operation = Operation {
    name: "top_k",
    doc: "the largest elements of every row, the largest first, and their indices",
    takes: takes! {
        x Tensor: "[..., C]";
        k Number(f64::NAN): "how many; at most C";
        ties Word(&["lower_index", "any"]):
            "which of equal elements come first: those of lower index (jax, stable sorts), or any (torch)";
    },
    faults: faults! {
        smallest: "the smallest elements are taken";
        by_magnitude: "elements are compared by their magnitudes";
        ascending: "the largest of them comes last";
        first_skipped: "the largest is left out";
        last_column_missing: "the last column is not looked at";
        ties_higher_index: "of equal elements those of higher index come first";
        count_from_one: "indices count from 1";
        of_half: "indices are those in a half of the row";
        last_from_next_row: "the last of them is that of the next row";
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [cols] = call.shapes()?.sizes(["C"]);
    let x = call.tensor("x");
    let k = call.count("k", 0..=cols, &format!("of at most {cols} columns"))?;
    let rows = x.data.len() / cols.max(1);
    let of_row = |row: usize| chosen(call, &x.data[row * cols..][..cols], k);
    let mut indices: Vec<Vec<usize>> = (0..rows).into_par_iter().map(of_row).collect();
    if call.is("last_from_next_row") && k > 0 && rows > 0 {
        let last: Vec<usize> = indices.iter().map(|row| row[k - 1]).collect();
        for (at, row) in indices.iter_mut().enumerate() {
            row[k - 1] = last[(at + 1) % rows];
        }
    }
    let row_of = |row: usize| &x.data[row * cols..][..cols];
    let rows = indices.iter().enumerate();
    let values = rows.flat_map(|(row, indices)| indices.iter().map(move |at| row_of(row)[*at]));
    let values: Vec<f64> = values.collect();
    let mut choices = Vec::new();
    if call.word("ties") == "any" {
        for (row, indices) in indices.iter().enumerate() {
            ties(row_of(row), indices, row * k, &mut choices);
        }
    }
    let half = cols.div_ceil(2).max(1);
    let stored = |at: &usize| match call.fault {
        Some("count_from_one") => (at + 1) as f64,
        Some("of_half") => (at % half) as f64,
        _ => *at as f64,
    };
    let numbers: Vec<f64> = indices.iter().flatten().map(stored).collect();
    let mut shape = x.shape.clone();
    shape.pop();
    shape.push(k);
    let exact = vec![0.0; values.len()];
    let mut indices = Output::new("indices", shape.clone(), numbers, exact.clone());
    indices.choices = choices;
    Ok(vec![Output::new("values", shape, values, exact), indices])
}

/// Indices of a row's largest elements, or wrong indices if the call simulates a fault.
fn chosen(call: &Call, x: &[f64], k: usize) -> Vec<usize> {
    let keys = |key: fn(f64) -> f64| x.iter().map(|x| key(*x)).collect::<Vec<f64>>();
    let mut scores = match call.fault {
        Some("smallest") => keys(|x| -x),
        Some("by_magnitude") => keys(f64::abs),
        _ => x.to_vec(),
    };
    if call.is("ties_higher_index") {
        scores.reverse();
    }
    let skipped = usize::from(call.is("first_skipped") && k < x.len());
    let visible = x.len() - usize::from(call.is("last_column_missing") && k < x.len());
    let mut indices = vec![0; k + skipped];
    top_k(&scores, visible, k + skipped, &mut indices);
    let place = |at: &i32| match usize::try_from(*at).unwrap_or(0) {
        at if call.is("ties_higher_index") => x.len() - 1 - at,
        at => at,
    };
    let mut indices: Vec<usize> = indices[skipped..].iter().map(place).collect();
    if call.is("ascending") {
        indices.reverse();
    }
    indices
}

/// Allows any order of tied indices: adds a [`Choice`] for each run of equal elements in the output. A kernel may return any
/// index of such an element, but each index only once. `start` is the position of the row's first index in the output.
fn ties(x: &[f64], indices: &[usize], start: usize, choices: &mut Vec<Choice>) {
    let equal = |a: usize, b: usize| x[a] == x[b] || x[a].is_nan() && x[b].is_nan();
    let mut from = 0;
    while from < indices.len() {
        let first = indices[from];
        let len = indices[from..].iter().take_while(|at| equal(**at, first)).count();
        let len = len.max(1);
        let of = (0..x.len()).filter(|at| equal(*at, first));
        let of: Vec<f64> = of.map(|at| at as f64).collect();
        if of.len() > 1 {
            let start = start + from;
            choices.push(Choice { start, len, of });
        }
        from += len;
    }
}
