//! A model of its tensors.

use super::attention::Attention;
use super::families::{Experts, QueryKeyNorm};
use super::layer::{Layer, Norm};
use super::mlp::{Mlp, Routing};
use super::projections::Projections;
use super::sites::*;
use super::{Config, LayerConfig, Model};
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::paths::{Invalid, Loader, Weights};
use crate::{Numerics, Real, Tensor};

impl<T: Real> Model<T> {
    /// Takes every tensor from `load`, and passes those that are sites to `numerics`.
    ///
    /// # Errors
    /// Those of the weights, and tensors of another length.
    pub(super) fn of_parts<W: Weights + ?Sized>(
        config: Config,
        load: &mut Loader<'_, T, W>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Self, W::Error>
    where
        Invalid: Into<W::Error>,
    {
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let make = Projections {
            load,
            numerics,
            layer: None,
        };
        let mut parts = Parts { config: &config, make };
        let embedding = parts
            .make
            .linear(EMBEDDING_WEIGHT, "model.embed_tokens", [vocabulary, hidden], false)?;
        let mut layers = Vec::new();
        for (number, layer) in config.layers.iter().enumerate() {
            parts.make.layer = Some(number);
            parts.make.load.prefix = format!("model.layers.{number}.");
            layers.push(parts.layer(layer)?);
        }
        parts.make.layer = None;
        parts.make.load.prefix = String::new();
        let norm = parts.make.load.vector("model.norm.weight", hidden)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(parts.make.linear(HEAD_WEIGHT, "lm_head", [vocabulary, hidden], false)?),
        };
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            config,
        })
    }
}

/// Makes the parts of a layer.
struct Parts<'a, 'w, T: Real, W: ?Sized> {
    config: &'a Config,
    make: Projections<'a, 'w, T, W>,
}

impl<T: Real, W: Weights + ?Sized> Parts<'_, '_, T, W>
where
    Invalid: Into<W::Error>,
{
    fn layer(&mut self, layer: &LayerConfig) -> Result<Layer<T>, W::Error> {
        let config = self.config;
        let (family, hidden, dim) = (config.family, config.hidden_size, config.head_dim);
        let (heads, cached) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        // Where norms follow, what is named after attention is attention's own.
        let [attention_norm, mlp_norm] = match family.norm_after {
            true => ["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"],
            false => ["input_layernorm.weight", "post_attention_layernorm.weight"],
        };
        let mut norm = |name| {
            Ok(Norm {
                weight: self.make.load.vector(name, hidden)?,
                after: family.norm_after,
                before_weight: family.norm_before_weight,
            })
        };
        let (attention_norm, mlp_norm) = (norm(attention_norm)?, norm(mlp_norm)?);
        let sites = [QUERY_WEIGHT, KEY_WEIGHT, VALUE_WEIGHT];
        let outputs = [heads, cached, cached];
        let bias = config.query_key_value_bias;
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
            attention_norm,
            attention: Attention {
                query,
                key,
                value,
                query_key_norms,
                gate: None,
                heads: self
                    .make
                    .linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, heads], config.output_bias)?,
                sinks,
                head_dim: dim,
                scale: T::from_f64(config.attention_multiplier),
                window: layer.window,
                eps: T::from_f64(config.rms_norm_eps),
            },
            mlp_norm,
            mlp: if layer.experts {
                self.experts()?
            } else {
                Mlp::Dense(self.dense()?)
            },
            residual_multiplier: T::from_f64(config.residual_multiplier),
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    fn dense(&mut self) -> Result<GatedMlp<T>, W::Error> {
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

    fn experts(&mut self) -> Result<Mlp<T>, W::Error> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let (count, inner) = (config.num_experts, config.moe_intermediate_size);
        let kind = config.family.experts;
        let router = match kind {
            Experts::GptOss => "mlp.router",
            Experts::Mixtral => "block_sparse_moe.gate",
            Experts::Qwen | Experts::None => "mlp.gate",
        };
        let router = self
            .make
            .linear(ROUTER_WEIGHT, router, [count, hidden], kind == Experts::GptOss)?;
        let experts = match kind {
            Experts::GptOss => self.stacked_experts()?,
            Experts::Mixtral => {
                self.make
                    .each_expert("block_sparse_moe.experts", ["w1", "w3", "w2"], count, [hidden, inner])?
            }
            Experts::Qwen | Experts::None => {
                let names = ["gate_proj", "up_proj", "down_proj"];
                self.make.each_expert("mlp.experts", names, count, [hidden, inner])?
            }
        };
        debug_assert!(experts.iter().all(|expert| expert.gate.outputs() == inner));
        Ok(Mlp::Experts {
            router,
            routing: Routing::Softmax(config.softmax),
            per_token: config.num_experts_per_tok,
            experts,
            shared: None,
        })
    }

    /// gpt-oss: stacks `[experts, inputs, outputs]` with biases, in which columns of gate and up take turns.
    fn stacked_experts(&mut self) -> Result<Vec<GatedMlp<T>>, W::Error> {
        let (count, hidden, inner) = (
            self.config.num_experts,
            self.config.hidden_size,
            self.config.moe_intermediate_size,
        );
        let gate_up = self
            .make
            .load
            .tensor("mlp.experts.gate_up_proj", &[count, hidden, 2 * inner])?;
        let gate_up_bias = self
            .make
            .load
            .tensor("mlp.experts.gate_up_proj_bias", &[count, 2 * inner])?;
        let down = self
            .make
            .load
            .tensor("mlp.experts.down_proj", &[count, inner, hidden])?;
        let down_bias = self.make.load.tensor("mlp.experts.down_proj_bias", &[count, hidden])?;
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
            let both = [hidden, 2 * inner];
            let rows = number * inner;
            experts.push(GatedMlp {
                gate: self.make.projection(
                    EXPERT_GATE_WEIGHT,
                    rows,
                    turned(&gate_up, both, 0, 2),
                    bias(&gate_up_bias, 0, 2),
                ),
                up: self.make.projection(
                    EXPERT_UP_WEIGHT,
                    rows,
                    turned(&gate_up, both, 1, 2),
                    bias(&gate_up_bias, 1, 2),
                ),
                down: self.make.projection(
                    EXPERT_DOWN_WEIGHT,
                    number * hidden,
                    turned(&down, [inner, hidden], 0, 1),
                    bias(&down_bias, 0, 1),
                ),
                activation: Activation::Clamped { alpha, limit },
            });
        }
        Ok(experts)
    }
}
