//! AMD's Quark: FP8 and MXFP4.

use serde_json::Value;

use super::{Convention, PLAIN, STATIC, not_converted};
use crate::checkpoint::config::{Inputs, Modules, Scheme, Section, given};
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "Quark",
    methods: &["quark"],
    writers: &["ModelOpt; compressed-tensors, not packed"],
    schemes: &[scheme],
    ignored: |section| not_converted(section, "exclude"),
    doc: "FP8 with a scale for the matrix or for each output channel, and MXFP4, whose scales are E8M0 in U8. Other types of \
          `global_quant_config` and `layer_quant_config` are not understood.",
    ..PLAIN
};

/// Scheme of a layer by its own entry in the configuration, or else by the global entry.
fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let layers = section.value.get("layer_quant_config").and_then(Value::as_object);
    for (pattern, layer) in layers.into_iter().flatten() {
        if Modules::parse(pattern)?.has(module)? {
            let scheme = layer_scheme(layer).map(Some);
            return scheme.map_err(|why| format!("layer_quant_config '{pattern}': {why}"));
        }
    }
    let typed = section.value.get("layer_type_quant_config").and_then(Value::as_object);
    let typed = typed.is_some_and(|typed| !typed.is_empty());
    match (section.value.get("global_quant_config"), typed) {
        (Some(all), false) => layer_scheme(all).map(Some),
        (_, true) => Err("key 'layer_type_quant_config' names classes, which tensors do not have".into()),
        (None, _) => Err("key 'global_quant_config' is missing, expected an object".into()),
    }
}

fn layer_scheme(layer: &Value) -> Result<Scheme, String> {
    let weight = layer.get("weight").filter(|weight| weight.is_object());
    let weight = weight.ok_or("key 'weight' is missing, expected one object")?;
    let text = |key: &str| weight.get(key).and_then(Value::as_str).unwrap_or_default();
    let size = weight.get("group_size").and_then(Value::as_u64);
    let (element, bits, group) = match (text("dtype"), text("qscheme"), size) {
        ("fp4", "per_group", Some(size @ 1..)) => ("e2m1", 4, Group::block(size as usize)),
        ("fp8_e4m3", "per_tensor", _) => ("e4m3", 8, Group::Tensor),
        ("fp8_e4m3", "per_channel", _) => ("e4m3", 8, Group::Token),
        (dtype, qscheme, _) => {
            let expected = "fp4 per_group, or fp8_e4m3 per_tensor or per_channel";
            return Err(format!("weights are '{dtype}' with '{qscheme}', expected {expected}"));
        }
    };
    let inputs = given(layer, "input_tensors");
    let dynamic = inputs.map(|inputs| inputs.get("is_dynamic").and_then(Value::as_bool));
    let inputs: Inputs = match dynamic {
        None | Some(Some(true)) => Some(&[]),
        Some(Some(false)) => Some(STATIC),
        Some(None) => None,
    };
    Ok(Scheme::new(element, bits, Some(group), inputs))
}
