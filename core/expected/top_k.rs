//! The k largest elements of every row, the largest first, and where they are. NaN counts as largest, as in torch.
//!
//! Nothing is computed: values and indices are exact. Equal elements come in the order of their indices, or in any order that names each
//! of them once (`ties`); where there are more than a thousand orders, every place may name any of those equal.

use rayon::prelude::*;
use reference::ops::top_k::top_k;

use super::{Call, Kind, Operation, Other, Output, fault, takes};

pub(super) const TOP_K: Operation = Operation {
    name: "top_k",
    doc: "the largest elements of every row, the largest first, and their indices",
    takes: &[
        takes("x", Kind::Tensor, "[..., C]"),
        takes("k", Kind::Number(f64::NAN), "how many; at most C"),
        takes(
            "ties",
            Kind::Word(&["lower_index", "any"]),
            "which of equal elements come first: those of lower index (jax, stable sorts), or any (torch)",
        ),
    ],
    faults: &[
        fault("smallest", "the smallest elements are taken"),
        fault("by_magnitude", "elements are compared by their magnitudes"),
        fault("ascending", "the largest of them comes last"),
        fault("first_skipped", "the largest is left out"),
        fault("last_column_missing", "the last column is not looked at"),
        fault(
            "ties_higher_index",
            "of equal elements those of higher index come first",
        ),
        fault("count_from_one", "indices count from 1"),
        fault("of_half", "indices are those in a half of the row"),
        fault("last_from_next_row", "the last of them is that of the next row"),
    ],
    compute,
};

/// Orders of equal elements that are tried one by one.
const MOST_ORDERS: usize = 1000;

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let (cols, given) = (x.cols(), call.number("k"));
    if !(given >= 0.0 && given.fract() == 0.0 && given <= cols as f64) {
        let found = if given.is_nan() {
            "missing".into()
        } else {
            given.to_string()
        };
        return Err(format!(
            "top_k: 'k' is {found}, expected a whole number of at most {cols} columns"
        ));
    }
    let k = given as usize;
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
    let values: Vec<f64> = indices
        .iter()
        .enumerate()
        .flat_map(|(row, indices)| indices.iter().map(move |at| row_of(row)[*at]))
        .collect();
    let mut others = Vec::new();
    if call.word("ties") == "any" {
        for (row, indices) in indices.iter().enumerate() {
            ties(row_of(row), indices, row * k, &mut others);
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
    indices.others = others;
    Ok(vec![Output::new("values", shape, values, exact), indices])
}

/// The indices of a row's largest elements, or of those of a fault.
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

/// The other orders of equal elements of a row, whose first index is element `start` of the output.
fn ties(x: &[f64], indices: &[usize], start: usize, others: &mut Vec<Other>) {
    let equal = |a: usize, b: usize| x[a] == x[b] || x[a].is_nan() && x[b].is_nan();
    let mut from = 0;
    while from < indices.len() {
        let first = indices[from];
        let len = indices[from..].iter().take_while(|at| equal(**at, first)).count();
        let all: Vec<usize> = (0..x.len()).filter(|at| equal(*at, first)).collect();
        let orders = (0..len).try_fold(1usize, |orders, at| orders.checked_mul(all.len() - at));
        let mut add = |at: usize, order: &[usize]| {
            others.push(Other {
                start: start + at,
                value: order.iter().map(|at| *at as f64).collect(),
                error: vec![0.0; order.len()],
            });
        };
        if all.len() > 1 && len > 0 {
            if orders.is_some_and(|orders| orders <= MOST_ORDERS) {
                let mut order = Vec::new();
                arrange(&all, len, &mut order, &mut |order| add(from, order));
            } else {
                for at in from..from + len {
                    all.iter().for_each(|index| add(at, &[*index]));
                }
            }
        }
        from += len.max(1);
    }
}

/// Calls `with` for every arrangement of `len` of the numbers.
fn arrange(all: &[usize], len: usize, order: &mut Vec<usize>, with: &mut impl FnMut(&[usize])) {
    if order.len() == len {
        return with(order);
    }
    for at in all {
        if !order.contains(at) {
            order.push(*at);
            arrange(all, len, order, with);
            order.pop();
        }
    }
}
