//! Reads the `config.json` of every family into the same [`Config`].

use serde_json::{Map, Value};

use super::families::{Biases, Experts, FAMILIES, Family, QueryKeyNorm, Windows};
use super::{Config, GroupedQuery, LayerConfig, Routing};
use crate::ops::softmax_router::Softmax;
use crate::paths::RopeConfig;
use crate::paths::keys::{INERT, Keys, MOST_LAYERS};
use crate::paths::rope::Around;

/// Reads a `config.json`.
///
/// # Errors
/// Returns an error for a missing key, a wrong type, values that contradict each other, and an unknown key that may change the
/// result.
pub(super) fn config(json: &str, inert: &[&str]) -> Result<Config, String> {
    let map: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let keys = Keys::new(&map, inert);
    let family = keys.family(FAMILIES, |family| family.model_type)?;
    let config = Read { keys: &keys, family }.config()?;
    keys.finish(&format!("a {}", family.model_type), &[INERT])?;
    Ok(config)
}

/// Describes, for the error message about an unknown family, the most similar known family: the one that leaves the fewest keys
/// of the file unread, with these keys.
pub(super) fn nearest(json: &str) -> Option<String> {
    let map: Map<String, Value> = serde_json::from_str(json).ok()?;
    let differs = |family: &'static Family| {
        let keys = Keys::new(&map, &[]);
        let read = Read { keys: &keys, family }.config();
        let unread = keys.unread(&[INERT]);
        read.ok().map(|_| (unread.len(), family.model_type, unread.join(", ")))
    };
    let (_, name, unread) = FAMILIES.iter().filter_map(differs).min_by_key(|(count, ..)| *count)?;
    Some(match unread.is_empty() {
        true => format!("'{name}' reads all of its keys, but what else differs is not known"),
        false => format!("'{name}' is nearest, and does not read {unread}"),
    })
}

struct Read<'a> {
    keys: &'a Keys<'a>,
    family: &'static Family,
}

