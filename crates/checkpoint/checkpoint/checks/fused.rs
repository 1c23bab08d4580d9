//! Checks that matrices have equal scales if a fused kernel computes them together (q, k and v; gate and up) and reads one scale
//! for all of them.

use std::collections::BTreeSet;

use super::{Check, Finding, Severity};
use crate::checkpoint::parts::{Matrices, fused};
use ulplab_core::tensorfile::Tensor;

pub const FUSED_GLOBAL: Check = Severity::Error.check(
    "fused_global",
    "Gate and up, or q, k and v, have the same global scale: a fused kernel reads one of them for all, and the block scales of the \
     others are then of another number.",
);
pub const FUSED_TENSOR_SCALE: Check = Severity::Warning.check(
    "fused_tensor_scale",
    "The same for the only scale of an FP8 matrix, and for scales of activations: servers take the largest and quantize the codes \
     once more, with a second rounding.",
);

/// Reports matrices that a fused kernel computes together (gate and up; q, k and v) although their scales differ. `with_one`
/// holds the names of the matrices with one scale per tensor.
pub fn scales<'a>(matrices: &Matrices<'a>, with_one: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for names in fused(matrices.keys().map(String::as_str)) {
        let is_input = |tensor: &Tensor| ["input", "activation"].iter().any(|word| tensor.name.contains(word));
        let mut compare = |check, of: &dyn Fn(&str) -> Option<Tensor<'a>>, what: &str| {
            let all: Vec<(&&str, Tensor)> = names.iter().filter_map(|name| Some((name, of(name)?))).collect();
            let Some(((_, first), others)) = all.split_first() else {
                return;
            };
            for (name, tensor) in others.iter().filter(|(_, tensor)| tensor.bytes != first.bytes) {
                let found = format!("{what} {}", shown(tensor));
                let expected = format!("{}, as '{}' has it", shown(first), first.name);
                findings.push(Finding::new(check, (tensor.name, name), found, expected));
            }
        };
        let only = |name: &str| matrices[name].scale.filter(|_| with_one.contains(name));
        let input = |name: &str| matrices[name].activations.iter().copied().find(is_input);
        compare(&FUSED_GLOBAL, &|name| matrices[name].global, "a global scale of");
        compare(&FUSED_TENSOR_SCALE, &only, "a scale of");
        compare(&FUSED_TENSOR_SCALE, &input, "a scale of activations of");
    }
    findings
}

/// Formats a scale, or the first of several scales.
fn shown(tensor: &Tensor) -> String {
    match tensor.to_f32().as_deref() {
        Some([value]) => format!("{value:e}"),
        Some([first, ..]) => format!("{first:e} and others"),
        _ => "no number".into(),
    }
}
