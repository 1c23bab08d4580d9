//! Sparse attention of one token (DeepSeek-V4) over a window of recent vectors and compressed entries, in one softmax with a
//! sink: s_j = scale·q·k_j, p_j = e^{s_j}/(Σ e^{s_j'} + e^{sink}), o = Σ p_j·k_j. A vector is both key and value, and all heads
//! share it. Each head has a sink, an unscaled logit without a value.
//!
//! Error bound: the same as for attention ([`super::attention`]). A kernel that rounds weights to a short type (`p`) may divide
//! them by their sum before.

use rayon::prelude::*;

use super::attention::{score, weighted};
use super::{Call, Operation, Output, faults, takes};

pub(super) const SPARSE_ATTENTION: Operation = Operation {
    name: "sparse_attention",
    doc: "a token's attention to its window and to compressed entries, with a sink",
    takes: takes! {
        q Tensor: "[B, H, D]";
        window Tensor: "[B, W, D]: the vectors of the last W tokens; that of position p is in slot p mod W";
        position Tensor: "[B]: of each row's token, whose own vector is in the window; -1 for padding, whose output is 0";
        entries Tensor: "[B, N, D]: compressed entries";
        indices Optional: "[B, K]: which entries a row reads; -1 is none";
        count Optional: "[B]: how many entries a row reads if there are no indices, the first ones; all if not given";
        sinks Optional: "[H]: a score of each head that is summed up and has no value";
        scale Number(f64::NAN): "multiplied by the scores; 1/√D if it is not given";
        p Word(&["f32", "bf16", "f16"]): "the type that a kernel rounds weights to before it multiplies them by vectors";
    },
    faults: faults! {
        sink_scaled of sinks: "the sink is scaled like a score";
        sink_left_out of sinks: "the denominator lacks the sink" => |call| call.leave_out("sinks");
        sinks_of_head_0 of sinks: "all heads have the sink of the first" => |call| call.repeat_first("sinks", 0);
        no_scale: "the scale is left out" => |call| call.set("scale", 1.0);
        window_begins_late: "the oldest vector of a full window is not read";
        own_vector_missing: "the token's own vector is not read";
        whole_window: "slots of a window that is not yet full are read, too";
        window_left_out: "the window is not read";
        entries_left_out: "entries are not read";
        skipped_slot_read of indices: "an index of -1 reads entry 0" => |call| call.map("indices", |at| at.max(0.0));
        next_row_indices of indices: "the indices are those of the next row" => |call| call.roll("indices", 1);
        first_entries of indices: "the first entries are read in the place of those of the indices"
            => |call| {
                // Replace the indices other than −1 by 0, 1, 2 … in order. If a row has more indices than entries, set the
                // remaining ones to −1.
                let entries = call.tensor("entries").shape.get(1).copied().unwrap_or_default();
                call.edit_rows("indices", |row| {
                    let mut next = 0..entries;
                    row.iter_mut().filter(|at| **at >= 0.0).for_each(|at| *at = next.next().map_or(-1.0, |next| next as f64));
                });
            };
        all_entries of count: "every row reads all entries" => |call| call.leave_out("count");
        one_too_many of count: "a row reads the entry after those that it may read";
    },
    compute,
    ..Operation::NONE
};

/// A call with its sizes: rows, heads, channels, window slots, entries.
struct Step<'a> {
    call: &'a Call,
    sizes: [usize; 5],
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [rows, heads, dim, slots, entries] = call.shapes()?.sizes(["B", "H", "D", "W", "N"]);
    let q = call.tensor("q");
    call.require(slots > 0, "window", format_args!("[{rows}, 1 or more, {dim}]"))?;
    call.require(heads > 0 && dim > 0, "q", "H and D of 1 or more")?;
    call.expect_whole("position", -1.0, 2f64.powi(53))?;
    call.expect_whole("indices", -1.0, entries as f64 - 1.0)?;
    call.expect_whole("count", 0.0, entries as f64)?;
    if let (Some(indices), Some(count)) = (call.optional("indices"), call.optional("count")) {
        return Err(format!(
            "sparse_attention: 'indices' is {:?} and 'count' {:?}, expected one of them",
            indices.shape, count.shape
        ));
    }
    let sizes = [rows, heads, dim, slots, entries];
    let step = Step { call, sizes };
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(|row| step.row(row)).unzip();
    Ok(vec![Output::new("out", q.shape.clone(), value, error)])
}

impl Step<'_> {
    /// Output elements of a row, with error bounds.
    fn row(&self, row: usize) -> Vec<(f64, f64)> {
        let (call, [_, heads, dim, ..]) = (self.call, self.sizes);
        let vectors = self.vectors(row);
        if vectors.is_empty() {
            return vec![(0.0, 0.0); heads * dim];
        }
        let scale = call.scale(dim);
        let sinks = call.optional("sinks").map(|sinks| &sinks.data);
        let of_head = |head: usize| {
            let q = &call.tensor("q").data[(row * heads + head) * dim..][..dim];
            let scores: Vec<(f64, f64)> = vectors.iter().map(|k| score(call, [q, k], [scale, 1.0])).collect();
            let sink = sinks.map(|sinks| sinks[head] * call.pick("sink_scaled", scale, 1.0));
            let values = |at: usize| vectors.iter().map(move |vector| vector[at]);
            weighted(call, &scores, sink, None, dim, values).0
        };
        let columns = (0..heads).flat_map(of_head);
        columns.map(|[value, error, _]| (value, error)).collect()
    }

    /// Returns the vectors that a row reads: first the vectors of its window, oldest first, then the entries.
    fn vectors(&self, row: usize) -> Vec<&[f64]> {
        let (call, [_, _, dim, slots, entries]) = (self.call, self.sizes);
        let (window, stored) = (call.tensor("window"), call.tensor("entries"));
        let vector = |of: usize| of * dim..(of + 1) * dim;
        let position = call.tensor("position").data[row];
        if position < 0.0 {
            return Vec::new();
        }
        let position = position as usize;
        let full = position + 1 >= slots;
        let recent = match call.fault {
            Some("window_left_out") => 0..0,
            Some("whole_window") if !full => 0..slots,
            Some("window_begins_late") if full => position + 2 - slots..position + 1,
            Some("own_vector_missing") => (position + 1).saturating_sub(slots)..position,
            _ => (position + 1).saturating_sub(slots)..position + 1,
        };
        let recent = recent.map(|position| &window.data[vector(row * slots + position % slots)]);
        let first = |count: f64| (0..(count as usize).min(entries)).collect();
        let read: Vec<usize> = match (call.optional("indices"), call.optional("count")) {
            _ if call.is("entries_left_out") => Vec::new(),
            (Some(indices), _) => {
                let own = indices.data[row * indices.cols()..][..indices.cols()].iter();
                own.filter(|at| **at >= 0.0).map(|at| *at as usize).collect()
            }
            (_, Some(count)) => first(count.data[row] + call.pick("one_too_many", 1.0, 0.0)),
            _ => first(entries as f64),
        };
        let read = read.into_iter().map(|entry| row * entries + entry);
        recent.chain(read.map(|entry| &stored.data[vector(entry)])).collect()
    }
}
