//! Lengths that differ, the offsets of packed sequences, pages in any order, and garbage where an operation must not read.

use ulplab_core::random::{below, stream};

use super::super::{Call, Tensor};
use super::values::unit;

/// Arguments with the number of elements that each row reads.
const LENGTHS: [&str; 3] = ["seq_lens", "counts", "count"];
/// Offsets of packed sequences, and the tensor whose first dimension (or second, after a batch of 1) they divide.
const OFFSETS: [(&str, &str); 3] = [("cu_seqlens_q", "q"), ("cu_seqlens_k", "k"), ("cu_seqlens", "q")];

/// Returns true if a call has lengths or offsets.
pub(super) fn has_lengths(call: &Call) -> bool {
    LENGTHS
        .into_iter()
        .chain(OFFSETS.map(|(name, _)| name))
        .any(|name| call.has(name))
}

/// Draws lengths, offsets and pages of a call, and sets garbage behind lengths. `None` if sizes do not fit.
pub(super) fn set(call: &mut Call, at: usize, seed: u64) -> Option<()> {
    let rng = &mut stream(seed, &format!("telling/lengths/{}/{at}", call.operation().name));
    for (name, of) in OFFSETS {
        let (Some(offsets), Some(tensor)) = (call.optional(name), call.optional(of)) else {
            continue;
        };
        let count = offsets.data.len().checked_sub(1).filter(|count| *count > 0)?;
        let total = tensor.shape[usize::from(name == "cu_seqlens")];
        // The first sequence has about half of the tokens, the next half of the rest, and so on, in an order of its own.
        let mut parts: Vec<f64> = (0..count)
            .map(|at| 0.5f64.powi(at.min(40) as i32) * (1.0 + unit(rng)))
            .collect();
        parts.rotate_left(below(rng, count));
        let all: f64 = parts.iter().sum();
        let ends = parts.iter().scan(0.0, |end, part| {
            *end += part / all;
            Some((*end * total as f64) as usize)
        });
        let mut cuts: Vec<usize> = ends.take(count - 1).collect();
        // One sequence in two inputs is empty.
        if at % 4 == 3 && cuts.len() > 1 {
            cuts[1] = cuts[0];
        } else {
            for at in 0..cuts.len() {
                let least = if at == 0 { 1 } else { cuts[at - 1] + 1 };
                cuts[at] = cuts[at].max(least).min(total.saturating_sub(count - 1 - at).max(1));
            }
        }
        let ends = std::iter::once(0).chain(cuts).chain([total]);
        let data = ends.map(|x| x as f64).collect();
        call.edit(name, |tensor| tensor.data = data);
    }
    if let (Some(table), Some(k)) = (call.optional("block_table"), call.optional("k")) {
        let (slots, pages) = (table.data.len(), k.shape[0]);
        let mut all: Vec<f64> = (0..slots.max(pages)).map(|page| (page % pages.max(1)) as f64).collect();
        for at in (1..all.len()).rev() {
            all.swap(at, below(rng, at + 1));
        }
        all.truncate(slots);
        call.edit("block_table", |tensor| tensor.data = all);
    }
    for name in LENGTHS {
        let (Some(lengths), Some(most)) = (call.optional(name), most(call)) else {
            continue;
        };
        let least = lengths.data.iter().copied().fold(f64::INFINITY, f64::min).max(1.0) as usize;
        let queries = call
            .optional("q")
            .filter(|q| name == "seq_lens" && q.shape.len() == 4)
            .map_or(1, |q| q.shape[1]);
        // Lengths that are at least as large as the number of queries stay so.
        let least = if least >= queries { queries } else { 1 }.min(most);
        let count = lengths.data.len();
        let data = (0..count).map(|row| match (row + at) % 4 {
            0 if count == 1 => most - usize::from(most > least),
            0 => most,
            1 => least,
            _ => least + below(rng, most - least + 1),
        });
        let data = data.map(|x| x as f64).collect();
        call.edit(name, |tensor| tensor.data = data);
    }
    let garbage = if at.is_multiple_of(2) { f64::NAN } else { 32.0 };
    unread(call, garbage);
    Some(())
}

/// Largest number of elements that a row may read.
fn most(call: &Call) -> Option<usize> {
    let size = |name: &str, dim: usize| call.optional(name).and_then(|tensor| tensor.shape.get(dim).copied());
    if call.has("seq_lens") {
        let keys = size("k", if call.word("layout") == "bhtd" { 2 } else { 1 })?;
        return Some(keys * size("block_table", 1).unwrap_or(1));
    }
    match call.optional("entries") {
        Some(entries) => entries.shape.get(1).copied(),
        None => call
            .optional("k")
            .and_then(|k| k.shape.get(k.shape.len().checked_sub(2)?).copied()),
    }
}

/// Sets what lengths leave unread to garbage.
fn unread(call: &mut Call, garbage: f64) {
    let lengths = |name: &str| call.optional(name).map(|tensor| tensor.data.clone());
    if let Some(lengths) = lengths("seq_lens").filter(|_| call.word("layout") != "bhtd") {
        let table = call.optional("block_table").cloned();
        for name in ["k", "v"] {
            call.edit(name, |tensor| blank(tensor, &lengths, table.as_ref(), garbage));
        }
    } else if let Some(lengths) = lengths("counts").filter(|_| call.tensor("k").shape.len() == 3) {
        call.edit("k", |tensor| blank(tensor, &lengths, None, garbage));
    } else if let Some(lengths) = lengths("count") {
        call.edit("entries", |tensor| blank(tensor, &lengths, None, garbage));
    }
}

/// Sets elements `[row, at, ...]` with `at` from the row's length on to garbage; with a table, those of pages that no row reads.
fn blank(tensor: &mut Tensor, lengths: &[f64], table: Option<&Tensor>, garbage: f64) {
    let [rows, size, ..] = tensor.shape[..] else { return };
    let mut read = vec![false; rows * size];
    for (row, length) in lengths.iter().enumerate() {
        for at in 0..*length as usize {
            let place = match table {
                Some(table) => table
                    .data
                    .get(row * table.shape[1] + at / size.max(1))
                    .map(|page| *page as usize * size + at % size),
                None => Some(row * size + at),
            };
            if let Some(read) = place.and_then(|place| read.get_mut(place)) {
                *read = true;
            }
        }
    }
    let each = tensor.data.len() / read.len().max(1);
    for (part, read) in tensor.data.chunks_mut(each.max(1)).zip(read) {
        if !read {
            part.fill(garbage);
        }
    }
}

/// Makes lengths and offsets at most what the tensors have, and pages those that there are.
pub(super) fn fit(call: &mut Call) {
    for (name, of) in OFFSETS {
        let total = call
            .optional(of)
            .and_then(|tensor| tensor.shape.get(usize::from(name == "cu_seqlens")).copied());
        if let Some(total) = total {
            call.edit(name, |offsets| {
                offsets.data.iter_mut().for_each(|x| *x = x.min(total as f64));
                offsets.data.last_mut().into_iter().for_each(|x| *x = total as f64);
            });
        }
    }
    if let Some(pages) = call.optional("k").and_then(|k| k.shape.first().copied()) {
        call.map("block_table", |page| page.min(pages.saturating_sub(1) as f64));
    }
    if let Some(most) = most(call) {
        for name in LENGTHS {
            call.map(name, |length| length.min(most as f64));
        }
    }
}
