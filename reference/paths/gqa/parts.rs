//! A model of its tensors.

use super::attention::Attention;
use super::families::{Experts, QueryKeyNorm};
use super::layer::{Layer, Norm};
use super::mlp::{Mlp, Routing};
use super::model::{Model, Whole};
use super::projections::Projections;
use super::sites::*;
use super::{Config, LayerConfig};
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::paths::{LoadError, Loader};
use crate::{Numerics, Real, Tensor};

impl Config {
    /// The model of the tensors that `load` has; those that are sites pass to `numerics`.
    ///
    /// # Errors
    /// Those of the weights, and tensors of another length.
    pub(super) fn model<T: Real>(
        &self,
        load: &mut Loader<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Model<T>, LoadError> {
        let whole = Whole {
            config: Box::new(self.clone()),
            prefix: "model.",
            shape: [self.vocab_size, self.hidden_size],
            tied: self.tie_word_embeddings,
            centred: false,
            eps: self.rms_norm_eps,
            embedding_multiplier: self.embedding_multiplier,
            logits_scaling: self.logits_scaling,
            ropes: self.ropes.clone(),
        };
        Model::of_parts(whole, load, numerics, |make, number| {
            Parts { config: self, make }.layer(&self.layers[number])
        })
    }
}

/// Makes the parts of a layer.
struct Parts<'c, 'a, 'w, T: Real> {
    config: &'c Config,
    make: Projections<'a, 'w, T>,
}

