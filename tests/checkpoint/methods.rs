//! What is not understood is not judged, and excuses what it may be about. Others of the kind: every key that names modules, and every
//! method that has no convention.

use safetensors::Dtype;
use serde_json::{Value, json};
use ulplab_checkpoint::checkpoint::{Report, Severity};

use super::made::{Array, Made, clean, matrices};
use super::whole::told;

/// Whether something was not judged, and nothing is called wrong.
fn is_open(report: &Report) -> bool {
    let open = report.count(Severity::NotJudged) > 0 || !report.unread.is_empty();
    open && report.count(Severity::Error) == 0
}

/// The first matrix in 16 bits, and its parts removed.
fn unquantized(mut made: Made) -> Made {
    let name = &matrices()[0];
    for part in made.parts(name) {
        made.tensors.remove(&part);
    }
    made.tensors
        .insert(name.clone(), (Dtype::BF16, vec![128, 256], vec![0x3c; 128 * 256 * 2]));
    made
}

#[test]
fn what_a_configuration_says_and_nobody_understands_is_not_judged() {
    let cases = [
        ("ModelOpt nvfp4", "quant_algo", json!("NVFP3")),
        ("ModelOpt fp8", "quant_algo", json!("W4A8_AWQ")),
        ("ModelOpt fp8", "quantized_layers", json!(["a"])),
        ("GPTQ", "group_size", json!("many")),
        ("GPTQ", "dynamic", json!(["-:a"])),
        ("GPTQ", "dynamic", json!({ "-:(a": {} })),
        ("DeepSeek v3", "weight_block_size", json!([128])),
        ("compressed-tensors fp8", "ignore", json!(["re:(?!x"])),
        ("compressed-tensors fp8", "ignore", json!(["re:a)|(b"])),
        ("compressed-tensors fp8", "ignore", json!([3])),
        // A million steps, and no end.
        (
            "compressed-tensors fp8",
            "ignore",
            json!([r"re:(.*)(.*)(.*)(.*)(.*)(.*)\6\5\4\3\2\1x$"]),
        ),
        (
            "compressed-tensors fp8",
            "sparsity_config",
            json!({ "format": "sparse-24-bitmask" }),
        ),
        ("compressed-tensors fp8", "config_groups", json!(null)),
        ("gpt-oss", "modules_to_not_convert", json!("lm_head")),
        ("AWQ", "modules_to_not_convert", json!({ "a": 1 })),
        ("AWQ", "quant_method", json!("spqr")),
        ("AWQ", "quant_method", json!(null)),
        ("AWQ", "quant_method", json!("auto-round")),
    ];
    for (kind, key, value) in cases {
        let mut made = unquantized(clean(kind));
        made.config["quantization_config"][key] = value.clone();
        let report = made.judge(false);
        assert!(is_open(&report), "{kind} {key} {value}: {:#?}", told(&report));
        let named = report
            .findings
            .iter()
            .any(|finding| finding.check.name == "configuration");
        assert!(named, "{kind} {key} {value}: {:#?}", told(&report));
    }
}

