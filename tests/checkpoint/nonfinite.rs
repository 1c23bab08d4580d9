//! NaN and infinity are named in every tensor, whatever its name ends with, and so are scales that cannot multiply.

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::Dtype;

use super::made::{Array, KINDS, Made, clean, matrices};
use super::whole::told;

/// Names of tensors beside the matrices of a layer, of which some end like a part of a quantized matrix and have no codes.
const NAMES: &[&str] = &[
    "input_layernorm.weight",
    "self_attn.sinks",
    "A_log",
    "e_score_correction_bias",
    "layer_scalar",
    "router.scale",
    "input_quantizer._amax",
    "k_proj.k_scale",
    "attn.v_scale",
    "o_proj.output_scale",
    "o_proj.pre_quant_scale",
    "router.per_expert_scale",
    "hc_attn_scale",
    "self_attn.kv_scale",
    "attn_scale",
    "smooth_scale",
    "activation_scale",
    "awq_scale",
    "gate_up_proj_scale",
    "x_packed",
    "x_scale_2",
    "x_global_scale",
    "x_scale_inv",
    "x.scales",
    "x_zero_point",
    "x.weight_shape",
    "embed.weight_scale",
    "experts.gate_up_proj_input_scale",
];

/// The tensor with NaN, an infinity and the other at its last place, as far as its type has them.
fn spoiled(name: &str, (dtype, shape, bytes): &Array) -> Vec<Array> {
    let codes = |patterns: &[&[u8]]| {
        let put = |pattern: &&[u8]| {
            let mut bytes = bytes.clone();
            let last = bytes.len() - pattern.len();
            bytes[last..].copy_from_slice(pattern);
            (*dtype, shape.clone(), bytes)
        };
        patterns.iter().map(put).collect()
    };
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    match dtype {
        Dtype::F32 => codes(&values.map(f32::to_le_bytes).each_ref().map(|x| &x[..])),
        Dtype::F16 => codes(
            &values
                .map(|x| f16::from_f32(x).to_le_bytes())
                .each_ref()
                .map(|x| &x[..]),
        ),
        Dtype::BF16 => codes(
            &values
                .map(|x| bf16::from_f32(x).to_le_bytes())
                .each_ref()
                .map(|x| &x[..]),
        ),
        Dtype::F8_E4M3 => codes(&[&[0x7f], &[0xff]]),
        Dtype::F8_E5M2 => codes(&[&[0x7c], &[0xfc], &[0x7f]]),
        Dtype::F8_E8M0 => codes(&[&[0xff]]),
        // Scales of gpt-oss are E8M0 in U8.
        Dtype::U8 if name.ends_with("_scales") => codes(&[&[0xff]]),
        _ => Vec::new(),
    }
}

/// All spoiled tensors, in rounds that have at most one tensor of a matrix and half of the other tensors.
fn rounds(clean: &Made) -> Vec<BTreeMap<String, Array>> {
    let mut rounds: BTreeMap<(usize, usize), BTreeMap<String, Array>> = BTreeMap::new();
    let (mut parts, mut others) = (BTreeMap::<String, usize>::new(), 0);
    for (name, array) in &clean.tensors {
        let matrix = matrices()
            .into_iter()
            .find(|matrix| name.starts_with(matrix.trim_end_matches("weight")));
        let (count, turns) = match matrix {
            Some(matrix) => (parts.entry(matrix).or_default(), usize::MAX),
            None => (&mut others, 2),
        };
        let turn = *count % turns;
        *count += 1;
        for (at, array) in spoiled(name, array).into_iter().enumerate() {
            rounds.entry((turn, at)).or_default().insert(name.clone(), array);
        }
    }
    rounds.into_values().collect()
}

#[test]
fn nan_and_infinity_are_named_in_every_tensor() {
    let (mut planted, mut missed) = (0, Vec::new());
    for kind in KINDS {
        let mut clean = clean(kind);
        for (at, name) in NAMES.iter().enumerate() {
            let (dtype, value) = match at % 3 {
                0 => (Dtype::F32, 1f32.to_le_bytes().to_vec()),
                1 => (Dtype::BF16, bf16::from_f32(1.0).to_le_bytes().to_vec()),
                _ => (Dtype::F8_E4M3, vec![0x38]),
            };
            let array = (dtype, vec![2], value.repeat(2));
            clean.tensors.insert(format!("model.layers.1.{name}"), array);
        }
        for spoiled in rounds(&clean) {
            let mut made = clean.clone();
            made.tensors.extend(spoiled.clone());
            let report = made.judge(false);
            planted += spoiled.len();
            let checks = ["nonfinite", "nonfinite_scale", "nan_code"];
            let found = report.findings.iter();
            let found = found.filter(|finding| checks.contains(&finding.check.name));
            let mut named: Vec<&str> = found.map(|finding| &*finding.subject).collect();
            named.sort_unstable();
            // Each once, and none of the others.
            if !named.iter().eq(spoiled.keys()) {
                let wanted: Vec<String> = spoiled.into_keys().collect();
                missed.push((*kind, wanted, told(&report)));
            }
        }
    }
    assert!(planted > 500, "{planted}");
    assert!(
        missed.is_empty(),
        "{} of {planted} missed: {:#?}",
        missed.len(),
        missed[0]
    );
}

/// Every scale of activations and of caches multiplies. Others of the kind: each name of `conventions::COMMON`.
#[test]
fn scales_that_multiply_are_positive() {
    for name in [
        "o_proj.input_scale",
        "o_proj.activation_scale",
        "o_proj.pre_quant_scale",
        "self_attn.kv_scale",
        "k_scale",
    ] {
        for (value, check) in [(0f32, "zero_scale"), (-1.0, "negative_scale")] {
            let mut made = clean("ModelOpt nvfp4");
            let name = format!("model.layers.1.{name}");
            made.tensors
                .insert(name.clone(), (Dtype::F32, vec![], value.to_le_bytes().to_vec()));
            let report = made.judge(false);
            let named = report
                .findings
                .iter()
                .any(|found| found.subject == name && found.check.name == check);
            assert!(named, "{name} {value}: {:#?}", told(&report));
        }
    }
}
