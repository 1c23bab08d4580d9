//! compressed-tensors checkpoints, as llm-compressor writes them and vLLM reads them.

use serde_json::Value;

use super::{Convention, PLAIN, Packing, Part, not_converted, of_weight};
use crate::checkpoint::config::{Modules, Scheme, Section, given};
use ulplab_core::formats::Group;

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
    schemes: &[scheme],
    targets,
    ignored: |section| {
        let sparse = section.value.pointer("/sparsity_config/format").and_then(Value::as_str);
        match sparse.filter(|format| *format != "dense") {
            Some(format) => Err(format!("key 'sparsity_config.format' is '{format}', expected dense")),
            None => not_converted(section, "ignore"),
        }
    },
    doc: "`weight_global_scale` divides: it is 448 · 6 / amax of the tensor. Integers of 4 and 8 bits in words \
          (`pack-quantized`) have the first code in the lowest bits, and are stored with half their range added.",
    ..PLAIN
};

/// A group of `config_groups` that quantizes weights: key of the group, its object, its `weights` object, and its targets (names
/// or classes of modules).
type WeightGroup<'s> = (&'s String, &'s Value, &'s Value, Vec<&'s str>);

/// Returns the groups of `config_groups` that quantize weights.
fn groups(section: &Section) -> Result<Vec<WeightGroup<'_>>, String> {
    let Some(groups) = section.value.get("config_groups").and_then(Value::as_object) else {
        return Err("key 'config_groups' is missing, expected an object".into());
    };
    let mut all = Vec::new();
    for (name, group) in groups {
        let list = group.get("targets").and_then(Value::as_array);
        let wrong = |target| format!("{name}: a target is {target}, expected a string");
        let targets = list.into_iter().flatten();
        let targets = targets.map(|target| target.as_str().ok_or_else(|| wrong(target)));
        let targets = targets.collect::<Result<_, _>>()?;
        all.extend(given(group, "weights").map(|weights| (name, group, weights, targets)));
    }
    Ok(all)
}

/// True if a target is the name of a class such as `Linear`. The tensors of a file do not tell the classes of their modules.
fn is_class(target: &str) -> bool {
    !target.starts_with("re:") && !target.contains('.') && target.starts_with(char::is_uppercase)
}

/// True if a target names the module. Otherwise `None` if a target is a class (e.g. `Linear`), because the class of a module is
/// unknown; false if no target is a class.
fn targets(section: &Section, module: &str) -> Result<Option<bool>, String> {
    let (mut named, mut class) = (false, false);
    for target in groups(section)?.into_iter().flat_map(|(.., targets)| targets) {
        class |= is_class(target);
        named |= !is_class(target) && Modules::parse(target)?.has(module)?;
    }
    Ok(if named { Some(true) } else { (!class).then_some(false) })
}

/// Returns the scheme of the first config group with a target that names the module. If no target names the module, the first
/// group with a class (e.g. `Linear`) as its target is used.
pub fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let mut of_class = None;
    for (name, group, weights, targets) in groups(section)? {
        let read = || {
            let scheme = weights_of(weights).map_err(|why| format!("{name}: {why}"))?;
            let inputs = Some(inputs_of(group, &scheme));
            Ok(Some(Scheme { inputs, ..scheme }))
        };
        for target in targets {
            if is_class(target) {
                of_class = of_class.or(Some(read()));
            } else if Modules::parse(target)?.has(module)? {
                return read();
            }
        }
    }
    of_class.unwrap_or(Ok(None))
}

/// Possible names of the static activation scale; empty if there is none. NVFP4 computes the block scales of activations at run
/// time, so that only its global scale is static.
fn inputs_of(group: &Value, weights: &Scheme) -> &'static [&'static str] {
    let inputs = given(group, "input_activations");
    let dynamic = inputs.map(|inputs| inputs.get("dynamic").cloned().unwrap_or(false.into()));
    let bits = inputs.and_then(|inputs| inputs.get("num_bits")).and_then(Value::as_u64);
    match (dynamic, weights.element, bits) {
        (None | Some(Value::Bool(true)), ..) => &[],
        // ModelOpt writes the same config groups, but names the static scale `input_scale`.
        (_, "e2m1", Some(4)) => &["input_global_scale", "input_scale"],
        _ => &["input_scale"],
    }
}

fn weights_of(weights: &Value) -> Result<Scheme, String> {
    let bits = weights.get("num_bits").and_then(Value::as_u64);
    let bits = bits.ok_or("key 'weights.num_bits' is missing, expected a number of bits")? as usize;
    let kind = weights.get("type").and_then(Value::as_str).unwrap_or("int");
    let size = weights.get("group_size").and_then(Value::as_u64);
    let strategy = weights.get("strategy").and_then(Value::as_str);
    let block = weights.get("block_structure").and_then(Value::as_array);
    let block: Option<Vec<u64>> = block.map(|sizes| sizes.iter().filter_map(Value::as_u64).collect());
    let group = match (strategy, size, block.as_deref()) {
        (Some("tensor"), ..) => Some(Group::Tensor),
        (Some("channel"), ..) => Some(Group::Token),
        (Some("block"), _, Some(&[rows @ 1..=u64::MAX, cols @ 1..=u64::MAX])) => Some(Group::Tile {
            rows: rows as usize,
            cols: cols as usize,
        }),
        (_, Some(size @ 1..), _) => Some(Group::block(size as usize)),
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
    let symmetric = weights.get("symmetric").and_then(Value::as_bool);
    Ok(Scheme {
        symmetric,
        ..Scheme::new(element, bits, group, None)
    })
}
