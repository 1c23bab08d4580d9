//! The keys of an object of `config.json`. Every key is accounted for: it is read, it is known to change nothing, or it is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Keys that change nothing that is computed: names, training, generation, and how weights are stored, which the files of the weights
/// say themselves.
pub(super) const INERT: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "hidden_dropout",
    "id2label",
    "initial_context_length",
    "initializer_range",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// Keys of other families that say, with this value, what is so anyway.
const NEUTRAL: &[(&str, &str)] = &[
    ("add_cross_attention", "false"),
    ("attention_bias", "false"),
    ("decoder_sparse_step", "1"),
    ("embedding_multiplier", "1.0"),
    ("is_decoder", "false"),
    ("is_encoder_decoder", "false"),
    ("logits_scaling", "1.0"),
    ("mlp_bias", "false"),
    ("mlp_only_layers", "[]"),
    ("partial_rotary_factor", "1.0"),
    ("qkv_bias", "false"),
    ("residual_multiplier", "1.0"),
    ("rope_interleaved", "false"),
    ("tie_encoder_decoder", "false"),
    ("use_mrope", "false"),
    ("use_qk_norm", "false"),
    ("use_sliding_window", "false"),
];

/// The keys of an object, which know which of them were read.
pub(super) struct Keys<'a> {
    map: &'a Map<String, Value>,
    /// What stands before the keys in errors.
    name: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub fn new(map: &'a Map<String, Value>, name: &'a str) -> Self {
        let read = RefCell::default();
        Self { map, name, read }
    }

    /// A key; none if it is missing or null.
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

    /// Allows a key that is of no use here.
    pub fn ignore(&self, key: &str) {
        self.read.borrow_mut().insert(key.into());
    }

    pub fn needed<D: DeserializeOwned>(&self, key: &str) -> Result<D, String> {
        self.optional(key)?.ok_or_else(|| self.missing(key))
    }

    /// A size above 0.
    pub fn size(&self, key: &str) -> Result<usize, String> {
        match self.needed(key)? {
            0 => Err(self.wrong(key, "is 0, expected a number above it".into())),
            size => Ok(size),
        }
    }

    /// Numbers of heads, of which that of `few` is to divide that of `many`.
    pub fn divides(&self, [many, few]: [&str; 2], [heads, groups]: [usize; 2]) -> Result<(), String> {
        match groups > 0 && heads.is_multiple_of(groups) {
            true => Ok(()),
            false => Err(self.wrong(few, format!("is {groups}, expected a divisor of {many}, {heads}"))),
        }
    }

    /// Channels of a head, which RoPE turns in pairs; `missing` where the file has none.
    pub fn head_dim(&self, missing: impl FnOnce() -> Result<usize, String>) -> Result<usize, String> {
        let dim = self.optional("head_dim")?.map_or_else(missing, Ok)?;
        if dim == 0 || !dim.is_multiple_of(2) {
            return Err(self.wrong("head_dim", format!("is {dim}, expected an even number above 0")));
        }
        Ok(dim)
    }

    /// Refuses an activation that is not silu.
    pub fn silu(&self, key: &str) -> Result<(), String> {
        let act: Option<String> = self.optional(key)?;
        match act.filter(|act| act != "silu" && act != "swish") {
            Some(act) => Err(self.wrong(key, format!("is '{act}', expected 'silu'"))),
            None => Ok(()),
        }
    }

    /// ε of a norm.
    pub fn epsilon(&self, key: &str) -> Result<f64, String> {
        match self.needed::<f64>(key)? {
            eps if eps.is_finite() && eps >= 0.0 => Ok(eps),
            eps => Err(self.wrong(key, format!("is {eps}, expected a number from 0 on"))),
        }
    }

    pub fn flag(&self, key: &str, missing: bool) -> Result<bool, String> {
        Ok(self.optional(key)?.unwrap_or(missing))
    }

    pub fn missing(&self, key: &str) -> String {
        self.wrong(key, "is missing".into())
    }

    pub fn wrong(&self, key: &str, message: String) -> String {
        let dot = if self.name.is_empty() { "" } else { "." };
        format!("{}{dot}{key} {message}", self.name)
    }

    /// Keys that nobody has read and that may change something, with their values.
    pub fn unread(&self, inert: &[&str]) -> Vec<String> {
        let read = self.read.borrow();
        let neutral = |key: &str, value: &Value| {
            let same =
                |expected: &str| serde_json::from_str(expected).is_ok_and(|expected: Value| equal(value, &expected));
            !inert.is_empty() && NEUTRAL.iter().any(|(name, expected)| *name == key && same(expected))
        };
        let unread = |(key, value): &(&String, &Value)| {
            !(read.contains(key.as_str()) || value.is_null() || inert.contains(&key.as_str()) || neutral(key, value))
        };
        let unread = self.map.iter().filter(unread);
        unread
            .map(|(key, value)| self.wrong(key, format!("= {}", shown(value))))
            .collect()
    }

    /// Refuses keys that nobody has read, unless they are null or one of these.
    pub fn finish(&self, what: &str, inert: &[&str]) -> Result<(), String> {
        let unread = self.unread(inert);
        if unread.is_empty() {
            return Ok(());
        }
        let (found, read) = (unread.join(", "), self.read.borrow());
        let known: Vec<&str> = read.iter().map(String::as_str).collect();
        Err(format!(
            "{found}: {what} is computed without, and it may change the result; keys that are read here are {}",
            known.join(", ")
        ))
    }
}

/// Whether two values are the same, numbers by what they are.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// A value, cut short.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
