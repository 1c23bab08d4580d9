//! The whole model: embedding, layers, output head.

use super::config::{Config, LayerType, RouterType};
use super::layer::{Compressor, Context, Indexer, Layer};
use super::sites::LOGITS;
use super::state::State;
use crate::ops::compressor::Pooling;
use crate::ops::experts::{Expert, Experts};
use crate::ops::hyper_connection::{HyperConnection, HyperHead};
use crate::ops::router::Selection;
use crate::paths::{self, Invalid, LoadError, Loader, Scalar, Weights};
use crate::{Choice, Numerics, Operations, Real, Site, Tensor};

/// A model with its weights.
pub struct Model<T> {
    config: Config,
    /// Embedding of tokens, `[vocab_size, hidden_size]`.
    embedding: Tensor<T>,
    layers: Vec<Layer<T>>,
    head_mixer: HyperHead<T>,
    norm: Vec<T>,
    head: Tensor<T>,
}

impl<T: Real> Model<T> {
    /// Loads every tensor of [`Config::tensors`] from `weights`.
    ///
    /// # Errors
    /// Returns the errors of [`Config::check`] and of `weights`, and an error if a tensor has the wrong length or a table has
    /// the index of an expert that does not exist.
    pub fn load<W: Weights + ?Sized>(config: Config, weights: &mut W) -> Result<Self, W::Error>
    where
        Invalid: Into<W::Error>,
    {
        config.check().map_err(|message| Invalid::Config(message).into())?;
        paths::model::of_weights(weights, |weights| Self::of_parts(config, &mut Loader::new(weights)))
    }

