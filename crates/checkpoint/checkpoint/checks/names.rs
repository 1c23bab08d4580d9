//! Checks for missing and surplus tensors, and for wrong types and shapes.

use super::{Check, Finding, Severity};
use crate::checkpoint::conventions::Convention;
use crate::checkpoint::parts::{Matrices, Parts, kin, module};
use crate::checkpoint::stated::Stated;
use ulplab_core::tensorfile::Tensor;

pub const MISSING_PART: Check = Severity::Error.check(
    "missing_part",
    "Codes have all the scales and zero points that their convention needs.",
);
pub const LEFT_OVER: Check = Severity::Error.check(
    "left_over",
    "Every scale has codes: beside a floating-point weight, or beside nothing, it is a part of a matrix that was replaced.",
);
pub const SHAPE: Check = Severity::Error.check(
    "shape",
    "Types and shapes of scales, zero points and group indices fit those of the codes and the block size.",
);
pub const STATED_FORMAT: Check = Severity::Error.check(
    "stated_format",
    "Codes and scales have the format that the configuration states.",
);
pub const IGNORED_QUANTIZED: Check = Severity::Error.check(
    "ignored_quantized",
    "Modules that the configuration leaves unquantized, or that none of its targets names, are not quantized: loaders would read \
     codes as weights.",
);
pub const UNQUANTIZED: Check = Severity::Error.check(
    "unquantized",
    "Modules that the configuration does not leave out are quantized: those whose namesakes in other layers are, and, where a \
     convention lists every exception, every module whose name ends with `_proj`; and every module that is a target by its name \
     (`config_groups`, `quantized_layers`). Not judged where a list is not understood.",
);

/// Reports missing and surplus scales and zero points of a matrix. `symmetric` is true if the configuration excludes zero points;
/// `None` if it does not mention them.
pub fn parts(name: &str, parts: &Parts, convention: &Convention, symmetric: Option<bool>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |check, subject: &Tensor, found: &str, expected: &str| {
        findings.push(Finding::new(check, (subject.name, name), found, expected));
    };
    let Some(codes) = parts.codes.filter(|codes| !codes.is_floating()) else {
        let found = match parts.codes {
            Some(weight) => format!("beside '{}', which is {}", weight.name, weight.dtype),
            None => "without codes".into(),
        };
        for (what, tensor) in parts.without_codes() {
            add(&LEFT_OVER, &tensor, &format!("a {what} {found}"), "codes beside it");
        }
        return findings;
    };
    let mut missing = |what: &str| {
        let found = format!("{} {:?} without {what}", codes.dtype, codes.shape);
        add(&MISSING_PART, &codes, &found, &format!("{what} beside it"));
    };
    let Some(scale) = parts.scale else {
        missing("scales");
        return findings;
    };
    let nvfp4 = scale.dtype == safetensors::Dtype::F8_E4M3 && convention.rule().is_some();
    if nvfp4 && parts.global.is_none() {
        missing("a global scale");
    }
    let zeros = match (convention.name, symmetric) {
        ("GPTQ", _) => true,
        ("AWQ", symmetric) => symmetric != Some(true),
        (_, symmetric) => symmetric == Some(false),
    };
    if zeros && parts.zero.is_none() {
        missing("zero points");
    }
    for tensor in &parts.doubled {
        let found = "a part that another tensor is already";
        add(&LEFT_OVER, tensor, found, "one of them");
    }
    findings
}

/// True if a matrix without codes has a tensor that is left over from its quantization (a scale, zero point or group index).
/// False for a floating-point vector of the model whose name only looks like the name of a scale.
pub fn is_stray(parts: &Parts) -> bool {
    let stray = |tensor: &Tensor| {
        let named = ["weight_", ".scales", ".qzeros", ".g_idx", "_scale_inv"];
        tensor.shape.len() > 1 || named.iter().any(|named| tensor.name.contains(named)) || !tensor.is_floating()
    };
    parts.without_codes().any(|(_, tensor)| stray(&tensor))
}

/// Reports matrices that the configuration declares quantized but the file stores unquantized, and the reverse.
pub fn left_out(matrices: &Matrices, stated: &Stated) -> Vec<Finding> {
    let quantized = matrices.iter().filter(|(_, parts)| parts.is_whole());
    let kinds: std::collections::BTreeSet<String> = quantized.map(|(name, _)| kin(name)).collect();
    let mut findings = Vec::new();
    for (name, parts) in matrices {
        let Some(codes) = parts.codes else { continue };
        let module = module(name);
        let mut add = |check, found: String, expected: String| {
            findings.push(Finding::new(check, (codes.name, name), found, expected));
        };
        if parts.is_whole() {
            let found = format!("{} codes with scales", codes.dtype);
            let why = if stated.leaves_out(module) == Some(true) {
                format!("the configuration leaves '{module}' out")
            } else if stated.targets(module) == Some(false) {
                format!("no target of the configuration is '{module}'")
            } else {
                continue;
            };
            add(&IGNORED_QUANTIZED, found, format!("no quantization: {why}"));
        } else if codes.is_floating() && codes.shape.len() > 1 && !name.contains("norm") {
            let target = stated.targets(module);
            let namesake = kinds.contains(&kin(name)) && target != Some(false);
            let listed = stated.convention.lists_all && !stated.sections.is_empty() && target.is_none();
            let linear = listed && module.ends_with("_proj") && name.ends_with(".weight");
            let expected = match (target, namesake, linear) {
                (Some(true), ..) => "codes and scales: the configuration names it as quantized",
                (_, true, _) => "codes and scales, as its namesakes in other layers have",
                (_, _, true) => "codes and scales: the configuration does not leave it out",
                _ => continue,
            };
            if stated.leaves_out(module) == Some(false) && stated.schemes(module).is_ok() {
                let found = format!("{} {:?}, not quantized", codes.dtype, codes.shape);
                add(&UNQUANTIZED, found, expected.into());
            }
        }
    }
    findings
}
