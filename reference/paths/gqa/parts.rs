//! A model of its tensors.

use super::families::{Experts, QueryKeyNorm};
use super::layer::{Layer, Mlp, Norm};
use super::sites::*;
use super::{Config, LayerConfig, Model};
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::ops::projection::Projection;
use crate::paths::{Invalid, Loader, Weights};
use crate::{Numerics, Real, Site, Tensor};

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
        let mut parts = Parts {
            config: &config,
            load,
            numerics,
            layer: None,
        };
        let weight = parts.load.tensor("model.embed_tokens.weight", &[vocabulary, hidden])?;
        let embedding = parts.projection(EMBEDDING_WEIGHT, 0, weight, None);
        let mut layers = Vec::new();
        for (number, layer) in config.layers.iter().enumerate() {
            parts.layer = Some(number);
            parts.load.prefix = format!("model.layers.{number}.");
            layers.push(parts.layer(layer)?);
        }
        parts.layer = None;
        parts.load.prefix = String::new();
        let norm = parts.load.vector("model.norm.weight", hidden)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(parts.linear(HEAD_WEIGHT, "lm_head", [vocabulary, hidden], false)?),
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
    load: &'a mut Loader<'w, T, W>,
    numerics: &'a mut dyn Numerics<T>,
    layer: Option<usize>,
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
                weight: self.load.vector(name, hidden)?,
                after: family.norm_after,
                before_weight: family.norm_before_weight,
            })
        };
        let (attention_norm, mlp_norm) = (norm(attention_norm)?, norm(mlp_norm)?);
        let sites = [QUERY_WEIGHT, KEY_WEIGHT, VALUE_WEIGHT];
        let outputs = [heads, cached, cached];
        let bias = config.query_key_value_bias;
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
            attention_norm,
            query,
            key,
            value,
            query_key_norms,
            heads: self.linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, heads], config.output_bias)?,
            sinks,
            head_dim: dim,
            scale: T::from_f64(config.attention_multiplier),
            window: layer.window,
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
        let [gate, up] = match config.family.fused {
            true => self.fused("mlp.gate_up_proj", [GATE_WEIGHT, UP_WEIGHT], [inner; 2], hidden)?,
            false => [
                self.linear(GATE_WEIGHT, "mlp.gate_proj", [inner, hidden], bias)?,
                self.linear(UP_WEIGHT, "mlp.up_proj", [inner, hidden], bias)?,
            ],
        };
        Ok(GatedMlp {
            gate,
            up,
            down: self.linear(DOWN_WEIGHT, "mlp.down_proj", [hidden, inner], bias)?,
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
        let router = self.linear(ROUTER_WEIGHT, router, [count, hidden], kind == Experts::GptOss)?;
        let experts = match kind {
            Experts::GptOss => self.stacked_experts()?,
            Experts::Mixtral => self.each_expert("block_sparse_moe.experts", ["w1", "w3", "w2"])?,
            Experts::Qwen | Experts::None => self.each_expert("mlp.experts", ["gate_proj", "up_proj", "down_proj"])?,
        };
        debug_assert!(experts.iter().all(|expert| expert.gate.outputs() == inner));
        Ok(Mlp::Experts {
            router,
            softmax: config.softmax,
            per_token: config.num_experts_per_tok,
            experts,
        })
    }

    /// Experts with tensors of their own.
    fn each_expert(&mut self, stem: &str, names: [&str; 3]) -> Result<Vec<GatedMlp<T>>, W::Error> {
        let (count, hidden, inner) = (
            self.config.num_experts,
            self.config.hidden_size,
            self.config.moe_intermediate_size,
        );
        let sites = [EXPERT_GATE_WEIGHT, EXPERT_UP_WEIGHT, EXPERT_DOWN_WEIGHT];
        let shapes = [[inner, hidden], [inner, hidden], [hidden, inner]];
        let mut experts = Vec::with_capacity(count);
        for number in 0..count {
            let mut one = |at: usize| {
                let weight = self
                    .load
                    .tensor(&format!("{stem}.{number}.{}.weight", names[at]), &shapes[at])?;
                Ok(self.projection(sites[at], number * shapes[at][0], weight, None))
            };
            experts.push(GatedMlp {
                gate: one(0)?,
                up: one(1)?,
                down: one(2)?,
                activation: Activation::Silu,
            });
        }
        Ok(experts)
    }

    /// gpt-oss: stacks `[experts, inputs, outputs]` with biases, in which columns of gate and up take turns.
    fn stacked_experts(&mut self) -> Result<Vec<GatedMlp<T>>, W::Error> {
        let (count, hidden, inner) = (
            self.config.num_experts,
            self.config.hidden_size,
            self.config.moe_intermediate_size,
        );
        let gate_up = self
            .load
            .tensor("mlp.experts.gate_up_proj", &[count, hidden, 2 * inner])?;
        let gate_up_bias = self.load.tensor("mlp.experts.gate_up_proj_bias", &[count, 2 * inner])?;
        let down = self.load.tensor("mlp.experts.down_proj", &[count, inner, hidden])?;
        let down_bias = self.load.tensor("mlp.experts.down_proj_bias", &[count, hidden])?;
        let [alpha, limit] = self.config.clamp.unwrap_or([0.0; 2]).map(T::from_f64);
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
                gate: self.projection(
                    EXPERT_GATE_WEIGHT,
                    rows,
                    turned(&gate_up, both, 0, 2),
                    bias(&gate_up_bias, 0, 2),
                ),
                up: self.projection(
                    EXPERT_UP_WEIGHT,
                    rows,
                    turned(&gate_up, both, 1, 2),
                    bias(&gate_up_bias, 1, 2),
                ),
                down: self.projection(
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

    /// A layer's tensors `NAME.weight` and `NAME.bias`.
    fn linear(
        &mut self,
        site: &'static str,
        name: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Result<Projection<T>, W::Error> {
        let weight = self.load.tensor(&format!("{name}.weight"), &shape)?;
        let bias = match bias {
            true => Some(self.load.vector(&format!("{name}.bias"), shape[0])?),
            false => None,
        };
        Ok(self.projection(site, 0, weight, bias))
    }

    /// Several projections of one input that are one tensor, one below the other.
    fn fused<const N: usize>(
        &mut self,
        name: &str,
        sites: [&'static str; N],
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Projection<T>; N], W::Error> {
        let all = self
            .load
            .tensor(&format!("{name}.weight"), &[outputs.iter().sum(), inputs])?;
        let mut rest = &all.data[..];
        Ok(std::array::from_fn(|at| {
            // Without elements where it is only to be seen what is asked for.
            let part;
            (part, rest) = rest.split_at((outputs[at] * inputs).min(rest.len()));
            let shape = vec![outputs[at], inputs];
            let weight = Tensor {
                shape,
                data: part.to_vec(),
            };
            self.projection(sites[at], 0, weight, None)
        }))
    }

    /// Passes a weight at its site, as the rows from `first` on of all that pass there.
    fn projection(
        &mut self,
        site: &'static str,
        first: usize,
        mut weight: Tensor<T>,
        bias: Option<Vec<T>>,
    ) -> Projection<T> {
        if !weight.data.is_empty() {
            self.numerics
                .site(&Site::new(self.layer, site).from_row(first), &mut weight);
        }
        Projection::new(weight, bias)
    }
}
