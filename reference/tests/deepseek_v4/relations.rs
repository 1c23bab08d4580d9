//! Relations that hold bit for bit whatever the numbers are: a power of two goes through what is linear, heads and tokens may come in any
//! order, and a pool does not see how its tokens are cut.

use reference::ops::attention::{KeyRows, Sizes, attend};
use reference::ops::compressor::Pool;
use reference::ops::rmsnorm::rmsnorm;
use reference::{Choice, Plain, Tensor};

use super::models::*;
use super::moe::{experts, routed};
use super::support::*;

/// Factors that leave room for sums and products on either side.
const POWERS: [i32; 4] = [-30, -1, 1, 30];

/// Tokens that attend to each other.
const SEEN: usize = 9;

/// The compressor of the keys.
const MAIN: &str = "self_attn.compressor";

fn times(x: &[f32], power: i32) -> Vec<f32> {
    x.iter().map(|x| x * 2f32.powi(power)).collect()
}

/// Queries of some rows and keys that they see, in a layer of dsv4-small.
struct Attended {
    queries: Tensor<f32>,
    keys: Tensor<f32>,
    sinks: Vec<f32>,
}

impl Attended {
    fn new(layer: usize) -> Self {
        let (q, kv) = (inside(layer, "attn.q"), inside(layer, "attn.kv"));
        let [heads, tokens, dim] = q.shape[..] else {
            panic!("heads of tokens")
        };
        let of = |at: usize| &q.data[(at % heads * tokens + at / heads) * dim..][..dim];
        let queries = Tensor::new([SEEN, heads, dim], (0..SEEN * heads).flat_map(of).copied().collect());
        let keys = Tensor::new([SEEN, dim], kv.data[..SEEN * dim].to_vec());
        let sinks = SMALL.weight(layer, "self_attn.sinks").data;
        Self { queries, keys, sinks }
    }

    /// With each query seeing the keys up to its own; keys of the first part and of the second.
    fn run(&self, queries: &[f32], sinks: &[f32], keys: &[f32]) -> Vec<f32> {
        let dim = self.keys.cols();
        let (first, second) = keys.split_at(5 * dim);
        let part = |rows| KeyRows {
            keys: rows,
            values: rows,
        };
        let seen = |part: usize, row: usize, key: usize| key + 5 * part <= row;
        attend(queries, sinks, Sizes::of(dim), [part(first), part(second)], seen).0
    }
}

#[test]
fn powers_of_two_go_through() {
    for layer in 0..SMALL.config.num_hidden_layers {
        let input = activation(layer, "ffn_hc.out.2");
        let linear = SMALL.linear::<f32>(layer, "mlp.gate.weight");
        let (once, eps) = (linear.apply(input).data, 1e-6f32);
        let attended = Attended::new(layer);
        let out = attended.run(&attended.queries.data, &attended.sinks, &attended.keys.data);
        let norm = |x: &[f32], eps: f32| {
            let mut x = Tensor::new(input.shape.clone(), x.to_vec());
            rmsnorm(&mut x, None, eps);
            x.data
        };
        for power in POWERS {
            let scaled = Tensor::new(input.shape.clone(), times(&input.data, power));
            assert!(
                linear.apply(&scaled).data == times(&once, power),
                "linear, layer {layer}, 2^{power}"
            );
            // The scale of the input is divided out, if ε has its square.
            let normed = norm(&scaled.data, eps * 2f32.powi(2 * power));
            assert!(normed == norm(&input.data, eps), "norm, layer {layer}, 2^{power}");
            // Keys are values: scores stay as they are if queries are scaled the other way.
            let queries = times(&attended.queries.data, -power);
            let got = attended.run(&queries, &attended.sinks, &times(&attended.keys.data, power));
            assert!(got == times(&out, power), "attention, layer {layer}, 2^{power}");
        }
    }
    for (layer, rate, sparse) in SMALL.compressed() {
        let (values, logits) = pool_input(layer, MAIN, 0);
        let once = pooled(rate, sparse, &(values.clone(), logits.clone())).data;
        for power in POWERS {
            let scaled = Tensor::new(values.shape.clone(), times(&values.data, power));
            let got = pooled(rate, sparse, &(scaled, logits.clone())).data;
            assert!(got == times(&once, power), "pool, layer {layer}, 2^{power}");
        }
    }
}

