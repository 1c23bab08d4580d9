//! compressed-tensors, as llm-compressor writes it and vLLM reads it.

use serde_json::Value;

use super::{Convention, PLAIN, Part, not_converted, of_weight};
use crate::checkpoint::config::{Modules, Scheme, Section};
use crate::checkpoint::words::Packing;
use crate::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "compressed-tensors",
    methods: &["compressed-tensors"],
    writers: &[
        "compressed-tensors (llm-compressor, vLLM), packed",
        "ModelOpt; compressed-tensors, not packed",
    ],
    endings: &[
        of_weight(".weight_shape", Part::Shape),
        of_weight(".weight_g_idx", Part::GroupIndex),
        of_weight(".input_zero_point", Part::Activation),
    ],
    packing: Some(Packing::Rows),
    lists_all: true,
    scheme,
    ignored: |section| not_converted(section, "ignore"),
    doc: "`weight_global_scale` divides: it is 448 · 6 / amax of the tensor. Integers of 4 and 8 bits in words \
          (`pack-quantized`) have the first code in the lowest bits, and are stored with half their range added.",
    ..PLAIN
};

/// The first group of `config_groups` that has the module among its targets. A target that is no module's name, as `Linear`,
/// is a class and has all of them.
fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let Some(groups) = section.value.get("config_groups").and_then(Value::as_object) else {
        return Err("key 'config_groups' is missing, expected an object".into());
    };
    for (name, group) in groups {
        let strings = |key: &str| {
            let list = group.get(key).and_then(Value::as_array);
            list.map_or(Vec::new(), |list| list.iter().filter_map(Value::as_str).collect())
        };
        let mut here = false;
        for target in strings("targets") {
            let class = !target.starts_with("re:") && !target.contains('.') && target.starts_with(char::is_uppercase);
            here |= class || Modules::parse(target)?.has(module);
        }
        match group.get("weights").filter(|weights| !weights.is_null()) {
            Some(weights) if here => return weights_of(weights).map(Some).map_err(|why| format!("{name}: {why}")),
            _ => {}
        }
    }
    Ok(None)
}

fn weights_of(weights: &Value) -> Result<Scheme, String> {
    let bits = weights.get("num_bits").and_then(Value::as_u64);
    let bits = bits.ok_or("key 'weights.num_bits' is missing, expected a number of bits")? as usize;
    let kind = weights.get("type").and_then(Value::as_str).unwrap_or("int");
    let size = weights
        .get("group_size")
        .and_then(Value::as_u64)
        .map(|size| size as usize);
    let strategy = weights.get("strategy").and_then(Value::as_str);
    let block = weights.get("block_structure").and_then(Value::as_array);
    let block: Option<Vec<usize>> = block.map(|sizes| {
        let sizes = sizes.iter().filter_map(Value::as_u64);
        sizes.map(|size| size as usize).collect()
    });
    let group = match (strategy, size, block.as_deref()) {
        (Some("tensor"), ..) => Some(Group::Tensor),
        (Some("channel"), ..) => Some(Group::Token),
        (Some("block"), _, Some(&[rows, cols])) if rows > 0 && cols > 0 => Some(Group::Tile { rows, cols }),
        (_, Some(size), _) if size > 0 => Some(Group::block(size)),
        (Some(other), ..) => {
            return Err(format!(
                "key 'weights.strategy' is '{other}', expected tensor, channel, block with 'block_structure', or a group \
                 with 'group_size'"
            ));
        }
        (None, ..) => None,
    };
    let element = match (kind, bits) {
        ("float", 4) => "e2m1",
        ("float", 8) => "e4m3",
        ("int", _) => "int",
        (kind, bits) => {
            return Err(format!(
                "weights are {kind} of {bits} bits, expected int, or float of 4 or 8 bits"
            ));
        }
    };
    Ok(Scheme {
        element,
        bits,
        group,
        symmetric: weights.get("symmetric").and_then(Value::as_bool),
    })
}
