//! The seam: which sites are called, in what order and with what, and that what is done there is obeyed.

use reference::ops::attention::{KeyRows, Sizes, attend};
use reference::paths::Config as _;
use reference::paths::deepseek_v4::{Config, LayerType, PATH, SITES};
use reference::sites::{Growth, Held};
use reference::{Choice, Plain, Role, Site, SiteKind, Tensor};

use super::models::*;
use super::moe::experts;
use super::support::*;

/// The calls that the list of sites promises for one chunk: site, role, first row, rows.
fn promised(config: &Config, start: usize, tokens: usize, watch: &Watch<'_, f32>) -> Vec<(Site, Vec<usize>)> {
    let mut calls = Vec::new();
    let layers = (0..config.num_hidden_layers).map(Some).chain([None]);
    for layer in layers {
        for info in SITES.iter().filter(|info| info.in_layers() == layer.is_some()) {
            let asked = info.kind != SiteKind::Watch || watch.wants;
            if !config.passes(info, layer) || !asked {
                continue;
            }
            // New entries of the caches, or one row for each token.
            let (first_row, rows) = match info.cache.map(|cache| cache.growth) {
                Some(Growth::Entry) => {
                    let rate = layer.and_then(|layer| config.compress_rate(layer)).expect("a rate");
                    (start / rate, (start + tokens) / rate - start / rate)
                }
                _ => (start, tokens),
            };
            let split = watch.splits && info.cache.is_some_and(|cache| cache.held == Held::KeyValue);
            let roles: &[Role] = if split {
                &[Role::Key, Role::Value]
            } else {
                &[Role::Both]
            };
            for &role in roles.iter().filter(|_| rows > 0) {
                let site = Site::new(layer, info.name).from_row(first_row).read_as(role);
                calls.push((site, shape(config, &info.shape(), tokens, rows)));
            }
        }
    }
    calls
}

/// A shape in words, `[T, hc_mult, hidden_size]`, in numbers.
fn shape(config: &Config, words: &str, tokens: usize, entries: usize) -> Vec<usize> {
    let number = |word: &str| match word {
        "T" => tokens,
        "n" => entries,
        "hc_mult" => config.hc_mult,
        "hidden_size" => config.hidden_size,
        "num_attention_heads" => config.num_attention_heads,
        "head_dim" => config.head_dim,
        "index_n_heads" => config.index_n_heads,
        "index_head_dim" => config.index_head_dim,
        "index_topk" => config.index_topk,
        "num_experts_per_tok" => config.num_experts_per_tok,
        "vocab_size" => config.vocab_size,
        "2 · moe_intermediate_size" => 2 * config.moe_intermediate_size,
        other => panic!("{other} is no word of the configuration"),
    };
    words.trim_matches(['[', ']']).split(", ").map(number).collect()
}

#[test]
fn sites_are_called_as_listed() {
    let model = &SMALL.f32;
    let config = model.config();
    for (wants, splits) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut state = model.state();
        let mut start = 0;
        for tokens in [1, 2, 13, 1, 22, 6] {
            let mut watch = Watch::new(|_| false);
            (watch.wants, watch.splits) = (wants, splits);
            run(model, &mut state, &small_ids(0)[start..start + tokens], [], &mut watch);
            let want = promised(config, start, tokens, &watch);
            for (i, (got, want)) in watch.calls.iter().zip(&want).enumerate() {
                assert_eq!(got, want, "call {i} of the chunk from {start}");
                let info = SITES
                    .iter()
                    .find(|info| info.name == got.0.name)
                    .expect("a listed site");
                if !matches!(info.kind, SiteKind::Choice(_)) {
                    assert_eq!(got.1.last(), Some(&config.cols(info)), "{}", got.0);
                }
            }
            assert_eq!(watch.calls.len(), want.len());
            start += tokens;
        }
    }
}

