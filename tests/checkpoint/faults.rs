//! Every fault is noticed on its tensor, in every matrix of every convention that can have it.

use half::f16;
use safetensors::Dtype;
use serde_json::json;
use ulplab_core::formats::{E4M3, Repr};

use super::made::{Array, COLS, KINDS, Made, ROWS, clean, matrices};
use super::whole::told;

/// Plants a fault in a matrix, and tells the tensor that a finding must name; `None` if the convention cannot have it.
type Plant = fn(&mut Made, &str) -> Option<String>;

/// A fault, the check that must notice it, and whether it needs the source.
struct Fault {
    name: &'static str,
    check: &'static str,
    beside: bool,
    plant: Plant,
}

const fn fault(name: &'static str, check: &'static str, plant: Plant) -> Fault {
    Fault {
        name,
        check,
        beside: false,
        plant,
    }
}

const FAULTS: &[Fault] = &[
    fault("no scale", "missing_part", |made, name| {
        let scale = made.part(name, "scale")?;
        made.tensors.remove(&scale);
        made.part(name, "codes")
    }),
    fault("no global scale", "missing_part", |made, name| {
        let global = made.part(name, "global")?;
        made.tensors.remove(&global);
        made.part(name, "codes")
    }),
    fault("no zero points", "missing_part", |made, name| {
        let zero = made.part(name, "zero")?;
        made.tensors.remove(&zero);
        made.part(name, "codes")
    }),
    fault("no codes", "left_over", |made, name| {
        let codes = made.part(name, "codes")?;
        made.tensors.remove(&codes);
        made.part(name, "scale")
    }),
    fault("a weight beside its scales", "left_over", |made, name| {
        let codes = made.part(name, "codes")?;
        made.tensors.remove(&codes);
        made.tensors.insert(name.into(), plain());
        made.part(name, "scale")
    }),
    fault("a weight in place of all parts", "unquantized", |made, name| {
        for part in made.parts(name) {
            made.tensors.remove(&part);
        }
        made.tensors.insert(name.into(), plain());
        Some(name.into())
    }),
    fault("scales of half as many blocks", "shape", |made, name| {
        let scale = made.part(name, "scale")?;
        let (dtype, shape, bytes) = made.tensors.get_mut(&scale)?;
        let size = dtype.bitsize() / 8;
        let count = match bytes.len() / size {
            1 => 3,
            count => count / 2 + 1,
        };
        *shape = vec![count, 1];
        bytes.resize(count * size, 1);
        Some(scale)
    }),
    fault("NaN in scales", "nonfinite_scale", |made, name| {
        let scale = made.part(name, "scale")?;
        set(made.tensors.get_mut(&scale)?, f32::NAN);
        Some(scale)
    }),
    fault("NaN in a global scale", "nonfinite_scale", |made, name| {
        let global = made.part(name, "global")?;
        set(made.tensors.get_mut(&global)?, f32::NAN);
        Some(global)
    }),
    fault("an infinite scale of activations", "nonfinite_scale", |made, name| {
        let scale = made.part(name, "activation")?;
        set(made.tensors.get_mut(&scale)?, f32::INFINITY);
        Some(scale)
    }),
    fault("a negative scale", "negative_scale", |made, name| {
        let scale = made.part(name, "scale")?;
        let array = made.tensors.get_mut(&scale).filter(|array| !is_power(array))?;
        set(array, -1.0);
        Some(scale)
    }),
    fault("a scale of zero", "zero_scale", |made, name| {
        let scale = made.part(name, "scale")?;
        let array = made.tensors.get_mut(&scale).filter(|array| !is_power(array))?;
        set(array, 0.0);
        Some(scale)
    }),
    fault("a global scale of zero", "zero_scale", |made, name| {
        let global = made.part(name, "global")?;
        set(made.tensors.get_mut(&global)?, 0.0);
        Some(global)
    }),
    fault("no scale of activations", "missing_input_scale", |made, name| {
        let scale = made
            .part(name, "activation")
            .filter(|_| made.kind.starts_with("ModelOpt"))?;
        made.tensors.remove(&scale);
        made.part(name, "codes")
    }),
    fault("E8M0 codes stored as numbers", "exponent_as_number", |made, name| {
        let scale = made.part(name, "scale").filter(|_| made.kind == "DeepSeek v3")?;
        let (.., bytes) = made.tensors.get_mut(&scale)?;
        let codes = bytes.as_chunks_mut().0.iter_mut();
        codes.for_each(|x| *x = (127.0 + f32::from_le_bytes(*x).log2().ceil()).to_le_bytes());
        Some(scale)
    }),
    fault("reciprocal scales", "inverted_scale", |made, name| {
        let scale = made.part(name, "scale")?;
        invert(made.tensors.get_mut(&scale)?);
        Some(scale)
    }),
    fault("a reciprocal global scale", "inverted_scale", |made, name| {
        let global = made.part(name, "global")?;
        invert(made.tensors.get_mut(&global)?);
        Some(global)
    }),
    fault("scales of 2^-9 of the size", "magnitude", |made, name| {
        let scale = made.part(name, "global").or(made.part(name, "scale"))?;
        let (_, _, bytes) = made.tensors.get_mut(&scale).filter(|array| array.0 == Dtype::F32)?;
        // No reciprocal explains it.
        let factor = if scale.ends_with("_global_scale") {
            512.0
        } else {
            1.0 / 512.0
        };
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .for_each(|x| *x = (f32::from_le_bytes(*x) * factor).to_le_bytes());
        Some(scale)
    }),
    fault("another global scale", "fused_global", |made, name| {
        let global = made.part(name, "global").filter(|_| name.contains("up_proj"))?;
        let (_, _, bytes) = made.tensors.get_mut(&global)?;
        let value = f32::from_le_bytes(bytes[..4].try_into().unwrap());
        bytes.copy_from_slice(&(value * 1.5).to_le_bytes());
        Some(global)
    }),
    fault("another scale of activations", "fused_tensor_scale", |made, name| {
        let scale = made.part(name, "activation").filter(|_| name.contains("up_proj"))?;
        set(made.tensors.get_mut(&scale)?, 3.0);
        Some(scale)
    }),
    fault("a NaN code", "nan_code", |made, name| {
        let codes = made.part(name, "codes")?;
        let (_, _, bytes) = made.tensors.get_mut(&codes).filter(|array| array.0 == Dtype::F8_E4M3)?;
        bytes[1000] = 0xff;
        Some(codes)
    }),
    fault("codes of zero", "dead_matrix", |made, name| {
        let codes = made.part(name, "codes")?;
        // Where there are zero points, a code of zero is no zero.
        let (_, _, bytes) = made.tensors.get_mut(&codes).filter(|array| array.0 != Dtype::I32)?;
        bytes.fill(0);
        Some(codes)
    }),
    fault("blocks of zero", "dead_blocks", |made, name| {
        let codes = made.part(name, "codes")?;
        let (_, _, bytes) = made.tensors.get_mut(&codes).filter(|array| array.0 == Dtype::U8)?;
        bytes[..2048].fill(0);
        Some(codes)
    }),
    fault("clipped codes", "saturated", |made, name| {
        let codes = made.part(name, "codes")?;
        let (dtype, _, bytes) = made.tensors.get_mut(&codes).filter(|array| array.0 != Dtype::I32)?;
        let top = if *dtype == Dtype::F8_E4M3 { 0x7e } else { 0x7f };
        bytes.iter_mut().step_by(2).for_each(|byte| *byte = top);
        Some(codes)
    }),
    fault("a module that is left out", "ignored_quantized", |made, name| {
        let key = match made.kind.split(' ').next()? {
            "compressed-tensors" => "ignore",
            "ModelOpt" => "exclude_modules",
            _ => "modules_to_not_convert",
        };
        made.config["quantization_config"][key] = json!([name.strip_suffix(".weight")?]);
        made.part(name, "codes")
    }),
    fault(
        "another format than the configuration says",
        "stated_format",
        |made, name| {
            let section = &mut made.config["quantization_config"];
            match made.kind {
                "compressed-tensors nvfp4" | "compressed-tensors int4" => {
                    section["config_groups"]["group_0"]["weights"]["group_size"] = json!(32);
                }
                "compressed-tensors fp8" => {
                    section["config_groups"]["group_0"]["weights"]["strategy"] = json!("tensor")
                }
                "ModelOpt nvfp4" => section["quant_algo"] = json!("FP8"),
                "ModelOpt fp8" => section["quant_algo"] = json!("NVFP4"),
                "DeepSeek v3" | "DeepSeek v4" => section["weight_block_size"] = json!([64, 64]),
                "GPTQ" | "AWQ" => section["group_size"] = json!(128),
                _ => return None,
            }
            made.part(name, "codes")
        },
    ),
    fault("a zero point out of range", "zero_point", |made, name| {
        // What is stored less one, and wrapped around.
        let zero = made.part(name, "zero").filter(|_| made.kind == "GPTQ")?;
        made.tensors.get_mut(&zero)?.2[3] = 0xff;
        Some(zero)
    }),
    fault(
        "zero points of a symmetric matrix that are not",
        "zero_point",
        |made, name| {
            let zero = made.part(name, "zero").filter(|_| made.kind == "GPTQ")?;
            made.tensors.get_mut(&zero)?.2[0] = 0x76;
            Some(zero)
        },
    ),
    fault("zero points with another offset", "off_centre", |made, name| {
        let zero = made.part(name, "zero")?;
        // Two less in every field, none of which is below two.
        let (_, _, bytes) = made.tensors.get_mut(&zero)?;
        bytes.iter_mut().for_each(|byte| *byte = byte.saturating_sub(0x22));
        made.part(name, "codes")
    }),
    fault("a group out of range", "group_index", |made, name| {
        let index = made.part(name, "index")?;
        made.tensors.get_mut(&index)?.2[0] = 77;
        Some(index)
    }),
    fault("groups of other sizes", "group_index", |made, name| {
        let index = made.part(name, "index")?;
        made.tensors.get_mut(&index)?.2.fill(0);
        Some(index)
    }),
    fault("a tensor that only the index has", "files", |made, name| {
        made.only_in_index = Some(format!("{name}.more"));
        made.only_in_index.clone()
    }),
    fault("a tensor that the index does not have", "files", |made, name| {
        made.not_in_index = made.part(name, "scale");
        made.not_in_index.clone()
    }),
    fault("NaN in a norm", "nonfinite", |made, name| {
        let norm = format!("{}.input_layernorm.weight", name.split(".mlp").next()?);
        set(made.tensors.get_mut(&norm)?, f32::NAN);
        Some(norm)
    }),
    Fault {
        name: "codes in the other order",
        check: "code_order",
        beside: true,
        plant: |made, name| {
            let codes = made.part(name, "codes")?;
            // Zero points are packed in the same way.
            let zero = made.part(name, "zero").filter(|_| made.kind != "AWQ");
            if let Some((_, _, bytes)) = zero.and_then(|zero| made.tensors.get_mut(&zero)) {
                bytes.as_chunks_mut().0.iter_mut().for_each(interleave);
            }
            let (dtype, _, bytes) = made.tensors.get_mut(&codes)?;
            match dtype {
                Dtype::U8 => bytes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)),
                Dtype::I32 if made.kind != "AWQ" => bytes.as_chunks_mut().0.iter_mut().for_each(interleave),
                _ => return None,
            }
            Some(codes)
        },
    },
    Fault {
        name: "codes of another matrix",
        check: "low_sqnr",
        beside: true,
        plant: |made, name| {
            let codes = made.part(name, "codes").filter(|_| made.kind != "AWQ")?;
            made.tensors.get_mut(&codes)?.2.rotate_left(128 * 4);
            Some(codes)
        },
    },
    Fault {
        name: "a source of another shape",
        check: "no_source",
        beside: true,
        plant: |made, name| {
            let (_, shape, bytes) = made.source.get_mut(name)?;
            *shape = vec![ROWS, COLS / 2];
            bytes.truncate(ROWS * COLS * 2);
            made.part(name, "codes")
        },
    },
];