    /// Loads the model like [`Self::load`], but does not check the configuration again.
    pub(super) fn of_parts(config: Config, load: &mut Loader<'_, T>) -> Result<Self, LoadError> {
        let (vocabulary, hidden, streams) = (config.vocab_size, config.hidden_size, config.hc_mult);
        let embedding = load.tensor("model.embed_tokens.weight", &[vocabulary, hidden])?;
        let layers = (0..config.num_hidden_layers).map(|layer| {
            load.prefix = format!("model.layers.{layer}.");
            let config = &config;
            Parts { config, load }.layer(layer)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        load.prefix = String::new();
        let head_mixer = HyperHead {
            projection: load.tensor("model.hc_head.hc_fn", &[streams, streams * hidden])?,
            base: load.vector("model.hc_head.hc_base", streams)?,
            scale: load.scalars::<1>("model.hc_head.hc_scale")?[0],
            norm_eps: T::from_f64(config.rms_norm_eps),
            eps: T::from_f64(config.hc_eps),
        };
        Ok(Self {
            embedding,
            layers,
            head_mixer,
            norm: load.vector("model.norm.weight", hidden)?,
            head: load.tensor("lm_head.weight", &[vocabulary, hidden])?,
            config,
        })
    }

    /// Returns the configuration with which the model was loaded.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the attention sinks of a layer, one per head.
    pub fn sinks(&self, layer: usize) -> &[T] {
        &self.layers[layer].sinks
    }

    /// Returns the weights of two norms of a layer: the norm of the low-rank queries, and the norm of the KV vectors.
    pub fn norms(&self, layer: usize) -> [&[T]; 2] {
        let layer = &self.layers[layer];
        [&layer.query_norm, &layer.kv_norm]
    }

    /// Selects experts of a layer for each row of x, and computes the weights of the experts. If the experts are selected by
    /// scores, `learned` may change the selection; if a table gives the experts of a token id, `learned` is not called.
    pub fn route(
        &self,
        layer: usize,
        x: &Tensor<T>,
        ids: &[u32],
        learned: impl FnOnce(&mut Choice<T>),
    ) -> (Choice<T>, Tensor<T>) {
        self.layers[layer].route(x, ids, learned)
    }

    /// Mixes the streams that leave the last layer into one stream, and normalises this stream: `[rows, n, D]` → `[rows, D]`.
    pub fn head_input(&self, x: &Tensor<T>, operations: &dyn Operations<T>) -> Tensor<T> {
        let mut hidden = self.head_mixer.apply(x);
        operations.rmsnorm(&mut hidden, Some(&self.norm), T::from_f64(self.config.rms_norm_eps));
        hidden
    }

    /// Maps the result of [`Self::head_input`] to logits: `[rows, D]` → `[rows, vocab_size]`.
    pub fn head(&self, input: &Tensor<T>) -> Tensor<T> {
        self.head.apply(input)
    }

    /// Creates the state of an empty sequence.
    pub fn state(&self) -> State<T> {
        State::empty(&self.config)
    }

    /// Appends `ids` to the sequence and returns their logits `[ids, vocab_size]`. A caller may pass all tokens at once, in
    /// chunks or one by one; the logits differ by rounding only. Calls `numerics` at every site.
    ///
    /// # Errors
    /// Returns an error, and leaves the state unchanged, if `ids` is empty, an id is outside the vocabulary, or the state was
    /// created with another configuration.
    pub fn run(&self, state: &mut State<T>, ids: &[u32], numerics: &mut dyn Numerics<T>) -> Result<Tensor<T>, String>
    where
        T: Scalar,
    {
        T::deepseek_v4(self, state, ids, numerics)
    }

    pub(in crate::paths) fn forward(
        &self,
        state: &mut State<T>,
        ids: &[u32],
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        paths::model::check_ids(ids, self.config.vocab_size)?;
        state.check(&self.config)?;
        let streams = self.config.hc_mult;
        let rows = ids.iter().map(|&id| self.embedding.row(id as usize));
        let embedded = rows.flat_map(|row| std::iter::repeat_n(row, streams)).flatten();
        let shape = [ids.len(), streams, self.config.hidden_size];
        let x = Tensor::new(shape, embedded.copied().collect());
        Ok(self.through(0, x, state, ids, numerics))
    }

    /// Runs layer `first`, all later layers and the head; returns the logits. `x` has the streams that enter layer `first`.
    pub(super) fn through(
        &self,
        first: usize,
        mut x: Tensor<T>,
        state: &mut State<T>,
        ids: &[u32],
        numerics: &mut dyn Numerics<T>,
    ) -> Tensor<T> {
        let start = state.parts.tokens;
        state.parts.tokens += ids.len();
        for rope in &mut state.ropes {
            rope.extend(state.parts.tokens);
        }
        let layers = self.layers.iter().zip(&mut state.parts.layers).enumerate().skip(first);
        for (number, (layer, cache)) in layers {
            let rope = &state.ropes[usize::from(layer.kind != LayerType::Sliding)];
            layer.forward(
                &mut x,
                cache,
                ids,
                &mut Context::new(numerics, Some(number), start, rope),
            );
        }
        let mut logits = self.head(&self.head_input(&x, numerics.operations()));
        numerics.site(&Site::new(None, LOGITS).from_row(start), &mut logits);
        logits
    }
}

/// Builder of the layers from the tensors of the checkpoint.
struct Parts<'a, 'w, T> {
    config: &'a Config,
    load: &'a mut Loader<'w, T>,
}

impl<T: Real> Parts<'_, '_, T> {
    fn layer(&mut self, layer: usize) -> Result<Layer<T>, LoadError> {
        let config = self.config;
        let (hidden, dim, heads) = (config.hidden_size, config.head_dim, config.num_attention_heads);
        let (low, rank) = (config.q_lora_rank, config.o_groups * config.o_lora_rank);
        let of_group = heads * dim / config.o_groups;
        let (experts, chosen) = (config.n_routed_experts, config.num_experts_per_tok);
        let kind = config.layer_types[layer];
        let [main, index] = config.pools(kind);
        let compressor = |parts: &mut Self, sizes| parts.compressor("self_attn.compressor", sizes);
        Ok(Layer {
            kind,
            window: config.sliding_window,
            output_groups: config.o_groups,
            experts_per_token: chosen,
            router_scale: T::from_f64(config.routed_scaling_factor),
            eps: T::from_f64(config.rms_norm_eps),
            attention_mixer: self.mixer("attn_hc")?,
            moe_mixer: self.mixer("ffn_hc")?,
            attention_norm: self.load.vector("input_layernorm.weight", hidden)?,
            moe_norm: self.load.vector("post_attention_layernorm.weight", hidden)?,
            query_down: self.load.tensor("self_attn.q_a_proj.weight", &[low, hidden])?,
            query_norm: self.load.vector("self_attn.q_a_norm.weight", low)?,
            query_up: self.load.tensor("self_attn.q_b_proj.weight", &[heads * dim, low])?,
            kv: self.load.tensor("self_attn.kv_proj.weight", &[dim, hidden])?,
            kv_norm: self.load.vector("self_attn.kv_norm.weight", dim)?,
            output_down: self.load.tensor("self_attn.o_a_proj.weight", &[rank, of_group])?,
            output_up: self.load.tensor("self_attn.o_b_proj.weight", &[hidden, rank])?,
            sinks: self.load.vector("self_attn.sinks", heads)?,
            compressor: main.map(|sizes| compressor(self, sizes)).transpose()?,
            indexer: index.map(|sizes| self.indexer(sizes)).transpose()?,
            router: self.load.tensor("mlp.gate.weight", &[experts, hidden])?,
            experts: self.experts()?,
            selection: match config.mlp_layer_types[layer] {
                RouterType::Learned => Selection::Bias(self.load.vector("mlp.gate.e_score_correction_bias", experts)?),
                RouterType::Hash => {
                    let shape = [config.vocab_size, chosen];
                    Selection::Table(self.load.table("mlp.gate.tid2eid", shape, "expert", experts)?)
                }
            },
        })
    }

    fn mixer(&mut self, name: &str) -> Result<HyperConnection<T>, LoadError> {
        let (streams, hidden) = (self.config.hc_mult, self.config.hidden_size);
        let mixes = 2 * streams + streams * streams;
        Ok(HyperConnection {
            projection: self.load.tensor(&format!("{name}.fn"), &[mixes, streams * hidden])?,
            base: self.load.vector(&format!("{name}.base"), mixes)?,
            scale: self.load.scalars(&format!("{name}.scale"))?,
            streams,
            iterations: self.config.hc_sinkhorn_iters,
            norm_eps: T::from_f64(self.config.rms_norm_eps),
            eps: T::from_f64(self.config.hc_eps),
        })
    }

    fn compressor(&mut self, name: &str, sizes: Pooling) -> Result<Compressor<T>, LoadError> {
        let (width, hidden, load) = (sizes.width(), self.config.hidden_size, &mut self.load);
        Ok(Compressor {
            kv: load.tensor(&format!("{name}.kv_proj.weight"), &[width, hidden])?,
            gate: load.tensor(&format!("{name}.gate_proj.weight"), &[width, hidden])?,
            position_bias: load.tensor(&format!("{name}.position_bias"), &[sizes.rate, width])?,
            norm: load.vector(&format!("{name}.kv_norm.weight"), sizes.dim)?,
            sizes,
        })
    }

    fn indexer(&mut self, sizes: Pooling) -> Result<Indexer<T>, LoadError> {
        let name = |tensor: &str| format!("self_attn.compressor.indexer{tensor}");
        let (heads, dim) = (self.config.index_n_heads, self.config.index_head_dim);
        let (low, hidden) = (self.config.q_lora_rank, self.config.hidden_size);
        let compressor = self.compressor(&name(""), sizes)?;
        let load = &mut self.load;
        Ok(Indexer {
            compressor,
            query_up: load.tensor(&name(".q_b_proj.weight"), &[heads * dim, low])?,
            head_weights: load.tensor(&name(".scorer.weights_proj.weight"), &[heads, hidden])?,
            top_k: self.config.index_topk,
        })
    }

    fn experts(&mut self) -> Result<Experts<T>, LoadError> {
        let (count, inner) = (self.config.n_routed_experts, self.config.moe_intermediate_size);
        let hidden = self.config.hidden_size;
        let load = &mut self.load;
        let gate_up = load.linears("mlp.experts.gate_up_proj", [count, 2 * inner, hidden])?;
        let down = load.linears("mlp.experts.down_proj", [count, hidden, inner])?;
        let shared = ["gate", "up"].map(|name| format!("mlp.shared_experts.{name}_proj.weight"));
        let shared = Expert {
            gate_up: load.below(&shared, inner, hidden)?,
            down: load.tensor("mlp.shared_experts.down_proj.weight", &[hidden, inner])?,
        };
        let routed = gate_up.into_iter().zip(down);
        Ok(Experts {
            routed: routed.map(|(gate_up, down)| Expert { gate_up, down }).collect(),
            shared,
            limit: T::from_f64(self.config.swiglu_limit),
        })
    }
}
