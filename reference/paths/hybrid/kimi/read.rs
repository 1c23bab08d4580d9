//! `config.json` of Kimi-Linear, in the spelling of published checkpoints and in that of `transformers`, which stores both.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ops::sigmoid_router::Groups;
use crate::paths::hybrid::read::has_state;
use crate::paths::hybrid::{Config, Family, LayerConfig, Routing};
use crate::paths::keys::{Keys, MOST_SIZE};

/// Reads the keys of a configuration.
///
/// # Errors
/// What is missing, of another type, is not computed here, or does not fit together.
pub(in crate::paths::hybrid) fn config(keys: &Keys<'_>, family: &'static Family) -> Result<Config, String> {
    let linear: Option<Map<String, Value>> = keys.optional("linear_attn_config")?;
    let linear = linear.unwrap_or_default();
    let linear = keys.within("linear_attn_config", &linear);
    let read = Read { keys, linear: &linear };
    let config = read.config(family)?;
    linear.finish("a kimi_linear", &[])?;
    Ok(config)
}

struct Read<'a> {
    keys: &'a Keys<'a>,
    linear: &'a Keys<'a>,
}

impl Read<'_> {
    fn config(&self, family: &'static Family) -> Result<Config, String> {
        let keys = self.keys;
        self.expect()?;
        let heads = keys.size("num_attention_heads")?;
        let cached = keys.optional("num_key_value_heads")?.unwrap_or(heads);
        if cached != heads {
            let message = format!("is {cached}, expected num_attention_heads, {heads}: latents have no heads");
            return Err(keys.wrong("num_key_value_heads", message));
        }
        let (own, shared) = (keys.size("qk_nope_head_dim")?, keys.size("qk_rope_head_dim")?);
        let whole = keys.optional("qk_head_dim")?.unwrap_or(own + shared);
        if whole != own + shared {
            let message = format!(
                "is {whole}, expected qk_nope_head_dim + qk_rope_head_dim, {}",
                own + shared
            );
            return Err(keys.wrong("qk_head_dim", message));
        }
        let (linear_heads, linear_dim) = (
            self.linear_size("num_heads", "linear_num_heads")?,
            self.linear_size("head_dim", "linear_head_dim")?,
        );
        let kernel = self.linear_size("short_conv_kernel_size", "linear_conv_kernel_dim")?;
        has_state(keys, "linear_conv_kernel_dim", kernel)?;
        let layers = self.layers(keys.layers("num_hidden_layers")?)?;
        let experts = layers.iter().any(|layer| layer.experts);
        let inner = keys.size("moe_intermediate_size")?;
        let shared_experts = self.size("num_shared_experts", "n_shared_experts")?;
        let (count, per_token, routing) = self.routing()?;
        let if_experts = |size| if experts { size } else { 0 };
        Ok(Config {
            family,
            vocab_size: keys.size("vocab_size")?,
            hidden_size: keys.size("hidden_size")?,
            intermediate_size: keys.size("intermediate_size")?,
            num_attention_heads: heads,
            num_key_value_heads: heads,
            head_dim: own + shared,
            v_head_dim: keys.size("v_head_dim")?,
            kv_lora_rank: keys.size("kv_lora_rank")?,
            qk_nope_head_dim: own,
            qk_rope_head_dim: shared,
            attention_bias: keys.flag("attention_bias", false)?,
            linear_num_key_heads: linear_heads,
            linear_num_value_heads: linear_heads,
            linear_key_head_dim: linear_dim,
            linear_value_head_dim: linear_dim,
            linear_conv_kernel_dim: kernel,
            linear_conv_channels: 3 * linear_heads * linear_dim,
            linear_low_rank: linear_dim,
            num_experts: if_experts(count),
            num_experts_per_tok: if_experts(per_token),
            moe_intermediate_size: if_experts(inner),
            shared_expert_intermediate_size: if_experts(shared_experts * inner),
            routing,
            rms_norm_eps: keys.epsilon("rms_norm_eps")?,
            tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
            max_position_embeddings: self.either("model_max_length", "max_position_embeddings")?,
            rope: None,
            layers,
        })
    }

    /// Refuses what is computed otherwise, and allows what is of no use.
    fn expect(&self) -> Result<(), String> {
        let keys = self.keys;
        keys.silu("hidden_act")?;
        if let Some(rank) = keys.optional::<usize>("q_lora_rank")? {
            let message = format!("is {rank}, expected null: queries of latents are not computed");
            return Err(keys.wrong("q_lora_rank", message));
        }
        if !keys.flag("mla_use_nope", true)? {
            let message = "is false, expected true: attention with positions is not computed";
            return Err(keys.wrong("mla_use_nope", message.into()));
        }
        let by: Option<String> = keys.optional("moe_router_activation_func")?;
        if let Some(by) = by.filter(|by| by != "sigmoid") {
            return Err(keys.wrong("moe_router_activation_func", format!("is '{by}', expected 'sigmoid'")));
        }
        let every: Option<usize> = keys.optional("moe_layer_freq")?;
        if let Some(every) = every.filter(|every| *every != 1) {
            return Err(keys.wrong("moe_layer_freq", format!("is {every}, expected 1")));
        }
        // Channels of a head of neither kind; a base of positions that nothing has; layers that predict further tokens.
        for key in ["head_dim", "rope_theta", "num_nextn_predict_layers"] {
            keys.ignore(key);
        }
        Ok(())
    }

    /// A key under two names, of which a file may have both.
    fn either<D: DeserializeOwned + PartialEq + Debug>(&self, hub: &str, new: &str) -> Result<Option<D>, String> {
        agreed(
            self.keys,
            [self.keys.optional(hub)?, self.keys.optional(new)?],
            hub,
            new,
        )
    }

    /// A size under two names.
    fn size(&self, hub: &str, new: &str) -> Result<usize, String> {
        self.above_0(self.either(hub, new)?, hub)
    }

    /// A size that is a key of `linear_attn_config`, or stands next to it under another name.
    fn linear_size(&self, inner: &str, outer: &str) -> Result<usize, String> {
        let both = [self.linear.optional(inner)?, self.keys.optional(outer)?];
        self.above_0(agreed(self.linear, both, inner, outer)?, outer)
    }

    fn above_0(&self, size: Option<usize>, key: &str) -> Result<usize, String> {
        match size {
            None => Err(self.keys.missing(key)),
            Some(size) if (1..=MOST_SIZE).contains(&size) => Ok(size),
            Some(size) => {
                let message = format!("is {size}, expected a whole number from 1 to {MOST_SIZE}");
                Err(self.keys.wrong(key, message))
            }
        }
    }

    /// Experts, those of a token, and how they are selected.
    fn routing(&self) -> Result<(usize, usize, Routing), String> {
        let keys = self.keys;
        let count = self.size("num_experts", "num_local_experts")?;
        let per_token = self.size("num_experts_per_token", "num_experts_per_tok")?;
        let groups: usize = self.either("num_expert_group", "n_group")?.unwrap_or(1);
        keys.divides(["num_experts", "num_expert_group"], [count, groups])?;
        let kept: usize = keys.optional("topk_group")?.unwrap_or(1);
        if !(1..=groups).contains(&kept) {
            return Err(keys.wrong("topk_group", format!("is {kept}, of {groups} groups")));
        }
        if count / groups < 2 {
            let message = format!("is {groups}, of {count} experts: a group is kept by its two largest scores");
            return Err(keys.wrong("num_expert_group", message));
        }
        if groups > 1 && !keys.flag("use_grouped_topk", true)? {
            let message = format!("is false, but there are {groups} groups");
            return Err(keys.wrong("use_grouped_topk", message));
        }
        keys.ignore("use_grouped_topk");
        let open = kept * count / groups;
        if per_token > open {
            let message = format!("is {per_token}, of {open} experts in the groups that are kept");
            return Err(keys.wrong("num_experts_per_token", message));
        }
        let scale = keys.optional("routed_scaling_factor")?.unwrap_or(2.446f64);
        if !scale.is_finite() {
            return Err(keys.wrong("routed_scaling_factor", format!("is {scale}, expected a finite number")));
        }
        let routing = Routing::Sigmoid {
            normalised: self.either("moe_renormalize", "norm_topk_prob")?.unwrap_or(true),
            groups: Groups { count: groups, kept },
            scale,
        };
        Ok((count, per_token, routing))
    }

    fn layers(&self, count: usize) -> Result<Vec<LayerConfig>, String> {
        let keys = self.keys;
        let lists = [
            self.linear.optional::<Vec<usize>>("full_attn_layers")?,
            self.linear.optional::<Vec<usize>>("kda_layers")?,
        ];
        let listed = match lists {
            [Some(full), Some(delta)] => Some(self.listed(&full, &delta, count)?),
            [None, None] => None,
            [Some(_), None] => return Err(self.linear.missing("kda_layers")),
            [None, Some(_)] => return Err(self.linear.missing("full_attn_layers")),
        };
        let named = match keys.optional::<Vec<String>>("layer_types")? {
            None => None,
            Some(types) => {
                let names = ["full_attention", "linear_attention"];
                Some(keys.which("layer_types", names, &types, count)?)
            }
        };
        let full = match (listed, named) {
            (Some(listed), Some(named)) if listed != named => {
                return Err(keys.wrong("layer_types", "differs from the lists of linear_attn_config".into()));
            }
            (Some(full), _) | (None, Some(full)) => full,
            (None, None) => return Err(keys.missing("layer_types")),
        };
        let first = keys.optional::<usize>("first_k_dense_replace")?;
        let sparse = match keys.optional::<Vec<String>>("mlp_layer_types")? {
            None => (0..count).map(|at| at >= first.unwrap_or(1)).collect(),
            Some(types) => {
                let sparse = keys.which("mlp_layer_types", ["sparse", "dense"], &types, count)?;
                let differs = |first: usize| sparse.iter().enumerate().any(|(at, sparse)| *sparse != (at >= first));
                if let Some(first) = first.filter(|first| differs(*first)) {
                    let message = format!("is {first}, which differs from mlp_layer_types");
                    return Err(keys.wrong("first_k_dense_replace", message));
                }
                sparse
            }
        };
        let layers = full.into_iter().zip(sparse);
        Ok(layers.map(|(full, experts)| LayerConfig { full, experts }).collect())
    }

    /// Layers that have attention, by two lists that count from 1 and have each layer once.
    fn listed(&self, full: &[usize], delta: &[usize], count: usize) -> Result<Vec<bool>, String> {
        let mut all: Vec<usize> = full.iter().chain(delta).copied().collect();
        all.sort_unstable();
        if !all.iter().copied().eq(1..=count) {
            let message =
                format!("and full_attn_layers have layers {all:?} together, expected each of 1 to {count} once");
            return Err(self.linear.wrong("kda_layers", message));
        }
        Ok((1..=count).map(|layer| full.contains(&layer)).collect())
    }
}

/// Value that two keys agree on.
fn agreed<D: PartialEq + Debug>(
    keys: &Keys<'_>,
    both: [Option<D>; 2],
    first: &str,
    second: &str,
) -> Result<Option<D>, String> {
    match both {
        [Some(a), Some(b)] if a != b => Err(keys.wrong(first, format!("is {a:?}, but {second} is {b:?}"))),
        [a, b] => Ok(a.or(b)),
    }
}
