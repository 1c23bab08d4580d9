//! dsv4-small, block by block: every operation fed what the oracle fed it.

use reference::Tensor;
use reference::ops::attention::{KeyRows, Sizes, attend};
use reference::ops::hyper_connection::{HyperConnection, HyperHead, Mixing};
use reference::ops::indexer;
use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::{Rope, Yarn, frequencies};
use reference::paths::deepseek_v4::LayerType;

use super::models::*;
use super::support::*;

const LAYERS: std::ops::Range<usize> = 0..6;
const MAIN: &str = "self_attn.compressor";
const INDEX: &str = "self_attn.compressor.indexer";

fn normed(x: &Tensor<f32>, weight: Option<&[f32]>) -> Tensor<f32> {
    let mut x = x.clone();
    rmsnorm(&mut x, weight, 1e-6);
    x
}

#[test]
fn norms() {
    let check = |layer: usize, input: &str, norm: &str| {
        let weight = SMALL.weight(layer, &format!("{norm}.weight"));
        let got = normed(activation(layer, input), Some(&weight.data));
        let want = activation(layer, &format!("{norm}.out"));
        agrees(&format!("layer {layer} {norm}"), &got.data, &want.data);
    };
    for layer in LAYERS {
        check(layer, "attn_hc.out.2", "input_layernorm");
        check(layer, "ffn_hc.out.2", "post_attention_layernorm");
        check(layer, "self_attn.q_a_proj.out", "self_attn.q_a_norm");
        check(layer, "self_attn.kv_proj.out", "self_attn.kv_norm");
        let mut heads = activation(layer, "self_attn.q_b_proj.out").clone();
        heads.shape = vec![PREFILL, 4, 32];
        let want = activation(layer, "self_attn.q_b_norm.out").swapped();
        agrees(
            &format!("layer {layer} query norm"),
            &normed(&heads, None).data,
            &want.data,
        );
    }
    for (layer, _, sparse) in SMALL.compressed() {
        for compressor in [Some(MAIN), Some(INDEX).filter(|_| sparse)].into_iter().flatten() {
            let norm = format!("{compressor}.kv_norm");
            check(layer, &format!("{norm}.in"), &norm);
        }
    }
    let weight = &SMALL.weights.get("model.norm.weight").data;
    let got = normed(ACTIVATIONS.get("model.hc_head.out"), Some(weight));
    agrees("last norm", &got.data, &ACTIVATIONS.get("model.norm.out").data);
}

/// Where ε counts: rows as small as its root, and of zeros.
#[test]
fn norms_of_small_rows() {
    let rows = Tensor::new([2, 4], vec![1e-3, -1e-3, 1e-3, -1e-3, 0.0, 0.0, 0.0, 0.0]);
    let want = [1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0].map(|x: f64| x * 0.5f64.sqrt());
    within("small rows", farthest(&normed(&rows, None).data, &want), LOCAL);
}

#[test]
fn linear_layers() {
    let check = |layer: usize, name: &str, input: &str| {
        let got = SMALL
            .linear::<f32>(layer, &format!("{name}.weight"))
            .apply(activation(layer, input));
        let want = activation(layer, &format!("{name}.out"));
        agrees(&format!("layer {layer} {name}"), &got.data, &want.data);
    };
    for layer in LAYERS {
        check(layer, "self_attn.q_a_proj", "input_layernorm.out");
        check(layer, "self_attn.kv_proj", "input_layernorm.out");
        check(layer, "self_attn.q_b_proj", "self_attn.q_a_norm.out");
    }
    for (layer, _, sparse) in SMALL.compressed() {
        for compressor in [Some(MAIN), Some(INDEX).filter(|_| sparse)].into_iter().flatten() {
            check(layer, &format!("{compressor}.kv_proj"), "input_layernorm.out");
            check(layer, &format!("{compressor}.gate_proj"), "input_layernorm.out");
        }
        if sparse {
            check(layer, &format!("{INDEX}.q_b_proj"), "self_attn.q_a_norm.out");
            check(layer, &format!("{INDEX}.scorer.weights_proj"), "input_layernorm.out");
        }
    }
    let head = SMALL.weights.get("lm_head.weight").clone();
    let logits = head.apply(ACTIVATIONS.get("model.norm.out"));
    agrees("head", &logits.data, &IO.get("logits_prefill").data[..PREFILL * 96]);
}