#[test]
fn names_of_sites() {
    let site = |layer, name| Site::new(layer, name).from_row(7);
    assert_eq!(
        site(Some(12), "attention.kv.window").to_string(),
        "layers.12.attention.kv.window"
    );
    assert_eq!(site(None, "logits").to_string(), "logits");
    let mut names: Vec<&str> = SITES.iter().map(|info| info.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SITES.len());
}

/// Prefill and decode, so that value copies live on in the caches.
const CHUNKS: [usize; 3] = [19, 1, 20];

fn record(watch: &mut Watch<'_, f32>) -> Tensor<f32> {
    watch.wants = true;
    let model = &SMALL.f32;
    run(model, &mut model.state(), &small_ids(0), CHUNKS, watch)
}

#[test]
fn watching_and_splitting_change_nothing() {
    let model = &SMALL.f32;
    let plain = run(model, &mut model.state(), &small_ids(0), CHUNKS, &mut Plain);
    for splits in [false, true] {
        let mut watch = Watch::all();
        watch.splits = splits;
        assert!(record(&mut watch) == plain);
        let copies = watch
            .tensors
            .iter()
            .filter_map(|(site, copy)| Some((site.strip_suffix(":value")?, copy)));
        let copies: Vec<_> = copies.collect();
        assert_eq!(copies.len(), if splits { 6 + 4 } else { 0 });
        assert!(copies.iter().all(|(site, copy)| watch.tensor(site) == *copy));
    }
}

/// Both value copies doubled: probabilities stay, heads double, to the bit. Doubled keys move the probabilities.
#[test]
fn values_are_read_as_values_only() {
    const LAYER: usize = 2;
    let site = |name: &str| format!("layers.{LAYER}.attention.{name}");
    let mut before = Watch::all();
    record(&mut before);
    let double = |role: Role| {
        let edit = move |site: &Site, tensor: &mut Tensor<f32>| {
            if site.layer == Some(LAYER) && site.name.starts_with("attention.kv.") && site.role == role {
                tensor.data.iter_mut().for_each(|x| *x *= 2.0);
            }
        };
        let mut watch = Watch::all().editing(edit);
        watch.splits = true;
        record(&mut watch);
        watch
    };
    let values = double(Role::Value);
    assert!(values.tensor(&site("indexer.mass")) == before.tensor(&site("indexer.mass")));
    let doubled = before.tensor(&site("heads")).data.iter().map(|x| 2.0 * x);
    assert!(values.tensor(&site("heads")).data.iter().copied().eq(doubled));
    assert!(values.tensor("layers.3.attention.query") != before.tensor("layers.3.attention.query"));

    let keys = double(Role::Key);
    let error = relative(
        &keys.tensor(&site("indexer.mass")).data,
        &before.tensor(&site("indexer.mass")).data,
    );
    assert!(error > 0.01, "{error}");
}

/// The last visible entries instead of the best: the heads are those of attention to window and these.
#[test]
fn an_overruled_top_k_is_obeyed() {
    const LAYER: usize = 2;
    // Two where the indexer takes four.
    let forced = |token: usize| ((token + 1) / 4).saturating_sub(2)..(token + 1) / 4;
    let overrule = |site: &Site, choice: &mut Choice<f32>| {
        if site.layer == Some(LAYER) && site.name == "attention.indexer.topk" {
            choice.indices.fill(-1);
            for row in 0..choice.rows() {
                for (slot, entry) in forced(site.first_row + row).enumerate() {
                    choice.indices[row * choice.k + slot] = entry as i32;
                }
            }
        }
    };
    let (mut plain, mut watch) = (Watch::all(), Watch::all().overruling(overrule));
    record(&mut plain);
    record(&mut watch);
    let of = |name: &str| watch.tensor(&format!("layers.{LAYER}.attention.{name}"));
    let parts = ["kv.window", "kv.compressed"].map(|name| KeyRows {
        keys: &of(name).data,
        values: &of(name).data,
    });
    let sinks = SMALL.weight(LAYER, "self_attn.sinks").data;
    let (heads, p) = attend(
        &of("query").data,
        &sinks,
        Sizes::of(32),
        parts,
        |part, row, key| match part {
            0 => key <= row && row < key + 8,
            _ => forced(row).contains(&key),
        },
    );
    let mut heads = Tensor::new([TOKENS, 4, 32], heads);
    SMALL.rope(LAYER, TOKENS).apply(&mut heads, 4, |token| token, true);
    agrees("heads", &of("heads").data, &heads.data);

    let width = TOKENS + TOKENS / 4;
    for token in 0..TOKENS {
        for (slot, entry) in forced(token).enumerate() {
            let column = |head: usize| p[(token * 4 + head) * width + TOKENS + entry];
            let mean = (0..4).map(column).sum::<f32>() / 4.0;
            let mass = of("indexer.mass").row(token)[slot];
            assert!((mass - mean).abs() <= 1e-6 * mean, "token {token}: {mass} {mean}");
        }
        assert!(of("indexer.mass").row(token)[2..].iter().all(|&mass| mass == 0.0));
    }
    assert!(plain.tensor("layers.2.attention.heads") != of("heads"));
}