impl Read<'_> {
    fn config(&self) -> Result<Config, String> {
        let (keys, family) = (self.keys, self.family);
        let (hidden, count) = (keys.size("hidden_size")?, keys.layers("num_hidden_layers")?);
        let heads = keys.size("num_attention_heads")?;
        if !family.key_value_heads {
            keys.given::<Value>("num_key_value_heads")?;
        }
        let cached = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
        keys.divides(["num_attention_heads", "num_key_value_heads"], [heads, cached])?;
        let head_dim = keys.head_dim(|| match family.head_dim {
            Some(_) if keys.has("head_dim") => Err(keys.missing("head_dim")),
            Some(dim) => Ok(dim),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => {
                let message =
                    format!("is missing, and hidden_size, {hidden}, is no multiple of num_attention_heads, {heads}");
                Err(keys.wrong("head_dim", message))
            }
        })?;
        keys.silu("hidden_act")?;
        if family.query_key_norm != QueryKeyNorm::None {
            keys.only("use_qk_norm", true)?;
        }
        let eps = keys.epsilon("rms_norm_eps")?;
        let most_tokens = keys.optional("max_position_embeddings")?;
        let (query_key_value_bias, output_bias) = match family.attention_bias {
            Biases::Never => (false, false),
            Biases::QueryKeyValue => (true, false),
            Biases::Said(missing) => {
                let said = keys.flag("attention_bias", missing)?;
                (said, said)
            }
        };
        let multiplier = |key: &str, missing: f64| match family.multipliers {
            false => Ok(missing),
            true => {
                let said = keys.number(key, "a number other than 0", |value| value != 0.0);
                said.map(|said| said.unwrap_or(1.0))
            }
        };
        let (num_experts, per_token) = self.experts()?;
        let inner = keys.size("intermediate_size")?;
        let (moe_inner, softmax, clamp) = match family.experts {
            Experts::None => (0, Softmax::OfAll { normalised: true }, None),
            Experts::Mixtral => (inner, Softmax::OfAll { normalised: true }, None),
            Experts::Qwen => {
                let moe_inner = keys.size("moe_intermediate_size")?;
                let normalised = keys.flag("norm_topk_prob", false)?;
                (moe_inner, Softmax::OfAll { normalised }, None)
            }
            Experts::GptOss => {
                let alpha = keys.positive("swiglu_alpha")?.unwrap_or(1.702);
                let limit = keys.positive("swiglu_limit")?.unwrap_or(7.0);
                (inner, Softmax::OfSelected, Some([alpha, limit]))
            }
        };
        let around = Around {
            model_type: family.model_type,
            missing_theta: family.theta,
            scalings: family.scalings,
            partial_rope: family.partial_rope,
            head_dim,
            most_tokens,
            theta: keys.optional("rope_theta")?,
            partial: keys.optional("partial_rotary_factor")?,
            original: match family.partial_rope {
                // The top-level key `original_max_position_embeddings`, by default 4096, overrides the key in the RoPE object.
                true => Some(keys.optional_size("original_max_position_embeddings")?.unwrap_or(4096)),
                false => None,
            },
        };
        let mut layers = self.layers(count)?;
        let ropes = self.ropes(around, &mut layers)?;
        Ok(Config {
            vocab_size: keys.size("vocab_size")?,
            hidden_size: hidden,
            intermediate_size: inner,
            num_attention_heads: heads,
            num_key_value_heads: cached,
            head_dim,
            num_experts,
            num_experts_per_tok: per_token,
            moe_intermediate_size: moe_inner,
            routing: Routing::Softmax(softmax),
            rms_norm_eps: eps,
            tie_word_embeddings: keys.flag("tie_word_embeddings", family.tied)?,
            own: GroupedQuery {
                family,
                clamp,
                query_key_value_bias,
                output_bias,
                mlp_bias: family.mlp_bias && keys.flag("mlp_bias", false)?,
            },
            embedding_multiplier: multiplier("embedding_multiplier", 1.0)?,
            attention_multiplier: multiplier("attention_multiplier", (head_dim as f64).powf(-0.5))?,
            residual_multiplier: Some(multiplier("residual_multiplier", 1.0)?),
            logits_scaling: multiplier("logits_scaling", 1.0)?,
            max_position_embeddings: most_tokens,
            ropes,
            layers,
        })
    }

    /// Returns the number of experts and the number of experts per token; both are 0 in a family without experts.
    fn experts(&self) -> Result<(usize, usize), String> {
        let keys = self.keys;
        if self.family.experts == Experts::None {
            return Ok((0, 0));
        }
        // Two keys may give the number of experts; their values must agree. For gpt-oss, `transformers` reads only
        // `num_local_experts`, and a second key, `experts_per_token`, may give the number of experts per token.
        let (local, other) = (
            keys.optional_size("num_local_experts")?,
            keys.optional_size("num_experts")?,
        );
        let either = keys.agreed(["num_experts", "num_local_experts"], [other, local])?;
        let (count, name) = match self.family.experts {
            Experts::GptOss => (local, "num_local_experts"),
            Experts::Mixtral => (either, "num_local_experts"),
            Experts::Qwen | Experts::None => (either, "num_experts"),
        };
        let count = count.ok_or_else(|| keys.missing(name))?;
        let per_token = keys.size("num_experts_per_tok")?;
        if self.family.experts == Experts::GptOss {
            keys.only("experts_per_token", per_token)?;
        }
        keys.at_most("num_experts_per_tok", per_token, count)?;
        Ok((count, per_token))
    }

    /// Returns the kind of each layer. Layers with RoPE get the index 0 in the list of RoPEs; [`Self::ropes`] may change this
    /// index.
    fn layers(&self, count: usize) -> Result<Vec<LayerConfig>, String> {
        let with_rope = self.with_rope(count)?;
        let windows = self.windows(count, &with_rope)?;
        let experts = self.with_experts(count)?;
        let layer = |at: usize| LayerConfig {
            full: true,
            window: windows[at],
            rope: with_rope[at].then_some(0),
            experts: experts[at],
        };
        Ok((0..count).map(layer).collect())
    }

    fn with_rope(&self, count: usize) -> Result<Vec<bool>, String> {
        if !self.family.skips_rope {
            return Ok(vec![true; count]);
        }
        let interval = self.keys.up_to("no_rope_layer_interval", MOST_LAYERS)?.unwrap_or(4);
        match self.keys.optional::<Vec<u8>>("no_rope_layers")? {
            // In spite of the name `no_rope_layers`, an entry of 1 stands for a layer with RoPE.
            Some(said) => {
                self.keys.for_each_layer("no_rope_layers", said.len(), count)?;
                Ok(said.iter().map(|&with| with != 0).collect())
            }
            None => Ok((0..count).map(|at| !(at + 1).is_multiple_of(interval)).collect()),
        }
    }

    fn with_experts(&self, count: usize) -> Result<Vec<bool>, String> {
        match self.family.experts {
            Experts::None => Ok(vec![false; count]),
            Experts::Mixtral | Experts::GptOss => Ok(vec![true; count]),
            Experts::Qwen => self.keys.with_experts(count),
        }
    }

    fn windows(&self, count: usize, with_rope: &[bool]) -> Result<Vec<Option<usize>>, String> {
        let (keys, windows, family) = (self.keys, self.family.windows, self.family.model_type);
        if windows == Windows::Never {
            // Some files have `layer_types` although the family has no windows: accept the key if it gives all layers full
            // attention.
            let slides = self.layer_types(count)?.is_some_and(|said| said.contains(&true));
            let message = format_args!("has 'sliding_attention', but no layer of a {family} has a window");
            keys.refuse(slides, "layer_types", message)?;
            return Ok(vec![None; count]);
        }
        let window = keys.optional_size("sliding_window")?;
        let used = match windows {
            Windows::AllIfUsed | Windows::FromLayer | Windows::WithoutRope => keys.flag("use_sliding_window", false)?,
            _ => true,
        };
        // Require the key `sliding_window` if the model uses the window: in most families of `transformers`, a missing key means
        // a window of 4096, but null means no window.
        if used && !matches!(family, "mixtral" | "phi3" | "smollm3") {
            keys.given::<Value>("sliding_window")?;
        }
        let window = window.filter(|_| used);
        // Read `max_window_layers` in every family with windows, since an unread key is an error. Only `Windows::FromLayer` uses
        // it.
        let first: Option<usize> = keys.optional("max_window_layers")?;
        let said = self.layer_types(count)?;
        let first = first.unwrap_or(28);
        let unsaid: Vec<bool> = match windows {
            Windows::Never | Windows::All | Windows::AllIfUsed => vec![window.is_some(); count],
            Windows::FromLayer => (0..count).map(|at| window.is_some() && at >= first).collect(),
            Windows::WithoutRope => with_rope.iter().map(|&with| window.is_some() && !with).collect(),
            Windows::ButEach(each) => (0..count).map(|at| !(at + 1).is_multiple_of(each)).collect(),
        };
        let same = matches!(windows, Windows::All | Windows::AllIfUsed);
        let differs = same && said.as_ref().is_some_and(|said| *said != unsaid);
        let message = format_args!("has other layers, but those of a {family} are all the same");
        keys.refuse(differs, "layer_types", message)?;
        let slides = said.unwrap_or(unsaid);
        let why = if used { "is missing" } else { "is not used" };
        let message = format_args!("{why}, but layer_types has 'sliding_attention'");
        keys.refuse(slides.contains(&true) && window.is_none(), "sliding_window", message)?;
        Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
    }

    /// Returns one flag per layer from `layer_types`: true if the layer has a window; `None` if the key is missing.
    fn layer_types(&self, count: usize) -> Result<Option<Vec<bool>>, String> {
        let full = self
            .keys
            .which("layer_types", ["full_attention", "sliding_attention"], count)?;
        Ok(full.map(|full| full.into_iter().map(|full| !full).collect()))
    }

    fn ropes(&self, around: Around, layers: &mut [LayerConfig]) -> Result<Vec<RopeConfig>, String> {
        let (keys, family) = (self.keys, self.family);
        let (name, map) = keys.rope()?;
        let new = map.as_ref().filter(|_| name == "rope_parameters");
        let nested = new.is_some_and(|keys| keys.values().any(Value::is_object));
        if !family.rope_by_type {
            let model_type = family.model_type;
            let message = format_args!("differs by type of layer, but that of a {model_type} does not");
            keys.refuse(nested, name, message)?;
            let missing = || Some(serde_json::from_str(family.rope?).expect("an object"));
            return Ok(vec![around.rope(keys, name, map.or_else(missing).as_ref())?]);
        }
        let message = "is one object, expected one for each of full_attention and sliding_attention; others are not read by \
                       `transformers`";
        keys.refuse(new.is_some() && !nested, name, message)?;
        // `transformers` applies a `rope_theta` outside of the RoPE object to the first layer type only.
        let theta = around.theta.filter(|theta| *theta != around.missing_theta);
        let types = ["full_attention", "sliding_attention"];
        let has_theta = |own: &Value| own.get("rope_theta").is_some_and(|theta| !theta.is_null());
        let whole = |map: &Map<String, Value>| types.iter().all(|kind| map.get(*kind).is_some_and(has_theta));
        if let Some(theta) = theta.filter(|_| !new.is_some_and(whole)) {
            let message =
                format!("is {theta}, of layers of one type only; expected one in rope_parameters for each type");
            return Err(keys.wrong("rope_theta", message));
        }
        let other = |(kind, value): &(&String, &Value)| !types.contains(&kind.as_str()) && !value.is_null();
        if let Some((other, _)) = new.and_then(|new| new.iter().find(other)) {
            return Err(keys.wrong(name, format!("has '{other}', expected {}", types.join(" and "))));
        }
        let of_type = |kind: &str, flat: Option<&Map<String, Value>>| match new {
            Some(new) => around.rope(
                keys,
                &format!("{name}.{kind}"),
                new.get(kind).and_then(Value::as_object),
            ),
            None => around.rope(keys, name, flat),
        };
        // A RoPE object without layer types applies to the layers without a window only.
        let ropes = vec![of_type(types[0], map.as_ref())?, of_type(types[1], None)?];
        for layer in layers {
            layer.rope = layer.rope.map(|_| usize::from(layer.window.is_some()));
        }
        Ok(ropes)
    }
}
