//! Handles the tensors of a checkpoint that the model does not read. Tensors that would not change the model's result become
//! notes; all other unread tensors become errors.

use std::collections::BTreeMap;

use reference::paths::TensorSpec;
use reference::weights::Safetensors;

/// Suffixes of names of tensors that do not affect the computation, each with the reason.
const INERT: &[(&str, &str)] = &[
    (".inv_freq", FREQUENCIES),
    (".cos_cached", FREQUENCIES),
    (".sin_cached", FREQUENCIES),
    (".masked_bias", "masks, which are computed"),
    (".input_scale", SCALES),
    (".output_scale", SCALES),
    (".q_scale", SCALES),
    (".k_scale", SCALES),
    (".v_scale", SCALES),
    (".kv_scale", SCALES),
    (".prob_scale", SCALES),
    (".prob_output_scale", SCALES),
];
const FREQUENCIES: &str = "frequencies of RoPE, which are computed from config.json";
const SCALES: &str = "scales of activations and caches, which are not rounded unless a recipe says so";
const FURTHER: &str = "layers that predict further tokens";
const BEYOND: &str = "layers beyond num_hidden_layers, such as those that predict further tokens";
const OTHER: &str = "parts outside of the language model";
const ZERO: &str = "biases of zeros";
const HEAD: &str = "a head that equals the embedding, to which config.json ties it";

/// Classifies `unused`, the stored tensors that a model with the tensors `needed` does not read. Returns notes on tensors that
/// can be ignored, one for each reason, and error messages, one for each tensor that would change the model's result.
pub fn sort(read: &Safetensors, needed: &[TensorSpec], layers: usize, unused: &[String]) -> (Vec<String>, Vec<String>) {
    let model = Model::new(needed, layers);
    let mut notes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut problems = Vec::new();
    for name in unused {
        match model.place(read, name) {
            Ok(reason) => notes.entry(reason).or_default().push(name.as_str()),
            Err(problem) => problems.push(problem),
        }
    }
    let note = |(reason, names): (&str, Vec<&str>)| match &names[..] {
        [name] => format!("tensor '{name}' is not read: {reason}"),
        [first, ..] => format!("{} tensors are not read: {reason}; first '{first}'", names.len()),
        [] => String::new(),
    };
    (notes.into_iter().map(note).collect(), problems)
}

struct Model<'a> {
    needed: BTreeMap<&'a str, &'a TensorSpec>,
    /// Prefix of the names of the model's layers.
    prefix: &'a str,
    layers: usize,
    embedding: Option<&'a TensorSpec>,
}

impl<'a> Model<'a> {
    fn new(needed: &'a [TensorSpec], layers: usize) -> Self {
        let prefix = needed.iter().find_map(|spec| spec.name.split_once("layers.0."));
        Self {
            needed: needed.iter().map(|spec| (spec.name.as_str(), spec)).collect(),
            prefix: prefix.map_or("model.", |(prefix, _)| prefix),
            layers,
            embedding: needed.iter().find(|spec| spec.name.ends_with("embed_tokens.weight")),
        }
    }

    /// Checks a tensor of the checkpoint that the model does not read. Returns the reason why the tensor cannot change the result,
    /// or an error if it would.
    fn place(&self, read: &Safetensors, name: &str) -> Result<&'static str, String> {
        let asked = Safetensors::asked(name);
        let shape = read.shape(name).unwrap_or_default();
        let wrong = |why: &str| {
            Err(format!(
                "tensor '{name}' {shape:?} is not read, and would change the result: {why}"
            ))
        };
        let layer = asked.strip_prefix(self.prefix);
        let layer = layer.and_then(|rest| rest.strip_prefix("layers."));
        let layer = layer.and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        if asked.split('.').any(|part| part == "mtp") {
            return Ok(FURTHER);
        }
        if layer.is_some_and(|layer| layer >= self.layers) {
            return Ok(BEYOND);
        }
        if let Some((_, reason)) = INERT.iter().find(|(end, _)| asked.ends_with(end)) {
            return Ok(reason);
        }
        if asked.contains(".lora_") || asked.starts_with("lora_") {
            return wrong("adapters are not applied; expected a checkpoint that they are merged into");
        }
        if asked == "lm_head.weight" || asked.ends_with(".lm_head.weight") {
            return self.head(read, name);
        }
        if let Some(stem) = asked.strip_suffix(".bias")
            && (self.needed.contains_key(format!("{stem}.weight").as_str()) || stem == "lm_head")
        {
            let values = read.floats(name, shape);
            return match values.is_ok_and(|values| values.iter().all(|x| *x == 0.0)) {
                true => Ok(ZERO),
                false => wrong(
                    "by config.json this projection has no bias; expected a key, such as attention_bias, that says it has",
                ),
            };
        }
        let ends = ["_scale", "_scale_inv", ".scale"];
        let needed = |name: &str| self.needed.contains_key(name);
        if let Some(stem) = ends.iter().find_map(|end| asked.strip_suffix(end))
            && (needed(stem) || needed(&format!("{stem}.weight")))
        {
            return wrong("its weight is stored as a type that no scale belongs to");
        }
        match asked.starts_with(self.prefix) || asked.starts_with("lm_head.") {
            true => wrong("models of this type have no such tensor"),
            false => Ok(OTHER),
        }
    }

    /// Compares the output head `name` with the embedding, whose weights the model uses as its output head. Returns the reason to
    /// ignore the head if both are equal, else an error.
    fn head(&self, read: &Safetensors, name: &str) -> Result<&'static str, String> {
        let Some(embedding) = self.embedding else {
            let message = format!("tensor '{name}' is not read, and the model has no embedding to compare it with");
            return Err(message);
        };
        let values = |name: &str| read.floats(name, &embedding.shape).ok();
        let same = read.shape(name) == read.shape(&embedding.name)
            && (read.raw(name) == read.raw(&embedding.name)
                || values(name).is_some_and(|head| Some(head) == values(&embedding.name)));
        match same {
            true => Ok(HEAD),
            false => Err(format!(
                "tensor '{name}' differs from '{}', which is the head by tie_word_embeddings (or its default) of config.json; expected \
                 tie_word_embeddings = false, or files without '{name}'",
                embedding.name
            )),
        }
    }
}