/// Tensors of a matrix as a method names them, without the name of the module.
fn foreign(method: &str) -> Vec<(&'static str, Array)> {
    let array = |dtype: Dtype, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (dtype, shape.to_vec(), vec![0x3c; bytes])
    };
    match method {
        "bitsandbytes" => vec![
            ("weight", array(Dtype::U8, &[16384, 1])),
            ("weight.absmax", array(Dtype::U8, &[512])),
            ("weight.quant_map", array(Dtype::F32, &[16])),
            ("weight.nested_absmax", array(Dtype::F32, &[2])),
            ("weight.quant_state.bitsandbytes__nf4", array(Dtype::U8, &[88])),
        ],
        "torchao" => vec![
            ("_weight_qdata", array(Dtype::F8_E4M3, &[128, 256])),
            ("_weight_scale", array(Dtype::F32, &[128, 1])),
        ],
        "exl3" => vec![
            ("trellis", array(Dtype::I16, &[8, 16, 64])),
            ("suh", array(Dtype::F16, &[256])),
            ("svh", array(Dtype::F16, &[128])),
        ],
        "hqq" => vec![
            ("W_q", array(Dtype::U8, &[64, 256])),
            ("scale", array(Dtype::F16, &[512, 1])),
            ("zero", array(Dtype::F16, &[512, 1])),
        ],
        "eetq" => vec![
            ("weight", array(Dtype::I8, &[256, 128])),
            ("weight_scales", array(Dtype::F16, &[128])),
        ],
        "quanto" => vec![
            ("weight._data", array(Dtype::I8, &[128, 256])),
            ("weight._scale", array(Dtype::BF16, &[128, 1])),
        ],
        "aqlm" => vec![
            ("codes", array(Dtype::I16, &[128, 32, 1])),
            ("scales", array(Dtype::F16, &[128, 1, 1, 1])),
        ],
        "bitnet" => vec![
            ("weight", array(Dtype::U8, &[32, 256])),
            ("weight_scale", array(Dtype::BF16, &[1])),
        ],
        // MLX writes no method.
        "" => vec![
            ("weight", array(Dtype::U32, &[128, 32])),
            ("scales", array(Dtype::BF16, &[128, 4])),
            ("biases", array(Dtype::BF16, &[128, 4])),
        ],
        other => unreachable!("{other}"),
    }
}

#[test]
fn a_method_that_is_not_known_is_not_judged() {
    for method in [
        "bitsandbytes",
        "torchao",
        "exl3",
        "hqq",
        "eetq",
        "quanto",
        "aqlm",
        "bitnet",
        "",
    ] {
        let mut made = clean("GPTQ");
        for name in matrices() {
            made.parts(&name)
                .iter()
                .for_each(|part| drop(made.tensors.remove(part)));
            let module = name.strip_suffix(".weight").unwrap();
            for (part, array) in foreign(method) {
                made.tensors.insert(format!("{module}.{part}"), array);
            }
        }
        made.config["quantization_config"] = match method {
            "" => json!({ "group_size": 64, "bits": 4 }),
            method => json!({ "quant_method": method }),
        };
        if method.is_empty() {
            made.config["quantization"] = made.config["quantization_config"].clone();
        }
        let report = made.judge(false);
        assert!(is_open(&report), "{method}: {:#?}", told(&report));
        let said = if method.is_empty() { "mlx" } else { method };
        let named = |finding: &ulplab_checkpoint::checkpoint::Finding| finding.found.contains(&format!("'{said}'"));
        assert!(report.findings.iter().any(named), "{method}: {:#?}", told(&report));
        // NaN is wrong under any method.
        let norm = made.tensors.get_mut("model.layers.0.input_layernorm.weight").unwrap();
        norm.2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(made.judge(false).count(Severity::Error), 1, "{method}");
    }
}

