//! Plausible mistakes, each made on purpose through the public operations: all are far outside the tolerances.

use reference::ops::router::weights;
use reference::paths::deepseek_v4::LayerType;
use reference::{Plain, Tensor};

use super::blocks::{attention, in_window, mixer, mixing, reads};
use super::models::*;
use super::moe::{experts, routed, sigma};
use super::support::*;

/// Ten times what a block may be off by, at the least.
fn caught<T: reference::Real>(what: &str, got: &[T], want: &[f32]) {
    let error = relative(got, want);
    println!("{what}: {error:.2e}");
    assert!(error > 10.0 * LOCAL, "{what}: {error:e} would pass");
}

/// Not seen before the first layer's attention, where all streams are equal.
#[test]
fn comb_transposed() {
    for layer in 0..6 {
        let moe = ("ffn_hc", activation(layer, "ffn_hc.in").clone(), "mlp.out", "out");
        let attention = (layer > 0).then(|| ("attn_hc", streams(layer), "self_attn.out.0", "ffn_hc.in"));
        for (name, mut x, output, after) in attention.into_iter().chain([moe]) {
            let mut mixing = mixing(layer, name);
            for c in mixing.comb.data.chunks_exact_mut(16) {
                let old = c.to_vec();
                c.iter_mut().enumerate().for_each(|(i, c)| *c = old[i % 4 * 4 + i / 4]);
            }
            mixing.mix(&mut x, activation(layer, output));
            caught("C transposed", &x.data, &activation(layer, after).data);
        }
    }
}

#[test]
fn sinkhorn_otherwise() {
    for layer in 0..6 {
        let want = mixing(layer, "attn_hc").comb;
        let comb = |change: fn(&mut reference::ops::hyper_connection::HyperConnection<f32>)| {
            let mut mixer = mixer(layer, "attn_hc");
            change(&mut mixer);
            mixer.pre(&streams(layer)).1.comb.data
        };
        caught("no Sinkhorn", &comb(|mixer| mixer.iterations = 1), &want.data);
        caught("large ε", &comb(|mixer| mixer.eps = 1e-4), &want.data);
    }
}

/// Rotates the oracle's queries after moving channels, and moves them back.
fn rotated(layer: usize, moved: impl Fn(usize) -> usize) -> Vec<f32> {
    let mut x = activation(layer, "self_attn.q_b_norm.out").swapped();
    let order = |x: &mut Tensor<f32>, from: &dyn Fn(usize) -> usize| {
        for row in x.data.chunks_exact_mut(32) {
            let old = row.to_vec();
            row.iter_mut().enumerate().for_each(|(i, x)| *x = old[from(i)]);
        }
    };
    let back = |i: usize| (0..32).find(|&j| moved(j) == i).expect("a permutation");
    order(&mut x, &moved);
    SMALL.rope(layer, PREFILL).apply(&mut x, 4, |token| token, false);
    order(&mut x, &back);
    x.data
}

#[test]
fn rope_elsewhere() {
    for layer in 0..6 {
        let want = inside(layer, "attn.q").swapped().data;
        agrees("no channel moved", &rotated(layer, |i| i), &want);
        caught("leading channels", &rotated(layer, |i| (i + 8) % 32), &want);
        // Pairs (i, i + r/2) instead of (2i, 2i + 1).
        let halves = |i: usize| {
            if i < 24 {
                i
            } else {
                24 + (i - 24) / 2 + (i - 24) % 2 * 4
            }
        };
        caught("half-split", &rotated(layer, halves), &want);
        let other = if layer == 0 { 1 } else { 0 };
        let mut x = activation(layer, "self_attn.q_b_norm.out").swapped();
        SMALL.rope(other, PREFILL).apply(&mut x, 4, |token| token, false);
        if SMALL.config.layer_types[layer] != LayerType::Sliding || layer == 0 {
            caught("the other table", &x.data, &want);
        }
        let mut heads = inside(layer, "attn.out_rotated").clone();
        SMALL.rope(layer, PREFILL).apply(&mut heads, 4, |token| token, false);
        caught(
            "turned on instead of back",
            &heads.data,
            &inside(layer, "attn.heads").swapped().data,
        );
    }
}

