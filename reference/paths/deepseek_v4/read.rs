//! Reader of `config.json`, with the keys of published checkpoints or of `transformers`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Config, LayerType, RopeByLayer, RopeParameters, RouterType};
use crate::ops::rope::Yarn;
use crate::paths::keys::{INERT, Keys};

/// Keys of `config.json` that do not affect the reference: they describe the storage of experts, and the layers for multi-token
/// prediction, which the reference does not run.
const OWN_INERT: &str = "ep_size expert_dtype num_nextn_predict_layers";

/// Layer type of each value in `compress_ratios`.
const RATIOS: [(usize, LayerType); 3] = [(0, LayerType::Sliding), (4, LayerType::Sparse), (128, LayerType::Heavy)];

/// The only supported `attention_factor` of RoPE: cosines and sines are not scaled.
const ATTENTION_FACTOR: f64 = 1.0;

/// Reads a `config.json`. Ignores the keys in `inert`: the caller asserts that these keys do not affect the result.
///
/// # Errors
/// Returns an error if a key is missing, has the wrong type, contradicts another key, is not supported, or is unknown.
pub(super) fn config(json: &str, inert: &[&str]) -> Result<Config, String> {
    let map: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    of_map(&map, inert)
}

impl TryFrom<Map<String, Value>> for Config {
    type Error = String;

    /// Reads the JSON object of a `config.json`.
    fn try_from(map: Map<String, Value>) -> Result<Self, String> {
        of_map(&map, &[])
    }
}

fn of_map(map: &Map<String, Value>, inert: &[&str]) -> Result<Config, String> {
    let keys = Keys::new(map, inert);
    let config = read(&keys)?;
    keys.finish("a deepseek_v4", &[INERT, OWN_INERT])?;
    config.check()?;
    Ok(config)
}

fn read(keys: &Keys<'_>) -> Result<Config, String> {
    let count = keys.layers("num_hidden_layers")?;
    let head_dim = keys.size("head_dim")?;
    let inner = same(keys, "moe_intermediate_size", "intermediate_size")?;
    let experts = same(keys, "n_routed_experts", "num_local_experts")?;
    expect(keys)?;
    let (rope_parameters, turned) = ropes(keys, head_dim)?;
    let positive = |key: &str| keys.positive(key)?.ok_or_else(|| keys.missing(key));
    Ok(Config {
        vocab_size: keys.size("vocab_size")?,
        hidden_size: keys.size("hidden_size")?,
        moe_intermediate_size: inner,
        num_hidden_layers: count,
        num_attention_heads: keys.size("num_attention_heads")?,
        head_dim,
        qk_rope_head_dim: turned,
        q_lora_rank: keys.size("q_lora_rank")?,
        num_experts_per_tok: keys.size("num_experts_per_tok")?,
        n_routed_experts: experts,
        routed_scaling_factor: positive("routed_scaling_factor")?,
        swiglu_limit: positive("swiglu_limit")?,
        sliding_window: keys.size("sliding_window")?,
        o_groups: keys.size("o_groups")?,
        o_lora_rank: keys.size("o_lora_rank")?,
        index_n_heads: keys.size("index_n_heads")?,
        index_head_dim: keys.size("index_head_dim")?,
        index_topk: keys.size("index_topk")?,
        hc_mult: keys.size("hc_mult")?,
        hc_sinkhorn_iters: keys.size("hc_sinkhorn_iters")?,
        hc_eps: keys.epsilon("hc_eps")?,
        rms_norm_eps: keys.epsilon("rms_norm_eps")?,
        compress_rates: rates(keys)?,
        rope_parameters,
        layer_types: layer_types(keys, count)?,
        mlp_layer_types: mlp_layer_types(keys, count)?,
        max_position_embeddings: keys.optional("max_position_embeddings")?,
    })
}

/// Returns an error if a key has a value that is not supported.
fn expect(keys: &Keys<'_>) -> Result<(), String> {
    keys.only("model_type", "deepseek_v4")?;
    keys.silu("hidden_act")?;
    keys.only("scoring_func", "sqrtsoftplus")?;
    keys.only("topk_method", "noaux_tc")?;
    for key in [
        "n_shared_experts",
        "num_key_value_heads",
        "n_group",
        "topk_group",
        "moe_layer_freq",
    ] {
        keys.only(key, 1)?;
    }
    keys.only("first_k_dense_replace", 0)?;
    keys.only("norm_topk_prob", true)?;
    keys.only("tie_word_embeddings", false)
}

