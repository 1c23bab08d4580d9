//! What forms of checkpoints are made of.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Value, json};

use super::made::{COLS, Made, ROWS, f32s, parts, values};
use super::words::GROUP;

/// The kind of a module, or none where it is in 16 bits.
pub type Kind = fn(&str) -> Option<&'static str>;

/// A form of a checkpoint with two layers of attention, experts and a dense part.
pub struct Form {
    pub name: &'static str,
    pub kind: Kind,
    pub quantization: Value,
    /// What else is there.
    pub more: fn(&mut Made),
}

/// The modules of every form, but for the head.
pub fn modules() -> Vec<String> {
    let layer = |layer: usize| {
        let attention = ["q", "k", "v", "o"].map(|part| format!("model.layers.{layer}.self_attn.{part}_proj"));
        let dense = ["gate", "up", "down"].map(|part| format!("model.layers.{layer}.mlp.{part}_proj"));
        [attention.to_vec(), dense.to_vec()].concat()
    };
    (0..2).flat_map(layer).collect()
}

impl Form {
    pub fn made(&self) -> Made {
        let mut made = Made {
            kind: self.name,
            tensors: BTreeMap::new(),
            config: json!({ "model_type": "made", "quantization_config": self.quantization }),
            hf: None,
            source: BTreeMap::new(),
            only_in_index: None,
            not_in_index: None,
        };
        for (seed, module) in modules().iter().enumerate() {
            add(&mut made, module, (self.kind)(module), seed as u64, COLS);
        }
        for name in [
            "lm_head",
            "model.embed_tokens",
            "model.layers.0.mlp.gate",
            "visual.blocks.0.attn.qkv",
        ] {
            add(&mut made, name, (self.kind)(name), 50, COLS);
        }
        let norm = (Dtype::BF16, vec![COLS], vec![0x3f; 2 * COLS]);
        made.tensors
            .insert("model.layers.0.input_layernorm.weight".into(), norm);
        (self.more)(&mut made);
        made
    }
}

pub fn add(made: &mut Made, module: &str, kind: Option<&str>, seed: u64, cols: usize) {
    let x = &values(seed)[..ROWS * cols.min(COLS)];
    let name = format!("{module}.weight");
    let plain = (Dtype::F32, vec![x.len() / cols, cols], f32s(x));
    made.source.insert(name.clone(), plain.clone());
    match kind {
        None => drop(made.tensors.insert(name, plain)),
        Some(kind) => made.tensors.extend(parts(kind, &name, x, cols)),
    }
}

