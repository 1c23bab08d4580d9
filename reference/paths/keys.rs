//! Strict reader of a `config.json` object: a key that is neither read nor known to leave the result unchanged is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Keys that do not change the result: names, training and generation settings, and the storage format of the weights (the weight
/// files state their format themselves).
pub(super) const INERT: &str = "\
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash \
    _experts_implementation _name_or_path architectures attention_dropout attention_probs_dropout_prob \
    attn_implementation auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens bos_token_id \
    chunk_size_feed_forward classifier_dropout cross_attention_hidden_size decoder_start_token_id \
    diversity_penalty do_sample dtype early_stopping embd_pdrop embedding_dropout encoder_no_repeat_ngram_size \
    eos_token_id exponential_decay_length_penalty ffn_dropout finetuning_task forced_bos_token_id \
    forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initial_context_length \
    initializer_range is_llama_config keys_to_ignore_at_inference label2id length_penalty max_length \
    max_sequence_length min_length min_p model_type name_or_path neftune_noise_alpha no_repeat_ngram_size \
    num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states \
    output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type quantization_config \
    remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef \
    router_jitter_noise save_attention_mask sep_token_id seq_aux suppress_tokens task_specific_params temperature \
    tf_legacy_loss tokenizer_class tokenizer_name top_k top_p torch_dtype torchscript train_seq_len \
    transformers.js_config transformers_version typical_p unsloth_fixed unsloth_optimized unsloth_version \
    use_bfloat16 use_cache use_flash_attention_2 use_flash_attn";

/// Keys of other families, each with the value that leaves the result unchanged; a key with this value may stay unread.
const NEUTRAL: &[(&str, &str)] = &[
    ("activation", "\"swiglu\""),
    ("add_cross_attention", "false"),
    ("attention_bias", "false"),
    ("attention_out_bias", "false"),
    ("decoder_sparse_step", "1"),
    ("embedding_multiplier", "1.0"),
    ("full_attn_mod", "1"),
    ("interpolate_factor", "1"),
    ("is_decoder", "false"),
    ("is_encoder_decoder", "false"),
    ("lm_head_bias", "false"),
    ("logits_scaling", "1.0"),
    ("mlp_bias", "false"),
    ("mlp_only_layers", "[]"),
    ("no_bias", "true"),
    ("num_nextn_predict_layers", "0"),
    ("partial_rotary_factor", "1.0"),
    ("pruned_heads", "{}"),
    ("qkv_bias", "false"),
    ("residual_multiplier", "1.0"),
    ("rope_interleaved", "false"),
    ("shared_expert_intermediate_size", "0"),
    ("tie_encoder_decoder", "false"),
    ("use_bias", "false"),
    ("use_mrope", "false"),
    ("use_parallel_residual", "false"),
    ("use_qk_norm", "false"),
    ("use_sliding_window", "false"),
];

/// Maximum size that is accepted. No tensor dimension of a real model is as large, and a product of two sizes fits a `usize`.
pub(super) const MOST_SIZE: usize = 1 << 28;
/// Maximum number of layers that is accepted.
pub(super) const MOST_LAYERS: usize = 1 << 16;
/// Maximum number of channels of a head. Without this limit, a wrong file could make the reader compute a huge number of RoPE
/// frequencies, before any weight shows that the file is wrong.
const MOST_HEAD: usize = 1 << 16;