/// Reads a size from the key `name`. Returns an error if its alias in `transformers` is also given, with another value.
fn same(keys: &Keys<'_>, name: &str, alias: &str) -> Result<usize, String> {
    let size = keys.size(name)?;
    match keys.optional_size(alias)?.filter(|other| *other != size) {
        Some(other) => Err(keys.wrong(alias, format!("is {other}, but {name} is {size}"))),
        None => Ok(size),
    }
}

/// Returns the number of tokens per compressed entry, by layer type; the defaults are the values of published models.
fn rates(keys: &Keys<'_>) -> Result<BTreeMap<String, usize>, String> {
    let names = [
        (LayerType::Sparse.name(), "compress_rate_csa", 4),
        (LayerType::Heavy.name(), "compress_rate_hca", 128),
    ];
    let map: Option<Map<String, Value>> = keys.optional("compress_rates")?;
    let mut rates = BTreeMap::new();
    for (name, old, published) in names {
        let new = match &map {
            Some(map) => keys.within("compress_rates", map).optional_size(name)?,
            None => None,
        };
        let rate = match (new, keys.optional_size(old)?) {
            (Some(new), Some(old_rate)) if new != old_rate => {
                return Err(keys.wrong(old, format!("is {old_rate}, but compress_rates.{name} is {new}")));
            }
            // If the map lacks the name, layers of this type have no rate. `Config::check` returns an error if such
            // layers exist.
            (None, None) if map.is_some() => continue,
            (new, old) => new.or(old).unwrap_or(published),
        };
        rates.insert(name.into(), rate);
    }
    if let Some(map) = &map {
        let inner = keys.within("compress_rates", map);
        names.iter().for_each(|(name, ..)| inner.ignore(name));
        inner.finish("a deepseek_v4", &[])?;
    }
    Ok(rates)
}

fn layer_types(keys: &Keys<'_>, count: usize) -> Result<Vec<LayerType>, String> {
    let named: Option<Vec<LayerType>> = keys.optional("layer_types")?;
    if let Some(named) = &named {
        keys.for_each_layer("layer_types", named.len(), count)?;
    }
    let Some(ratios) = keys.optional::<Vec<usize>>("compress_ratios")? else {
        return named.ok_or_else(|| keys.missing("layer_types"));
    };
    // Entries after the last layer belong to layers for multi-token prediction.
    if ratios.len() < count {
        keys.for_each_layer("compress_ratios", ratios.len(), count)?;
    }
    let rates = rates(keys)?;
    let kind = |&ratio: &usize| {
        let known = RATIOS.iter().find(|(known, _)| *known == ratio);
        let (_, kind) =
            known.ok_or_else(|| keys.wrong("compress_ratios", format!("has {ratio}, expected 0, 4 or 128")))?;
        match rates.get(kind.name()).filter(|rate| **rate != ratio) {
            Some(rate) if *kind != LayerType::Sliding => {
                let message = format!("has {ratio}, but such layers have {rate} tokens per entry");
                Err(keys.wrong("compress_ratios", message))
            }
            _ => Ok(*kind),
        }
    };
    let kinds = ratios[..count].iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    match named {
        Some(named) if named != kinds => Err(keys.wrong("layer_types", "differs from compress_ratios".into())),
        _ => Ok(kinds),
    }
}

fn mlp_layer_types(keys: &Keys<'_>, count: usize) -> Result<Vec<RouterType>, String> {
    let named: Option<Vec<RouterType>> = keys.optional("mlp_layer_types")?;
    if let Some(named) = &named {
        keys.for_each_layer("mlp_layer_types", named.len(), count)?;
    }
    let Some(first) = keys.optional::<usize>("num_hash_layers")? else {
        return named.ok_or_else(|| keys.missing("mlp_layer_types"));
    };
    let kind = |layer| match layer < first {
        true => RouterType::Hash,
        false => RouterType::Learned,
    };
    let kinds: Vec<RouterType> = (0..count).map(kind).collect();
    match named {
        Some(named) if named != kinds => Err(keys.wrong("mlp_layer_types", "differs from num_hash_layers".into())),
        _ => Ok(kinds),
    }
}

