//! What a configuration promises and the file lacks. Others of the kind: each key of a scheme, each list of layers, each ending of a
//! static scale.

use safetensors::Dtype;
use serde_json::{Value, json};
use ulplab_checkpoint::checkpoint::Report;

use super::made::{Made, clean, f32s, matrices};
use super::whole::told;

fn named<'r>(report: &'r Report, check: &str) -> Vec<&'r str> {
    let all = report.findings.iter().filter(|finding| finding.check.name == check);
    all.map(|finding| finding.subject.as_str()).collect()
}

/// A scale of activations that some or all matrices lack, under each way to say that it is there.
#[test]
fn a_static_scale_of_activations_is_in_every_matrix() {
    let activations = |dynamic: Value, bits: usize| {
        json!({ "targets": ["Linear"], "weights": { "num_bits": bits, "type": "float", "strategy": "tensor", "group_size": 16 },
                "input_activations": { "num_bits": bits, "type": "float", "dynamic": dynamic } })
    };
    let nvfp4 = |dynamic: Value| {
        let mut group = activations(dynamic, 4);
        group["weights"]["strategy"] = json!("tensor_group");
        json!({ "quant_method": "compressed-tensors", "config_groups": { "group_0": group } })
    };
    let fp8 = |dynamic: Value| json!({ "quant_method": "compressed-tensors", "config_groups": { "group_0": activations(dynamic, 8) } });
    let quark = |dynamic: bool| {
        json!({ "quant_method": "quark", "global_quant_config": {
            "weight": { "dtype": "fp8_e4m3", "qscheme": "per_tensor" }, "input_tensors": { "dtype": "fp8_e4m3", "is_dynamic": dynamic } } })
    };
    let static_ = |scheme: &str| json!({ "quant_method": "fp8", "activation_scheme": scheme });
    let modelopt = |algorithm: &str| json!({ "quant_method": "modelopt", "quant_algo": algorithm });
    let cases: Vec<(&str, Value, bool)> = vec![
        ("ModelOpt nvfp4", modelopt("NVFP4"), true),
        ("ModelOpt nvfp4", modelopt("NVFP4_AWQ"), true),
        ("ModelOpt nvfp4", modelopt("W4A16_NVFP4"), false),
        ("ModelOpt fp8", modelopt("FP8"), true),
        ("compressed-tensors nvfp4", nvfp4(json!("local")), true),
        ("compressed-tensors nvfp4", nvfp4(json!(false)), true),
        ("compressed-tensors nvfp4", nvfp4(json!(true)), false),
        ("ModelOpt fp8", fp8(json!(false)), true),
        ("ModelOpt fp8", fp8(json!(true)), false),
        ("ModelOpt fp8", quark(false), true),
        ("ModelOpt fp8", quark(true), false),
        ("Mistral fp8", static_("static"), true),
        ("Mistral fp8", static_("dynamic"), false),
    ];
    for (kind, config, wanted) in cases {
        let mut whole = clean("ModelOpt fp8");
        whole.config["quantization_config"] = config.clone();
        matrices().iter().for_each(|name| whole.put_as(kind, name));
        for lacking in [0, 1, 6] {
            let mut made = whole.clone();
            for name in matrices().iter().rev().take(lacking) {
                let module = name.strip_suffix("weight").unwrap();
                let before = made.tensors.len();
                let endings = ["input_scale", "input_global_scale", "activation_scale"];
                endings
                    .iter()
                    .for_each(|ending| drop(made.tensors.remove(&format!("{module}{ending}"))));
                assert_eq!(made.tensors.len() + 1, before);
            }
            let report = made.judge(false);
            let wanted = if wanted { lacking } else { 0 };
            let found = named(&report, "missing_input_scale");
            assert_eq!(
                (found.len(), report.findings.len()),
                (wanted, wanted),
                "{config} {lacking}: {:#?}",
                told(&report)
            );
        }
    }
    // Without a configuration namesakes tell.
    let mut made = clean("ModelOpt fp8");
    made.config = json!({});
    made.tensors.remove("model.layers.1.mlp.up_proj.input_scale");
    assert_eq!(
        named(&made.judge(false), "missing_input_scale"),
        ["model.layers.1.mlp.up_proj.weight"]
    );
}

/// Four attention layers with a quantized cache, of which two are of another kind of layer.
fn attention(config: (&str, Value), names: &[&str]) -> Made {
    let mut made = clean("ModelOpt nvfp4");
    made.config["quantization_config"][config.0] = config.1;
    let x = made.source[&matrices()[0]].clone();
    for layer in 0..2 {
        for part in ["q_proj", "k_proj", "v_proj"] {
            let name = format!("model.layers.{layer}.self_attn.{part}.weight");
            made.source.insert(name.clone(), x.clone());
            made.put_as("ModelOpt nvfp4", &name);
        }
        for name in names {
            let name = format!("model.layers.{layer}.self_attn.{name}");
            made.tensors.insert(name, (Dtype::F32, vec![], f32s(&[0.02])));
        }
        // Images have no cache.
        let name = format!("visual.blocks.{layer}.attn.qkv.weight");
        made.tensors.insert(name, (Dtype::F32, vec![8, 8], f32s(&[0.1; 64])));
    }
    made.config["quantization_config"]["exclude_modules"] = json!(["lm_head", "visual*"]);
    made
}

