//! Forms whose codes are words, and those of programs other than the publishers' own.

use safetensors::Dtype;
use serde_json::{Value, json};

use super::form::*;
use super::made::{COLS, parts, values};
use super::words::GROUP;

pub fn forms_of_words() -> Vec<Form> {
    vec![
        form("GPTQ", |m| linear(m, "GPTQ"), gptq("dynamic", Value::Null)),
        form("GPTQ in 8 bits", |m| linear(m, "GPTQ 8"), gptq("bits", json!(8))),
        form(
            "GPTQ v2",
            |m| linear(m, "GPTQ v2"),
            gptq("checkpoint_format", json!("gptq_v2")),
        ),
        form(
            "GPTQModel, 8 bits for some",
            |m| linear(m, if m.contains("down") { "GPTQ 8" } else { "GPTQ" }),
            gptq(
                "dynamic",
                json!({ r"+:.*\.down_proj$": { "bits": 8, "group_size": GROUP } }),
            ),
        ),
        form(
            "GPTQModel, none for some",
            |m| linear(m, "GPTQ").filter(|_| !m.contains("layers.0.")),
            gptq("dynamic", json!({ r"-:.*\.0\..*": {} })),
        ),
        form("AWQ", |m| linear(m, "AWQ"), awq(Value::Null)),
        form(
            "AWQ but for a layer",
            |m| linear(m, "AWQ").filter(|_| !m.contains("layers.0.")),
            awq(json!(["model.layers.0.", "visual", "lm_head"])),
        ),
        form("look-ahead", dense, ignoring(r"re:^(?!.*mlp).*$")),
        form("look-ahead that must hold", attention, ignoring(r"re:(?=.*mlp).*_proj")),
        form("look-behind", dense, ignoring(r"re:.*(?<=self_attn)\.[a-z]_proj")),
        form("any case", attention, ignoring(r"re:(?i).*\.MLP\..*")),
        form("borders of words", attention, ignoring(r"re:.*\bmlp\b.*")),
        form("no space", layer_0, ignoring(r"re:\S+\.0\.\S+")),
        form("counts", layer_0, ignoring(r"re:model\.layers\.[0]{1,2}\..*")),
        form(
            "fbgemm_fp8",
            |m| linear(m, "FBGEMM").filter(|_| !m.contains("self_attn")),
            json!({ "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                "modules_to_not_convert": ["model.layers.0.self_attn", "model.layers.1.self_attn", "lm_head"] }),
        ),
        with(
            form(
                "Quark MXFP4",
                |m| linear(m, "Quark mxfp4"),
                quark("fp4", "per_group", json!(32), true),
            ),
            |made| {
                add(made, "mtp.layers.0.mlp.up_proj", None, 9, COLS);
                made.config["quantization_config"]["exclude"] = json!(["lm_head", "re:mtp.*", "visual*", "*mlp.gate"]);
            },
        ),
        form(
            "Quark FP8",
            |m| linear(m, "Quark fp8"),
            quark("fp8_e4m3", "per_tensor", Value::Null, false),
        ),
        form(
            "AutoRound in GPTQ's words",
            |m| linear(m, "GPTQ"),
            round("auto_round:auto_gptq", json!({})),
        ),
        form(
            "AutoRound in AWQ's words",
            |m| linear(m, "AWQ"),
            round("auto_round:auto_awq", json!({})),
        ),
        form(
            "AutoRound with other bits",
            |m| match m.rsplit('.').next() {
                Some("down_proj") => Some("GPTQ 8"),
                Some("q_proj") => None,
                _ => linear(m, "GPTQ"),
            },
            round(
                "auto_round:auto_gptq",
                (0..2)
                    .flat_map(|layer| {
                        [
                            (format!("model.layers.{layer}.mlp.down_proj"), json!({ "bits": 8 })),
                            (format!("model.layers.{layer}.self_attn.q_proj"), json!({ "bits": 16 })),
                        ]
                    })
                    .collect::<serde_json::Map<_, _>>()
                    .into(),
            ),
        ),
        form("DeepSeek-V3", |m| linear(m, "DeepSeek v3"), fp8("fmt", json!("e4m3"))),
        form(
            "Qwen3 FP8",
            |m| linear(m, "DeepSeek v3"),
            fp8(
                "modules_to_not_convert",
                json!(["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"]),
            ),
        ),
        with(
            form(
                "DeepSeek-V4",
                |m| linear(m, "DeepSeek v4"),
                fp8("scale_fmt", json!("ue8m0")),
            ),
            |made| {
                made.config["expert_dtype"] = json!("fp4");
                let x = values(4);
                made.tensors.extend(
                    parts("Quark mxfp4", "model.layers.1.ffn.experts.0.w1.weight", &x, COLS)
                        .into_iter()
                        .map(|(name, array)| (name.replace(".weight_scale", ".scale"), array)),
                );
            },
        ),
        form("Mistral FP8 static", |m| linear(m, "Mistral fp8"), {
            let mut section = fp8("weight_block_size", Value::Null);
            section["activation_scheme"] = json!("static");
            section
        }),
        with(
            form(
                "gpt-oss",
                |_| None,
                json!({ "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"] }),
            ),
            |made| {
                for (part, array) in parts("gpt-oss", "model.layers.0.mlp.experts.gate_up_proj", &values(1), COLS) {
                    let (dtype, shape, bytes) = array;
                    made.tensors
                        .insert(part, (dtype, [&[2], &shape[..]].concat(), bytes.repeat(2)));
                }
            },
        ),
        form(
            "ModelOpt MXFP8",
            |m| linear(m, "ModelOpt mxfp8"),
            modelopt("MXFP8", "group_size", json!(32)),
        ),
        form(
            "ModelOpt FP8 in channels",
            |m| linear(m, "ModelOpt fp8 channel"),
            modelopt("FP8_PER_CHANNEL_PER_TOKEN", "group_size", Value::Null),
        ),
        form(
            "ModelOpt FP8 in tiles",
            |m| linear(m, "ModelOpt fp8 tiles"),
            modelopt("FP8_PB_WO", "group_size", Value::Null),
        ),
        form(
            "ModelOpt NVFP4 weights",
            |m| linear(m, "ModelOpt nvfp4 weights"),
            modelopt("W4A16_NVFP4", "group_size", json!(16)),
        ),
        with(
            form(
                "ModelOpt NVFP4 with AWQ",
                opt,
                modelopt("NVFP4_AWQ", "group_size", json!(16)),
            ),
            |made| {
                let name = "model.layers.0.self_attn.o_proj.pre_quant_scale";
                made.tensors.insert(
                    name.into(),
                    (Dtype::BF16, vec![COLS], 0x3f80u16.to_le_bytes().repeat(COLS)),
                );
            },
        ),
        form(
            "ModelOpt, mixed",
            |m| {
                linear(
                    m,
                    if m.contains("mlp") {
                        "ModelOpt nvfp4"
                    } else {
                        "ModelOpt fp8"
                    },
                )
            },
            modelopt(
                "MIXED_PRECISION",
                "quantized_layers",
                modules()
                    .into_iter()
                    .map(|module| {
                        let algorithm = if module.contains("mlp") { "NVFP4" } else { "FP8" };
                        (module, json!({ "quant_algo": algorithm, "group_size": 16 }))
                    })
                    .collect::<serde_json::Map<_, _>>()
                    .into(),
            ),
        ),
        with(
            form(
                "ModelOpt, groups of compressed-tensors",
                opt,
                modelopt(
                    "NVFP4",
                    "config_groups",
                    json!({ "group_0": {
            "targets": ["Linear"], "weights": { "num_bits": 4, "type": "float", "group_size": 16, "dynamic": false },
            "input_activations": { "num_bits": 4, "type": "float", "group_size": 16, "dynamic": false } } }),
                ),
            ),
            |_| {},
        ),
        with(
            form("text and images, section with the text", all, Value::Null),
            |made| {
                let section = compressed(
                    fp8_channel(),
                    dynamic(8, "float"),
                    json!(["lm_head", "re:.*visual.*", "re:.*mlp.gate$"]),
                );
                made.config = json!({ "text_config": { "quantization_config": section }, "vision_config": {} });
            },
        ),
        with(form("compression_config", all, Value::Null), |made| {
            let ignore = json!(["lm_head", "re:visual.*", "re:.*mlp.gate$"]);
            made.config = json!({ "compression_config": compressed(fp8_channel(), dynamic(8, "float"), ignore) });
        }),
        form(
            "FP8 attention and NVFP4 elsewhere",
            |m| {
                linear(
                    m,
                    if m.contains("mlp") {
                        "compressed-tensors nvfp4"
                    } else {
                        "compressed-tensors fp8"
                    },
                )
            },
            {
                let mut section = compressed(fp8_channel(), dynamic(8, "float"), plain());
                section["config_groups"]["group_0"]["targets"] = json!([r"re:.*self_attn\.(q|k|v|o)_proj$"]);
                let inputs = json!({ "num_bits": 4, "type": "float", "dynamic": "local" });
                section["config_groups"]["group_1"] =
                    json!({ "targets": [r"re:.*mlp\.\w+_proj$"], "weights": nvfp4(), "input_activations": inputs });
                section
            },
        ),
        with(
            form(
                "a predicted token in 16 bits",
                opt,
                modelopt(
                    "NVFP4",
                    "exclude_modules",
                    json!(["lm_head", "mtp*", "visual*", "*mlp.gate"]),
                ),
            ),
            |made| {
                add(made, "mtp.layers.0.mlp.up_proj", None, 9, COLS);
                add(made, "mtp.layers.0.self_attn.k_proj", None, 9, COLS);
            },
        ),
    ]
}
