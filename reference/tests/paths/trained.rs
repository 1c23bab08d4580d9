//! The trained minis against what `transformers` computes of them: `fixtures/README.md` says what the oracles hold.

use std::path::PathBuf;

use reference::paths::{Model, load, read};
use reference::weights::Safetensors;
use reference::{Plain, Tensor};

use super::families::{distance, read_in_calls};

/// What a model gives of the oracle's tokens: the streams that leave its layers, then the logits.
fn outputs(name: &str, oracle: &Safetensors, calls: impl Fn(usize) -> Vec<usize>) -> Vec<Tensor<f64>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../datasets")).join(name);
    let config = std::fs::read_to_string(folder.join("config.json")).expect("a configuration");
    let config = read(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut weights = Safetensors::open(folder.join("model.safetensors")).expect("weights");
    let model: Box<dyn Model<f32>> = load(&*config, &mut weights, &mut Plain).expect("a model");
    let ids = oracle.integers("input_ids", &[192], 256).expect("tokens");
    let mut state = model.state(Vec::new()).expect("a state");
    read_in_calls(&*model, &mut *state, &ids, &calls(ids.len()), &|_, _| {})
}

/// The distance of every layer's stream, then that of the logits, on the rows that the oracle keeps.
fn distances(oracle: &Safetensors, outputs: &[Tensor<f64>]) -> Vec<f64> {
    let rows = oracle.integers("rows", &[23], 192).expect("rows");
    let (logits, layers) = outputs.split_last().expect("logits");
    let of = |output: &Tensor<f64>, name: &str| {
        let got = output.pick(rows.iter().map(|&row| row as usize));
        let want = oracle.floats(name, &got.shape).expect("floats");
        distance(&got.data, &want.into_iter().map(f64::from).collect::<Vec<_>>())
    };
    let layers = layers.iter().enumerate();
    let mut distances: Vec<f64> = layers
        .map(|(layer, output)| of(output, &format!("L{layer}.out")))
        .collect();
    distances.push(of(logits, "logits"));
    distances
}

/// Streams of 48 blocks, each at most 15 u from the oracle's, which sums in another order: √48 · 15 u = 6e-6.
#[track_caller]
fn agrees(name: &str, layers: usize) {
    let oracle = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"));
    let oracle = Safetensors::open(oracle.join(name).join("oracle.safetensors")).expect("an oracle");
    let whole = outputs(name, &oracle, |tokens| vec![tokens]);
    assert_eq!(whole.len(), layers + 1);
    let found = distances(&oracle, &whole);
    let most = found.iter().copied().fold(0.0, f64::max);
    println!("{name}: {most:.2e} at most, logits {:.2e}", found[layers]);
    assert!(found.iter().all(|&x| x <= 1e-5), "{name}: {found:?}");
    let decoded = distances(&oracle, &outputs(name, &oracle, |tokens| vec![1; tokens]));
    println!("{name}, token by token: logits {:.2e}", decoded[layers]);
    assert!(
        decoded.iter().all(|&x| x <= 1e-5),
        "{name}, token by token: {decoded:?}"
    );
}

#[test]
fn qwen3_mini() {
    agrees("qwen3-mini", 24);
}

#[test]
fn gptoss_mini() {
    agrees("gptoss-mini", 12);
}

#[test]
fn qwen35_mini() {
    agrees("qwen35-mini", 24);
}
