//! The whole model: embedding, layers, head.

use super::config::{Config, LayerType, RouterType};
use super::layer::{Compressor, Context, Indexer, Layer};
use super::sites::LOGITS;
use super::state::State;
use crate::ops::experts::{Expert, Experts};
use crate::ops::hyper_connection::{HyperConnection, HyperHead};
use crate::ops::linear::Linear;
use crate::ops::router::Selection;
use crate::paths::{Invalid, Weights};
use crate::{Numerics, Real, Role, Site, Tensor};

/// A model with its weights.
pub struct Model<T> {
    config: Config,
    /// `[vocab_size, hidden_size]`.
    embedding: Tensor<T>,
    layers: Vec<Layer<T>>,
    head_mixer: HyperHead<T>,
    norm: Vec<T>,
    head: Linear<T>,
}

impl<T: Real> Model<T> {
    /// Takes every tensor of [`Config::tensors`] from `weights`.
    ///
    /// # Errors
    /// What [`Config::check`] finds, errors of `weights`, and tensors of another length or with experts that do not exist.
    pub fn load<W: Weights>(config: Config, weights: &mut W) -> Result<Self, W::Error>
    where
        Invalid: Into<W::Error>,
    {
        config.check().map_err(|message| Invalid::Config(message).into())?;
        let mut load = Loader {
            config: &config,
            weights,
            prefix: "model".into(),
            scalar: std::marker::PhantomData::<T>,
        };
        let (vocabulary, hidden, streams) = (config.vocab_size, config.hidden_size, config.hc_mult);
        let embedding = load.tensor("embed_tokens.weight", &[vocabulary, hidden])?;
        let layers = (0..config.num_hidden_layers)
            .map(|layer| load.layer(layer))
            .collect::<Result<_, _>>()?;
        load.prefix = "model".into();
        let head_mixer = HyperHead {
            projection: load.linear("hc_head.hc_fn", streams, streams * hidden)?,
            base: load.vector("hc_head.hc_base", streams)?,
            scale: load.vector("hc_head.hc_scale", 1)?[0],
            norm_eps: T::from_f64(config.rms_norm_eps),
            eps: T::from_f64(config.hc_eps),
        };
        let norm = load.vector("norm.weight", hidden)?;
        load.prefix = String::new();
        let head = load.linear("lm_head.weight", vocabulary, hidden)?;
        Ok(Self {
            embedding,
            layers,
            head_mixer,
            norm,
            head,
            config,
        })
    }

    /// The configuration it was loaded with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The caches of an empty sequence.
    pub fn state(&self) -> State<T> {
        State::empty(&self.config)
    }

    /// Appends `ids` to the sequence and gives their logits `[ids, vocab_size]`. All tokens at once, in chunks or one by one
    /// is the same to rounding. `numerics` is called at every site on the way.
    ///
    /// # Errors
    /// No ids, ids beyond the vocabulary, and a state that another configuration has made; the state is then as it was.
    pub fn run(&self, state: &mut State<T>, ids: &[u32], numerics: &mut dyn Numerics<T>) -> Result<Tensor<T>, String>
    where
        T: Scalar,
    {
        T::run(self, state, ids, numerics)
    }

    fn forward(&self, state: &mut State<T>, ids: &[u32], numerics: &mut dyn Numerics<T>) -> Result<Tensor<T>, String> {
        if ids.is_empty() {
            return Err("no tokens to feed".into());
        }
        let vocabulary = self.config.vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(format!("token {id} is beyond the vocabulary of {vocabulary}"));
        }
        state.check(&self.config)?;
        let start = state.tokens;
        state.tokens += ids.len();
        for rope in &mut state.ropes {
            rope.extend(state.tokens);
        }
        let streams = self.config.hc_mult;
        let embedded = ids
            .iter()
            .flat_map(|&id| std::iter::repeat_n(self.embedding.row(id as usize), streams));
        let mut x = Tensor::new(
            [ids.len(), streams, self.config.hidden_size],
            embedded.flatten().copied().collect(),
        );
        for (number, (layer, cache)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let rope = &state.ropes[usize::from(layer.kind != LayerType::Sliding)];
            layer.forward(
                &mut x,
                cache,
                &mut Context {
                    numerics,
                    layer: number,
                    start,
                    ids,
                    rope,
                },
            );
        }
        let mut hidden = self.head_mixer.apply(&x);
        let eps = T::from_f64(self.config.rms_norm_eps);
        numerics.operations().rmsnorm(&mut hidden, Some(&self.norm), eps);
        let mut logits = self.head.apply(&hidden);
        numerics.site(
            &Site {
                layer: None,
                name: LOGITS,
                role: Role::Both,
                first_row: start,
            },
            &mut logits,
        );
        Ok(logits)
    }
}

