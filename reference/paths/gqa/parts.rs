//! Builds the layers of a model from the tensors of its checkpoint.

use super::attention::Attention;
use super::decoder::Decodes;
use super::families::{Experts, QueryKeyNorm};
use super::layer::Layer;
use super::mlp::{Mixture, Mlp, Routing};
use super::sites::*;
use super::{Decoder, GroupedQuery, LayerConfig};
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::paths::{LoadError, Loader};
use crate::{Numerics, Real, Tensor};

/// Names of the gate, up and down projections in most checkpoints.
pub(in crate::paths) const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Builder of the parts of one layer, or of the parts outside all layers (`layer` is then `None`).
pub(in crate::paths) struct Parts<'c, 'a, 'w, T: Real, O> {
    pub config: &'c Decoder<O>,
    pub load: &'a mut Loader<'w, T>,
    pub numerics: &'a mut dyn Numerics<T>,
    pub layer: Option<usize>,
}

impl<T: Real, O: Decodes> Parts<'_, '_, '_, T, O> {
    /// Makes a dense feed-forward layer from the tensors `mlp.gate_proj`, `mlp.up_proj` and `mlp.down_proj`.
    pub fn dense(&mut self, bias: bool) -> Result<GatedMlp<T>, LoadError> {
        let sizes = [self.config.hidden_size, self.config.intermediate_size];
        self.gated_mlp((MLP_WEIGHTS, 0), ("mlp", NAMES), sizes, bias)
    }

    /// Makes a mixture of experts. The tensors of an expert are `BLOCK.experts.NUMBER.NAME`, the router is `BLOCK.gate`.
    pub fn mixture(&mut self, block: &str, names: [&str; 3]) -> Result<Mixture<T>, LoadError> {
        let config = self.config;
        let (count, sizes) = (config.num_experts, [config.hidden_size, config.moe_intermediate_size]);
        let gate = format!("{block}.gate");
        Ok(Mixture {
            router: self.linear(ROUTER_WEIGHT, &gate, [count, config.hidden_size], false)?,
            routing: config.routing,
            bias: match config.routing {
                Routing::Softmax(_) => Vec::new(),
                Routing::Sigmoid { .. } => self.load.vector(&format!("{gate}.e_score_correction_bias"), count)?,
            },
            per_token: config.num_experts_per_tok,
            experts: {
                let expert = |number| {
                    let stem = format!("{block}.experts.{number}");
                    self.gated_mlp((EXPERT_WEIGHTS, number), (&stem, names), sizes, false)
                };
                (0..count).map(expert).collect::<Result<_, _>>()?
            },
            shared: None,
        })
    }
}

