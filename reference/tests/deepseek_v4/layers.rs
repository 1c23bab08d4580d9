//! dsv4-small, site by site: what a layer gives when everything before it is the oracle's, and the whole layer.

use reference::paths::deepseek_v4::LayerType;
use reference::{Choice, Site, Tensor};

use super::models::*;
use super::support::*;

/// What the oracle has at a site, in the first sequence's prefill.
fn dump(site: &Site) -> Option<Tensor<f32>> {
    let layer = site.layer?;
    Some(match site.name {
        "input" => streams(layer),
        "attention.input" => activation(layer, "input_layernorm.out").clone(),
        "attention.query" => inside(layer, "attn.q").swapped(),
        "attention.kv.window" => Tensor::new([PREFILL, 32], inside(layer, "attn.kv").data[..PREFILL * 32].to_vec()),
        "attention.kv.compressed" => {
            let entries = activation(layer, "self_attn.compressor.out.0");
            Tensor::new([entries.rows(), entries.cols()], entries.data.clone())
        }
        "attention.indexer.query" => inside(layer, "index_queries").swapped(),
        "attention.indexer.key" => {
            let keys = inside(layer, "index_keys");
            Tensor::new([keys.rows(), keys.cols()], keys.data.clone())
        }
        "attention.indexer.mass" => mass(layer),
        "attention.heads" => inside(layer, "attn.heads").swapped(),
        "attention.output" => activation(layer, "self_attn.out.0").clone(),
        "moe.input" => activation(layer, "post_attention_layernorm.out").clone(),
        "moe.output" => activation(layer, "mlp.out").clone(),
        "output" => activation(layer, "out").clone(),
        _ => return None,
    })
}

/// The oracle's choices.
fn decided(site: &Site) -> Vec<i32> {
    let layer = site.layer.expect("choices are made in layers");
    let name = match site.name {
        "attention.indexer.topk" => "self_attn.compressor.indexer.out",
        _ => "mlp.gate.out.2",
    };
    activation(layer, name).data.iter().map(|&index| index as i32).collect()
}

/// The scores they were made on.
fn scores(site: &Site) -> Tensor<f32> {
    let layer = site.layer.expect("choices are made in layers");
    if site.name == "attention.indexer.topk" {
        return activation(layer, "self_attn.compressor.indexer.scorer.out").clone();
    }
    let mut scores = super::moe::sigma(layer);
    let bias: Tensor<f32> = SMALL.weight(layer, "mlp.gate.e_score_correction_bias");
    for row in scores.data.chunks_exact_mut(bias.data.len()) {
        row.iter_mut().zip(&bias.data).for_each(|(score, &bias)| *score += bias);
    }
    scores
}

/// Pairs of scores of what a row may select; the oracle's are from before its mask.
fn candidates<'a>(got: &'a Tensor<f32>, want: &'a Tensor<f32>) -> impl Iterator<Item = (f32, f32)> + 'a {
    assert_eq!(got.shape, want.shape);
    let pairs = got.data.iter().copied().zip(want.data.iter().copied());
    pairs.filter(|(got, _)| *got != f32::NEG_INFINITY)
}

/// Probability of each selected entry, mean over heads, from the oracle's probabilities.
fn mass(layer: usize) -> Tensor<f32> {
    let selected = activation(layer, "self_attn.compressor.indexer.out");
    let p = inside(layer, "attn.probs_without_sink").swapped();
    let (heads, width) = (p.shape[1], p.cols());
    let of = |(slot, &entry): (usize, &f32)| {
        if entry < 0.0 {
            return 0.0;
        }
        let row = slot / selected.cols();
        let column = PREFILL + entry as usize;
        (0..heads)
            .map(|head| p.data[(row * heads + head) * width + column])
            .sum::<f32>()
            / heads as f32
    };
    Tensor::new([PREFILL, 4], selected.data.iter().enumerate().map(of).collect())
}

fn sets(indices: &[i32], k: usize) -> Vec<Vec<i32>> {
    let sorted = |row: &[i32]| {
        let mut row = row.to_vec();
        row.sort_unstable();
        row
    };
    indices.chunks_exact(k).map(sorted).collect()
}

/// Every site is compared with the oracle and then given the oracle's value, so that each step is measured alone.
#[test]
fn every_site_alone() {
    let mut compared = 0;
    let edit = |site: &Site, tensor: &mut Tensor<f32>| {
        let Some(want) = dump(site) else { return };
        assert_eq!(tensor.shape, want.shape, "{site}");
        agrees(&site.to_string(), &tensor.data, &want.data);
        compared += 1;
        *tensor = want;
    };
    let overrule = |site: &Site, choice: &mut Choice<f32>| {
        let want = decided(site);
        assert_eq!(sets(&choice.indices, choice.k), sets(&want, choice.k), "{site}");
        let (got, scores): (Vec<f32>, Vec<f32>) = candidates(&choice.scores, &scores(site)).unzip();
        agrees(&format!("{site} scores"), &got, &scores);
        choice.indices = want;
    };
    let mut watch = Watch::new(|_| false).editing(edit).overruling(overrule);
    watch.wants = true;
    let model = &SMALL.f32;
    let logits = run(model, &mut model.state(), &small_ids(0)[..PREFILL], [], &mut watch);
    drop(watch);
    assert_eq!(
        compared,
        6 * 9 + 4 + 2 * 3,
        "all layers, those with entries, those with an indexer"
    );
    agrees("logits", &logits.data, &IO.get("logits_prefill").data[..PREFILL * 96]);
}

/// The streams are copies of the embedding, bit for bit.
#[test]
fn embedding() {
    let mut watch = Watch::new(|site| site.name == "input" && site.layer == Some(0));
    let model = &SMALL.f32;
    run(model, &mut model.state(), &small_ids(0)[..PREFILL], [], &mut watch);
    assert_eq!(watch.tensor("layers.0.input"), &streams(0));
}

/// A layer from the oracle's streams to its own: two blocks' errors, of which streams keep a part: twice the bound of one.
#[test]
fn whole_layers() {
    let edit = |site: &Site, tensor: &mut Tensor<f32>| {
        let Some(want) = dump(site) else { return };
        match site.name {
            "input" => *tensor = want,
            "output" => within(&site.to_string(), relative(&tensor.data, &want.data), 2.0 * LOCAL),
            _ => {}
        }
    };
    let mut watch = Watch::new(|_| false).editing(edit);
    let model = &SMALL.f32;
    run(model, &mut model.state(), &small_ids(0)[..PREFILL], [], &mut watch);
}

/// Probability masses are what the oracle's probabilities say, and leave room for window and sink.
#[test]
fn masses() {
    let mut watch = Watch::new(|site| site.name == "attention.indexer.mass");
    watch.wants = true;
    let model = &SMALL.f32;
    run(model, &mut model.state(), &small_ids(0), [], &mut watch);
    for layer in SMALL.layers_of(LayerType::Sparse) {
        let got = watch.tensor(&format!("layers.{layer}.attention.indexer.mass"));
        assert_eq!(got.shape, [TOKENS, 4]);
        for row in 0..TOKENS {
            let sum: f32 = got.row(row).iter().sum();
            assert!(
                (0.0..1.0).contains(&sum) && (sum > 0.0) == (row >= 3),
                "token {row}: {sum}"
            );
        }
    }
}
