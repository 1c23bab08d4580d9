//! Forms of right checkpoints, as their publishers have them: no error, and at most three that are not judged.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Value, json};
use ulplab_core::checkpoint::Severity;

use super::made::{COLS, Made, ROWS, f32s, parts, values};
use super::whole::told;
use super::words::GROUP;

/// The kind of a module, or none where it is in 16 bits.
type Kind = fn(&str) -> Option<&'static str>;

/// A form of a checkpoint with two layers of attention, experts and a dense part.
struct Form {
    name: &'static str,
    kind: Kind,
    quantization: Value,
    /// What else is there.
    more: fn(&mut Made),
}

/// The modules of every form, but for the head.
fn modules() -> Vec<String> {
    let layer = |layer: usize| {
        let attention = ["q", "k", "v", "o"].map(|part| format!("model.layers.{layer}.self_attn.{part}_proj"));
        let dense = ["gate", "up", "down"].map(|part| format!("model.layers.{layer}.mlp.{part}_proj"));
        [attention.to_vec(), dense.to_vec()].concat()
    };
    (0..2).flat_map(layer).collect()
}

impl Form {
    fn made(&self) -> Made {
        let mut made = Made {
            kind: self.name,
            tensors: BTreeMap::new(),
            config: json!({ "model_type": "made", "quantization_config": self.quantization }),
            hf: None,
            source: BTreeMap::new(),
            only_in_index: None,
            not_in_index: None,
        };
        for (seed, module) in modules().iter().enumerate() {
            add(&mut made, module, (self.kind)(module), seed as u64, COLS);
        }
        for name in [
            "lm_head",
            "model.embed_tokens",
            "model.layers.0.mlp.gate",
            "visual.blocks.0.attn.qkv",
        ] {
            add(&mut made, name, (self.kind)(name), 50, COLS);
        }
        let norm = (Dtype::BF16, vec![COLS], vec![0x3f; 2 * COLS]);
        made.tensors
            .insert("model.layers.0.input_layernorm.weight".into(), norm);
        (self.more)(&mut made);
        made
    }
}

fn add(made: &mut Made, module: &str, kind: Option<&str>, seed: u64, cols: usize) {
    let x = &values(seed)[..ROWS * cols.min(COLS)];
    let name = format!("{module}.weight");
    let plain = (Dtype::F32, vec![x.len() / cols, cols], f32s(x));
    made.source.insert(name.clone(), plain.clone());
    match kind {
        None => drop(made.tensors.insert(name, plain)),
        Some(kind) => made.tensors.extend(parts(kind, &name, x, cols)),
    }
}