#[test]
fn a_quantized_cache_has_scales_in_every_layer() {
    let configs = [
        (
            "kv_cache_scheme",
            json!({ "num_bits": 8, "type": "float", "dynamic": false }),
        ),
        ("kv_cache_quant_algo", json!("FP8")),
        ("kv_cache_quant_algo", json!("NVFP4")),
    ];
    let names: &[&[&str]] = &[
        &["k_proj.k_scale", "v_proj.v_scale"],
        &["k_scale", "v_scale"],
        &["attn.k_scale", "attn.v_scale"],
        &["k_proj.output_scale", "v_proj.output_scale"],
        &["kv_scale"],
    ];
    for (config, names) in configs
        .iter()
        .flat_map(|config| names.iter().map(move |names| (config, *names)))
    {
        let whole = attention(config.clone(), names);
        let report = whole.judge(false);
        assert!(report.findings.is_empty(), "{config:?} {names:?}: {:#?}", told(&report));
        // One name of one layer, all of one layer, and all.
        for name in names {
            let mut made = whole.clone();
            made.tensors.remove(&format!("model.layers.1.self_attn.{name}"));
            let report = made.judge(false);
            assert_eq!(
                named(&report, "missing_kv_scale"),
                ["model.layers.1.self_attn"],
                "{:#?}",
                told(&report)
            );
        }
        let mut made = whole.clone();
        let lost =
            |name: &String, layer: &str| name.contains(layer) && names.iter().any(|ending| name.ends_with(ending));
        made.tensors.retain(|name, _| !lost(name, "layers.0."));
        assert_eq!(
            named(&made.judge(false), "missing_kv_scale"),
            ["model.layers.0.self_attn"]
        );
        made.tensors.retain(|name, _| !lost(name, "layers."));
        let report = made.judge(false);
        assert_eq!(
            (named(&report, "no_kv_scale").len(), report.findings.len()),
            (1, 1),
            "{:#?}",
            told(&report)
        );
    }
    for (key, value) in [
        ("kv_cache_scheme", json!(null)),
        ("kv_cache_quant_algo", json!(null)),
        ("kv_cache_scheme", json!({ "num_bits": 8, "dynamic": true })),
    ] {
        let report = attention((key, value), &[]).judge(false);
        assert!(report.findings.is_empty(), "{:#?}", told(&report));
    }
}

/// Layers that a configuration names as quantized, and each key of a scheme, against the tensors.
#[test]
fn layers_and_keys_of_a_configuration_are_held_against_tensors() {
    let layers = |changed: &str, algorithm: Option<&str>| {
        let mut layers = json!({});
        for name in matrices() {
            let module = name.strip_suffix(".weight").unwrap();
            let own = if module == changed { algorithm } else { Some("NVFP4") };
            if let Some(own) = own {
                layers[module] = json!({ "quant_algo": own, "group_size": 16 });
            }
        }
        json!({ "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers })
    };
    let first = "model.layers.0.mlp.gate_proj";
    let weight = format!("{first}.weight");
    let check = |config: Value, made: &Made| {
        let mut made = made.clone();
        made.config["quantization_config"] = config;
        told(&made.judge(false))
    };
    let clean = clean("ModelOpt nvfp4");
    assert!(check(layers("", None), &clean).is_empty());
    assert!(check(layers(first, None), &clean)[0].starts_with("ignored_quantized"));
    assert!(check(layers(first, Some("FP8")), &clean)[0].starts_with("stated_format"));
    let mut plain = clean.clone();
    plain
        .parts(&weight)
        .iter()
        .for_each(|part| drop(plain.tensors.remove(part)));
    plain.tensors.insert(weight.clone(), plain.source[&weight].clone());
    assert!(check(layers("", None), &plain)[0].starts_with("unquantized"));
    assert!(check(layers(first, None), &plain).is_empty());
    // ModelOpt writes the groups of compressed-tensors beside its own keys.
    let weights = json!({ "num_bits": 4, "type": "float", "group_size": 16, "dynamic": false });
    for (key, value, wanted) in [
        ("num_bits", json!(4), 0),
        ("num_bits", json!(8), 6),
        ("type", json!("int"), 6),
        ("group_size", json!(32), 6),
    ] {
        let mut weights = weights.clone();
        weights[key] = value.clone();
        let groups = json!({ "group_0": { "targets": ["Linear"], "weights": weights } });
        let config = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": groups });
        let found = check(config, &clean);
        assert_eq!(
            found.iter().filter(|found| found.starts_with("stated_format")).count(),
            wanted,
            "{key} {value}: {found:#?}"
        );
    }
    // Targets by name: what is none of them, and what is one of them and is not quantized.
    let target = |targets: Value| {
        let groups = json!({ "group_0": { "targets": targets, "weights": weights } });
        json!({ "quant_method": "compressed-tensors", "config_groups": groups })
    };
    let mut compressed = super::made::clean("compressed-tensors nvfp4");
    assert!(check(target(json!(["re:.*_proj$"])), &compressed).is_empty());
    let found = check(target(json!(["re:.*(up|down)_proj$"])), &compressed);
    assert_eq!(
        found
            .iter()
            .filter(|found| found.starts_with("ignored_quantized"))
            .count(),
        2,
        "{found:#?}"
    );
    compressed
        .parts(&weight)
        .iter()
        .for_each(|part| drop(compressed.tensors.remove(part)));
    compressed
        .tensors
        .insert(weight.clone(), compressed.source[&weight].clone());
    let found = check(target(json!(["re:.*_proj$"])), &compressed);
    assert!(found.len() == 1 && found[0].starts_with("unquantized"), "{found:#?}");
    let found = check(
        target(json!([r"re:.*layers\.1.*_proj$", "re:.*0.mlp.(up|down)_proj"])),
        &compressed,
    );
    assert!(found.is_empty(), "{found:#?}");
}