/// Reads the two RoPEs, and the number of channels they rotate. Some files have one object per RoPE, `main` and `compress`.
/// Other files have one object, for layers with a compressor, and the bases θ of both RoPEs as top-level keys.
fn ropes(keys: &Keys<'_>, head_dim: usize) -> Result<(RopeByLayer, usize), String> {
    let (name, map) = keys.rope()?;
    let map = map.unwrap_or_default();
    let object = keys.within(name, &map);
    let bases = [keys.base("rope_theta")?, keys.base("compress_rope_theta")?];
    let partial: Option<f64> = keys.optional("partial_rotary_factor")?;
    let channels = |factor: f64| (head_dim as f64 * factor) as usize;
    let mut turned = Turned::default();
    turned.add(keys, "qk_rope_head_dim", keys.optional_size("qk_rope_head_dim")?)?;
    turned.add(keys, "partial_rotary_factor", partial.map(channels))?;
    if map.contains_key("main") || map.contains_key("compress") {
        let own = |kind: &str, top: Option<f64>, turned: &mut Turned| {
            let map: Map<String, Value> = object.needed(kind)?;
            let inner = object.within(kind, &map);
            // Without this key, `transformers` rotates all channels.
            let own = inner.optional("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
            turned.add(&inner, "partial_rotary_factor", Some(channels(own)))?;
            let theta = inner.base("rope_theta")?.ok_or_else(|| inner.missing("rope_theta"))?;
            if let Some(top) = top.filter(|top| *top != theta) {
                return Err(inner.wrong("rope_theta", format!("is {theta}, but the base next to it is {top}")));
            }
            rope(&inner, theta, None)
        };
        let main = own("main", bases[0], &mut turned)?;
        let compress = own("compress", bases[1], &mut turned)?;
        // `transformers` leaves these keys in the outer object, and does not read them.
        ["rope_type", "rope_theta"].iter().for_each(|key| object.ignore(key));
        object.finish("a deepseek_v4", &[])?;
        return Ok((RopeByLayer { main, compress }, turned.count(keys)?));
    }
    let [main, compress] =
        [0, 1].map(|at| bases[at].ok_or_else(|| keys.missing(["rope_theta", "compress_rope_theta"][at])));
    let (main, compress) = (main?, compress?);
    if let Some(theta) = object
        .base("rope_theta")?
        .filter(|theta| *theta != main && *theta != compress)
    {
        let message = format!("is {theta}, but the bases next to it are {main} and {compress}");
        return Err(object.wrong("rope_theta", message));
    }
    let own: Option<f64> = object.optional("partial_rotary_factor")?;
    turned.add(&object, "partial_rotary_factor", own.map(channels))?;
    let main = RopeParameters::plain(main);
    let compress = rope(&object, compress, Some(ATTENTION_FACTOR))?;
    Ok((RopeByLayer { main, compress }, turned.count(keys)?))
}

/// Reads one RoPE, whose base θ is `rope_theta`. `missing` is the default of `attention_factor`; if `missing` is `None`, the
/// default follows from the other keys.
fn rope(keys: &Keys<'_>, rope_theta: f64, missing: Option<f64>) -> Result<RopeParameters, String> {
    let rope_type = keys.rope_type()?;
    let needed = |key: &str| keys.positive(key)?.ok_or_else(|| keys.missing(key));
    let yarn = match rope_type == "yarn" {
        false => None,
        true => Some(Yarn {
            factor: needed("factor")?,
            original_positions: needed("original_max_position_embeddings")?,
            beta_fast: keys.positive("beta_fast")?.unwrap_or(32.0),
            beta_slow: keys.positive("beta_slow")?.unwrap_or(1.0),
            truncate: true,
        }),
    };
    if let Some(yarn) = yarn {
        keys.only("truncate", true)?;
        let factor = keys.attention_factor(yarn.factor, missing)?;
        if factor != ATTENTION_FACTOR {
            let message = format!("is {factor} (by other keys if it is not given), expected {ATTENTION_FACTOR}");
            return Err(keys.wrong("attention_factor", message));
        }
    }
    keys.finish("a RoPE of this type", &[])?;
    if yarn.is_none() && rope_type != "default" {
        return Err(format!(
            "rope_type '{rope_type}' is unknown: expected 'default' or 'yarn'"
        ));
    }
    Ok(RopeParameters { rope_theta, yarn })
}

/// Number of channels that RoPE rotates. Several keys may give the number; their values must be equal.
#[derive(Default)]
struct Turned(Option<(String, usize)>);

impl Turned {
    fn add(&mut self, keys: &Keys<'_>, key: &str, count: Option<usize>) -> Result<(), String> {
        match (&self.0, count) {
            (Some((first, known)), Some(count)) if *known != count => Err(keys.wrong(
                key,
                format!("turns {count} channels (all where it is not given), but by {first} they are {known}"),
            )),
            (None, Some(count)) => {
                self.0 = Some((keys.wrong(key, String::new()).trim_end().into(), count));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn count(self, keys: &Keys<'_>) -> Result<usize, String> {
        self.0
            .map_or_else(|| Err(keys.missing("qk_rope_head_dim")), |(_, count)| Ok(count))
    }
}
