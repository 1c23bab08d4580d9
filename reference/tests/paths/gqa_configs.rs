//! Configurations of the path `gqa` are read strictly, in both spellings of `transformers`.

use std::any::Any;

use reference::paths::RopeConfig;
use reference::paths::gqa::Config;
use reference::paths::{Config as _, find, read};
use serde_json::{Map, Value, json};

use super::families::configs;

fn with(name: &str, changes: &[(&str, Value)]) -> Result<Config, String> {
    let mut keys = configs("gqa")[name].clone();
    keys.remove("scale");
    for (key, value) in changes {
        match value {
            Value::Null => _ = keys.remove(*key),
            value => _ = keys.insert((*key).into(), value.clone()),
        }
    }
    let config = read(&Value::Object(keys).to_string())?;
    let config: Option<&Config> = (&*config as &dyn Any).downcast_ref();
    Ok(config.expect("a configuration of this path").clone())
}

fn ropes(name: &str, changes: &[(&str, Value)]) -> Vec<RopeConfig> {
    with(name, changes)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .ropes
}

#[test]
fn both_spellings_of_rope_are_the_same() {
    for name in ["llama", "llama_linear", "llama_dynamic", "qwen3", "gpt_oss", "phi3"] {
        let mut scaling: Map<String, Value> = configs("gqa")[name]["rope_parameters"]
            .as_object()
            .expect("keys")
            .clone();
        let theta = scaling.remove("rope_theta").expect("a key");
        let partial = scaling.remove("partial_rotary_factor").unwrap_or(Value::Null);
        let kind = scaling.remove("rope_type").expect("a key");
        scaling.insert("type".into(), kind);
        let old = [
            ("rope_parameters", Value::Null),
            ("rope_theta", theta),
            ("partial_rotary_factor", partial),
            ("rope_scaling", Value::Object(scaling)),
        ];
        assert_eq!(ropes(name, &old), ropes(name, &[]), "{name}");
    }
    let none = [("rope_parameters", Value::Null)];
    assert_eq!(
        ropes("llama", &none),
        ropes("llama", &[("rope_parameters", json!({"rope_theta": 1e4}))])
    );
    assert_eq!(
        ropes("smollm3", &none),
        ropes("smollm3", &[]),
        "this family has a θ of its own"
    );
}

#[test]
fn what_is_not_read_is_an_error() {
    let error = |name: &str, key: &str, value: Value| with(name, &[(key, value)]).expect_err(key);
    let cases = [
        (
            "llama",
            "final_logit_softcapping",
            json!(30.0),
            "final_logit_softcapping = 30.0: a llama is computed without",
        ),
        (
            "mistral",
            "attention_bias",
            json!(true),
            "attention_bias = true: a mistral",
        ),
        (
            "llama",
            "hidden_act",
            json!("gelu"),
            "hidden_act is 'gelu', expected 'silu'",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"mrope_section": [2, 2]}),
            "rope_parameters.mrope_section = [2,2]: a RoPE",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "ntk"}),
            "rope_parameters.rope_type is 'ntk', expected 'default'",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"partial_rotary_factor": 0.5}),
            "but a llama turns all channels",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"full_attention": {}}),
            "but that of a llama does not",
        ),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 2.0}),
            "both given, and differ",
        ),
        (
            "olmo3",
            "rope_parameters",
            json!({"chunked_attention": {}}),
            "has 'chunked_attention', expected",
        ),
        (
            "phi3",
            "rope_parameters",
            json!({"rope_type": "longrope", "short_factor": [1.0]}),
            "short_factor has 1 numbers",
        ),
        (
            "llama",
            "num_key_value_heads",
            json!(4),
            "expected a divisor of num_attention_heads, 6",
        ),
        ("llama", "rms_norm_eps", Value::Null, "rms_norm_eps is missing"),
        ("llama", "vocab_size", json!("61"), "vocab_size is \"61\""),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention"]),
            "layer_types has 1 entries, num_hidden_layers is 3",
        ),
        (
            "qwen3",
            "layer_types",
            json!(["linear_attention", "full_attention", "full_attention"]),
            "has 'linear_attention', expected",
        ),
        (
            "qwen3",
            "use_sliding_window",
            json!(false),
            "sliding_window is not used, but layer_types",
        ),
        (
            "qwen3_moe",
            "num_experts",
            json!(9),
            "num_experts is 9, but num_local_experts is 7",
        ),
        ("qwen3_moe", "num_experts_per_tok", json!(8), "is 8, of 7 experts"),
        ("smollm3", "no_rope_layers", json!([1]), "no_rope_layers has 1 entries"),
    ];
    for (name, key, value, message) in cases {
        let error = error(name, key, value);
        assert!(error.contains(message), "{error}");
    }
    // What says what is so anyway may stand there, and what has no value.
    let changes = [
        ("partial_rotary_factor", json!(1)),
        ("use_sliding_window", json!(false)),
        ("bos_token_id", json!(1)),
    ];
    assert!(with("granite", &changes).is_ok());
}

#[test]
fn a_family_that_is_unknown_is_told_with_what_differs() {
    let mut keys = configs("gqa")["qwen3"].clone();
    keys.remove("scale");
    keys.insert("model_type".into(), json!("qwen9"));
    keys.insert("query_pre_attn_scalar".into(), json!(256));
    let error = find(&Value::Object(keys).to_string())
        .map(|path| path.name)
        .expect_err("unknown");
    assert!(error.starts_with("model_type is 'qwen9'"), "{error}");
    assert!(
        error.contains("'qwen3' is nearest, and does not read query_pre_attn_scalar = 256"),
        "{error}"
    );
}

#[test]
fn sequences_end_where_frequencies_no_longer_hold() {
    let lengths = |name: &str| with(name, &[]).map(|config| [config.most_tokens(), config.longest()]);
    assert_eq!(lengths("phi3"), Ok([Some(128), Some(64)]));
    assert_eq!(lengths("llama"), Ok([Some(128), None]));
}