/// A module in 16 bits that each list leaves out, and the same list with codes in its place.
#[test]
fn lists_of_modules_are_read_as_their_programs_read_them() {
    let first = "model.layers.0.mlp.gate_proj";
    let cases: &[(&str, &str, Value)] = &[
        (
            "compressed-tensors fp8",
            "ignore",
            json!([r"re:^(?!.*layers\.1|.*(up|down)).*$"]),
        ),
        (
            "compressed-tensors fp8",
            "ignore",
            json!([r"re:(?i).*LAYERS\.0\.mlp\.GATE_proj", "re:.*norm"]),
        ),
        (
            "compressed-tensors fp8",
            "ignore",
            json!([r"re:\S+\.0\.\S+\bgate_proj\b"]),
        ),
        (
            "compressed-tensors fp8",
            "ignore",
            json!([r"re:model\.layers\.0{1,2}\.(?=mlp).*gate.*"]),
        ),
        ("ModelOpt fp8", "ignore", json!(["model.layers.0.mlp.gate*"])),
        ("ModelOpt nvfp4", "exclude_modules", json!(["*layers.0.mlp.gate_proj"])),
        ("GPTQ", "dynamic", json!({ r"-:.*\.0\.mlp\.gate.*": {} })),
        (
            "GPTQ",
            "dynamic",
            json!({ r"-:.*\.0\.(?!.*(up|down)).*": {}, r"+:.*\.0\..*": { "bits": 4 } }),
        ),
        ("AWQ", "modules_to_not_convert", json!(["layers.0.mlp.gate"])),
        ("DeepSeek v3", "modules_to_not_convert", json!([first])),
        (
            "gpt-oss",
            "modules_to_not_convert",
            json!(["model.layers.0.mlp.gate_proj."]),
        ),
    ];
    for (kind, key, value) in cases {
        for quantized in [false, true] {
            let mut made = clean(kind);
            if !quantized {
                made = unquantized(made);
            }
            made.config["quantization_config"][*key] = value.clone();
            let report = made.judge(false);
            let named = report
                .findings
                .iter()
                .filter(|found| found.check.name == "ignored_quantized");
            let wanted = usize::from(quantized);
            assert_eq!(
                (named.count(), report.findings.len()),
                (wanted, wanted),
                "{kind} {value}: {:#?}",
                told(&report)
            );
        }
    }
    // AutoAWQ's entry for a whole layer ends with a dot.
    for (entry, left) in [("model.layers.0.", 3), ("layers.", 6), ("model.layers.00", 0)] {
        let mut made = clean("AWQ");
        made.config["quantization_config"]["modules_to_not_convert"] = json!([entry]);
        let report = made.judge(false);
        let named = report
            .findings
            .iter()
            .filter(|found| found.check.name == "ignored_quantized");
        assert_eq!(named.count(), left, "{entry}: {:#?}", told(&report));
    }
}

/// GPTQModel's rules: the first that matches a module counts.
#[test]
fn a_rule_of_dynamic_gives_a_module_its_own_bits() {
    let mut made = clean("GPTQ");
    for name in matrices().iter().filter(|name| name.contains("down")) {
        made.put_as("GPTQ 8", name);
    }
    let dynamic = |rules: Value| {
        let mut made = made.clone();
        made.config["quantization_config"]["dynamic"] = rules;
        told(&made.judge(true))
    };
    let right = dynamic(json!({ r"+:.*\.down_proj": { "bits": 8 }, r"-:.*": {} }));
    assert_eq!(
        right.iter().filter(|found| found.starts_with("stated_format")).count(),
        0,
        "{right:#?}"
    );
    assert_eq!(
        right
            .iter()
            .filter(|found| found.starts_with("ignored_quantized"))
            .count(),
        4,
        "{right:#?}"
    );
    let right = dynamic(json!({ r".*\.down_proj": { "bits": 8 } }));
    assert!(right.is_empty(), "{right:#?}");
    let wrong = dynamic(json!({ r"+:.*\.0\.mlp\.down_proj": { "bits": 8 } }));
    assert!(
        wrong.iter().all(|found| found.contains("layers.1.mlp.down_proj")) && !wrong.is_empty(),
        "{wrong:#?}"
    );
}

/// AutoRound stores files in the form of other programs: what is not known of that form is not judged, and no error.
#[test]
fn forms_that_autoround_takes_from_others_are_not_judged() {
    for (kind, packing) in [
        ("compressed-tensors nvfp4", "auto_round:llm_compressor"),
        ("compressed-tensors fp8", "auto_round:fp8_static"),
        ("DeepSeek v3", "auto_round:fp8"),
    ] {
        let mut made = clean(kind);
        made.config["quantization_config"] =
            json!({ "quant_method": "auto-round", "bits": 8, "packing_format": packing });
        let report = made.judge(false);
        assert!(is_open(&report), "{kind}: {:#?}", told(&report));
    }
}