impl<T: Real> Parts<'_, '_, '_, T, GroupedQuery> {
    pub(super) fn layer(&mut self, layer: LayerConfig) -> Result<Layer<T>, LoadError> {
        let config = self.config;
        let (family, hidden, dim) = (config.own.family, config.hidden_size, config.head_dim);
        let (heads, cached) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        // In families with the norm after attention, `post_attention_layernorm` is the norm of attention, not of the MLP.
        let [mixer_norm, mlp_norm] = match family.norm_after {
            true => ["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"],
            false => ["input_layernorm.weight", "post_attention_layernorm.weight"],
        };
        let (mixer_norm, mlp_norm) = (self.norm(mixer_norm, hidden)?, self.norm(mlp_norm, hidden)?);
        let sites = [QUERY_WEIGHT, KEY_WEIGHT, VALUE_WEIGHT];
        let outputs = [heads, cached, cached];
        let (bias, bias_of_heads) = (config.own.query_key_value_bias, config.own.output_bias);
        let [query, key, value] = match family.fused {
            true => self.fused("self_attn.qkv_proj", sites, outputs, hidden)?,
            false => {
                let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
                let mut one = |at: usize| self.linear(sites[at], names[at], [outputs[at], hidden], bias);
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
                self.load.vector("self_attn.q_norm.weight", query)?,
                self.load.vector("self_attn.k_norm.weight", key)?,
            ]),
        };
        let sinks = match family.sinks {
            true => Some(self.load.vector("self_attn.sinks", config.num_attention_heads)?),
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
                heads: self.linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, heads], bias_of_heads)?,
                sinks,
                head_dim: dim,
                scale: T::from_f64(config.attention_multiplier),
                window: layer.window,
                eps: T::from_f64(config.rms_norm_eps),
            }),
            mlp_norm,
            mlp: self.mlp(layer)?,
            norm_after: family.norm_after,
            norm_before_weight: family.norm_before_weight,
            residual_multiplier: config.residual_multiplier.map(T::from_f64),
            rope: layer.rope,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    fn mlp(&mut self, layer: LayerConfig) -> Result<Mlp<T>, LoadError> {
        let config = self.config;
        if layer.experts {
            return Ok(Mlp::Mixture(match config.own.family.experts {
                Experts::GptOss => self.stacked()?,
                Experts::Mixtral => self.mixture("block_sparse_moe", ["w1", "w3", "w2"])?,
                Experts::Qwen | Experts::None => self.mixture("mlp", NAMES)?,
            }));
        }
        if !config.own.family.fused {
            return Ok(Mlp::Dense(self.dense(config.own.mlp_bias)?));
        }
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let sites = [GATE_WEIGHT, UP_WEIGHT];
        let [gate, up] = self.fused("mlp.gate_up_proj", sites, [inner; 2], hidden)?;
        let bias = config.own.mlp_bias;
        Ok(Mlp::Dense(GatedMlp {
            gate,
            up,
            down: self.linear(DOWN_WEIGHT, "mlp.down_proj", [hidden, inner], bias)?,
            activation: Activation::Silu,
        }))
    }

    /// Makes the experts of gpt-oss from stacked tensors `[experts, inputs, outputs]` with biases; gate and up columns alternate.
    fn stacked(&mut self) -> Result<Mixture<T>, LoadError> {
        let config = self.config;
        let (count, hidden, inner) = (config.num_experts, config.hidden_size, config.moe_intermediate_size);
        let router = self.linear(ROUTER_WEIGHT, "mlp.router", [count, hidden], true)?;
        let gate_up = self
            .load
            .linears("mlp.experts.gate_up_proj", [count, hidden, 2 * inner])?;
        let gate_up_bias = self.load.tensor("mlp.experts.gate_up_proj_bias", &[count, 2 * inner])?;
        let down = self.load.linears("mlp.experts.down_proj", [count, inner, hidden])?;
        let down_bias = self.load.tensor("mlp.experts.down_proj_bias", &[count, hidden])?;
        let [alpha, limit] = config.own.clamp.unwrap_or([0.0; 2]).map(T::from_f64);
        // The iterator is empty in a dry read, which only lists the tensors that the model needs.
        let stacks = gate_up.into_iter().zip(down).enumerate();
        let experts = stacks.map(|(number, (gate_up, down))| {
            let (gate_up, down) = (gate_up.swapped(), down.swapped());
            let mut part = |site, matrix: &Tensor<T>, biases: &Tensor<T>, first: usize, step: usize| {
                let weight = matrix.pick((first..matrix.rows()).step_by(step));
                let bias = biases.row(number)[first..].iter().step_by(step).copied();
                self.projection(site, number * weight.rows(), weight, Some(bias.collect()))
            };
            GatedMlp {
                gate: part(EXPERT_GATE_WEIGHT, &gate_up, &gate_up_bias, 0, 2),
                up: part(EXPERT_UP_WEIGHT, &gate_up, &gate_up_bias, 1, 2),
                down: part(EXPERT_DOWN_WEIGHT, &down, &down_bias, 0, 1),
                activation: Activation::Clamped { alpha, limit },
            }
        });
        Ok(Mixture {
            experts: experts.collect(),
            router,
            routing: config.routing,
            bias: Vec::new(),
            per_token: config.num_experts_per_tok,
            shared: None,
        })
    }
}
