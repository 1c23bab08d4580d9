//! Builds the mixers of Kimi-Linear (latent attention, delta rule) from the tensors of a layer.

use super::LATENT_EPS;
use crate::Real;
use crate::ops::projection::Projection;
use crate::paths::LoadError;
use crate::paths::gqa::parts::Parts;
use crate::paths::hybrid::Hybrid;
use crate::paths::hybrid::delta::{DeltaRule, Low};
use crate::paths::hybrid::latent::LatentAttention;
use crate::paths::hybrid::parts::rows_of;
use crate::paths::hybrid::sites::*;

impl<T: Real> Parts<'_, '_, '_, T, Hybrid> {
    pub(in crate::paths::hybrid) fn latent_attention(&mut self) -> Result<LatentAttention<T>, LoadError> {
        let config = self.config;
        let (hidden, rank, count) = (config.hidden_size, config.own.kv_lora_rank, config.num_attention_heads);
        let dims = [
            config.own.qk_nope_head_dim,
            config.own.qk_rope_head_dim,
            config.own.v_head_dim,
        ];
        let [own, shared, value] = dims;
        let bias = config.own.attention_bias;
        let [queries, latents, both] = [
            [count * config.head_dim, hidden],
            [rank + shared, hidden],
            [count * (own + value), rank],
        ];
        Ok(LatentAttention {
            query: self.linear(QUERY_WEIGHT, "self_attn.q_proj", queries, false)?,
            down: self.linear(LATENT_DOWN_WEIGHT, "self_attn.kv_a_proj_with_mqa", latents, bias)?,
            norm: self.load.vector("self_attn.kv_a_layernorm.weight", rank)?,
            eps: T::from_f64(LATENT_EPS),
            up: self.linear(LATENT_UP_WEIGHT, "self_attn.kv_b_proj", both, false)?,
            heads: self.linear(HEADS_WEIGHT, "self_attn.o_proj", [hidden, count * value], bias)?,
            count,
            dims,
            scale: T::from_f64(config.attention_multiplier),
        })
    }

    pub(in crate::paths::hybrid) fn channel_rule(&mut self) -> Result<DeltaRule<T>, LoadError> {
        let (config, sizes) = (self.config, self.config.own.delta);
        let (hidden, kernel) = (config.hidden_size, config.own.linear_conv_kernel_dim);
        let (heads, channels) = (sizes.value_heads, sizes.value_heads * sizes.value_dim);
        let names = ["q", "k", "v"].map(|name| format!("self_attn.{name}_proj.weight"));
        let mut qkv = Vec::new();
        for (part, name) in names.iter().enumerate() {
            let mut weight = self.load.tensor(name, &[channels, hidden])?;
            self.pass(LINEAR_QKV_WEIGHT, part * channels, &mut weight);
            qkv.extend(weight.data);
        }
        let mut taps = Vec::new();
        for name in ["q", "k", "v"] {
            let name = format!("self_attn.{name}_conv1d.weight");
            taps.extend(self.load.tensor(&name, &[channels, 1, kernel])?.data);
        }
        let conv = self.convolution(taps);
        let sites = [LINEAR_GATE_DOWN_WEIGHT, LINEAR_GATE_UP_WEIGHT, LINEAR_GATE_LOW];
        let gate = self.low("g", sites, channels)?;
        let sites = [LINEAR_DECAY_DOWN_WEIGHT, LINEAR_DECAY_UP_WEIGHT, LINEAR_DECAY_LOW];
        let decay = self.low("f", sites, channels)?;
        Ok(DeltaRule {
            qkv: Projection::new(rows_of(qkv, hidden), None),
            gate,
            beta: self.linear(LINEAR_BETA_WEIGHT, "self_attn.b_proj", [heads, hidden], false)?,
            decay,
            by_channel: true,
            conv,
            a_log: self.load.tensor("self_attn.A_log", &[1, 1, heads, 1])?.data,
            dt_bias: self.load.vector("self_attn.dt_bias", channels)?,
            norm: self.load.vector("self_attn.o_norm.weight", sizes.value_dim)?,
            heads: self.linear(LINEAR_HEADS_WEIGHT, "self_attn.o_proj", [hidden, channels], false)?,
            sizes,
            eps: T::from_f64(config.rms_norm_eps),
        })
    }

    /// Makes a low-rank pair of projections `NAME_a_proj`, `NAME_b_proj`. The three sites are for the weights of the two
    /// projections and for the input of the second projection.
    fn low(
        &mut self,
        name: &str,
        [down_site, up_site, site]: [&'static str; 3],
        outputs: usize,
    ) -> Result<Low<T>, LoadError> {
        let (hidden, rank) = (self.config.hidden_size, self.config.own.linear_low_rank);
        let (down, up) = (format!("self_attn.{name}_a_proj"), format!("self_attn.{name}_b_proj"));
        Ok(Low {
            down: Some((self.linear(down_site, &down, [rank, hidden], false)?, site)),
            up: self.linear(up_site, &up, [outputs, rank], false)?,
        })
    }
}
