//! Configurations of the path `hybrid` are read strictly.

use std::any::Any;

use reference::paths::hybrid::Config;
use reference::paths::{Config as _, read};
use serde_json::{Value, json};

use super::families::configs;

pub fn text(name: &str, changes: &[(&str, Value)]) -> Value {
    let mut keys = configs("hybrid")[name].clone();
    keys.remove("scale");
    for (key, value) in changes {
        match value {
            Value::Null => _ = keys.remove(*key),
            value => _ = keys.insert((*key).into(), value.clone()),
        }
    }
    Value::Object(keys)
}

pub fn parsed(json: &Value) -> Result<Config, String> {
    let config = read(&json.to_string())?;
    let config: Option<&Config> = (&*config as &dyn Any).downcast_ref();
    Ok(config.expect("a configuration of this path").clone())
}

pub fn with(name: &str, changes: &[(&str, Value)]) -> Result<Config, String> {
    parsed(&text(name, changes))
}

#[test]
fn layers_are_said_by_types_or_by_an_interval() {
    let full = |changes: &[(&str, Value)]| {
        let config = with("qwen35", changes).expect("a configuration");
        config.layers.iter().map(|layer| layer.full).collect::<Vec<_>>()
    };
    let types = ("layer_types", Value::Null);
    assert_eq!(full(&[]), [false, false, false, true]);
    assert_eq!(full(std::slice::from_ref(&types)), [false, false, false, true]);
    assert_eq!(
        full(&[types, ("full_attention_interval", json!(2))]),
        [false, true, false, true]
    );
    let experts = |name: &str| {
        let config = with(name, &[]).expect("a configuration");
        config.layers.iter().map(|layer| layer.experts).collect::<Vec<_>>()
    };
    assert_eq!(experts("next"), [true, false, true, true]);
    assert_eq!(experts("next_plain"), [false, true, false, true]);
    assert_eq!(experts("qwen35_moe"), [true; 3]);
}

/// RoPE turns a quarter of the channels where the file does not say.
#[test]
fn both_spellings_of_rope_are_the_same() {
    let rope = |name: &str, changes: &[(&str, Value)]| with(name, changes).map(|config| config.ropes);
    let none = ("rope_parameters", Value::Null);
    assert_eq!(rope("next", &[]), rope("next", std::slice::from_ref(&none)));
    let old = [
        none,
        ("rope_theta", json!(500.0)),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_scaling", Value::Null),
    ];
    assert_eq!(rope("qwen35", &[]), rope("qwen35", &old));
    assert_eq!(with("qwen35", &[]).map(|config| config.most_tokens()), Ok(Some(256)));
}

/// The text model of a configuration with pictures is that of the text alone, with other names.
#[test]
fn a_text_model_may_be_nested() {
    let outer = |changes: &[(&str, Value)]| {
        let inner = text("qwen35", changes);
        parsed(&json!({
            "model_type": "qwen3_5", "text_config": inner, "vision_config": {}, "image_token_id": 1, "tie_word_embeddings": true,
        }))
    };
    let (nested, plain) = (
        outer(&[]).expect("nested"),
        with("qwen35", &[("tie_word_embeddings", json!(true))]),
    );
    let renamed = plain.expect("plain").tensors().into_iter().map(|mut spec| {
        spec.name = spec.name.replace("model.", "model.language_model.");
        spec
    });
    assert_eq!(nested.tensors(), renamed.collect::<Vec<_>>());
    let error = outer(&[("model_type", json!("qwen3_next"))]).expect_err("another model");
    assert_eq!(error, "text_config.model_type is 'qwen3_next', expected 'qwen3_5_text'");
    let error = outer(&[("hidden_act", json!("gelu"))]).expect_err("another activation");
    assert_eq!(error, "text_config.hidden_act is 'gelu', expected 'silu'");
    let error = parsed(&json!({"model_type": "qwen3_5"})).expect_err("no text");
    assert_eq!(error, "text_config is missing");
}

#[test]
fn what_is_not_read_is_an_error() {
    let cases = [
        (
            "qwen35",
            "attn_output_gate",
            json!(false),
            "attn_output_gate is false, expected true",
        ),
        (
            "qwen35",
            "output_gate_type",
            json!("sigmoid"),
            "output_gate_type is 'sigmoid', expected 'silu'",
        ),
        (
            "qwen35",
            "num_experts",
            json!(4),
            "num_experts = 4: a qwen3_5_text is computed without",
        ),
        (
            "qwen35",
            "sliding_window",
            json!(4),
            "sliding_window = 4: a qwen3_5_text",
        ),
        (
            "qwen35_moe",
            "norm_topk_prob",
            json!(false),
            "norm_topk_prob = false: a qwen3_5_moe_text",
        ),
        (
            "qwen35",
            "hidden_act",
            json!("gelu"),
            "hidden_act is 'gelu', expected 'silu'",
        ),
        (
            "qwen35",
            "linear_num_key_heads",
            json!(4),
            "is 4, expected a divisor of linear_num_value_heads, 6",
        ),
        (
            "qwen35",
            "num_key_value_heads",
            json!(3),
            "is 3, expected a divisor of num_attention_heads, 4",
        ),
        (
            "qwen35",
            "linear_conv_kernel_dim",
            json!(1),
            "linear_conv_kernel_dim is 1, expected 2 to 1024",
        ),
        (
            "qwen35",
            "linear_key_head_dim",
            Value::Null,
            "linear_key_head_dim is missing",
        ),
        (
            "qwen35",
            "intermediate_size",
            Value::Null,
            "intermediate_size is missing",
        ),
        ("qwen35", "head_dim", json!(7), "head_dim is 7, expected an even number"),
        (
            "qwen35",
            "layer_types",
            json!(["full_attention"]),
            "has 1 entries, num_hidden_layers is 4",
        ),
        (
            "qwen35_moe",
            "layer_types",
            json!(["full_attention", "x", "x"]),
            "has 'x', expected 'full_attention' or",
        ),
        (
            "next",
            "num_experts_per_tok",
            json!(7),
            "num_experts_per_tok is 7, of 6 experts",
        ),
        ("next", "decoder_sparse_step", json!(0), "decoder_sparse_step is 0"),
        (
            "next",
            "rope_parameters",
            json!({"rope_type": "default", "mrope_section": [1, 1, 1]}),
            "rope_parameters.mrope_section = [1,1,1]: a RoPE",
        ),
    ];
    for (name, key, value, message) in cases {
        let error = with(name, &[(key, value)]).expect_err(key);
        assert!(error.contains(message), "{error}");
    }
    // What changes nothing here may stand there.
    let inert = [
        ("mamba_ssm_dtype", json!("bfloat16")),
        ("mtp_num_hidden_layers", json!(1)),
        ("attn_output_gate", json!(true)),
        ("output_gate_type", json!("swish")),
    ];
    assert!(with("qwen35", &inert).is_ok());
}