/// Fetches tensors below a name.
struct Loader<'a, T, W> {
    config: &'a Config,
    weights: &'a mut W,
    prefix: String,
    scalar: std::marker::PhantomData<T>,
}

impl<T: Real, W: Weights> Loader<'_, T, W>
where
    Invalid: Into<W::Error>,
{
    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            name.to_string()
        } else {
            format!("{}.{name}", self.prefix)
        }
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<T>, W::Error> {
        let name = self.full(name);
        let values = self.weights.floats(&name, shape)?;
        has_length(&name, values.len(), shape).map_err(Into::into)?;
        Ok(Tensor::new(
            shape,
            values.into_iter().map(|x| T::from_f64(x.into())).collect(),
        ))
    }

    /// Numbers of experts by token id.
    fn table(&mut self, name: &str, shape: [usize; 2], experts: usize) -> Result<Vec<u32>, W::Error> {
        let table = self.weights.integers(name, &shape)?;
        has_length(name, table.len(), &shape).map_err(Into::into)?;
        match table.iter().position(|&expert| expert as usize >= experts) {
            None => Ok(table),
            Some(at) => {
                let (found, index) = (table[at], [at / shape[1], at % shape[1]]);
                let message = format!("tensor '{name}' has expert {found} at {index:?} of {experts} experts");
                Err(Invalid::Tensor(message).into())
            }
        }
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<T>, W::Error> {
        Ok(self.tensor(name, &[len])?.data)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear<T>, W::Error> {
        Ok(Linear {
            weight: self.tensor(name, &[outputs, inputs])?,
        })
    }

    /// A stack of linear layers, one tensor in the file.
    fn linears(&mut self, name: &str, count: usize, outputs: usize, inputs: usize) -> Result<Vec<Linear<T>>, W::Error> {
        let all = self.tensor(name, &[count, outputs, inputs])?;
        let one = |data: &[T]| Linear {
            weight: Tensor::new([outputs, inputs], data.to_vec()),
        };
        Ok(all.data.chunks_exact(outputs * inputs).map(one).collect())
    }

    fn layer(&mut self, layer: usize) -> Result<Layer<T>, W::Error> {
        self.prefix = format!("model.layers.{layer}");
        let config = self.config;
        let (hidden, dim, heads) = (config.hidden_size, config.head_dim, config.num_attention_heads);
        let (low, rank) = (config.q_lora_rank, config.o_groups * config.o_lora_rank);
        let (experts, chosen) = (config.n_routed_experts, config.num_experts_per_tok);
        let sparse = config.layer_types[layer] == LayerType::Sparse;
        let compressor = match config.compress_rate(layer) {
            Some(rate) => Some(self.compressor("self_attn.compressor", rate, dim, sparse)?),
            None => None,
        };
        let indexer = match (&compressor, sparse) {
            (Some(main), true) => Some(self.indexer(main.position_bias.rows())?),
            _ => None,
        };
        let selection = match config.mlp_layer_types[layer] {
            RouterType::Learned => Selection::Bias(self.vector("mlp.gate.e_score_correction_bias", experts)?),
            RouterType::Hash => {
                let name = self.full("mlp.gate.tid2eid");
                Selection::Table(self.table(&name, [config.vocab_size, chosen], experts)?)
            }
        };
        Ok(Layer {
            kind: config.layer_types[layer],
            attention_mixer: self.mixer("attn_hc")?,
            attention_norm: self.vector("input_layernorm.weight", hidden)?,
            query_down: self.linear("self_attn.q_a_proj.weight", low, hidden)?,
            query_norm: self.vector("self_attn.q_a_norm.weight", low)?,
            query_up: self.linear("self_attn.q_b_proj.weight", heads * dim, low)?,
            kv: self.linear("self_attn.kv_proj.weight", dim, hidden)?,
            kv_norm: self.vector("self_attn.kv_norm.weight", dim)?,
            sinks: self.vector("self_attn.sinks", heads)?,
            output_down: self.linear("self_attn.o_a_proj.weight", rank, heads * dim / config.o_groups)?,
            output_groups: config.o_groups,
            output_up: self.linear("self_attn.o_b_proj.weight", hidden, rank)?,
            window: config.sliding_window,
            compressor,
            indexer,
            moe_mixer: self.mixer("ffn_hc")?,
            moe_norm: self.vector("post_attention_layernorm.weight", hidden)?,
            router: self.linear("mlp.gate.weight", experts, hidden)?,
            selection,
            experts_per_token: chosen,
            router_scale: T::from_f64(config.routed_scaling_factor),
            experts: self.experts()?,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    fn mixer(&mut self, name: &str) -> Result<HyperConnection<T>, W::Error> {
        let (streams, hidden) = (self.config.hc_mult, self.config.hidden_size);
        let mixes = 2 * streams + streams * streams;
        let scale = self.vector(&format!("{name}.scale"), 3)?;
        Ok(HyperConnection {
            projection: self.linear(&format!("{name}.fn"), mixes, streams * hidden)?,
            base: self.vector(&format!("{name}.base"), mixes)?,
            scale: [scale[0], scale[1], scale[2]],
            streams,
            iterations: self.config.hc_sinkhorn_iters,
            norm_eps: T::from_f64(self.config.rms_norm_eps),
            eps: T::from_f64(self.config.hc_eps),
        })
    }

    fn compressor(&mut self, name: &str, rate: usize, dim: usize, sparse: bool) -> Result<Compressor<T>, W::Error> {
        let width = if sparse { 2 * dim } else { dim };
        let hidden = self.config.hidden_size;
        Ok(Compressor {
            kv: self.linear(&format!("{name}.kv_proj.weight"), width, hidden)?,
            gate: self.linear(&format!("{name}.gate_proj.weight"), width, hidden)?,
            position_bias: self.tensor(&format!("{name}.position_bias"), &[rate, width])?,
            norm: self.vector(&format!("{name}.kv_norm.weight"), dim)?,
        })
    }

    fn indexer(&mut self, rate: usize) -> Result<Indexer<T>, W::Error> {
        let name = "self_attn.compressor.indexer";
        let (heads, dim) = (self.config.index_n_heads, self.config.index_head_dim);
        Ok(Indexer {
            compressor: self.compressor(name, rate, dim, true)?,
            query_up: self.linear(&format!("{name}.q_b_proj.weight"), heads * dim, self.config.q_lora_rank)?,
            head_weights: self.linear(
                &format!("{name}.scorer.weights_proj.weight"),
                heads,
                self.config.hidden_size,
            )?,
            top_k: self.config.index_topk,
        })
    }

    fn experts(&mut self) -> Result<Experts<T>, W::Error> {
        let (count, inner, hidden) = (
            self.config.n_routed_experts,
            self.config.moe_intermediate_size,
            self.config.hidden_size,
        );
        let gate_up = self.linears("mlp.experts.gate_up_proj", count, 2 * inner, hidden)?;
        let down = self.linears("mlp.experts.down_proj", count, hidden, inner)?;
        let mut both = self
            .tensor("mlp.shared_experts.gate_proj.weight", &[inner, hidden])?
            .data;
        both.extend(self.tensor("mlp.shared_experts.up_proj.weight", &[inner, hidden])?.data);
        let shared = Expert {
            gate_up: Linear {
                weight: Tensor::new([2 * inner, hidden], both),
            },
            down: self.linear("mlp.shared_experts.down_proj.weight", hidden, inner)?,
        };
        let routed = gate_up
            .into_iter()
            .zip(down)
            .map(|(gate_up, down)| Expert { gate_up, down })
            .collect();
        Ok(Experts {
            routed,
            shared,
            limit: T::from_f64(self.config.swiglu_limit),
        })
    }
}

fn has_length(name: &str, found: usize, shape: &[usize]) -> Result<(), Invalid> {
    let expected = shape.iter().product::<usize>();
    match found == expected {
        true => Ok(()),
        false => Err(Invalid::Tensor(format!(
            "tensor '{name}' has {found} elements, expected {expected} of {shape:?}"
        ))),
    }
}

mod sealed {
    use super::*;

    pub trait Compiled: Real {
        fn run(
            model: &Model<Self>,
            state: &mut State<Self>,
            ids: &[u32],
            numerics: &mut dyn Numerics<Self>,
        ) -> Result<Tensor<Self>, String>;
    }

    macro_rules! compiled {
        ($($scalar:ty),*) => {$(
            impl Compiled for $scalar {
                fn run(
                    model: &Model<Self>,
                    state: &mut State<Self>,
                    ids: &[u32],
                    numerics: &mut dyn Numerics<Self>,
                ) -> Result<Tensor<Self>, String> {
                    model.forward(state, ids, numerics)
                }
            }
        )*};
    }
    compiled!(f32, f64);
}

/// A scalar for which [`Model::run`] is compiled in this package, with its optimisation: f32 or f64. A caller's own instance of
/// generic code is compiled as the caller is, which in a development build means slow.
pub trait Scalar: sealed::Compiled {}

impl<T: sealed::Compiled> Scalar for T {}