/// The published models' frequencies and tables, up to their longest context, and dsv4-small's.
#[test]
fn rope_tables() {
    let yarn = Yarn {
        factor: 16.0,
        original_positions: 65536.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
    };
    let published = File::fixture("rope.safetensors");
    for (kind, theta, yarn) in [("main", 1e4, None), ("compress", 1.6e5, Some(yarn))] {
        let got = frequencies(64, theta, yarn);
        assert_eq!(got, published.get(&format!("{kind}.frequencies")).data, "{kind}");
        let mut rope = Rope::<f32>::new(got);
        rope.extend(1 << 20);
        let positions = published.numbers("positions");
        // Turning (1, 0) gives (cos, sin). PyTorch's are within 1 ulp of the exact value; ulps below 1 are at most 2⁻²⁴.
        let mut unit = Tensor::new([positions.len(), 64], [1.0, 0.0].repeat(positions.len() * 32));
        rope.apply(&mut unit, 1, |row| positions[row], false);
        let (cos, sin): (Vec<f32>, Vec<f32>) = unit.data.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
        for (name, got) in [("cos", cos), ("sin", sin)] {
            let want = &published.get(&format!("{kind}.{name}")).data;
            within(&format!("{kind} {name}"), farthest(&got, want), 2f64.powi(-24));
        }
    }
    let of = |kind| SMALL.config.rope_frequencies(kind);
    assert_eq!(of(LayerType::Sliding), IO.get("main_inv_freq").data);
    assert_eq!(of(LayerType::Sparse), IO.get("compress_inv_freq").data);
    assert_eq!(of(LayerType::Heavy), IO.get("compress_inv_freq").data);
}

#[test]
fn rope_of_every_layer() {
    for layer in LAYERS {
        let rope = SMALL.rope(layer, PREFILL);
        let check = |what: &str, mut x: Tensor<f32>, heads: usize, rate: usize, inverse: bool, want: &[f32]| {
            rope.apply(&mut x, heads, |row| row * rate, inverse);
            agrees(&format!("layer {layer} {what}"), &x.data, want);
        };
        let queries = activation(layer, "self_attn.q_b_norm.out").swapped();
        check("query", queries, 4, 1, false, &inside(layer, "attn.q").swapped().data);
        let kv = activation(layer, "self_attn.kv_norm.out").clone();
        let want = &inside(layer, "attn.kv").data[..PREFILL * 32];
        check("kv", kv, 1, 1, false, want);
        let heads = inside(layer, "attn.out_rotated").clone();
        check(
            "inverse",
            heads,
            4,
            1,
            true,
            &inside(layer, "attn.heads").swapped().data,
        );
        let Some(rate) = SMALL.config.compress_rate(layer) else {
            continue;
        };
        let entries = activation(layer, &format!("{MAIN}.kv_norm.out")).clone();
        let want = activation(layer, &format!("{MAIN}.out.0"));
        check("entries", entries, 1, rate, false, &want.data);
        if SMALL.config.layer_types[layer] == LayerType::Sparse {
            let keys = activation(layer, &format!("{INDEX}.kv_norm.out")).clone();
            check("index keys", keys, 1, rate, false, &inside(layer, "index_keys").data);
            let mut queries = activation(layer, &format!("{INDEX}.q_b_proj.out")).clone();
            queries.shape = vec![PREFILL, 16, 16];
            let want = inside(layer, "index_queries").swapped();
            check("index queries", queries, 16, 1, false, &want.data);
        }
    }
}

pub fn mixer(layer: usize, name: &str) -> HyperConnection<f32> {
    let scale = SMALL.weight(layer, &format!("{name}.scale")).data;
    HyperConnection {
        projection: SMALL.linear(layer, &format!("{name}.fn")),
        base: SMALL.weight(layer, &format!("{name}.base")).data,
        scale: [scale[0], scale[1], scale[2]],
        streams: 4,
        iterations: 20,
        norm_eps: 1e-6,
        eps: 1e-6,
    }
}

pub fn mixing(layer: usize, name: &str) -> Mixing<f32> {
    Mixing {
        post: activation(layer, &format!("{name}.out.0")).clone(),
        comb: activation(layer, &format!("{name}.out.1")).clone(),
    }
}

#[test]
fn hyper_connections() {
    for layer in LAYERS {
        let (attention, moe) = (streams(layer), activation(layer, "ffn_hc.in").clone());
        let outputs = [("self_attn.out.0", "ffn_hc.in"), ("mlp.out", "out")];
        for ((name, x), (output, after)) in [("attn_hc", attention), ("ffn_hc", moe)].into_iter().zip(outputs) {
            let mixer = mixer(layer, name);
            let (input, got) = mixer.pre(&x);
            let want = mixing(layer, name);
            agrees(&format!("layer {layer} {name} post"), &got.post.data, &want.post.data);
            agrees(&format!("layer {layer} {name} comb"), &got.comb.data, &want.comb.data);
            let collapsed = activation(layer, &format!("{name}.out.2"));
            agrees(&format!("layer {layer} {name} pre"), &input.data, &collapsed.data);
            let mut x = x;
            want.mix(&mut x, activation(layer, output));
            agrees(
                &format!("layer {layer} {name} mixed"),
                &x.data,
                &activation(layer, after).data,
            );
        }
    }
    let of = |name: &str| SMALL.weights.get(&format!("model.hc_head.{name}")).clone();
    let head = HyperHead {
        projection: of("hc_fn"),
        base: of("hc_base").data,
        scale: of("hc_scale").data[0],
        norm_eps: 1e-6,
        eps: 1e-6,
    };
    let got = head.apply(activation(5, "out"));
    agrees("head mixing", &got.data, &ACTIVATIONS.get("model.hc_head.out").data);
}

