//! Checkpoints of NVIDIA's TensorRT Model Optimizer.

use serde_json::Value;

use super::{Convention, PLAIN, STATIC, compressed_tensors, not_converted, number};
use crate::checkpoint::config::{Scheme, Section};
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "ModelOpt",
    methods: &["modelopt", "modelopt_fp4"],
    writers: &["ModelOpt; compressed-tensors, not packed"],
    lists_all: true,
    schemes: &[scheme, |section, module| match section.value.get("config_groups") {
        Some(groups) if groups.is_object() => compressed_tensors::scheme(section, module),
        _ => Ok(None),
    }],
    targets: |section, module| Ok(layers(section)?.map(|layers| layer(layers, module).is_some())),
    ignored: |section| {
        let mut modules = not_converted(section, "exclude_modules")?;
        modules.extend(not_converted(section, "ignore")?);
        Ok(modules)
    },
    doc: "`weight_scale_2` multiplies: it is amax of the tensor / (448 · 6). `hf_quant_config.json` says the same as \
          `config.json`, and each of them may be missing. `quantized_layers` of MIXED_PRECISION names every quantized module.",
    ..PLAIN
};

/// Returns the algorithm of each module; `None` if the configuration has no `quantized_layers`.
fn layers(section: &Section) -> Result<Option<&serde_json::Map<String, Value>>, String> {
    match section.value.get("quantized_layers") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(layers)) => Ok(Some(layers)),
        Some(other) => Err(format!("key 'quantized_layers' is {other}, expected an object")),
    }
}

/// Returns the entry of a module, or of the innermost module that contains it and has an entry.
fn layer<'l>(layers: &'l serde_json::Map<String, Value>, module: &str) -> Option<&'l Value> {
    let mut names = std::iter::successors(Some(module), |name| Some(name.rsplit_once('.')?.0));
    names.find_map(|name| layers.get(name))
}

fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let place = match layers(section)? {
        None => &section.value,
        Some(layers) => layer(layers, module).unwrap_or(&Value::Null),
    };
    let Some(algorithm) = place.get("quant_algo").and_then(Value::as_str) else {
        return Ok(None);
    };
    let size = number(place, "group_size")?.and_then(|size| usize::try_from(size).ok());
    let block = |size: usize| Some(Group::block(size.max(1)));
    let (element, bits, group, inputs): (_, _, _, &[&str]) = match algorithm {
        "NVFP4" | "NVFP4_AWQ" => ("e2m1", 4, block(size.unwrap_or(16)), STATIC),
        "W4A16_NVFP4" => ("e2m1", 4, block(size.unwrap_or(16)), &[]),
        "MXFP4" => ("e2m1", 4, block(size.unwrap_or(32)), &[]),
        "MXFP8" => ("e4m3", 8, block(size.unwrap_or(32)), &[]),
        "FP8" => ("e4m3", 8, Some(Group::Tensor), STATIC),
        "FP8_PER_CHANNEL_PER_TOKEN" => ("e4m3", 8, Some(Group::Token), &[]),
        "FP8_PB_WO" => ("e4m3", 8, Some(Group::Tile { rows: 128, cols: 128 }), &[]),
        // `MIXED_PRECISION` states no scheme: layers differ, and types and shapes of their tensors determine the scheme.
        "MIXED_PRECISION" => return Ok(None),
        other => {
            return Err(format!(
                "key 'quant_algo' is '{other}', expected NVFP4, NVFP4_AWQ, W4A16_NVFP4, MXFP4, MXFP8, FP8, \
                 FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO or MIXED_PRECISION"
            ));
        }
    };
    Ok(Some(Scheme::new(element, bits, group, Some(inputs))))
}
