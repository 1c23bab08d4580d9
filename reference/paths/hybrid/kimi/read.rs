//! Reads the `config.json` of Kimi-Linear, with the key names of published checkpoints and of `transformers`. A file stored by
//! `transformers` has both names of a key.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ops::linear_attention::Sizes;
use crate::ops::sigmoid_router::Groups;
use crate::paths::hybrid::read::{MIXERS, has_state, layers};
use crate::paths::hybrid::{Config, Family, Hybrid, LayerConfig, Routing};
use crate::paths::keys::{Keys, MOST_SIZE};

/// Reads the keys of a configuration.
///
/// # Errors
/// Returns an error for a missing key, a wrong type, a setting that is not implemented, and values that contradict each other.
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
        let message = format_args!("is {cached}, expected num_attention_heads, {heads}: latents have no heads");
        keys.refuse(cached != heads, "num_key_value_heads", message)?;
        let (own, shared) = (keys.size("qk_nope_head_dim")?, keys.size("qk_rope_head_dim")?);
        let head_dim = own + shared;
        let whole = keys.optional("qk_head_dim")?.unwrap_or(head_dim);
        let message = format_args!("is {whole}, expected qk_nope_head_dim + qk_rope_head_dim, {head_dim}");
        keys.refuse(whole != head_dim, "qk_head_dim", message)?;
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
            vocab_size: keys.size("vocab_size")?,
            hidden_size: keys.size("hidden_size")?,
            intermediate_size: keys.size("intermediate_size")?,
            num_attention_heads: heads,
            num_key_value_heads: heads,
            head_dim,
            num_experts: if_experts(count),
            num_experts_per_tok: if_experts(per_token),
            moe_intermediate_size: if_experts(inner),
            routing,
            own: Hybrid {
                family,
                v_head_dim: keys.size("v_head_dim")?,
                kv_lora_rank: keys.size("kv_lora_rank")?,
                qk_nope_head_dim: own,
                qk_rope_head_dim: shared,
                attention_bias: keys.flag("attention_bias", false)?,
                delta: Sizes {
                    heads: linear_heads,
                    value_heads: linear_heads,
                    key_dim: linear_dim,
                    value_dim: linear_dim,
                },
                linear_conv_kernel_dim: kernel,
                linear_conv_channels: 3 * linear_heads * linear_dim,
                linear_low_rank: linear_dim,
                shared_expert_intermediate_size: if_experts(shared_experts * inner),
            },
            rms_norm_eps: keys.epsilon("rms_norm_eps")?,
            tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
            embedding_multiplier: 1.0,
            attention_multiplier: (head_dim as f64).powf(-0.5),
            residual_multiplier: None,
            logits_scaling: 1.0,
            max_position_embeddings: self.either("model_max_length", "max_position_embeddings")?,
            ropes: Vec::new(),
            layers,
        })
    }

    /// Returns an error for settings that are not implemented, and marks the keys that have no effect as ignored.
    fn expect(&self) -> Result<(), String> {
        let keys = self.keys;
        keys.silu("hidden_act")?;
        if let Some(rank) = keys.optional::<usize>("q_lora_rank")? {
            let message = format!("is {rank}, expected null: queries of latents are not computed");
            return Err(keys.wrong("q_lora_rank", message));
        }
        let nowhere = keys.flag("mla_use_nope", true)?;
        let message = "is false, expected true: attention with positions is not computed";
        keys.refuse(!nowhere, "mla_use_nope", message)?;
        let by: String = keys
            .optional("moe_router_activation_func")?
            .unwrap_or_else(|| "sigmoid".into());
        let message = format_args!("is '{by}', expected 'sigmoid'");
        keys.refuse(by != "sigmoid", "moe_router_activation_func", message)?;
        let every: usize = keys.optional("moe_layer_freq")?.unwrap_or(1);
        keys.refuse(every != 1, "moe_layer_freq", format_args!("is {every}, expected 1"))?;
        // Ignore three keys: `head_dim` is used by neither attention nor delta rule, no layer has RoPE, and logits do not depend
        // on multi-token prediction.
        for key in ["head_dim", "rope_theta", "num_nextn_predict_layers"] {
            keys.ignore(key);
        }
        Ok(())
    }

    /// Reads a value that has the key `hub` in published files and `new` in `transformers`. If the file has both keys, their
    /// values must be equal; `None` if the file has neither key.
    fn either<D: DeserializeOwned + PartialEq + Debug>(&self, hub: &str, new: &str) -> Result<Option<D>, String> {
        let both = [self.keys.optional(hub)?, self.keys.optional(new)?];
        self.keys.agreed([hub, new], both)
    }

    /// Reads a size from 1 to [`MOST_SIZE`] under one of two keys, like [`Self::either`].
    fn size(&self, hub: &str, new: &str) -> Result<usize, String> {
        self.above_0(self.either(hub, new)?, hub)
    }

    /// Reads a size from 1 to [`MOST_SIZE`] from the key `inner` of `linear_attn_config`, or from the top-level key `outer`.
    fn linear_size(&self, inner: &str, outer: &str) -> Result<usize, String> {
        let both = [self.linear.optional(inner)?, self.keys.optional(outer)?];
        self.above_0(self.linear.agreed([inner, outer], both)?, outer)
    }

    fn above_0(&self, size: Option<usize>, key: &str) -> Result<usize, String> {
        let size = size.ok_or_else(|| self.keys.missing(key))?;
        let message = format_args!("is {size}, expected a whole number from 1 to {MOST_SIZE}");
        self.keys.refuse(!(1..=MOST_SIZE).contains(&size), key, message)?;
        Ok(size)
    }

    /// Returns the number of experts, the number of experts per token, and the routing rule.
    fn routing(&self) -> Result<(usize, usize, Routing), String> {
        let keys = self.keys;
        let count = self.size("num_experts", "num_local_experts")?;
        let per_token = self.size("num_experts_per_token", "num_experts_per_tok")?;
        let groups: usize = self.either("num_expert_group", "n_group")?.unwrap_or(1);
        keys.divides(["num_experts", "num_expert_group"], [count, groups])?;
        let kept: usize = keys.optional("topk_group")?.unwrap_or(1);
        let message = format_args!("is {kept}, of {groups} groups");
        keys.refuse(!(1..=groups).contains(&kept), "topk_group", message)?;
        let message = format_args!("is {groups}, of {count} experts: a group is kept by its two largest scores");
        keys.refuse(count / groups < 2, "num_expert_group", message)?;
        let ungrouped = groups > 1 && !keys.flag("use_grouped_topk", true)?;
        let message = format_args!("is false, but there are {groups} groups");
        keys.refuse(ungrouped, "use_grouped_topk", message)?;
        keys.ignore("use_grouped_topk");
        let open = kept * count / groups;
        let message = format_args!("is {per_token}, of {open} experts in the groups that are kept");
        keys.refuse(per_token > open, "num_experts_per_token", message)?;
        let scale = keys.number("routed_scaling_factor", "a finite number", |_| true)?;
        let routing = Routing::Sigmoid {
            normalised: self.either("moe_renormalize", "norm_topk_prob")?.unwrap_or(true),
            groups: Groups { count: groups, kept },
            scale: scale.unwrap_or(2.446),
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
        let named = keys.which("layer_types", MIXERS, count)?;
        let full = match (listed, named) {
            (Some(listed), Some(named)) if listed != named => {
                return Err(keys.wrong("layer_types", "differs from the lists of linear_attn_config".into()));
            }
            (Some(full), _) | (None, Some(full)) => full,
            (None, None) => return Err(keys.missing("layer_types")),
        };
        let first = keys.optional::<usize>("first_k_dense_replace")?;
        let sparse = match keys.which("mlp_layer_types", ["sparse", "dense"], count)? {
            None => (0..count).map(|at| at >= first.unwrap_or(1)).collect(),
            Some(sparse) => {
                let differs = |first: usize| sparse.iter().enumerate().any(|(at, sparse)| *sparse != (at >= first));
                if let Some(first) = first.filter(|first| differs(*first)) {
                    let message = format!("is {first}, which differs from mlp_layer_types");
                    return Err(keys.wrong("first_k_dense_replace", message));
                }
                sparse
            }
        };
        Ok(layers(full, sparse, None))
    }

    /// Returns one flag per layer: true if the layer is in the list `full` (attention), false if it is in the list `delta`. Both
    /// lists number layers from 1; each layer must be in exactly one list.
    fn listed(&self, full: &[usize], delta: &[usize], count: usize) -> Result<Vec<bool>, String> {
        let mut all: Vec<usize> = full.iter().chain(delta).copied().collect();
        all.sort_unstable();
        let once = all.iter().copied().eq(1..=count);
        let message =
            format_args!("and full_attn_layers have layers {all:?} together, expected each of 1 to {count} once");
        self.linear.refuse(!once, "kda_layers", message)?;
        Ok((1..=count).map(|layer| full.contains(&layer)).collect())
    }
}
