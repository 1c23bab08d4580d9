//! Checks that the file has the scales and group indices that the configuration implies.

use std::collections::{BTreeMap, BTreeSet};

use super::names::MISSING_PART;
use super::{Check, Finding, Severity};
use crate::checkpoint::config::{Section, given};
use crate::checkpoint::parts::{Matrices, Parts, kin, module};
use ulplab_core::error::counted;
use ulplab_core::tensorfile::Tensor;

pub const MISSING_INPUT_SCALE: Check = Severity::Error.check(
    "missing_input_scale",
    "Where activations are quantized by a static scale, every matrix has it: those that the configuration says, and those whose \
     namesakes have one. Experts that calibration never reached have none, and loaders divide by what memory holds.",
);
pub const MISSING_KV_SCALE: Check = Severity::Error.check(
    "missing_kv_scale",
    "Where the configuration quantizes the KV cache, every attention layer has a scale of keys and one of values, if one of its \
     namesakes has either.",
);
pub const NO_KV_SCALE: Check = Severity::Warning.check(
    "no_kv_scale",
    "Where the configuration quantizes the KV cache, the file has scales for it: without, loaders take 1.",
);

/// True if a matrix has an activation scale with one of these names.
fn has_input(parts: &Parts, names: &[&str]) -> bool {
    let named = |tensor: &Tensor| names.iter().any(|name| tensor.name.ends_with(name));
    parts.activations.iter().any(named)
}

/// Reports missing static activation scales. `needs` lists the possible names of this scale for each quantized matrix: one of
/// them must exist. A list is `None` if the configuration does not state the names.
pub fn inputs<'n>(matrices: &Matrices, needs: &BTreeMap<&str, Option<&'n [&'n str]>>) -> Vec<Finding> {
    const ANY: &[&str] = &["input_scale", "input_global_scale", "activation_scale"];
    let of = |name: &str| needs[name].unwrap_or(ANY);
    let with = needs.keys().filter(|name| has_input(&matrices[**name], of(name)));
    let kinds: BTreeSet<String> = with.map(|name| kin(name)).collect();
    let mut findings = Vec::new();
    for (name, names) in needs {
        let parts = &matrices[*name];
        let promised = names.map_or_else(|| kinds.contains(&kin(name)), |names| !names.is_empty());
        let (true, false, Some(codes)) = (promised, has_input(parts, of(name)), parts.codes) else {
            continue;
        };
        let expected = match names {
            Some([name, ..]) => format!("'{name}': the configuration says that activations have a static scale"),
            _ => "one, as its namesakes have".into(),
        };
        let (check, found) = (&MISSING_INPUT_SCALE, "no scale of activations");
        findings.push(Finding::new(check, (codes.name, name), found, expected));
    }
    findings
}

/// Reports quantized matrices without group indices, if the configuration states `desc_act` or any other matrix has such indices.
pub fn indices(matrices: &Matrices, sections: &[&Section]) -> Vec<Finding> {
    let orders = |section: &&Section| section.value.get("desc_act") == Some(&true.into());
    let ordered = sections.iter().any(orders);
    let quantized = || matrices.iter().filter(|(_, parts)| parts.is_whole());
    let with = quantized().filter(|(_, parts)| parts.index.is_some()).count();
    if with == 0 && !ordered {
        return Vec::new();
    }
    let why = match with {
        0 => "the configuration says 'desc_act'".into(),
        _ => format!("{} have one", counted(with, "matrix").replace("matrixs", "matrices")),
    };
    let without = quantized().filter(|(_, parts)| parts.index.is_none());
    let finding = |(name, parts): (&String, &Parts)| {
        let codes = parts.codes?;
        let found = format!("{} {:?} without a group index", codes.dtype, codes.shape);
        let expected = format!("the group of each input channel, as {why}");
        Some(Finding::new(&MISSING_PART, (codes.name, name), found, expected))
    };
    without.filter_map(finding).collect()
}

