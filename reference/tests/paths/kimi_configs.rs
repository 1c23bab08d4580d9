//! Configurations of Kimi-Linear are read strictly, in both spellings.

use reference::paths::Config as _;
use reference::paths::hybrid::Routing;
use serde_json::{Value, json};

use super::hybrid_configs::{parsed, text, with};

/// Keys that `transformers` stores next to those of published files; without them the file is as it is published.
const OF_TRANSFORMERS: &[&str] = &[
    "layer_types",
    "linear_conv_kernel_dim",
    "linear_head_dim",
    "linear_num_heads",
    "mlp_layer_types",
    "qk_head_dim",
];

#[test]
fn both_spellings_are_the_same() {
    let stored = with("kimi_plain", &[]).expect("as transformers stores it");
    let nothing: Vec<(&str, Value)> = OF_TRANSFORMERS.iter().map(|key| (*key, Value::Null)).collect();
    let published = [
        ("head_dim", json!(72)),
        ("mla_use_nope", json!(true)),
        ("moe_layer_freq", json!(1)),
        ("moe_router_activation_func", json!("sigmoid")),
        ("num_nextn_predict_layers", json!(0)),
        ("rope_theta", json!(10000.0)),
        ("use_grouped_topk", json!(true)),
    ];
    let published = with("kimi_plain", &[&nothing[..], &published].concat()).expect("as it is published");
    assert_eq!(format!("{stored:?}"), format!("{published:?}"));
    let mut own = text("kimi_plain", &[("linear_attn_config", Value::Null)]);
    let map = own.as_object_mut().expect("an object");
    for (published, new) in [
        ("num_experts", "num_local_experts"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_shared_experts", "n_shared_experts"),
        ("num_expert_group", "n_group"),
        ("moe_renormalize", "norm_topk_prob"),
        ("model_max_length", "max_position_embeddings"),
    ] {
        let value = map.remove(published).expect(published);
        map.insert(new.into(), value);
    }
    map.remove("first_k_dense_replace");
    let own = parsed(&own).expect("with its own names only");
    assert_eq!(format!("{stored:?}"), format!("{own:?}"));
}

#[test]
fn layers_and_routing_are_as_the_file_says() {
    let config = with("kimi", &[]).expect("a configuration");
    let layers = config.layers.iter();
    assert_eq!(
        layers.map(|layer| (layer.full, layer.experts)).collect::<Vec<_>>(),
        [(false, false), (false, true), (true, true), (false, true)]
    );
    let Routing::Sigmoid {
        normalised,
        groups,
        scale,
    } = config.routing
    else {
        panic!("{:?}", config.routing);
    };
    assert_eq!((normalised, groups.count, groups.kept, scale), (true, 4, 2, 1.7));
    assert_eq!(
        (config.head_dim, config.own.v_head_dim, config.own.linear_low_rank),
        (14, 10, 8)
    );
    assert_eq!(
        (config.most_tokens(), config.own.shared_expert_intermediate_size),
        (Some(256), 40)
    );
    let types = |layer| config.layer_types(layer);
    assert_eq!(types(0), ["linear_attention", "channel_decay", "dense"]);
    assert_eq!(types(2), ["latent_attention", "experts"]);
}

#[test]
fn what_is_not_computed_is_an_error() {
    let linear = |key: &str, value: Value| {
        let mut linear = text("kimi", &[])["linear_attn_config"].clone();
        linear[key] = value;
        ("linear_attn_config", linear)
    };
    let cases = [
        (("q_lora_rank", json!(24)), "q_lora_rank is 24, expected null"),
        (("mla_use_nope", json!(false)), "mla_use_nope is false, expected true"),
        (
            ("moe_router_activation_func", json!("softmax")),
            "is 'softmax', expected 'sigmoid'",
        ),
        (("moe_layer_freq", json!(2)), "moe_layer_freq is 2, expected 1"),
        (("hidden_act", json!("gelu")), "hidden_act is 'gelu', expected 'silu'"),
        (
            ("num_key_value_heads", json!(2)),
            "num_key_value_heads is 2, expected num_attention_heads, 4",
        ),
        (
            ("qk_head_dim", json!(16)),
            "qk_head_dim is 16, expected qk_nope_head_dim + qk_rope_head_dim, 14",
        ),
        (("kv_lora_rank", Value::Null), "kv_lora_rank is missing"),
        (
            ("num_expert_group", json!(3)),
            "num_expert_group is 3, expected a divisor of num_experts, 8",
        ),
        (
            ("num_expert_group", json!(8)),
            "num_expert_group is 8, of 8 experts: a group is kept by its two",
        ),
        (("topk_group", json!(5)), "topk_group is 5, of 4 groups"),
        (
            ("num_experts_per_token", json!(5)),
            "num_experts_per_token is 5, of 4 experts in the groups",
        ),
        (
            ("num_experts_per_tok", json!(2)),
            "num_experts_per_token is 3, but num_experts_per_tok is 2",
        ),
        (
            ("use_grouped_topk", json!(false)),
            "use_grouped_topk is false, but there are 4 groups",
        ),
        (
            ("num_shared_experts", json!(0)),
            "num_shared_experts is 0, expected a whole number from 1",
        ),
        (
            ("linear_num_heads", json!(4)),
            "linear_attn_config.num_heads is 3, but linear_num_heads is 4",
        ),
        (
            ("first_k_dense_replace", json!(2)),
            "first_k_dense_replace is 2, which differs from mlp_layer_types",
        ),
        (
            ("mlp_layer_types", json!(["dense"])),
            "mlp_layer_types has 1 entries, num_hidden_layers is 4",
        ),
        (
            ("layer_types", json!(vec!["linear_attention"; 4])),
            "layer_types differs from the lists of linear_attn_config",
        ),
        (
            linear("kda_layers", json!([0, 1, 3])),
            "kda_layers and full_attn_layers have layers [0, 1, 3, 3]",
        ),
        (linear("kda_layers", json!([1, 2])), "expected each of 1 to 4 once"),
        (
            linear("gate_lower_bound", json!(-5.0)),
            "linear_attn_config.gate_lower_bound = -5.0: a kimi_linear",
        ),
        (
            ("sliding_window", json!(4)),
            "sliding_window = 4: a kimi_linear is computed without",
        ),
        (("rope_scaling", json!({"type": "yarn"})), "rope_scaling = "),
    ];
    for (change, message) in cases {
        let error = with("kimi", std::slice::from_ref(&change)).expect_err(change.0);
        assert!(error.contains(message), "{error}");
    }
    let short = [
        linear("short_conv_kernel_size", json!(1)),
        ("linear_conv_kernel_dim", Value::Null),
    ];
    let error = with("kimi", &short).expect_err("no state");
    assert!(
        error.contains("linear_conv_kernel_dim is 1, expected 2 to 1024"),
        "{error}"
    );
}