impl<T: Real> Parts<'_, '_, '_, T> {
    fn layer(&mut self, layer: &LayerConfig) -> Result<Layer<T>, LoadError> {
        let config = self.config;
        let (family, hidden, dim) = (config.family, config.hidden_size, config.head_dim);
        let (heads, cached) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        // Where norms follow, what is named after attention is attention's own.
        let [mixer_norm, mlp_norm] = match family.norm_after {
            true => ["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"],
            false => ["input_layernorm.weight", "post_attention_layernorm.weight"],
        };
        let mut norm = |name| -> Result<_, LoadError> {
            Ok(Norm {
                weight: self.make.load.vector(name, hidden)?,
                after: family.norm_after,
                before_weight: family.norm_before_weight,
            })
        };
        let (mixer_norm, mlp_norm) = (norm(mixer_norm)?, norm(mlp_norm)?);
        let sites = [QUERY_WEIGHT, KEY_WEIGHT, VALUE_WEIGHT];
        let outputs = [heads, cached, cached];
        let (bias, bias_of_heads) = (config.query_key_value_bias, config.output_bias);
        let [query, key, value] = match family.fused {
            true => self.make.fused("self_attn.qkv_proj", sites, outputs, hidden)?,
            false => {
                let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
                let mut one = |at: usize| self.make.linear(sites[at], names[at], [outputs[at], hidden], bias);
                [one(0)?, one(1)?, one(2)?]
            }
        };
        let norms = match family.query_key_norm {
            QueryKeyNorm::None => None,
            QueryKeyNorm::Head => Some([dim, dim]),
            QueryKeyNorm::Whole => Some([heads, cached]),
        };
        let query_key_norms = match norms {
            None => None,
            Some([query, key]) => Some([
                self.make.load.vector("self_attn.q_norm.weight", query)?,
                self.make.load.vector("self_attn.k_norm.weight", key)?,
            ]),
        };
        let sinks = match family.sinks {
            true => Some(self.make.load.vector("self_attn.sinks", config.num_attention_heads)?),
            false => None,
        };
        Ok(Layer {
            mixer_norm,
            mixer: Box::new(Attention {
                query,
                key,
                value,
                query_key_norms,
                gate: None,
                heads: self
                    .make
                    .linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, heads], bias_of_heads)?,
                sinks,
                head_dim: dim,
                scale: T::from_f64(config.attention_multiplier),
                window: layer.window,
                eps: T::from_f64(config.rms_norm_eps),
            }),
            mlp_norm,
            mlp: match layer.experts {
                true => self.experts()?,
                false => Mlp::Dense(self.dense()?),
            },
            residual_multiplier: Some(T::from_f64(config.residual_multiplier)),
            rope: layer.rope,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    fn dense(&mut self) -> Result<GatedMlp<T>, LoadError> {
        let (config, hidden, inner) = (self.config, self.config.hidden_size, self.config.intermediate_size);
        let bias = config.mlp_bias;
        if !config.family.fused {
            let names = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
            return self.make.gated_mlp(MLP_WEIGHTS, names, [hidden, inner], bias);
        }
        let sites = [GATE_WEIGHT, UP_WEIGHT];
        let [gate, up] = self.make.fused("mlp.gate_up_proj", sites, [inner; 2], hidden)?;
        Ok(GatedMlp {
            gate,
            up,
            down: self.make.linear(DOWN_WEIGHT, "mlp.down_proj", [hidden, inner], bias)?,
            activation: Activation::Silu,
        })
    }

    fn experts(&mut self) -> Result<Mlp<T>, LoadError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let (count, inner) = (config.num_experts, config.moe_intermediate_size);
        let kind = config.family.experts;
        let (router, stem, names) = match kind {
            Experts::GptOss => ("mlp.router", "mlp.experts", [""; 3]),
            Experts::Mixtral => ("block_sparse_moe.gate", "block_sparse_moe.experts", ["w1", "w3", "w2"]),
            Experts::Qwen | Experts::None => ("mlp.gate", "mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
        };
        let stacked = kind == Experts::GptOss;
        let router = self.make.linear(ROUTER_WEIGHT, router, [count, hidden], stacked)?;
        let experts = match stacked {
            true => self.stacked_experts(stem)?,
            false => self.make.each_expert(stem, names, count, [hidden, inner])?,
        };
        debug_assert!(experts.iter().all(|expert| expert.gate.outputs() == inner));
        Ok(Mlp::Experts {
            router,
            routing: Routing::Softmax(config.softmax),
            bias: Vec::new(),
            per_token: config.num_experts_per_tok,
            experts,
            shared: None,
        })
    }

    /// gpt-oss: stacks `[experts, inputs, outputs]` with biases, in which columns of gate and up take turns.
    fn stacked_experts(&mut self, stem: &str) -> Result<Vec<GatedMlp<T>>, LoadError> {
        let (count, hidden) = (self.config.num_experts, self.config.hidden_size);
        let inner = self.config.moe_intermediate_size;
        let mut tensor = |name: &str, shape: &[usize]| self.make.load.tensor(&format!("{stem}.{name}"), shape);
        let gate_up = tensor("gate_up_proj", &[count, hidden, 2 * inner])?;
        let gate_up_bias = tensor("gate_up_proj_bias", &[count, 2 * inner])?;
        let down = tensor("down_proj", &[count, inner, hidden])?;
        let down_bias = tensor("down_proj_bias", &[count, hidden])?;
        let [alpha, limit] = self.config.clamp.unwrap_or([0.0; 2]).map(T::from_f64);
        // None where a dry read only lists the tensors that the model needs.
        let count = if gate_up.data.is_empty() { 0 } else { count };
        let mut experts = Vec::with_capacity(count);
        for number in 0..count {
            // Every second column from `first` on, as rows `[outputs, inputs]` of which outputs are contiguous no more.
            let turned = |all: &Tensor<T>, [inputs, outputs]: [usize; 2], first: usize, step: usize| {
                let all = all.data.get(number * inputs * outputs..(number + 1) * inputs * outputs);
                let columns = (first..outputs).step_by(step);
                let data = all.map_or(Vec::new(), |all| {
                    let column = |column: usize| all.iter().skip(column).step_by(outputs).copied();
                    columns.flat_map(column).collect()
                });
                let shape = vec![(outputs - first).div_ceil(step), inputs];
                Tensor { shape, data }
            };
            let bias = |all: &Tensor<T>, first: usize, step: usize| {
                let cols = all.cols();
                let all = all.data.get(number * cols..(number + 1) * cols).unwrap_or(&[]);
                Some(all.iter().skip(first).step_by(step).copied().collect())
            };
            let mut half = |site, first: usize| {
                let weight = turned(&gate_up, [hidden, 2 * inner], first, 2);
                let bias = bias(&gate_up_bias, first, 2);
                self.make.projection(site, number * inner, weight, bias)
            };
            let (gate, up) = (half(EXPERT_GATE_WEIGHT, 0), half(EXPERT_UP_WEIGHT, 1));
            let (weight, bias) = (turned(&down, [inner, hidden], 0, 1), bias(&down_bias, 0, 1));
            experts.push(GatedMlp {
                gate,
                up,
                down: self.make.projection(EXPERT_DOWN_WEIGHT, number * hidden, weight, bias),
                activation: Activation::Clamped { alpha, limit },
            });
        }
        Ok(experts)
    }
}
