//! Tensors that a layer lacks are named, and models whose layers differ are right. Also of this kind: biases, sinks, tensors of a shared
//! expert, a router's correction, a layer of another list (`vision.blocks`).

use safetensors::Dtype;
use serde_json::json;

use super::made::{COLS, Made, ROWS, clean, f32s, random};
use super::whole::told;

const LAYERS: usize = 6;
/// Matrices of a layer.
const MATRICES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
/// Other tensors of a layer.
const NORMS: [&str; 3] = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm"];

fn norm(made: &mut Made, name: &str) {
    let seed = made.tensors.len() as u64;
    let values: Vec<f32> = random(seed, COLS).iter().map(|x| 1.0 + 0.1 * x).collect();
    for tensors in [&mut made.tensors, &mut made.source] {
        tensors.insert(format!("{name}.weight"), (Dtype::F32, vec![COLS], f32s(&values)));
    }
}

fn matrix(made: &mut Made, name: &str) {
    let values: Vec<f32> = random(made.source.len() as u64, ROWS * COLS)
        .iter()
        .map(|x| 0.03 * x)
        .collect();
    let name = format!("{name}.weight");
    made.source
        .insert(name.clone(), (Dtype::F32, vec![ROWS, COLS], f32s(&values)));
    made.put_as(made.kind, &name);
}

/// A model of six layers.
fn model(kind: &'static str) -> Made {
    let mut made = clean(kind);
    made.tensors.clear();
    made.source.clear();
    for layer in 0..LAYERS {
        for name in MATRICES {
            matrix(&mut made, &format!("model.layers.{layer}.{name}"));
        }
        for name in NORMS {
            norm(&mut made, &format!("model.layers.{layer}.{name}"));
        }
    }
    norm(&mut made, "model.norm");
    made
}

fn remove(made: &mut Made, name: &str) {
    made.parts(&format!("{name}.weight"))
        .iter()
        .for_each(|part| drop(made.tensors.remove(part)));
}

#[test]
fn a_tensor_that_one_layer_lacks_is_named() {
    for (kind, layer) in [
        ("compressed-tensors nvfp4", 3),
        ("DeepSeek v3", 0),
        ("GPTQ", LAYERS - 1),
    ] {
        let whole = model(kind);
        for (number, name) in MATRICES.iter().chain(&NORMS).enumerate() {
            let mut made = whole.clone();
            let name = format!("model.layers.{layer}.{name}");
            remove(&mut made, &name);
            // Some models have no norm ahead of the first layer.
            let open = layer == 0 && (name.contains("0.input_layernorm") || name.contains("0.post"));
            // A source costs a search for the rule of every matrix.
            let with_source = if number % 4 == 1 { &[false, true][..] } else { &[false] };
            for &sourced in with_source {
                let report = made.judge(sourced);
                let named = format!("missing_tensor {name}.weight: it is not in the file");
                let told = told(&report);
                let expected = usize::from(sourced || !open);
                assert_eq!(told.len(), expected, "{kind} {name}: {told:#?}");
                assert!(
                    told.iter().all(|line| line.starts_with(&named)),
                    "{kind} {name}: {told:#?}"
                );
            }
        }
        // An expert, and a part of one.
        let mut made = whole.clone();
        for layer in 1..LAYERS {
            for expert in 0..3 {
                for name in ["gate_proj", "up_proj", "down_proj"] {
                    matrix(&mut made, &format!("model.layers.{layer}.moe.experts.{expert}.{name}"));
                }
            }
        }
        assert!(made.judge(false).findings.is_empty(), "{kind}");
        for lost in [&["gate_proj", "up_proj", "down_proj"][..], &["up_proj"]] {
            let mut made = made.clone();
            lost.iter()
                .for_each(|name| remove(&mut made, &format!("model.layers.2.moe.experts.1.{name}")));
            assert_eq!(told(&made.judge(false)).len(), lost.len(), "{kind} {lost:?}");
        }
    }
}

