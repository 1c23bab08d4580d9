//! Reads the `config.json` of every family into the same [`Config`].

use serde_json::{Map, Value};

use super::families::{Experts, FAMILIES, Family, Form};
use super::{Config, Hybrid, LayerConfig, Routing, kimi};
use crate::ops::linear_attention::Sizes;
use crate::ops::softmax_router::Softmax;
use crate::paths::RopeConfig;
use crate::paths::gqa::SCALINGS;
use crate::paths::keys::{INERT, Keys, MOST_LAYERS};
use crate::paths::rope::Around;

/// Keys of these families that do not change the result of the reference. The first key is the data type in which an engine
/// stores states; in ulplab, a recipe (set of formats) gives this type. The other keys describe layers for multi-token
/// prediction, on which the logits do not depend.
const OWN_INERT: &str = "mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings";

/// Keys of the outer object, next to `text_config`, that the reader ignores: they concern images only, or are also in
/// `text_config`.
const BESIDE_TEXT: &str =
    "image_token_id language_model_only video_token_id vision_config vision_end_token_id vision_start_token_id";

/// Reads a `config.json`.
///
/// # Errors
/// Returns an error for a missing key, a wrong type, values that contradict each other, and an unknown key that may change the
/// result.
pub(super) fn config(json: &str, inert: &[&str]) -> Result<Config, String> {
    let map: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let keys = Keys::new(&map, inert);
    let family = keys.family(FAMILIES, |family| family.model_type)?;
    let Some(inner) = family.nested else {
        return of_text(&keys, family);
    };
    let text: Map<String, Value> = keys.needed("text_config")?;
    let text = keys.within("text_config", &text);
    if let Some(found) = text.optional::<String>("model_type")?.filter(|found| found != inner) {
        return Err(text.wrong("model_type", format!("is '{found}', expected '{inner}'")));
    }
    let mut config = of_text(&text, family)?;
    // `transformers` reads `tie_word_embeddings` of the outer object, not of `text_config`.
    config.tie_word_embeddings = keys.flag("tie_word_embeddings", false)?;
    keys.finish(&format!("a {}", family.model_type), &[INERT, BESIDE_TEXT])?;
    Ok(config)
}

fn of_text(keys: &Keys<'_>, family: &'static Family) -> Result<Config, String> {
    let config = match family.form {
        Form::Kimi => kimi::config(keys, family)?,
        Form::Grouped | Form::Apart => Read { keys, family }.config()?,
    };
    keys.finish(&format!("a {}", family.model_type), &[INERT, OWN_INERT])?;
    Ok(config)
}

/// Names of the mixers in `layer_types`: attention and delta rule.
pub(super) const MIXERS: [&str; 2] = ["full_attention", "linear_attention"];

/// Maximum kernel size of the convolution in tokens; published models have 4.
const MOST_TAPS: usize = 1 << 10;

/// Returns an error if a convolution kernel has more than [`MOST_TAPS`] tokens, or fewer than 2 (the state would be empty).
pub(super) fn has_state(keys: &Keys<'_>, key: &str, kernel: usize) -> Result<(), String> {
    let message = format_args!("is {kernel}, expected 2 to {MOST_TAPS}: a shorter one has no state");
    keys.refuse(!(2..=MOST_TAPS).contains(&kernel), key, message)
}

/// Returns the kind of each layer; no layer has a window. `full` is true for layers with attention, false for layers with a delta
/// rule; `experts` is true for layers with experts.
pub(super) fn layers(full: Vec<bool>, experts: Vec<bool>, rope: Option<usize>) -> Vec<LayerConfig> {
    let layer = |(full, experts)| LayerConfig {
        full,
        window: None,
        rope,
        experts,
    };
    full.into_iter().zip(experts).map(layer).collect()
}

struct Read<'a> {
    keys: &'a Keys<'a>,
    family: &'static Family,
}

