//! X'_k = post_k·y + Σ_j C_jk·X_j: the output y of a block of a model, mixed into the N residual streams (hyper-connections, mHC). The
//! first index of C is contracted.
//!
//! Error: N + 1 products are a sum that f32 adds in any order.

use rayon::prelude::*;

use super::sum::Terms;
use super::{Call, Operation, Output, faults, takes};

pub(super) const MHC_POST: Operation = Operation {
    name: "mhc_post",
    doc: "a block's output and the residual streams, mixed into the new streams",
    takes: takes! {
        x Tensor: "[..., N, C]: the streams";
        y Tensor: "[..., C]: what the block gave";
        post Tensor: "[..., N]: the weight of y in each stream";
        comb Tensor: "[..., N, N]: the weight of old stream j in new stream k is at [j, k]";
    },
    faults: faults! {
        comb_transposed: "the other index of the weights of streams is contracted";
        not_mixed: "each stream is added to as it is";
        block_missing: "the block's output is left out";
        no_post: "the block's output is not multiplied by its weight";
        next_stream_post: "the weight of the block's output is that of the next stream";
        last_stream_missing: "the last stream is left out of the sum";
        next_row_weights: "the weights are those of the next row";
        next_row_block: "the block's output is that of the next row";
    },
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [x, y, post, comb] = ["x", "y", "post", "comb"].map(|name| call.tensor(name));
    let [rows @ .., streams, cols] = &x.shape[..] else {
        return Err(format!("mhc_post: 'x' is {:?}, expected [..., N, C]", x.shape));
    };
    let (streams, cols) = (*streams, *cols);
    let with = |last: &[usize]| [rows, last].concat();
    call.expect("y", &with(&[cols]))?;
    call.expect("post", &with(&[streams]))?;
    call.expect("comb", &with(&[streams, streams]))?;
    let count: usize = rows.iter().product();
    let element = |at: usize| {
        let (row, stream, col) = (at / cols / streams, at / cols % streams, at % cols);
        let next = (row + 1) % count;
        let weights = if call.is("next_row_weights") { next } else { row };
        let weighted = match call.fault {
            Some("next_stream_post") => (stream + 1) % streams,
            _ => stream,
        };
        let post = match call.fault {
            Some("block_missing") => 0.0,
            Some("no_post") => 1.0,
            _ => post.data[weights * streams + weighted],
        };
        let block = if call.is("next_row_block") { next } else { row };
        let weight = |old: usize| match call.fault {
            Some("comb_transposed") => comb.data[(weights * streams + stream) * streams + old],
            Some("not_mixed") => f64::from(u8::from(old == stream)),
            _ => comb.data[(weights * streams + old) * streams + stream],
        };
        let mixed = streams - usize::from(call.is("last_stream_missing"));
        let old = (0..mixed).map(|old| weight(old) * x.data[(row * streams + old) * cols + col]);
        let terms = Terms::of(old.chain([post * y.data[block * cols + col]]), call.u);
        (terms.sum, terms.error())
    };
    let (value, error) = (0..x.data.len()).into_par_iter().map(element).unzip();
    Ok(vec![Output::new("x", x.shape.clone(), value, error)])
}