/// Reader of the keys of one JSON object; records each key that was read.
pub(super) struct Keys<'a> {
    map: &'a Map<String, Value>,
    /// Prefix of keys in error messages, such as `text_config.`; empty for the whole file.
    prefix: String,
    /// Keys that, as the caller asserts, do not change the result. Names include the prefix, e.g. `text_config.`.
    inert: &'a [&'a str],
    read: RefCell<BTreeSet<String>>,
    ignored: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    /// Makes a reader of the whole file. Keys in `inert` must stay unread: [`Self::finish`] returns an error if one was read.
    pub fn new(map: &'a Map<String, Value>, inert: &'a [&'a str]) -> Self {
        Self {
            map,
            prefix: String::new(),
            inert,
            read: RefCell::default(),
            ignored: RefCell::default(),
        }
    }

    /// Finds the family with the `model_type` of the file; `of` returns the `model_type` of a family.
    pub fn family<F>(&self, families: &'static [F], of: fn(&F) -> &'static str) -> Result<&'static F, String> {
        let name: String = self.needed("model_type")?;
        families.iter().find(|family| of(family) == name).ok_or_else(|| {
            let known: Vec<&str> = families.iter().map(of).collect();
            format!("model_type is '{name}', expected one of {}", known.join(", "))
        })
    }

    /// Makes a reader of `map`, the object that is the value of `key`.
    pub fn within<'b>(&self, key: &str, map: &'b Map<String, Value>) -> Keys<'b>
    where
        'a: 'b,
    {
        Keys {
            prefix: format!("{}{key}.", self.prefix),
            ..Keys::new(map, self.inert)
        }
    }

    /// Returns an error if the list `key`, which has `found` entries, does not have one entry per layer.
    pub fn for_each_layer(&self, key: &str, found: usize, layers: usize) -> Result<(), String> {
        let message = format_args!("has {found} entries, num_hidden_layers is {layers}");
        self.refuse(found != layers, key, message)
    }

    /// Reads a list of type names as one flag per layer: true for the name `yes`, false for `no`; other names are errors. `None`
    /// if the key is missing or null.
    pub fn which(&self, key: &str, [yes, no]: [&str; 2], layers: usize) -> Result<Option<Vec<bool>>, String> {
        let Some(types) = self.optional::<Vec<String>>(key)? else {
            return Ok(None);
        };
        self.for_each_layer(key, types.len(), layers)?;
        let each = types.iter().map(|name| match name {
            name if name == yes => Ok(true),
            name if name == no => Ok(false),
            other => Err(self.wrong(key, format!("has '{other}', expected '{yes}' or '{no}'"))),
        });
        each.collect::<Result<_, _>>().map(Some)
    }

    /// Reads `decoder_sparse_step` and `mlp_only_layers`, keys of Qwen's families. Returns one flag per layer: true if the layer
    /// has experts.
    pub fn with_experts(&self, layers: usize) -> Result<Vec<bool>, String> {
        let step = self.up_to("decoder_sparse_step", MOST_LAYERS)?.unwrap_or(1);
        let dense: Vec<usize> = self.optional("mlp_only_layers")?.unwrap_or_default();
        let experts = |at: usize| !dense.contains(&at) && (at + 1).is_multiple_of(step);
        Ok((0..layers).map(experts).collect())
    }

    /// Returns an error if the number of experts per token exceeds the number of experts.
    pub fn at_most(&self, key: &str, per_token: usize, experts: usize) -> Result<(), String> {
        let message = format_args!("is {per_token}, of {experts} experts");
        self.refuse(per_token > experts, key, message)
    }

    /// Reads the type of a RoPE: `rope_type`, or `type` in older files; the default is `default`.
    pub fn rope_type(&self) -> Result<String, String> {
        let (old, new) = (self.optional("type")?, self.optional("rope_type")?);
        Ok(new.or(old).unwrap_or_else(|| "default".into()))
    }

    /// Reads the base θ of a RoPE; `None` if the key is missing or null.
    pub fn base(&self, key: &str) -> Result<Option<f64>, String> {
        self.number(key, "a number above 1", |theta| theta > 1.0)
    }

    /// Returns the factor by which YaRN multiplies cosines and sines: the key `attention_factor`, by default `missing`. If both
    /// are `None`, the factor is computed from `mscale`, `mscale_all_dim` and `times`, the extension factor of the context.
    pub fn attention_factor(&self, times: f64, missing: Option<f64>) -> Result<f64, String> {
        let of = |scale: f64| match times <= 1.0 {
            true => 1.0,
            false => 0.1 * scale * times.ln() + 1.0,
        };
        let computed = match (self.positive("mscale")?, self.positive("mscale_all_dim")?) {
            (Some(one), Some(all)) => of(one) / of(all),
            _ => of(1.0),
        };
        Ok(self.positive("attention_factor")?.or(missing).unwrap_or(computed))
    }

    /// Returns the key and value of the RoPE object: `rope_parameters`, or `rope_scaling` in older files. The value is `None` if
    /// both keys are missing.
    ///
    /// # Errors
    /// Returns an error if both keys are given and their values differ.
    pub fn rope(&self) -> Result<(&'static str, Option<Map<String, Value>>), String> {
        match (self.optional("rope_parameters")?, self.optional("rope_scaling")?) {
            (Some(new), Some(old)) if new != old => {
                Err("rope_parameters and rope_scaling are both given, and differ".into())
            }
            (None, old) => Ok(("rope_scaling", old)),
            (new, _) => Ok(("rope_parameters", new)),
        }
    }

    /// Reads a key; `None` if it is missing or null.
    pub fn optional<D: DeserializeOwned>(&self, key: &str) -> Result<Option<D>, String> {
        self.read.borrow_mut().insert(key.into());
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let read = D::deserialize(value);
                read.map(Some)
                    .map_err(|error| self.wrong(key, format!("is {}: {error}", shown(value))))
            }
        }
    }

    /// Returns true if the file has the key, even with the value null: `transformers` uses its default only for a missing key.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Reads a key that must be present; `None` if its value is null.
    ///
    /// # Errors
    /// Returns an error if the key is missing: `transformers` then has a default that a reader of the file would not expect.
    pub fn given<D: DeserializeOwned>(&self, key: &str) -> Result<Option<D>, String> {
        match self.has(key) {
            true => self.optional(key),
            false => Err(self.missing(key)),
        }
    }

    /// Marks a key as having no effect, so that it may stay unread.
    pub fn ignore(&self, key: &str) {
        self.ignored.borrow_mut().insert(key.into());
    }

    /// Returns an error if the key is given with a value other than `expected`, the only value that is implemented.
    pub fn only(&self, key: &str, expected: impl Into<Value>) -> Result<(), String> {
        let expected = expected.into();
        match self.optional::<Value>(key)? {
            Some(found) if !equal(&found, &expected) => {
                Err(self.wrong(key, format!("is {}, expected {expected}", shown(&found))))
            }
            _ => Ok(()),
        }
    }

    pub fn needed<D: DeserializeOwned>(&self, key: &str) -> Result<D, String> {
        self.optional(key)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a required size from 1 to [`MOST_SIZE`].
    pub fn size(&self, key: &str) -> Result<usize, String> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a size from 1 to [`MOST_SIZE`]; `None` if the key is missing or null.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, String> {
        self.up_to(key, MOST_SIZE)
    }

    /// Reads a required number of layers from 1 to [`MOST_LAYERS`].
    pub fn layers(&self, key: &str) -> Result<usize, String> {
        self.up_to(key, MOST_LAYERS)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a whole number from 1 to `most`; `None` if the key is missing or null.
    pub fn up_to(&self, key: &str, most: usize) -> Result<Option<usize>, String> {
        let found: Option<Value> = self.optional(key)?;
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        found.map_or(Ok(None), |value| match number(&value) {
            Some(size) if (1..=most).contains(&size) => Ok(Some(size)),
            _ => Err(self.wrong(
                key,
                format!("is {}, expected a whole number from 1 to {most}", shown(&value)),
            )),
        })
    }

    /// Returns an error if `groups`, the value of the key `few`, does not divide `heads`, the value of the key `many`.
    pub fn divides(&self, [many, few]: [&str; 2], [heads, groups]: [usize; 2]) -> Result<(), String> {
        let message = format_args!("is {groups}, expected a divisor of {many}, {heads}");
        self.refuse(groups == 0 || !heads.is_multiple_of(groups), few, message)
    }

    /// Reads `head_dim`, the number of channels of a head; `missing` returns the default. An odd number is an error, since RoPE
    /// rotates pairs of channels.
    pub fn head_dim(&self, missing: impl FnOnce() -> Result<usize, String>) -> Result<usize, String> {
        let dim = self.up_to("head_dim", MOST_HEAD)?.map_or_else(missing, Ok)?;
        let wrong = dim == 0 || !dim.is_multiple_of(2) || dim > MOST_HEAD;
        let message = format_args!("is {dim}, expected an even number from 2 to {MOST_HEAD}");
        self.refuse(wrong, "head_dim", message)?;
        Ok(dim)
    }

    /// Returns an error if the key names an activation other than `silu`, which is also called `swish`.
    pub fn silu(&self, key: &str) -> Result<(), String> {
        let act: String = self.optional(key)?.unwrap_or_else(|| "silu".into());
        let message = format_args!("is '{act}', expected 'silu'");
        self.refuse(act != "silu" && act != "swish", key, message)
    }

    /// Reads a number above 0; `None` if the key is missing or null.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, String> {
        self.number(key, "a number above 0", |value| value > 0.0)
    }

    /// Reads the required ε of a norm, a number of at least 0.
    pub fn epsilon(&self, key: &str) -> Result<f64, String> {
        let eps = self.number(key, "a number from 0 on", |eps| eps >= 0.0)?;
        eps.ok_or_else(|| self.missing(key))
    }

    /// Reads a number, which must be finite and for which `is` must return true; `None` if the key is missing or null. In error
    /// messages, `expected` describes such numbers.
    pub fn number(&self, key: &str, expected: &str, is: impl Fn(f64) -> bool) -> Result<Option<f64>, String> {
        let number: Option<f64> = self.optional(key)?;
        match number.filter(|&number| !(number.is_finite() && is(number))) {
            Some(wrong) => Err(self.wrong(key, format!("is {wrong}, expected {expected}"))),
            None => Ok(number),
        }
    }

    /// Returns the value of two keys with the same meaning; `None` if neither key is given. If both are given, their values must
    /// be equal.
    pub fn agreed<D: PartialEq + Debug>(&self, names: [&str; 2], both: [Option<D>; 2]) -> Result<Option<D>, String> {
        match both {
            [Some(a), Some(b)] if a != b => Err(self.wrong(names[0], format!("is {a:?}, but {} is {b:?}", names[1]))),
            [a, b] => Ok(a.or(b)),
        }
    }

    pub fn flag(&self, key: &str, missing: bool) -> Result<bool, String> {
        Ok(self.optional(key)?.unwrap_or(missing))
    }

    pub fn missing(&self, key: &str) -> String {
        self.wrong(key, "is missing".into())
    }

    pub fn wrong(&self, key: &str, message: String) -> String {
        format!("{}{key} {message}", self.prefix)
    }

    /// Returns an error about the key, with the text `message`, if `wrong` is true.
    pub fn refuse(&self, wrong: bool, key: &str, message: impl Display) -> Result<(), String> {
        match wrong {
            true => Err(self.wrong(key, message.to_string())),
            false => Ok(()),
        }
    }

    /// Returns true if the caller declares that a key does not change the result.
    fn declared(&self, key: &str) -> bool {
        let whole = format!("{}{key}", self.prefix);
        self.inert.contains(&whole.as_str())
    }

    /// Lists the unread keys that may change the result, with their values. Leaves out the keys in `inert` (lists of keys,
    /// separated by spaces), null values and, if `inert` is not empty, the key-value pairs in [`NEUTRAL`].
    pub fn unread(&self, inert: &[&str]) -> Vec<String> {
        let (read, ignored) = (self.read.borrow(), self.ignored.borrow());
        let neutral = |key: &str, value: &Value| {
            let same =
                |expected: &str| serde_json::from_str(expected).is_ok_and(|expected: Value| equal(value, &expected));
            !inert.is_empty() && NEUTRAL.iter().any(|(name, expected)| *name == key && same(expected))
        };
        let unread = |(key, value): &(&String, &Value)| {
            let seen = read.contains(key.as_str()) || ignored.contains(key.as_str());
            let mut words = inert.iter().flat_map(|words| words.split(' '));
            let known = words.any(|word| word == key.as_str()) || neutral(key, value);
            !(seen || known || value.is_null() || self.declared(key))
        };
        let unread = self.map.iter().filter(unread);
        unread
            .map(|(key, value)| self.wrong(key, format!("= {}", shown(value))))
            .collect()
    }

    /// Ends the reading of an object. Returns an error if there are [unread keys](Self::unread), or if a key was read although
    /// the caller declares that it does not change the result.
    pub fn finish(&self, what: &str, inert: &[&str]) -> Result<(), String> {
        let (unread, read) = (self.unread(inert), self.read.borrow());
        if let Some(key) = read.iter().find(|key| self.declared(key)) {
            let message = format!("is read, and changes the result of {what}; expected it not to be in `inert`");
            return Err(self.wrong(key, message));
        }
        if unread.is_empty() {
            return Ok(());
        }
        let known: Vec<&str> = read.iter().map(String::as_str).collect();
        Err(format!(
            "{}: {what} is computed without, and it may change the result; if it does not, an experiment may say so by \
             inert = [\"KEY\"]; keys that are read here are {}",
            unread.join(", "),
            known.join(", ")
        ))
    }
}

/// Returns true if two values are equal; numbers are compared by value, so that 1 equals 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Formats a value for an error message, cut after 60 characters.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