fn linear(module: &str, kind: &'static str) -> Option<&'static str> {
    module.ends_with("_proj").then_some(kind)
}

fn renamed(made: &mut Made, change: impl Fn(&str) -> String) {
    let tensors = std::mem::take(&mut made.tensors);
    made.tensors = tensors
        .into_iter()
        .map(|(name, array)| (change(&name), array))
        .collect();
}

/// compressed-tensors with one group.
fn compressed(weights: Value, inputs: Value, ignore: Value) -> Value {
    let group = json!({ "targets": ["Linear"], "weights": weights, "input_activations": inputs });
    json!({ "quant_method": "compressed-tensors", "config_groups": { "group_0": group }, "ignore": ignore })
}

fn weights(bits: usize, kind: &str, strategy: &str, size: Value) -> Value {
    json!({ "num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "symmetric": true, "dynamic": false })
}

fn dynamic(bits: usize, kind: &str) -> Value {
    json!({ "num_bits": bits, "type": kind, "strategy": "token", "dynamic": true })
}

fn static_(bits: usize) -> Value {
    json!({ "num_bits": bits, "type": "float", "strategy": "tensor", "dynamic": false })
}

fn modelopt(algorithm: &str, key: &str, value: Value) -> Value {
    let mut section = json!({ "quant_method": "modelopt", "quant_algo": algorithm,
        "exclude_modules": ["lm_head", "visual*", "*mlp.gate"] });
    section[key] = value;
    section
}

fn cache(made: &mut Made, names: [&str; 2]) {
    for layer in 0..2 {
        for name in names {
            let name = format!("model.layers.{layer}.self_attn.{name}");
            made.tensors.insert(name, (Dtype::F32, vec![], f32s(&[0.03])));
        }
    }
}

/// Rows of matrices of each layer as one.
fn fuse(made: &mut Made, place: &str, all: &[&str], joined: &str) {
    for layer in 0..2 {
        let place = format!("model.layers.{layer}.{place}");
        let mut one: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
        for part in all {
            let part = format!("{place}.{part}.");
            let names: Vec<String> = made
                .tensors
                .keys()
                .filter(|name| name.starts_with(&part))
                .cloned()
                .collect();
            for name in names {
                let (dtype, shape, bytes) = made.tensors.remove(&name).unwrap();
                let into = one
                    .entry(name.replace(&part, &format!("{place}.{joined}.")))
                    .or_insert((dtype, shape, Vec::new()));
                into.2.extend(bytes);
            }
        }
        for (name, (dtype, mut shape, bytes)) in one {
            shape[0] *= all.len();
            made.tensors.insert(name, (dtype, shape, bytes));
        }
    }
}

fn fp8_channel() -> Value {
    weights(8, "float", "channel", Value::Null)
}

fn ignoring(expression: &str) -> Value {
    compressed(
        fp8_channel(),
        dynamic(8, "float"),
        json!(["lm_head", "re:visual.*", "re:.*mlp.gate$", expression]),
    )
}

fn form(name: &'static str, kind: Kind, quantization: Value) -> Form {
    Form {
        name,
        kind,
        quantization,
        more: |_| {},
    }
}

fn with(form: Form, more: fn(&mut Made)) -> Form {
    Form { more, ..form }
}

fn forms() -> Vec<Form> {
    let plain = || json!(["lm_head", "re:visual.*", "re:.*mlp.gate$"]);
    let nvfp4 = || weights(4, "float", "tensor_group", json!(16));
    let int4 = |symmetric: bool| {
        let mut weights = weights(4, "int", "group", json!(GROUP));
        weights["symmetric"] = symmetric.into();
        weights
    };
    let gptq = |key: &str, value: Value| {
        let mut section = json!({ "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": true,
            "desc_act": false, "checkpoint_format": "gptq" });
        section[key] = value;
        section
    };
    let awq = |list: Value| {
        json!({ "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
        "modules_to_not_convert": list })
    };
    let fp8 = |key: &str, value: Value| {
        let mut section =
            json!({ "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128] });
        section[key] = value;
        section
    };
    let quark = |dtype: &str, scheme: &str, size: Value, dynamic: bool| {
        json!({ "quant_method": "quark", "exclude": ["lm_head", "visual*", "*mlp.gate"], "layer_quant_config": {},
                "layer_type_quant_config": {},
                "global_quant_config": { "weight": { "dtype": dtype, "qscheme": scheme, "group_size": size },
                                         "input_tensors": { "dtype": dtype, "is_dynamic": dynamic } } })
    };
    let round = |packing: &str, extra: Value| {
        json!({ "quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": packing.contains("gptq"), "data_type": "int",
                "packing_format": packing, "extra_config": extra })
    };
    let layer_0: Kind = |m| linear(m, "compressed-tensors fp8").filter(|_| !m.contains("layers.0."));
    let dense: Kind = |m| linear(m, "compressed-tensors fp8").filter(|_| m.contains(".mlp."));
    let attention: Kind = |m| linear(m, "compressed-tensors fp8").filter(|_| !m.contains(".mlp."));
    let all: Kind = |m| linear(m, "compressed-tensors fp8");
    let opt: Kind = |m| linear(m, "ModelOpt nvfp4");
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
            |m| opt_but_layer_0(m),
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
                    .map(|layer| {
                        [
                            (format!("model.layers.{layer}.mlp.down_proj"), json!({ "bits": 8 })),
                            (format!("model.layers.{layer}.self_attn.q_proj"), json!({ "bits": 16 })),
                        ]
                    })
                    .flatten()
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

fn opt_but_layer_0(module: &str) -> Option<&'static str> {
    linear(module, "ModelOpt nvfp4").filter(|_| !module.contains("layers.0."))
}

#[test]
fn right_checkpoints_have_no_error() {
    let (mut open, mut wrong) = (Vec::new(), Vec::new());
    let forms = forms();
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
