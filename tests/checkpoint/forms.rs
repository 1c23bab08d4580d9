//! Forms of right checkpoints, as their publishers have them: no error, and at most three that are not judged.

use safetensors::Dtype;
use serde_json::{Value, json};
use ulplab_checkpoint::checkpoint::Severity;

use super::form::*;
use super::made::COLS;
use super::whole::told;
use super::words::GROUP;

fn forms() -> Vec<Form> {
    vec![
        with(
            form("nvidia NVFP4, hf_quant_config.json alone, FP8 cache", opt, Value::Null),
            |made| {
                cache(made, ["k_proj.k_scale", "v_proj.v_scale"]);
                made.hf = Some(json!({ "producer": { "name": "modelopt" }, "quantization": {
                "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                "exclude_modules": ["lm_head", "visual*", "*mlp.gate"] } }));
            },
        ),
        with(
            form(
                "nvidia FP8, both files",
                |m| linear(m, "ModelOpt fp8"),
                modelopt("FP8", "kv_cache_scheme", static_(8)),
            ),
            |made| {
                cache(made, ["k_proj.k_scale", "v_proj.v_scale"]);
                made.hf = Some(
                    json!({ "quantization": { "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"] } }),
                );
            },
        ),
        with(
            form(
                "FP8 cache without scales (a warning)",
                opt,
                modelopt("NVFP4", "kv_cache_quant_algo", json!("FP8")),
            ),
            |_| {},
        ),
        form(
            "FP8 dynamic",
            all,
            compressed(fp8_channel(), dynamic(8, "float"), plain()),
        ),
        form(
            "FP8 static",
            |m| linear(m, "ModelOpt fp8"),
            compressed(weights(8, "float", "tensor", Value::Null), static_(8), plain()),
        ),
        with(
            form("FP8 static and cache", |m| linear(m, "ModelOpt fp8"), {
                let mut section = compressed(weights(8, "float", "tensor", Value::Null), static_(8), plain());
                section["kv_cache_scheme"] = static_(8);
                section
            }),
            |made| cache(made, ["k_scale", "v_scale"]),
        ),
        form(
            "W8A8",
            |m| linear(m, "compressed-tensors int8"),
            compressed(weights(8, "int", "channel", Value::Null), dynamic(8, "int"), plain()),
        ),
        with(
            form(
                "W4A16 with g_idx",
                |m| linear(m, "compressed-tensors int4 symmetric"),
                compressed(int4(true), Value::Null, plain()),
            ),
            |made| {
                let index: Vec<u8> = (0..COLS)
                    .flat_map(|input| ((input / GROUP) as i32).to_le_bytes())
                    .collect();
                for module in modules() {
                    made.tensors.insert(
                        format!("{module}.weight_g_idx"),
                        (Dtype::I32, vec![COLS], index.clone()),
                    );
                }
            },
        ),
        form(
            "W4A16 asymmetric",
            |m| linear(m, "compressed-tensors int4"),
            compressed(int4(false), Value::Null, plain()),
        ),
        form(
            "W8A16",
            |m| linear(m, "compressed-tensors int8 in words"),
            compressed(weights(8, "int", "group", json!(GROUP)), Value::Null, plain()),
        ),
        form(
            "NVFP4 of compressed-tensors",
            |m| linear(m, "compressed-tensors nvfp4"),
            compressed(
                nvfp4(),
                json!({ "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local" }),
                plain(),
            ),
        ),
        with(
            form(
                "NVFP4A16",
                |m| linear(m, "compressed-tensors nvfp4"),
                compressed(nvfp4(), Value::Null, plain()),
            ),
            |made| {
                made.tensors.retain(|name, _| !name.ends_with("input_global_scale"));
            },
        ),
        form(
            "MXFP4 of compressed-tensors",
            |m| linear(m, "compressed-tensors mxfp4"),
            compressed(weights(4, "float", "group", json!(32)), Value::Null, plain()),
        ),
        form(
            "FP8 in tiles of compressed-tensors",
            |m| linear(m, "compressed-tensors fp8 tiles"),
            {
                let mut weights = weights(8, "float", "block", Value::Null);
                weights["block_structure"] = json!([128, 128]);
                compressed(weights, dynamic(8, "float"), plain())
            },
        ),
        with(
            form(
                "Kimi-K2, experts alone",
                |m| linear(m, "compressed-tensors int4 symmetric").filter(|_| m.contains("layers.1.mlp")),
                compressed(
                    int4(true),
                    Value::Null,
                    json!([
                        "lm_head",
                        r"re:.*self_attn.*",
                        r"re:.*\.mlp\.(gate|up|gate_up|down)_proj.*",
                        "re:.*mlp.gate$",
                        "re:visual.*"
                    ]),
                ),
            ),
            |made| renamed(made, |name| name.replace("layers.1.mlp.", "layers.1.mlp.experts.0.")),
        ),
        with(
            form(
                "MiniMax-M2",
                |m| linear(m, "DeepSeek v3"),
                fp8(
                    "modules_to_not_convert",
                    json!(["gate", "e_score_correction_bias", "lm_head"]),
                ),
            ),
            |made| {
                renamed(made, |name| {
                    let name = name.replace("mlp.gate.", "block_sparse_moe.gate.");
                    let name = name
                        .replace("mlp.gate_proj", "block_sparse_moe.experts.0.w1")
                        .replace("mlp.up_proj", "block_sparse_moe.experts.0.w3");
                    name.replace("mlp.down_proj", "block_sparse_moe.experts.0.w2")
                })
            },
        ),
        form(
            "DeepSeek-R1 NVFP4",
            opt_but_layer_0,
            modelopt(
                "NVFP4",
                "exclude_modules",
                json!(["lm_head", "model.layers.0*", "visual*"]),
            ),
        ),
        with(
            form(
                "Gemma 4",
                opt,
                modelopt(
                    "NVFP4",
                    "exclude_modules",
                    json!(["lm_head", "model.vision_tower*", "*mlp.gate"]),
                ),
            ),
            |made| {
                renamed(made, |name| {
                    name.replace("model.", "model.language_model.")
                        .replace("visual.", "model.vision_tower.")
                })
            },
        ),
        with(
            form(
                "Phi-3, joined on disk",
                all,
                compressed(fp8_channel(), dynamic(8, "float"), plain()),
            ),
            |made| {
                fuse(made, "self_attn", &["q_proj", "k_proj", "v_proj"], "qkv_proj");
                fuse(made, "mlp", &["gate_proj", "up_proj"], "gate_up_proj");
            },
        ),
        with(
            form(
                "FP8 experts in stacks",
                |m| linear(m, "DeepSeek v3"),
                fp8("modules_to_not_convert", json!(["lm_head", "mlp.gate"])),
            ),
            |made| {
                for layer in 0..2 {
                    for part in ["gate_proj", "up_proj", "down_proj"] {
                        for (ending, into) in [("weight", ""), ("weight_scale_inv", "_scale_inv")] {
                            let (dtype, shape, bytes) = made
                                .tensors
                                .remove(&format!("model.layers.{layer}.mlp.{part}.{ending}"))
                                .unwrap();
                            let name = format!("model.layers.{layer}.mlp.experts.{part}{into}");
                            made.tensors
                                .insert(name, (dtype, [&[3], &shape[..]].concat(), bytes.repeat(3)));
                        }
                    }
                }
            },
        ),
        with(
            form(
                "a last group that is not whole",
                |_| None,
                compressed(int4(true), Value::Null, plain()),
            ),
            |made| {
                modules()
                    .iter()
                    .for_each(|module| add(made, module, Some("compressed-tensors int4 symmetric"), 3, 224));
                made.tensors
                    .retain(|name, _| !modules().iter().any(|module| *name == format!("{module}.weight")));
            },
        ),
    ]
}

#[test]
fn right_checkpoints_have_no_error() {
    let (mut open, mut wrong) = (Vec::new(), Vec::new());
    let mut forms = forms();
    forms.extend(super::forms_of_words::forms_of_words());
    assert!(forms.len() >= 48, "{}", forms.len());
    for form in &forms {
        let made = form.made();
        let report = made.judge(false);
        assert!(
            report.convention.is_some() && report.matrices.len() + report.unread.len() > 0,
            "{}",
            form.name
        );
        if !report.unread.is_empty() || report.count(Severity::NotJudged) > 0 {
            open.push((form.name, told(&report), format!("{:?}", report.unread.first())));
        }
        let warns = form.name.contains("(a warning)");
        if report.count(Severity::Error) > 0 || (report.count(Severity::Warning) > 0) != warns {
            wrong.push((form.name, told(&report)));
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
    assert!(open.len() <= 3, "{}: {open:#?}", open.len());
}
