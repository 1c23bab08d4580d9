//! The path `gqa` against `transformers`, and against its own laws. `fixtures/README.md` says what the fixtures are.

use reference::weights::Safetensors;
use serde_json::{Value, json};

use super::families::{self, a_cut_changes_little, another_key_is_noticed, configs, file};

#[test]
fn every_family_gives_what_transformers_gives() {
    families::every_family_gives_what_transformers_gives("gqa");
}

/// A cut changes the order of sums only: over channels where one or two rows are multiplied by dot products, and over keys.
#[test]
fn a_text_may_be_cut_anywhere() {
    for (name, keys) in configs("gqa") {
        let each: &[&[usize]] = if name == "real" {
            &[&[20, 1, 16]]
        } else {
            &[&[20, 1, 2, 14], &[1; 37]]
        };
        a_cut_changes_little(&name, &keys, each);
    }
}

/// The comparison can fail: each of these reads one key otherwise.
#[test]
fn a_key_that_is_read_otherwise_is_noticed() {
    let mut yarn = configs("gqa")["qwen3"]["rope_parameters"].clone();
    yarn["mscale"] = json!(0.7);
    let changes: Vec<(&str, &str, Value)> = vec![
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 500.0}),
        ),
        (
            "llama_linear",
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 50.0}),
        ),
        ("mistral", "sliding_window", json!(10)),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention", "full_attention", "sliding_attention"]),
        ),
        ("qwen3", "rms_norm_eps", json!(1e-3)),
        ("qwen3", "rope_parameters", yarn),
        ("qwen3_moe", "norm_topk_prob", json!(false)),
        ("gpt_oss", "swiglu_limit", json!(1.0)),
        ("gpt_oss", "swiglu_alpha", json!(1.0)),
        (
            "gpt_oss",
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
        ),
        ("smollm3", "no_rope_layers", json!([1, 1, 1])),
        ("granite", "attention_multiplier", json!(0.3)),
        ("granite", "residual_multiplier", json!(0.5)),
        ("granite", "embedding_multiplier", json!(1.0)),
        ("granite", "logits_scaling", json!(1.0)),
    ];
    for (name, key, value) in changes {
        another_key_is_noticed("gqa", name, key, value);
    }
}

/// Blocks of MXFP4 as gpt-oss stores its experts, to the bit of what `transformers` makes of them.
#[test]
fn blocks_of_mxfp4_are_decoded_to_the_bit() {
    let file = Safetensors::open(file("mxfp4.safetensors")).expect("tensors");
    let want = file.floats("want", &[3, 64, 6]).expect("floats");
    let got = file.floats("stack", &[3, 64, 6]).expect("blocks");
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(want));
    let error = file
        .floats("stack", &[3, 6, 64])
        .expect_err("another shape")
        .to_string();
    assert!(error.contains("'stack_blocks'"), "{error}");
}
