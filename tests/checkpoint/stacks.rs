//! Experts in one tensor: a fault in any of them is named with its number, however many others are right.

use safetensors::Dtype;

use super::faults::invert;
use super::made::{Array, Made, clean, matrices};
use super::whole::told;

/// Experts of a stack.
const EXPERTS: usize = 5;
/// The name of the stack.
const STACK: &str = "model.layers.0.mlp.experts.down_proj.weight";

/// A checkpoint with one stack of experts, which all are right.
fn stack(kind: &'static str) -> Made {
    let single = clean(kind);
    let mut made = single.clone();
    for name in matrices() {
        made.source.remove(&name);
        for part in made.parts(&name) {
            made.tensors.remove(&part);
        }
    }
    let experts: Vec<String> = matrices().into_iter().take(EXPERTS).collect();
    let joined = |parts: Vec<&Array>| -> Array {
        let (dtype, shape, _) = parts[0];
        let shape = [&[EXPERTS], &shape[..]].concat();
        (
            *dtype,
            shape,
            parts.iter().flat_map(|(.., bytes)| bytes.clone()).collect(),
        )
    };
    for part in single.parts(&experts[0]) {
        let ending = part.strip_prefix(experts[0].strip_suffix(".weight").unwrap()).unwrap();
        let of = |name: &String| &single.tensors[&format!("{}{ending}", name.strip_suffix(".weight").unwrap())];
        // A stack has one scale of activations.
        let array = match ending.starts_with(".input") {
            true => of(&experts[0]).clone(),
            false => joined(experts.iter().map(of).collect()),
        };
        let name = format!("{}{ending}", STACK.strip_suffix(".weight").unwrap());
        made.tensors.insert(name, array);
    }
    let sources = experts.iter().map(|name| &single.source[name]).collect();
    made.source.insert(STACK.into(), joined(sources));
    made
}

/// A fault of a part's share of one expert, and the check that must notice it.
struct Fault {
    name: &'static str,
    part: &'static str,
    check: &'static str,
    plant: fn(&mut Array),
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "reciprocal scales",
        part: "scale",
        check: "inverted_scale",
        plant: invert,
    },
    Fault {
        name: "a reciprocal global scale",
        part: "global",
        check: "inverted_scale",
        plant: invert,
    },
    Fault {
        name: "tiny weights",
        part: "scale",
        check: "magnitude",
        plant: |(dtype, _, bytes)| match dtype {
            Dtype::U8 => bytes.iter_mut().for_each(|byte| *byte -= 20),
            // 2^-8 of the size: an exponent has three bits below it.
            _ => bytes.iter_mut().for_each(|byte| *byte = byte.saturating_sub(8 << 3)),
        },
    },
    Fault {
        name: "blocks of zero",
        part: "codes",
        check: "dead_blocks",
        plant: |(.., bytes)| bytes[..1024].fill(0),
    },
    Fault {
        name: "an expert of zero",
        part: "codes",
        check: "dead_matrix",
        plant: |(.., bytes)| bytes.fill(0),
    },
    Fault {
        name: "clipped codes",
        part: "codes",
        check: "saturated",
        plant: |(.., bytes)| bytes.iter_mut().step_by(2).for_each(|byte| *byte = 0x7f),
    },
    Fault {
        name: "codes of other rows",
        part: "codes",
        check: "low_sqnr",
        plant: |(.., bytes)| bytes.rotate_left(128 * 4),
    },
    Fault {
        name: "codes in the other order",
        part: "codes",
        check: "code_order",
        plant: |(.., bytes)| bytes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)),
    },
];

#[test]
fn a_stack_that_is_right_gives_no_finding() {
    for kind in ["gpt-oss", "ModelOpt nvfp4"] {
        let report = stack(kind).judge(true);
        assert!(report.findings.is_empty(), "{kind}: {:#?}", told(&report));
        let judged = report.judged(STACK).unwrap();
        assert_eq!(judged.shape[0], EXPERTS, "{kind}");
    }
}

#[test]
fn a_fault_in_any_expert_is_named_with_its_number() {
    let mut planted = 0;
    for kind in ["gpt-oss", "ModelOpt nvfp4"] {
        let clean = stack(kind);
        for fault in FAULTS {
            for expert in [0, EXPERTS / 2, EXPERTS - 1] {
                let mut made = clean.clone();
                let Some(tensor) = made.part(STACK, fault.part) else {
                    continue;
                };
                let (dtype, shape, bytes) = made.tensors.get_mut(&tensor).unwrap();
                let each = bytes.len() / EXPERTS;
                let share = expert * each..(expert + 1) * each;
                let mut one = (*dtype, shape[1..].to_vec(), bytes[share.clone()].to_vec());
                (fault.plant)(&mut one);
                bytes[share].copy_from_slice(&one.2);
                planted += 1;
                let beside = ["low_sqnr", "code_order"].contains(&fault.check);
                let report = made.judge(beside);
                let which = format!("matrix {expert}: ");
                let named = report.findings.iter().any(|finding| {
                    // If the size is merely wrong, the scale that multiplies all is named.
                    let subject = finding.subject == tensor || fault.check == "magnitude";
                    finding.check.name == fault.check && subject && finding.found.starts_with(&which)
                });
                let others = report
                    .findings
                    .iter()
                    .filter(|finding| !finding.found.starts_with(&which));
                assert!(named, "{kind}, {} in expert {expert}: {:#?}", fault.name, told(&report));
                assert_eq!(others.count(), 0, "{kind}, {}: {:#?}", fault.name, told(&report));
            }
        }
    }
    assert!(planted >= 40, "{planted}");
}

/// The numbers of a stack in tables are of its worst matrix, and go together.
#[test]
fn the_worst_expert_stands_for_its_stack() {
    let clean = stack("ModelOpt nvfp4");
    let gain = |made: &Made| {
        let measured = made.judge(false).judged(STACK).unwrap().measured.clone().unwrap();
        (measured.gain(measured.rms), measured)
    };
    let (right, _) = gain(&clean);
    let mut made = clean;
    let global = made.part(STACK, "global").unwrap();
    let (.., bytes) = made.tensors.get_mut(&global).unwrap();
    let mut last = (Dtype::F32, vec![], bytes[4 * (EXPERTS - 1)..].to_vec());
    invert(&mut last);
    bytes[4 * (EXPERTS - 1)..].copy_from_slice(&last.2);
    let (wrong, measured) = gain(&made);
    let back = measured.gain(measured.rms_global_inverted.unwrap());
    assert!(
        wrong > 128.0 && (back / right - 1.0).abs() < 0.1,
        "{right} {wrong} {back}"
    );
}
