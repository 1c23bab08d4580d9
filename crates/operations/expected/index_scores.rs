//! s_n = Σ_h w_h·scale·max(0, q_h·k_n): how much a query wants each entry, of an indexer that chooses what sparse attention reads
//! (DeepSeek-V3.2's lightning indexer). Entries that a query may not see are −∞.
//!
//! Error: each product of vectors is a sum that f32 adds in any order, and max passes its error on; the weight and its product
//! add 2u, and the sum over heads has that of its own additions.

use rayon::prelude::*;

use super::drift::Equal;
use super::sum::Terms;
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
        no_weights: "the weights of heads are left out";
        no_scale: "the scale is left out";
        last_head_missing: "the sum leaves out the last head";
        next_head_weight: "the weight of each head is that of the next";
        next_query_weights: "the weights are those of the next query";
        one_too_many of counts: "each query sees the entry after those that it may see";
        all_seen of counts: "every query sees all entries";
    },
    cases: None,
    rows: None,
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [q, k, weights] = ["q", "k", "weights"].map(|name| call.tensor(name));
    let [queries, heads, dim] = q.shape[..] else {
        return Err(format!("index_scores: 'q' is {:?}, expected [T, H, D]", q.shape));
    };
    let (entries, own) = match k.shape[..] {
        [entries, of] if of == dim => (entries, false),
        [of_queries, entries, of] if of == dim && of_queries == queries => (entries, true),
        _ => {
            return Err(format!(
                "index_scores: 'k' is {:?}, expected [N, {dim}] or [{queries}, N, {dim}]",
                k.shape
            ));
        }
    };
    call.expect("weights", &[queries, heads])?;
    call.expect("counts", &[queries])?;
    let counts = call.optional("counts").map(|counts| &counts.data[..]);
    call.expect_whole("counts", 0.0, entries as f64)?;
    let scale = if call.is("no_scale") { 1.0 } else { call.number("scale") };
    let element = |at: usize| {
        let (query, entry) = (at / entries, at % entries);
        let count = match (counts, call.fault) {
            (None, _) | (_, Some("all_seen")) => entries,
            (Some(counts), Some("one_too_many")) => counts[query] as usize + 1,
            (Some(counts), _) => counts[query] as usize,
        };
        if entry >= count {
            return (f64::NEG_INFINITY, 0.0);
        }
        let key = if own { query * entries + entry } else { entry };
        let key = &k.data[key * dim..][..dim];
        let summed = heads - usize::from(call.is("last_head_missing") && heads > 0);
        let of_head = |head: usize| {
            let product = Terms::dot(&q.data[(query * heads + head) * dim..][..dim], key, call.u);
            let weight = match call.fault {
                Some("no_weights") => 1.0,
                Some("next_head_weight") => weights.data[query * heads + (head + 1) % heads],
                Some("next_query_weights") => weights.data[(query + 1) % queries * heads + head],
                _ => weights.data[query * heads + head],
            } * scale;
            // A NaN stays one.
            let cut = match product.sum < 0.0 && !matches!(call.fault, Some("no_relu" | "relu_of_sum")) {
                true => 0.0,
                false => product.sum,
            };
            let term = weight * cut;
            (term, weight.abs() * product.error() + 2.0 * call.u * term.abs())
        };
        let (terms, errors): (Vec<f64>, Vec<f64>) = (0..summed).map(of_head).unzip();
        let equal = Equal::of(terms.iter().copied());
        let sum = Terms::of(terms.into_iter(), call.u);
        let value = if call.is("relu_of_sum") {
            sum.sum.max(0.0)
        } else {
            sum.sum
        };
        (value, sum.error() + equal.together(errors.into_iter()))
    };
    let (value, error) = (0..queries * entries).into_par_iter().map(element).unzip();
    Ok(vec![Output::new("scores", vec![queries, entries], value, error)])
}