impl Read<'_> {
    fn config(&self) -> Result<Config, String> {
        let keys = self.keys;
        let heads = |names: [&str; 2]| {
            let found = [keys.size(names[0])?, keys.size(names[1])?];
            keys.divides(names, found).map(|()| found)
        };
        let [heads_of_queries, cached] = heads(["num_attention_heads", "num_key_value_heads"])?;
        let [value_heads, key_heads] = heads(["linear_num_value_heads", "linear_num_key_heads"])?;
        let head_dim = keys.head_dim(|| match keys.has("head_dim") {
            false => Ok(256),
            true => Err(keys.missing("head_dim")),
        })?;
        keys.silu("hidden_act")?;
        keys.silu("output_gate_type")?;
        let gated = keys.flag("attn_output_gate", true)?;
        keys.refuse(!gated, "attn_output_gate", "is false, expected true")?;
        let eps = keys.epsilon("rms_norm_eps")?;
        let kernel = keys.size("linear_conv_kernel_dim")?;
        has_state(keys, "linear_conv_kernel_dim", kernel)?;
        let delta = Sizes {
            heads: key_heads,
            value_heads,
            key_dim: keys.size("linear_key_head_dim")?,
            value_dim: keys.size("linear_value_head_dim")?,
        };
        let most_tokens = keys.optional("max_position_embeddings")?;
        let layers = self.layers(keys.layers("num_hidden_layers")?)?;
        let experts = self.family.experts != Experts::None;
        let if_experts = |key: &str| if experts { keys.size(key) } else { Ok(0) };
        let (count, per_token) = (if_experts("num_experts")?, if_experts("num_experts_per_tok")?);
        keys.at_most("num_experts_per_tok", per_token, count)?;
        let inner = match layers.iter().all(|layer| layer.experts) {
            false => keys.size("intermediate_size")?,
            true => {
                keys.ignore("intermediate_size");
                0
            }
        };
        let (vocab_size, hidden_size) = (keys.size("vocab_size")?, keys.size("hidden_size")?);
        let attention_bias = keys.flag("attention_bias", false)?;
        Ok(Config {
            vocab_size,
            hidden_size,
            intermediate_size: inner,
            num_attention_heads: heads_of_queries,
            num_key_value_heads: cached,
            head_dim,
            num_experts: count,
            num_experts_per_tok: per_token,
            moe_intermediate_size: if_experts("moe_intermediate_size")?,
            own: Hybrid {
                family: self.family,
                v_head_dim: head_dim,
                kv_lora_rank: 0,
                qk_nope_head_dim: 0,
                qk_rope_head_dim: 0,
                attention_bias,
                delta,
                linear_conv_kernel_dim: kernel,
                linear_conv_channels: 2 * delta.heads * delta.key_dim + delta.value_heads * delta.value_dim,
                linear_low_rank: 0,
                shared_expert_intermediate_size: if_experts("shared_expert_intermediate_size")?,
            },
            routing: Routing::Softmax(Softmax::OfAll {
                normalised: match self.family.experts {
                    Experts::Said => keys.flag("norm_topk_prob", true)?,
                    Experts::All | Experts::None => true,
                },
            }),
            rms_norm_eps: eps,
            tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
            embedding_multiplier: 1.0,
            attention_multiplier: (head_dim as f64).powf(-0.5),
            residual_multiplier: None,
            logits_scaling: 1.0,
            max_position_embeddings: most_tokens,
            ropes: vec![self.rope(head_dim, most_tokens)?],
            layers,
        })
    }

    fn layers(&self, count: usize) -> Result<Vec<LayerConfig>, String> {
        let keys = self.keys;
        let interval = keys.up_to("full_attention_interval", MOST_LAYERS)?.unwrap_or(4);
        let full = keys.which("layer_types", MIXERS, count)?;
        let full = full.unwrap_or_else(|| (0..count).map(|at| (at + 1).is_multiple_of(interval)).collect());
        let experts = match self.family.experts {
            Experts::Said => keys.with_experts(count)?,
            Experts::All => vec![true; count],
            Experts::None => vec![false; count],
        };
        Ok(layers(full, experts, Some(0)))
    }

    fn rope(&self, head_dim: usize, most_tokens: Option<usize>) -> Result<RopeConfig, String> {
        let keys = self.keys;
        let around = Around {
            model_type: self.family.model_type,
            missing_theta: 1e4,
            scalings: SCALINGS,
            partial_rope: true,
            head_dim,
            most_tokens,
            theta: keys.optional("rope_theta")?,
            partial: Some(keys.optional("partial_rotary_factor")?.unwrap_or(0.25)),
            original: None,
        };
        let (name, own) = keys.rope()?;
        let mut own = own.unwrap_or_default();
        if self.family.mrope {
            // Ignore these keys, which assign frequencies to position dimensions: a text token has the same position in all
            // dimensions.
            own.remove("mrope_section");
            own.remove("mrope_interleaved");
        }
        around.rope(keys, name, Some(&own))
    }
}
