//! The two models with their fixtures.

use std::path::Path;
use std::sync::LazyLock;

use reference::ops::compressor::Pool;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, Model, Scalar, State};
use reference::{Numerics, Real, Tensor};

use super::support::{File, fixture};

/// dsv4-small: random weights, six layers of every type.
pub static SMALL: LazyLock<Fixture> = LazyLock::new(|| {
    Fixture::new(
        &fixture("dsv4-small/config.json"),
        &fixture("dsv4-small/weights.safetensors"),
    )
});
/// Its inputs and logits, both sequences.
pub static IO: LazyLock<File> = LazyLock::new(|| File::fixture("dsv4-small/io.safetensors"));
/// What its blocks gave in the prefill of the first sequence's first [`PREFILL`] tokens.
pub static ACTIVATIONS: LazyLock<File> = LazyLock::new(|| File::fixture("dsv4-small/activations.safetensors"));
pub const PREFILL: usize = 21;
pub const TOKENS: usize = 45;

/// dsv4-mini: trained, 61 layers.
pub static MINI: LazyLock<Fixture> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/dsv4-mini");
    Fixture::new(&folder.join("config.json"), &folder)
});
/// What it gave for the first 512 bytes of a text.
pub static ORACLE: LazyLock<File> = LazyLock::new(|| File::fixture("dsv4-mini/oracle.safetensors"));
pub static MINI_IDS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let ids = ORACLE.numbers("input_ids");
    ids.into_iter().map(|id| id as u32).collect()
});

pub struct Fixture {
    pub config: Config,
    pub weights: File,
    pub f32: LazyLock<Model<f32>, Box<dyn FnOnce() -> Model<f32> + Send>>,
    pub f64: LazyLock<Model<f64>, Box<dyn FnOnce() -> Model<f64> + Send>>,
}

impl Fixture {
    fn new(config: &Path, weights: &Path) -> Self {
        let text = std::fs::read_to_string(config).expect("a configuration");
        let config: Config = serde_json::from_str(&text).expect("a configuration");
        let weights = File::checkpoint(weights, &config);
        let (for_f32, for_f64) = ((config.clone(), weights.clone()), (config.clone(), weights.clone()));
        Self {
            config,
            weights,
            f32: LazyLock::new(Box::new(move || load(&for_f32.0, &for_f32.1))),
            f64: LazyLock::new(Box::new(move || load(&for_f64.0, &for_f64.1))),
        }
    }

    /// A tensor below `model.layers.N`.
    pub fn weight<T: Real>(&self, layer: usize, name: &str) -> Tensor<T> {
        self.weights.get(&format!("model.layers.{layer}.{name}")).cast()
    }

    pub fn linear<T: Real>(&self, layer: usize, name: &str) -> Tensor<T> {
        self.weight(layer, name)
    }

    pub fn rope<T: Real>(&self, layer: usize, positions: usize) -> Rope<T> {
        let mut rope = Rope::new(self.config.rope_frequencies(self.config.layer_types[layer]));
        rope.extend(positions);
        rope
    }

    pub fn layers_of(&self, kind: LayerType) -> impl Iterator<Item = usize> + '_ {
        (0..self.config.num_hidden_layers).filter(move |&layer| self.config.layer_types[layer] == kind)
    }

    /// Layers with a compressor, with its rate, and whether its windows overlap.
    pub fn compressed(&self) -> impl Iterator<Item = (usize, usize, bool)> + '_ {
        (0..self.config.num_hidden_layers).filter_map(|layer| {
            let rate = self.config.compress_rate(layer)?;
            Some((layer, rate, self.config.layer_types[layer] == LayerType::Sparse))
        })
    }
}

pub fn load<T: Real>(config: &Config, mut weights: &File) -> Model<T> {
    Model::load(config.clone(), &mut weights).expect("the tensors of the model")
}

/// Token ids of one of dsv4-small's two sequences.
pub fn small_ids(sequence: usize) -> Vec<u32> {
    let ids = &IO.numbers("input_ids")[sequence * TOKENS..(sequence + 1) * TOKENS];
    ids.iter().map(|&id| id as u32).collect()
}

/// What a block of dsv4-small's layer gave.
pub fn activation(layer: usize, name: &str) -> &'static Tensor<f32> {
    ACTIVATIONS.get(&format!("model.layers.{layer}.{name}"))
}

/// What passed inside dsv4-small's attention.
pub fn inside(layer: usize, name: &str) -> &'static Tensor<f32> {
    ACTIVATIONS.get(&format!("L{layer}.{name}"))
}

/// The streams `[PREFILL, hc_mult, hidden]` that enter a layer of dsv4-small.
pub fn streams(layer: usize) -> Tensor<f32> {
    if layer > 0 {
        return activation(layer - 1, "out").clone();
    }
    let embedded = ACTIVATIONS.get("model.embed_tokens.out");
    let n = SMALL.config.hc_mult;
    let rows = (0..embedded.rows()).flat_map(|row| std::iter::repeat_n(embedded.row(row), n));
    Tensor::new(
        [embedded.rows(), n, embedded.cols()],
        rows.flatten().copied().collect::<Vec<_>>(),
    )
}

/// Feeds `ids` cut after the given numbers of tokens, the last being all that is left; gives the logits of all.
pub fn run<T: Scalar>(
    model: &Model<T>,
    state: &mut State<T>,
    ids: &[u32],
    chunks: impl IntoIterator<Item = usize>,
    numerics: &mut dyn Numerics<T>,
) -> Tensor<T> {
    let mut logits = Tensor::new([0, model.config().vocab_size], Vec::new());
    let mut rest = ids;
    let mut feed = |ids: &[u32]| {
        let part = model.run(state, ids, numerics).expect("ids of the vocabulary");
        logits.shape[0] += part.shape[0];
        logits.data.extend(part.data);
    };
    for tokens in chunks {
        let (now, later) = rest.split_at(tokens);
        feed(now);
        rest = later;
    }
    if !rest.is_empty() {
        feed(rest);
    }
    logits
}

/// Values and logits (position bias added) of a compressor's tokens, from the oracle's projections.
pub fn pool_input(layer: usize, compressor: &str, shift: usize) -> (Tensor<f32>, Tensor<f32>) {
    let bias: Tensor<f32> = SMALL.weight(layer, &format!("{compressor}.position_bias"));
    let mut logits = activation(layer, &format!("{compressor}.gate_proj.out")).clone();
    for row in 0..logits.rows() {
        let bias = bias.row((row + shift) % bias.rows());
        logits
            .row_mut(row)
            .iter_mut()
            .zip(bias)
            .for_each(|(g, &bias)| *g += bias);
    }
    (activation(layer, &format!("{compressor}.kv_proj.out")).clone(), logits)
}

/// Entries of a compressor before norm and RoPE, from the oracle's projections.
pub fn pooled(rate: usize, overlap: bool, (values, logits): &(Tensor<f32>, Tensor<f32>)) -> Tensor<f32> {
    let dim = if overlap { values.cols() / 2 } else { values.cols() };
    Pool::new(rate, overlap, dim).push(values, logits)
}