#[test]
fn an_overruled_router_is_obeyed() {
    const LAYER: usize = 3;
    let forced = [5, 0, 6];
    let overrule = |site: &Site, choice: &mut Choice<f32>| {
        if site.layer == Some(LAYER) && site.name == "moe.router" {
            choice.indices = forced.repeat(choice.rows());
        }
    };
    let mut watch = Watch::all().overruling(overrule);
    record(&mut watch);
    let input = watch.tensor("layers.3.moe.input");
    let mut sigma = SMALL.linear::<f32>(LAYER, "mlp.gate.weight").apply(input);
    reference::ops::router::sqrt_softplus(&mut sigma);
    let choice = Choice {
        indices: forced.repeat(TOKENS),
        k: 3,
        scores: sigma.clone(),
    };
    let weights = reference::ops::router::weights(&sigma, &choice, 1.5);
    let want = experts(LAYER, 1.0).apply(input, &choice, &weights, &Plain);
    agrees("experts", &watch.tensor("layers.3.moe.output").data, &want.data);
}

/// What is left in a tensor is what the path goes on with, at every site that passes one.
#[test]
fn every_edit_reaches_the_logits() {
    let model = &SMALL.f32;
    let config = model.config();
    let plain = run(model, &mut model.state(), &small_ids(0), CHUNKS, &mut Plain);
    for layer in (0..config.num_hidden_layers).map(Some).chain([None]) {
        let sites = SITES
            .iter()
            .filter(|info| info.in_layers() == layer.is_some() && config.passes(info, layer));
        for info in sites.filter(|info| !matches!(info.kind, SiteKind::Choice(_))) {
            let edit = |site: &Site, tensor: &mut Tensor<f32>| {
                if site.layer == layer && site.name == info.name {
                    // Not a factor, which a norm would take away; not alike for all, which top-k would not see.
                    tensor.data.iter_mut().step_by(3).for_each(|x| *x = -*x);
                }
            };
            let mut watch = Watch::new(|_| false).editing(edit);
            let changed = record(&mut watch) != plain;
            assert_eq!(changed, info.kind == SiteKind::Tensor, "{layer:?} {}", info.name);
        }
    }
}

/// The lists agree on which layers have what.
#[test]
fn sites_by_layer_type() {
    let config = &MINI.config;
    let passes = |name: &str, layer| config.passes(PATH.site(name).expect("a listed site"), layer);
    let layers = |name: &str| (0..61).filter(|&layer| passes(name, Some(layer))).count();
    assert_eq!(layers("attention.kv.window"), 61);
    assert_eq!(layers("attention.kv.compressed"), 61);
    assert_eq!(
        layers("attention.indexer.topk"),
        MINI.layers_of(LayerType::Sparse).count()
    );
    assert_eq!(layers("moe.router"), 58);
    assert_eq!(layers("logits"), 0);
    assert!(passes("logits", None) && !passes("input", None));
}
