//! Builds the layers of a model from the tensors of its checkpoint.

use super::delta::{DeltaRule, Low};
use super::families::Form;
use super::sites::*;
use super::{Hybrid, LayerConfig};
use crate::ops::projection::Projection;
use crate::ops::short_conv::ShortConv;
use crate::paths::LoadError;
use crate::paths::gqa::attention::Attention;
use crate::paths::gqa::layer::Layer;
use crate::paths::gqa::mlp::{Mlp, SharedExpert};
use crate::paths::gqa::parts::{NAMES, Parts};
use crate::paths::gqa::projections::pick;
use crate::{Real, Tensor};

/// Makes a tensor of rows of `cols` elements. In a dry read, which only lists tensors, `data` is empty and the tensor has 0 rows.
pub(super) fn rows_of<T: Real>(data: Vec<T>, cols: usize) -> Tensor<T> {
    Tensor::new([data.len() / cols, cols], data)
}

/// Returns the indices of the rows `first..first + len` of each head, in a matrix with `each` rows per head.
fn of_heads(heads: usize, each: usize, first: usize, len: usize) -> impl Iterator<Item = usize> + Clone {
    (0..heads).flat_map(move |head| (0..len).map(move |row| head * each + first + row))
}

impl<T: Real> Parts<'_, '_, '_, T, Hybrid> {
    pub(super) fn layer(&mut self, layer: LayerConfig) -> Result<Layer<T>, LoadError> {
        Ok(Layer {
            mixer_norm: self.norm("input_layernorm.weight", self.config.hidden_size)?,
            mixer: match (self.config.own.family.form, layer.full) {
                (Form::Kimi, true) => Box::new(self.latent_attention()?),
                (Form::Kimi, false) => Box::new(self.channel_rule()?),
                (_, true) => Box::new(self.attention()?),
                (_, false) => Box::new(self.delta_rule()?),
            },
            mlp_norm: self.norm("post_attention_layernorm.weight", self.config.hidden_size)?,
            mlp: self.mlp(layer)?,
            norm_after: false,
            norm_before_weight: false,
            residual_multiplier: self.config.residual_multiplier.map(T::from_f64),
            rope: layer.rope,
            eps: T::from_f64(self.config.rms_norm_eps),
        })
    }

    fn attention(&mut self) -> Result<Attention<T>, LoadError> {
        let config = self.config;
        let (hidden, dim, bias) = (config.hidden_size, config.head_dim, config.own.attention_bias);
        let (heads, cached) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        let [query, gate] = self.queries_and_gates()?;
        Ok(Attention {
            query,
            key: self.linear(KEY_WEIGHT, "self_attn.k_proj", [cached, hidden], bias)?,
            value: self.linear(VALUE_WEIGHT, "self_attn.v_proj", [cached, hidden], bias)?,
            query_key_norms: Some([
                self.norm("self_attn.q_norm.weight", dim)?,
                self.norm("self_attn.k_norm.weight", dim)?,
            ]),
            gate: Some((gate, OUTPUT_GATE)),
            heads: self.linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, heads], bias)?,
            sinks: None,
            head_dim: dim,
            scale: T::from_f64(config.attention_multiplier),
            window: None,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    /// Makes the projections to queries and to gates from one tensor, which has for each head the query's rows, then the gate's
    /// rows.
    fn queries_and_gates(&mut self) -> Result<[Projection<T>; 2], LoadError> {
        let config = self.config;
        let (heads, dim) = (config.num_attention_heads, config.head_dim);
        let shape = [2 * heads * dim, config.hidden_size];
        let weight = self.load.tensor("self_attn.q_proj.weight", &shape)?;
        let bias = match config.own.attention_bias {
            true => Some(self.load.tensor("self_attn.q_proj.bias", &shape[..1])?),
            false => None,
        };
        let mut part = |site, first| {
            let rows = of_heads(heads, 2 * dim, first, dim);
            let bias = bias.as_ref().map(|bias| pick(bias, rows.clone()).data);
            self.projection(site, 0, pick(&weight, rows), bias)
        };
        Ok([part(QUERY_WEIGHT, 0), part(OUTPUT_GATE_WEIGHT, dim)])
    }

    fn delta_rule(&mut self) -> Result<DeltaRule<T>, LoadError> {
        let (config, sizes) = (self.config, self.config.own.delta);
        let (channels, kernel) = (config.own.linear_conv_channels, config.own.linear_conv_kernel_dim);
        let hidden = config.hidden_size;
        let values = sizes.value_heads * sizes.value_dim;
        let [qkv, gate, beta, decay] = match config.own.family.form {
            Form::Grouped => self.grouped()?,
            _ => {
                let heads = sizes.value_heads;
                let mut of = |site, name: &str, rows| self.linear(site, name, [rows, hidden], false);
                [
                    of(LINEAR_QKV_WEIGHT, "linear_attn.in_proj_qkv", channels)?,
                    of(LINEAR_GATE_WEIGHT, "linear_attn.in_proj_z", values)?,
                    of(LINEAR_BETA_WEIGHT, "linear_attn.in_proj_b", heads)?,
                    of(LINEAR_DECAY_WEIGHT, "linear_attn.in_proj_a", heads)?,
                ]
            }
        };
        let shape = [channels, 1, kernel];
        let taps = self.load.tensor("linear_attn.conv1d.weight", &shape)?.data;
        let conv = self.convolution(taps);
        let whole = |up| Low { down: None, up };
        Ok(DeltaRule {
            qkv,
            gate: whole(gate),
            beta,
            decay: whole(decay),
            by_channel: false,
            conv,
            a_log: self.load.vector("linear_attn.A_log", sizes.value_heads)?,
            dt_bias: self.load.vector("linear_attn.dt_bias", sizes.value_heads)?,
            norm: self.load.vector("linear_attn.norm.weight", sizes.value_dim)?,
            heads: self.linear(LINEAR_HEADS_WEIGHT, "linear_attn.out_proj", [hidden, values], false)?,
            sizes,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    /// Calls the hook at the convolution's site with the weight `[channels, kernel]`, and makes the convolution of all channels.
    pub(super) fn convolution(&mut self, taps: Vec<T>) -> ShortConv<T> {
        let mut taps = rows_of(taps, self.config.own.linear_conv_kernel_dim);
        self.pass(LINEAR_CONV_WEIGHT, 0, &mut taps);
        ShortConv::new(&taps, true)
    }

    /// Splits `in_proj_qkvz` and `in_proj_ba` into four projections: queries, keys and values as one; gates z; β; decays. The
    /// rows of both tensors are grouped by key head: a group of `in_proj_qkvz` is [q, k, v, z], and a group of `in_proj_ba` is
    /// [β, decay]. v, z, β and decay cover all value heads of the key head.
    fn grouped(&mut self) -> Result<[Projection<T>; 4], LoadError> {
        let (hidden, sizes) = (self.config.hidden_size, self.config.own.delta);
        let (heads, keys, group) = (sizes.heads, sizes.key_dim, sizes.value_heads / sizes.heads);
        let (values, each) = (group * sizes.value_dim, 2 * (sizes.key_dim + group * sizes.value_dim));
        let qkvz = self
            .load
            .tensor("linear_attn.in_proj_qkvz.weight", &[heads * each, hidden])?;
        let ba = self
            .load
            .tensor("linear_attn.in_proj_ba.weight", &[heads * 2 * group, hidden])?;
        let part = |first, len| of_heads(heads, each, first, len);
        let qkv = part(0, keys).chain(part(keys, keys)).chain(part(2 * keys, values));
        let parts = [
            (LINEAR_QKV_WEIGHT, pick(&qkvz, qkv)),
            (LINEAR_GATE_WEIGHT, pick(&qkvz, part(2 * keys + values, values))),
            (LINEAR_BETA_WEIGHT, pick(&ba, of_heads(heads, 2 * group, 0, group))),
            (LINEAR_DECAY_WEIGHT, pick(&ba, of_heads(heads, 2 * group, group, group))),
        ];
        Ok(parts.map(|(site, weight)| self.projection(site, 0, weight, None)))
    }

    fn mlp(&mut self, layer: LayerConfig) -> Result<Mlp<T>, LoadError> {
        if !layer.experts {
            return Ok(Mlp::Dense(self.dense(false)?));
        }
        let (config, kimi) = (self.config, self.config.own.family.form == Form::Kimi);
        let (block, matrices, shared) = match kimi {
            false => ("mlp", NAMES, "shared_expert"),
            true => ("block_sparse_moe", ["w1", "w3", "w2"], "shared_experts"),
        };
        let mut mixture = self.mixture(block, matrices)?;
        let hidden = config.hidden_size;
        let sites = [SHARED_GATE_WEIGHT, SHARED_UP_WEIGHT, SHARED_DOWN_WEIGHT];
        let stem = format!("{block}.{shared}");
        let sizes = [hidden, config.own.shared_expert_intermediate_size];
        let mlp = self.gated_mlp((sites, 0), (&stem, NAMES), sizes, false)?;
        let gate = match kimi {
            true => None,
            false => {
                let gate = self.linear(SHARED_SCALE_WEIGHT, "mlp.shared_expert_gate", [1, hidden], false)?;
                Some((gate, SHARED_SCALE))
            }
        };
        mixture.shared = Some(Box::new(SharedExpert {
            mlp,
            gate,
            hidden_site: SHARED_HIDDEN,
        }));
        Ok(Mlp::Mixture(mixture))
    }
}