#[test]
fn heads_are_interchangeable() {
    for layer in 0..SMALL.config.num_hidden_layers {
        let attended = Attended::new(layer);
        let (heads, dim) = (attended.sinks.len(), attended.keys.cols());
        let turned = |x: &[f32], each: usize| -> Vec<f32> {
            let groups = x.chunks_exact(heads * each);
            groups
                .flat_map(|group| [&group[each..], &group[..each]].concat())
                .collect()
        };
        let (queries, sinks) = (turned(&attended.queries.data, dim), turned(&attended.sinks, 1));
        assert_ne!(queries, attended.queries.data);
        let want = attended.run(&attended.queries.data, &attended.sinks, &attended.keys.data);
        assert!(
            attended.run(&queries, &sinks, &attended.keys.data) == turned(&want, dim),
            "layer {layer}"
        );
        // Each head has a sink of its own.
        assert!(
            attended.run(&queries, &attended.sinks, &attended.keys.data) != turned(&want, dim),
            "layer {layer}"
        );
    }
}

/// In whatever order a token names its experts, and wherever it stands among the tokens: experts are added in the order of their
/// numbers.
#[test]
fn slots_and_tokens_are_interchangeable() {
    for layer in 0..SMALL.config.num_hidden_layers {
        let input = activation(layer, "post_attention_layernorm.out");
        let (choice, weights) = routed(layer);
        let experts = experts(layer, 1.0);
        let want = experts.apply(input, &choice, &weights, &Plain);
        let (tokens, k) = (weights.rows(), choice.k);
        let mixture = |row: &dyn Fn(usize) -> usize, slot: &dyn Fn(usize) -> usize| {
            let places: Vec<usize> = (0..tokens * k).map(|at| row(at / k) * k + slot(at % k)).collect();
            let other = Choice {
                indices: places.iter().map(|at| choice.indices[*at]).collect(),
                ..choice.clone()
            };
            let weights = Tensor::new([tokens, k], places.iter().map(|at| weights.data[*at]).collect());
            let input = Tensor::new(
                [tokens, input.cols()],
                (0..tokens).flat_map(|at| input.row(row(at)).to_vec()).collect(),
            );
            experts.apply(&input, &other, &weights, &Plain)
        };
        let slots = mixture(&|row| row, &|slot| k - 1 - slot);
        assert!(slots == want, "layer {layer}: slots");
        let rows = mixture(&|row| tokens - 1 - row, &|slot| slot);
        assert!(
            (0..tokens).all(|row| rows.row(tokens - 1 - row) == want.row(row)),
            "layer {layer}: tokens"
        );
    }
}

/// In f32, as it is: every entry is pooled from its tokens in their order, whenever they come.
#[test]
fn pools_do_not_see_cuts() {
    for (layer, rate, sparse) in SMALL.compressed() {
        let (values, logits) = pool_input(layer, MAIN, 0);
        let whole = pooled(rate, sparse, &(values.clone(), logits.clone()));
        let dim = whole.cols();
        for chunk in [1, 2, rate - 1, rate, rate + 1, 2 * rate + 1] {
            let (mut pool, mut entries) = (Pool::new(rate, sparse, dim), Vec::new());
            for first in (0..values.rows()).step_by(chunk) {
                let rows = first..(first + chunk).min(values.rows());
                entries.extend(pool.push(&span(&values, rows.clone()), &span(&logits, rows)).data);
            }
            assert!(entries == whole.data, "layer {layer}, chunks of {chunk}");
            let mut at_once = Pool::new(rate, sparse, dim);
            at_once.push(&values, &logits);
            assert!(
                pool.pending() == at_once.pending(),
                "layer {layer}, chunks of {chunk}: what waits"
            );
        }
    }
}
