//! Post-block of hyper-connections (mHC): mixes the output y of a model block into the N residual streams X_j. The new streams
//! are X'_k = post_k·y + Σ_j C_jk·X_j, with weights post and C. The sum runs over the first index of C.
//!
//! Error bound: a sum of N + 1 products, which f32 adds in any order.

use rayon::prelude::*;

use super::near::Near;
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
        block_missing: "the block's output is left out" => |call| call.fill("post", 0.0);
        no_post: "the block's output is not multiplied by its weight" => |call| call.fill("post", 1.0);
        next_stream_post: "the weight of the block's output is that of the next stream" => |call| call.roll("post", 0);
        last_stream_missing: "the last stream is left out of the sum";
        next_row_weights: "the weights are those of the next row"
            => |call| [("post", 1), ("comb", 2)].into_iter().for_each(|(name, dims)| call.roll_rows(name, dims));
        next_row_block: "the block's output is that of the next row" => |call| call.roll_rows("y", 1);
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [streams, cols] = call.shapes()?.sizes(["N", "C"]);
    let [x, y, post, comb] = ["x", "y", "post", "comb"].map(|name| call.tensor(name));
    let element = |at: usize| {
        let (row, stream, col) = (at / cols / streams, at / cols % streams, at % cols);
        let weight = |old: usize| match call.fault {
            Some("comb_transposed") => comb.data[(row * streams + stream) * streams + old],
            Some("not_mixed") => f64::from(u8::from(old == stream)),
            _ => comb.data[(row * streams + old) * streams + stream],
        };
        let old = |old: usize| weight(old) * x.data[(row * streams + old) * cols + col];
        let mixed = streams - usize::from(call.is("last_stream_missing"));
        let block = post.data[row * streams + stream] * y.data[row * cols + col];
        call.sum((0..mixed).map(old).chain([block]))
    };
    let mixed: Vec<Near> = (0..x.data.len()).into_par_iter().map(element).collect();
    Ok(vec![Output::of("x", x.shape.clone(), mixed)])
}