/// A weight that is not quantized.
fn plain() -> Array {
    (Dtype::BF16, vec![ROWS, COLS], vec![0x3c; ROWS * COLS * 2])
}

/// Whether scales are powers of two, which have no sign and no zero.
fn is_power((dtype, ..): &&mut Array) -> bool {
    matches!(dtype, Dtype::F8_E8M0 | Dtype::U8)
}

/// Puts a value in place of the first.
fn set((dtype, _, bytes): &mut Array, value: f32) {
    match dtype {
        Dtype::F32 => bytes[..4].copy_from_slice(&value.to_le_bytes()),
        Dtype::F16 => bytes[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Dtype::F8_E4M3 if value.is_nan() => bytes[0] = 0x7f,
        Dtype::F8_E4M3 => bytes[0] = if value < 0.0 { 0xb8 } else { 0 },
        _ if value.is_nan() => bytes[0] = 0xff,
        other => unreachable!("{other}"),
    }
}

/// The reciprocals of all values.
pub fn invert((dtype, _, bytes): &mut Array) {
    match dtype {
        Dtype::F32 => bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .for_each(|x| *x = (1.0 / f32::from_le_bytes(*x)).to_le_bytes()),
        Dtype::F16 => bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .for_each(|x| *x = f16::from_f32(1.0 / f16::from_le_bytes(*x).to_f32()).to_le_bytes()),
        Dtype::F8_E4M3 => {
            let Repr::Float(_) = E4M3.repr else { unreachable!() };
            let nearest = |value: f32| {
                (1..0x7f)
                    .min_by(|a, b| {
                        (E4M3.decode(*a) - value)
                            .abs()
                            .total_cmp(&(E4M3.decode(*b) - value).abs())
                    })
                    .unwrap()
            };
            bytes
                .iter_mut()
                .for_each(|byte| *byte = nearest(1.0 / E4M3.decode((*byte).into())) as u8);
        }
        _ => bytes.iter_mut().for_each(|byte| *byte = 254 - *byte),
    }
}

/// The fields of a word in AutoAWQ's order instead of their own.
fn interleave(word: &mut [u8; 4]) {
    let fields = u32::from_le_bytes(*word);
    let moved = [0, 2, 4, 6, 1, 3, 5, 7].iter().enumerate();
    let packed = moved.fold(0u32, |word, (place, from)| {
        word | (fields >> (4 * from) & 15) << (4 * place)
    });
    *word = packed.to_le_bytes();
}

/// A checkpoint with faults, and each of them with the tensor that a finding must name.
type Planted = (Made, Vec<(&'static Fault, String)>);

/// Plants every fault in every matrix. Two faults of tensors share a checkpoint, one in each layer. A fault of another file has its own.
fn checkpoints(clean: &Made, beside: bool) -> Vec<Planted> {
    let files = |made: &Made| {
        let index = (made.only_in_index.clone(), made.not_in_index.clone());
        (made.config.clone(), made.hf.clone(), index)
    };
    let (mut all, mut waiting) = (Vec::new(), [const { Vec::new() }; 2]);
    for fault in FAULTS.iter().filter(|fault| fault.beside == beside) {
        for (at, name) in matrices().into_iter().enumerate() {
            let mut made = clean.clone();
            match (fault.plant)(&mut made, &name) {
                None => {}
                Some(tensor) if files(&made) != files(clean) => all.push((made, vec![(fault, tensor)])),
                Some(_) => waiting[at * 2 / matrices().len()].push((fault, name)),
            }
        }
    }
    let [first, second] = waiting;
    assert_eq!(first.len(), second.len());
    // The last of one layer with the first of the other, so that they differ.
    for both in first.into_iter().zip(second.into_iter().rev()) {
        let mut made = clean.clone();
        let planted = [both.0, both.1].map(|(fault, name)| (fault, (fault.plant)(&mut made, &name).unwrap()));
        all.push((made, planted.into()));
    }
    all
}

#[test]
fn every_fault_is_named_on_its_tensor() {
    let mut missed = Vec::new();
    let mut planted = std::collections::BTreeMap::new();
    for kind in KINDS {
        let clean = clean(kind);
        for beside in [false, true] {
            for (made, faults) in checkpoints(&clean, beside) {
                let report = made.judge(beside);
                for (fault, tensor) in faults {
                    *planted.entry((fault.name, *kind)).or_insert(0) += 1;
                    let found = report
                        .findings
                        .iter()
                        .any(|finding| finding.check.name == fault.check && finding.subject == tensor);
                    if !found {
                        missed.push((fault.name, *kind, tensor, told(&report)));
                    }
                }
            }
        }
    }
    // A fault that no convention can have would prove nothing.
    for fault in FAULTS {
        assert!(
            planted.keys().any(|(name, _)| *name == fault.name),
            "'{}' was planted nowhere",
            fault.name
        );
    }
    let kinds: std::collections::BTreeSet<(&str, &str)> =
        missed.iter().map(|(fault, kind, ..)| (*fault, *kind)).collect();
    assert!(
        missed.is_empty(),
        "{} missed: {kinds:#?}, the first: {:#?}",
        missed.len(),
        missed[0]
    );
}

#[test]
fn every_check_has_a_fault() {
    // These have tests of their own.
    let others = [
        "configuration",
        "dead_tensor",
        "missing_tensor",
        "plain_differs",
        "convention",
        "missing_kv_scale",
        "no_kv_scale",
        "folded",
        "transposed",
        "part_off",
    ];
    let missing = ulplab_checkpoint::checkpoint::CHECKS
        .iter()
        .map(|check| check.name)
        .filter(|name| !others.contains(name));
    let missing: Vec<&str> = missing
        .filter(|name| !FAULTS.iter().any(|fault| fault.check == *name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The configuration of each kind with the tensors of each other.
#[test]
fn a_configuration_of_another_convention_is_named() {
    let same = |a: &str, b: &str| a.split(' ').next() == b.split(' ').next();
    for (kind, other) in KINDS
        .iter()
        .flat_map(|kind| KINDS.iter().map(move |other| (*kind, *other)))
    {
        // FP8 has the same names with both.
        let alike = ["compressed-tensors fp8", "ModelOpt fp8"];
        if same(kind, other)
            || (alike.contains(&kind)
                && ["compressed-tensors", "ModelOpt"]
                    .iter()
                    .any(|name| other.starts_with(name)))
        {
            continue;
        }
        let mut made = clean(kind);
        made.config = clean(other).config;
        let report = made.judge(false);
        let named = report
            .findings
            .iter()
            .any(|finding| finding.check.name == "convention" && finding.subject == "config.json");
        assert!(named, "{kind} with the configuration of {other}: {:#?}", told(&report));
    }
}
