//! Scores of a lightning indexer (DeepSeek-V3.2): s_n = Σ_h w_h·scale·max(0, q_h·k_n) is the relevance of entry n for a query.
//! Sparse attention reads the entries with the best scores. Entries that are masked for a query have the score −∞.
//!
//! Error bound: each dot product is a sum that f32 adds in any order, and max propagates its error ([`super::near`]). Errors of
//! different heads are independent.

use rayon::prelude::*;
use reference::Real;

use super::near::{Near, wider};
use super::{Call, Operation, Output, faults, takes};

pub(super) const INDEX_SCORES: Operation = Operation {
    name: "index_scores",
    doc: "an indexer's score of every entry that a query may see",
    takes: takes! {
        q Tensor: "[T, H, D]";
        k Tensor: "[N, D], or [T, N, D] if each query has entries of its own";
        weights Tensor: "[T, H]: of the heads of each query";
        counts Optional: "[T]: how many entries a query may see, the first ones; all if not given";
        scale Number(1.0): "the weights are multiplied by";
    },
    faults: faults! {
        no_relu: "negative products are summed up, too";
        relu_of_sum: "negative sums are cut off in the place of negative products";
        no_weights: "the weights of heads are left out" => |call| call.fill("weights", 1.0);
        no_scale: "the scale is left out" => |call| call.set("scale", 1.0);
        last_head_missing: "the sum leaves out the last head";
        next_head_weight: "the weight of each head is that of the next" => |call| call.roll("weights", 0);
        next_query_weights: "the weights are those of the next query" => |call| call.roll("weights", 1);
        one_too_many of counts: "each query sees the entry after those that it may see";
        all_seen of counts: "every query sees all entries" => |call| call.leave_out("counts");
    },
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [queries, heads, dim, entries] = call.shapes()?.sizes(["T", "H", "D", "N"]);
    let [q, k, weights] = ["q", "k", "weights"].map(|name| call.tensor(name));
    let counts = call.optional("counts").map(|counts| &counts.data[..]);
    call.expect_whole("counts", 0.0, entries as f64)?;
    let scale = call.exact(call.number("scale"));
    let element = |at: usize| {
        let (query, entry) = (at / entries, at % entries);
        let seen = counts.map_or(entries, |counts| {
            counts[query] as usize + usize::from(call.is("one_too_many"))
        });
        if entry >= seen {
            return Near::NEG_INFINITY;
        }
        let key = if k.shape.len() == 3 { at } else { entry };
        let key = &k.data[key * dim..][..dim];
        let of_head = |head: usize| {
            let at = query * heads + head;
            let product = call.dot(&q.data[at * dim..][..dim], key);
            // Compare with 0 instead of using `max`, which would turn NaN into 0.
            let cut = product.value() < 0.0 && !matches!(call.fault, Some("no_relu" | "relu_of_sum"));
            let weight = call.exact(weights.data[at]) * scale;
            weight
                * if cut {
                    wider(Near::ZERO, product.error())
                } else {
                    product
                }
        };
        let summed = heads - usize::from(call.is("last_head_missing") && heads > 0);
        let sum = call.sum_independent(&(0..summed).map(of_head).collect::<Vec<Near>>());
        call.pick("relu_of_sum", sum.max(Near::ZERO), sum)
    };
    let scores: Vec<Near> = (0..queries * entries).into_par_iter().map(element).collect();
    Ok(vec![Output::of("scores", vec![queries, entries], scores)])
}