/// Layers of other forms: experts from the second layer on, two kinds of attention by turns, a module that one layer has not, no norm ahead
/// of the first, a head for drafts with more tensors, keys and values of an earlier layer.
#[test]
fn models_whose_layers_differ_are_right() {
    type Change = fn(&mut Made);
    let changes: [(&str, Change); 7] = [
        ("experts", |made| {
            for layer in 1..LAYERS {
                for name in ["gate_proj", "up_proj", "down_proj"] {
                    remove(made, &format!("model.layers.{layer}.mlp.{name}"));
                    (0..2)
                        .for_each(|expert| matrix(made, &format!("model.layers.{layer}.mlp.experts.{expert}.{name}")));
                }
            }
        }),
        ("two kinds of attention", |made| {
            for layer in [0, 1, 2, 4, 5] {
                for name in ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm"] {
                    remove(made, &format!("model.layers.{layer}.self_attn.{name}"));
                }
                matrix(made, &format!("model.layers.{layer}.linear_attn.in_proj"));
            }
        }),
        ("a module that one layer has not", |made| {
            for layer in 1..LAYERS {
                matrix(made, &format!("model.layers.{layer}.self_attn.indexer.wq_b"));
                norm(made, &format!("model.layers.{layer}.self_attn.indexer.k_norm"));
            }
        }),
        ("no norm ahead of the first", |made| {
            remove(made, "model.layers.0.input_layernorm")
        }),
        ("a head for drafts", |made| {
            matrix(made, "model.layers.5.eh_proj");
            norm(made, "model.layers.5.enorm");
        }),
        ("shared keys and values", |made| {
            for layer in 3..LAYERS {
                ["k_proj", "v_proj"]
                    .iter()
                    .for_each(|name| remove(made, &format!("model.layers.{layer}.self_attn.{name}")));
            }
        }),
        ("two layers only", |made| {
            made.tensors
                .retain(|name, _| !name.contains("layers.") || name.contains("layers.0") || name.contains("layers.1"))
        }),
    ];
    for (what, change) in changes {
        for kind in ["compressed-tensors nvfp4", "DeepSeek v3", "GPTQ"] {
            let mut made = model(kind);
            change(&mut made);
            let told = told(&made.judge(false));
            assert!(told.is_empty(), "{what} {kind}: {told:#?}");
        }
    }
}

/// Tensors that are not quantized are held against the source: equal, rounded, other numbers, zeros.
#[test]
fn plain_tensors_are_held_against_the_source() {
    let whole = model("DeepSeek v3");
    let name = "model.layers.2.input_layernorm.weight";
    let values = |made: &Made| -> Vec<f32> {
        let bytes = &made.source[name].2;
        bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
    };
    let told_of = |array: (Dtype, Vec<usize>, Vec<u8>), config: serde_json::Value| {
        let mut made = whole.clone();
        made.tensors.insert(name.into(), array);
        if !config.is_null() {
            made.config["quantization_config"]["transform_config"] = config;
        }
        told(&made.judge(true))
    };
    let x = values(&whole);
    let halves: Vec<u8> = x.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
    assert!(told_of((Dtype::BF16, vec![COLS], halves), json!(null)).is_empty());
    let with = |change: &dyn Fn(usize, f32) -> f32| {
        let changed: Vec<f32> = x.iter().enumerate().map(|(at, x)| change(at, *x)).collect();
        (Dtype::F32, vec![COLS], f32s(&changed))
    };
    for (array, expected) in [
        (
            with(&|at, x| if at == 7 { -x } else { x }),
            "plain_differs model.layers.2.input_layernorm.weight: 1 of 256 elements differ",
        ),
        (
            with(&|_, x| 2.0 * x),
            "plain_differs model.layers.2.input_layernorm.weight: 256 of 256 elements differ",
        ),
        (
            with(&|_, _| 0.0),
            "dead_tensor model.layers.2.input_layernorm.weight: all 256 elements are 0",
        ),
    ] {
        let told = told_of(array, json!(null));
        assert!(told.len() == 1 && told[0].starts_with(expected), "{told:#?}");
    }
    let rotated = told_of(with(&|_, x| 2.0 * x), json!({ "rotation": 1 }));
    assert!(rotated.len() == 1 && rotated[0].starts_with("folded "), "{rotated:#?}");
}

/// A group index that one matrix lacks, or all where the configuration states an order.
#[test]
fn group_indices_are_whole() {
    let mut made = model("GPTQ");
    let all: Vec<String> = made
        .tensors
        .keys()
        .filter(|name| name.ends_with(".g_idx"))
        .cloned()
        .collect();
    assert_eq!(all.len(), LAYERS * MATRICES.len(), "the kind has indices");
    made.tensors.remove(&all[9]);
    let told_of = told(&made.judge(false));
    assert!(
        told_of.len() == 1 && told_of[0].starts_with("missing_part ") && told_of[0].contains("without a group index"),
        "{told_of:#?}"
    );
    made.tensors.retain(|name, _| !name.ends_with(".g_idx"));
    assert!(made.judge(false).findings.is_empty());
    made.config["quantization_config"]["desc_act"] = json!(true);
    assert_eq!(made.judge(false).findings.len(), all.len());
}
