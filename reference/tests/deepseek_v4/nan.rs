//! NaN is never swallowed, and never reaches the past.

use reference::{Plain, Site, Tensor};

use super::models::*;
use super::support::*;

/// One NaN in one stream of one token makes NaN of all its logits and of those of the next tokens, whose windows it is in;
/// the tokens before it stay what they were, to rounding, also when they are computed in the same call.
#[test]
fn from_the_streams() {
    const TOKEN: usize = 17;
    let model = &SMALL.f32;
    let ids = small_ids(0);
    for layer in 0..6 {
        for chunks in [vec![], vec![TOKEN, 1], vec![1; TOKENS]] {
            let clean = run(model, &mut model.state(), &ids, chunks.clone(), &mut Plain);
            let edit = |site: &Site, tensor: &mut Tensor<f32>| {
                let rows = site.first_row..site.first_row + tensor.shape[0];
                if site.name == "input" && site.layer == Some(layer) && rows.contains(&TOKEN) {
                    let width = tensor.data.len() / tensor.shape[0];
                    tensor.data[(TOKEN - site.first_row) * width + 5] = f32::NAN;
                }
            };
            let mut watch = Watch::new(|_| false).editing(edit);
            let logits = run(model, &mut model.state(), &ids, chunks, &mut watch);
            for token in 0..TOKENS {
                let (got, clean) = (logits.row(token), clean.row(token));
                if token < TOKEN {
                    let error = farthest(got, clean) / top(clean);
                    assert!(
                        error <= 1e-5,
                        "layer {layer}: token {token}, before the NaN, is off by {error}"
                    );
                } else if token < TOKEN + 8 {
                    assert!(got.iter().all(|x| x.is_nan()), "layer {layer} token {token}");
                }
            }
        }
    }
}

/// A weight that is NaN makes NaN of the logits, or, where it only decides, of the scores that decide.
#[test]
fn from_every_weight() {
    let (config, ids) = (&SMALL.config, small_ids(0));
    for spec in config.tensors().into_iter().filter(|spec| !spec.integer) {
        let mut weights = SMALL.weights.clone();
        let tensor = weights.0.get_mut(&spec.name).expect("every tensor is in the file");
        tensor.data.fill(f32::NAN);
        let model = load::<f32>(config, &weights);
        let mut watch = Watch::new(|_| true);
        let logits = run(&model, &mut model.state(), &ids[..PREFILL], [], &mut watch);
        let last = logits.row(PREFILL - 1);
        if spec.name.contains(".indexer.") || spec.name.ends_with("e_score_correction_bias") {
            let layer: usize = spec
                .name
                .split('.')
                .nth(2)
                .and_then(|part| part.parse().ok())
                .expect("a layer");
            let site = if spec.name.contains(".indexer.") {
                "attention.indexer.topk"
            } else {
                "moe.router"
            };
            let choice = &watch.choice(&format!("layers.{layer}.{site}"))[0];
            let scores = choice.scores.row(PREFILL - 1);
            assert!(scores.iter().all(|score| score.is_nan()), "{}: {scores:?}", spec.name);
        } else {
            assert!(last.iter().all(|x| x.is_nan()), "{}", spec.name);
        }
    }
}

/// An index score that is NaN, whatever its sign, is selected, so that who counts NaN finds its entry.
#[test]
fn nan_entries_are_selected() {
    for nan in [f32::NAN, -f32::NAN] {
        let edit = |site: &Site, tensor: &mut Tensor<f32>| {
            if site.name == "attention.indexer.key" && site.layer == Some(4) {
                tensor.row_mut(1).fill(nan);
            }
        };
        let mut watch = Watch::all().editing(edit);
        let model = &SMALL.f32;
        run(model, &mut model.state(), &small_ids(0), [], &mut watch);
        let choice = &watch.choice("layers.4.attention.indexer.topk")[0];
        assert!((7..TOKENS).all(|token| choice.selected(token).next() == Some(1)));
    }
}