#[test]
fn compressor_otherwise() {
    const MAIN: &str = "self_attn.compressor";
    for (layer, rate, sparse) in SMALL.compressed() {
        let want = &activation(layer, &format!("{MAIN}.kv_norm.in")).data;
        let input = pool_input(layer, MAIN, 1);
        caught("position bias off by one", &pooled(rate, sparse, &input).data, want);
        if sparse {
            // Each window alone, from its own halves.
            let (values, logits) = pool_input(layer, MAIN, 0);
            let own = |x: &Tensor<f32>| {
                let halves = (0..x.rows()).flat_map(|row| x.row(row)[x.cols() / 2..].to_vec());
                Tensor::new([x.rows(), x.cols() / 2], halves.collect())
            };
            caught(
                "no overlap",
                &pooled(rate, false, &(own(&values), own(&logits))).data,
                want,
            );
            // [Cb | Ca] for [Ca | Cb].
            let swapped = |x: &Tensor<f32>| {
                let mut x = x.clone();
                let half = x.cols() / 2;
                x.data.chunks_exact_mut(2 * half).for_each(|row| row.rotate_left(half));
                x
            };
            caught(
                "halves swapped",
                &pooled(rate, true, &(swapped(&values), swapped(&logits))).data,
                want,
            );
        }
        let mut entries = activation(layer, &format!("{MAIN}.kv_norm.out")).clone();
        let rope = SMALL.rope(layer, PREFILL);
        rope.apply(&mut entries, 1, |entry| (entry + 1) * rate - 1, false);
        let want = &activation(layer, &format!("{MAIN}.out.0")).data;
        caught("entry at its last token's position", &entries.data, want);
    }
}

#[test]
fn attention_otherwise() {
    for layer in 0..6 {
        let sinks = SMALL.weight(layer, "self_attn.sinks").data;
        let want = &inside(layer, "attn.out_rotated").data;
        let entry = |query: usize, entry: usize| reads(layer, query, entry);
        caught(
            "no sink",
            &attention(layer, &[f32::NEG_INFINITY; 4], in_window, entry).0,
            want,
        );
        let scaled: Vec<f32> = sinks.iter().map(|sink| sink / 32f32.sqrt()).collect();
        caught("sink scaled", &attention(layer, &scaled, in_window, entry).0, want);
        let wider = |query: usize, key: usize| key <= query && query <= key + 8;
        caught("window of one more", &attention(layer, &sinks, wider, entry).0, want);
        let narrower = |query: usize, key: usize| key <= query && query < key + 7;
        caught("window of one less", &attention(layer, &sinks, narrower, entry).0, want);
        if let Some(rate) = SMALL.config.compress_rate(layer) {
            // A token early: on top of what the layer reads, the entry that the next token will complete.
            let early =
                |query: usize, key: usize| entry(query, key) || (query + 2).is_multiple_of(rate) && key == query / rate;
            caught(
                "entry a token early",
                &attention(layer, &sinks, in_window, early).0,
                want,
            );
            let late = |query: usize, key: usize| entry(query, key) && key < query / rate;
            caught("entry a token late", &attention(layer, &sinks, in_window, late).0, want);
        }
    }
}

#[test]
fn router_and_experts_otherwise() {
    for layer in 0..6 {
        let (choice, right) = routed(layer);
        let input = activation(layer, "post_attention_layernorm.out");
        let want = &activation(layer, "mlp.out").data;
        if layer >= 2 {
            let bias = SMALL.weight::<f32>(layer, "mlp.gate.e_score_correction_bias").data;
            let mut biased = sigma(layer);
            for row in biased.data.chunks_exact_mut(8) {
                row.iter_mut().zip(&bias).for_each(|(sigma, &bias)| *sigma += bias);
            }
            caught("biased weights", &weights(&biased, &choice, 1.5).data, &right.data);
        }
        caught("γ left out", &weights(&sigma(layer), &choice, 1.0).data, &right.data);
        let unclamped = experts(layer, f32::INFINITY).apply(input, &choice, &right, &Plain);
        caught("no clamp", &unclamped.data, want);
    }
}