pub fn linear(module: &str, kind: &'static str) -> Option<&'static str> {
    module.ends_with("_proj").then_some(kind)
}

pub fn renamed(made: &mut Made, change: impl Fn(&str) -> String) {
    let tensors = std::mem::take(&mut made.tensors);
    made.tensors = tensors
        .into_iter()
        .map(|(name, array)| (change(&name), array))
        .collect();
}

/// compressed-tensors with one group.
pub fn compressed(weights: Value, inputs: Value, ignore: Value) -> Value {
    let group = json!({ "targets": ["Linear"], "weights": weights, "input_activations": inputs });
    json!({ "quant_method": "compressed-tensors", "config_groups": { "group_0": group }, "ignore": ignore })
}

pub fn weights(bits: usize, kind: &str, strategy: &str, size: Value) -> Value {
    json!({ "num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "symmetric": true, "dynamic": false })
}

pub fn dynamic(bits: usize, kind: &str) -> Value {
    json!({ "num_bits": bits, "type": kind, "strategy": "token", "dynamic": true })
}

pub fn static_(bits: usize) -> Value {
    json!({ "num_bits": bits, "type": "float", "strategy": "tensor", "dynamic": false })
}

pub fn modelopt(algorithm: &str, key: &str, value: Value) -> Value {
    let mut section = json!({ "quant_method": "modelopt", "quant_algo": algorithm,
        "exclude_modules": ["lm_head", "visual*", "*mlp.gate"] });
    section[key] = value;
    section
}

pub fn cache(made: &mut Made, names: [&str; 2]) {
    for layer in 0..2 {
        for name in names {
            let name = format!("model.layers.{layer}.self_attn.{name}");
            made.tensors.insert(name, (Dtype::F32, vec![], f32s(&[0.03])));
        }
    }
}

/// Rows of matrices of each layer as one.
pub fn fuse(made: &mut Made, place: &str, all: &[&str], joined: &str) {
    for layer in 0..2 {
        let place = format!("model.layers.{layer}.{place}");
        let mut one: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
        for part in all {
            let part = format!("{place}.{part}.");
            let names: Vec<String> = made
                .tensors
                .keys()
                .filter(|name| name.starts_with(&part))
                .cloned()
                .collect();
            for name in names {
                let (dtype, shape, bytes) = made.tensors.remove(&name).unwrap();
                let into = one
                    .entry(name.replace(&part, &format!("{place}.{joined}.")))
                    .or_insert((dtype, shape, Vec::new()));
                into.2.extend(bytes);
            }
        }
        for (name, (dtype, mut shape, bytes)) in one {
            shape[0] *= all.len();
            made.tensors.insert(name, (dtype, shape, bytes));
        }
    }
}

pub fn fp8_channel() -> Value {
    weights(8, "float", "channel", Value::Null)
}

pub fn ignoring(expression: &str) -> Value {
    compressed(
        fp8_channel(),
        dynamic(8, "float"),
        json!(["lm_head", "re:visual.*", "re:.*mlp.gate$", expression]),
    )
}

pub fn form(name: &'static str, kind: Kind, quantization: Value) -> Form {
    Form {
        name,
        kind,
        quantization,
        more: |_| {},
    }
}

pub fn with(form: Form, more: fn(&mut Made)) -> Form {
    Form { more, ..form }
}

pub fn plain() -> Value {
    json!(["lm_head", "re:visual.*", "re:.*mlp.gate$"])
}

pub fn nvfp4() -> Value {
    weights(4, "float", "tensor_group", json!(16))
}

pub fn int4(symmetric: bool) -> Value {
    let mut weights = weights(4, "int", "group", json!(GROUP));
    weights["symmetric"] = symmetric.into();
    weights
}

pub fn gptq(key: &str, value: Value) -> Value {
    let mut section = json!({ "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": true,
            "desc_act": false, "checkpoint_format": "gptq" });
    section[key] = value;
    section
}

pub fn awq(list: Value) -> Value {
    json!({ "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
        "modules_to_not_convert": list })
}

pub fn fp8(key: &str, value: Value) -> Value {
    let mut section = json!({ "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128] });
    section[key] = value;
    section
}

pub fn quark(dtype: &str, scheme: &str, size: Value, dynamic: bool) -> Value {
    json!({ "quant_method": "quark", "exclude": ["lm_head", "visual*", "*mlp.gate"], "layer_quant_config": {},
                "layer_type_quant_config": {},
                "global_quant_config": { "weight": { "dtype": dtype, "qscheme": scheme, "group_size": size },
                                         "input_tensors": { "dtype": dtype, "is_dynamic": dynamic } } })
}

pub fn round(packing: &str, extra: Value) -> Value {
    json!({ "quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": packing.contains("gptq"), "data_type": "int",
                "packing_format": packing, "extra_config": extra })
}

pub fn layer_0(m: &str) -> Option<&'static str> {
    linear(m, "compressed-tensors fp8").filter(|_| !m.contains("layers.0."))
}

pub fn dense(m: &str) -> Option<&'static str> {
    linear(m, "compressed-tensors fp8").filter(|_| m.contains(".mlp."))
}

pub fn attention(m: &str) -> Option<&'static str> {
    linear(m, "compressed-tensors fp8").filter(|_| !m.contains(".mlp."))
}

pub fn all(m: &str) -> Option<&'static str> {
    linear(m, "compressed-tensors fp8")
}

pub fn opt(m: &str) -> Option<&'static str> {
    linear(m, "ModelOpt nvfp4")
}

pub fn opt_but_layer_0(module: &str) -> Option<&'static str> {
    linear(module, "ModelOpt nvfp4").filter(|_| !module.contains("layers.0."))
}