/// True if a configuration section quantizes the KV cache with static scales.
fn quantizes_cache(section: &Section) -> bool {
    let scheme = given(&section.value, "kv_cache_scheme").filter(|scheme| scheme.get("dynamic") != Some(&true.into()));
    let algorithm = given(&section.value, "kv_cache_quant_algo").filter(|name| name.as_str() != Some("none"));
    let group = section.value.pointer("/export/kv_cache_group");
    let group = group.is_some_and(|group| group.as_array().is_some_and(|group| !group.is_empty()));
    scheme.is_some() || algorithm.is_some() || group
}

/// Names of modules that compute the keys (K) of an attention layer. The flag is true if the values (V) of the layer need a scale
/// of their own; with MLA (`kv_a_proj_with_mqa`, `kv_b_proj`) they need none.
const KEYS: &[(&str, bool)] = &[
    ("k_proj", true),
    ("qkv_proj", true),
    ("qkv", true),
    ("query_key_value", true),
    ("W_pack", true),
    ("wk", true),
    ("wqkv", true),
    ("kv_a_proj_with_mqa", false),
    ("kv_b_proj", false),
];

/// Reports attention layers that lack the KV-cache scale of K or of V.
pub fn cache(matrices: &Matrices, sections: &[&Section]) -> Vec<Finding> {
    let Some(section) = sections.iter().find(|section| quantizes_cache(section)) else {
        return Vec::new();
    };
    // Attention layers by name. For each layer: name of its K matrix, true if V needs a scale, true if K has one, true if V has
    // one.
    let mut layers: BTreeMap<&str, (&str, bool, [bool; 2])> = BTreeMap::new();
    for name in matrices.keys().filter(|name| matrices[*name].codes.is_some()) {
        if let Some((layer, last)) = module(name).rsplit_once('.')
            && let Some((_, values)) = KEYS.iter().find(|(key, _)| *key == last)
        {
            layers.entry(layer).or_insert((name, *values, [false, false]));
        }
    }
    for tensor in matrices.values().flat_map(|parts| &parts.activations) {
        let name = tensor.name;
        let has = match name.rsplit('.').next().unwrap_or(name) {
            "kv_scale" => [true, true],
            "k_scale" => [true, false],
            "v_scale" => [false, true],
            "output_scale" => ["k_proj", "v_proj"].map(|of| name.ends_with(&format!("{of}.output_scale"))),
            _ => continue,
        };
        for (at, _) in name.match_indices('.') {
            if let Some((.., found)) = layers.get_mut(&name[..at]) {
                *found = [found[0] || has[0], found[1] || has[1]];
            }
        }
    }
    let with = layers.iter().filter(|(_, (.., has))| has[0] || has[1]);
    let kinds: BTreeSet<String> = with.map(|(layer, _)| kin(layer)).collect();
    if kinds.is_empty() {
        let found = "the KV cache is quantized, and no tensor is a scale of it";
        let expected = "k_scale and v_scale of every attention layer, or a server that is told to take 1";
        return match layers.is_empty() {
            true => Vec::new(),
            false => vec![Finding::new(&NO_KV_SCALE, (section.file, ""), found, expected)],
        };
    }
    let quantized = |layer: &str| {
        let block = layer.rsplit_once('.').map_or(layer, |(block, _)| block);
        let inside = |name: &str| name.strip_prefix(block).is_some_and(|rest| rest.starts_with('.'));
        let from = matrices.range(format!("{block}.")..);
        from.take_while(|(name, _)| inside(name))
            .any(|(_, parts)| parts.is_whole())
    };
    let mut findings = Vec::new();
    for (layer, (matrix, values, has)) in &layers {
        let missing = match (has[0], has[1] || !values) {
            (true, true) => continue,
            (false, false) => "scales of keys and values",
            (false, true) => "a scale of keys",
            (true, false) => "a scale of values",
        };
        // A layer without any scale of keys or values is accepted if nothing in its block is quantized, e.g. a layer for
        // multi-token prediction.
        if kinds.contains(&kin(layer)) && (has[0] || has[1] || quantized(layer)) {
            let found = format!("without {missing}");
            let expected = "both, as its namesakes have";
            findings.push(Finding::new(&MISSING_KV_SCALE, (layer, matrix), found, expected));
        }
    }
    findings
}