/// Attention of a layer's dumped queries, window and entries. Rules: (query, key token) and (query, entry).
pub fn attention(
    layer: usize,
    sinks: &[f32],
    window: impl Fn(usize, usize) -> bool,
    entry: impl Fn(usize, usize) -> bool,
) -> (Vec<f32>, Vec<f32>) {
    let queries = inside(layer, "attn.q").swapped();
    let (recent, entries) = inside(layer, "attn.kv").data.split_at(PREFILL * 32);
    let parts = [recent, entries].map(|rows| KeyRows {
        keys: rows,
        values: rows,
    });
    attend(
        &queries.data,
        sinks,
        Sizes::of(32),
        parts,
        |part, row, key| match part {
            0 => window(row, key),
            _ => entry(row, key),
        },
    )
}

/// Which entries a query of dsv4-small's prefill reads, by the oracle's own indexer.
pub fn reads(layer: usize, query: usize, entry: usize) -> bool {
    match SMALL.config.layer_types[layer] {
        LayerType::Sparse => activation(layer, &format!("{INDEX}.out"))
            .row(query)
            .contains(&(entry as f32)),
        _ => entry < (query + 1) / 8,
    }
}

pub fn in_window(query: usize, key: usize) -> bool {
    key <= query && query < key + 8
}

#[test]
fn attention_probabilities_and_heads() {
    for layer in LAYERS {
        let sinks = SMALL.weight(layer, "self_attn.sinks").data;
        let (out, p) = attention(layer, &sinks, in_window, |query, entry| reads(layer, query, entry));
        let width = p.len() / (PREFILL * 4);
        let p = Tensor::new([PREFILL, 4, width], p);
        let want = inside(layer, "attn.probs_without_sink");
        agrees(&format!("layer {layer} probabilities"), &p.swapped().data, &want.data);
        assert!(
            p.swapped()
                .data
                .iter()
                .zip(&want.data)
                .all(|(p, want)| (*p == 0.0) == (*want == 0.0))
        );
        agrees(
            &format!("layer {layer} heads"),
            &out,
            &inside(layer, "attn.out_rotated").data,
        );
    }
}

#[test]
fn compressors() {
    for (layer, rate, sparse) in SMALL.compressed() {
        for compressor in [Some(MAIN), Some(INDEX).filter(|_| sparse)].into_iter().flatten() {
            let got = pooled(rate, sparse, &pool_input(layer, compressor, 0));
            let want = activation(layer, &format!("{compressor}.kv_norm.in"));
            assert_eq!(got.rows(), PREFILL / rate);
            agrees(&format!("layer {layer} {compressor}"), &got.data, &want.data);
        }
    }
}

#[test]
fn indexer_scores_and_top_k() {
    for layer in SMALL.layers_of(LayerType::Sparse) {
        let queries = inside(layer, "index_queries").swapped();
        let mut weights = activation(layer, &format!("{INDEX}.scorer.weights_proj.out")).clone();
        weights.data.iter_mut().for_each(|a| *a *= 1.0 / 16.0); // 16 heads of 16 channels: (16·16)^-½
        let keys = &inside(layer, "index_keys").data;
        let choice = indexer::select(&queries, &weights, keys, 4, |row| (row + 1) / 4);
        let want = activation(layer, &format!("{INDEX}.scorer.out"));
        let visible = |scores: &Tensor<f32>| -> Vec<f32> {
            (0..PREFILL)
                .flat_map(|row| scores.row(row)[..(row + 1) / 4].to_vec())
                .collect()
        };
        agrees(
            &format!("layer {layer} scores"),
            &visible(&choice.scores),
            &visible(want),
        );
        let hidden = |row: usize| choice.scores.row(row)[(row + 1) / 4..].iter();
        assert!((0..PREFILL).all(|row| hidden(row).all(|score| *score == f32::NEG_INFINITY)));
        // The oracle too has them best first, and its smallest gap between two of a row's scores is far above rounding.
        let want: Vec<i32> = activation(layer, &format!("{INDEX}.out"))
            .data
            .iter()
            .map(|&x| x as i32)
            .collect();
        assert_eq!(choice.indices, want, "layer {layer}");
    }
}
