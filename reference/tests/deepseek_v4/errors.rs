//! Bad input is an error that says what is wrong.

use reference::Plain;
use reference::paths::Weights;
use reference::paths::deepseek_v4::{Config, Model, State};
use serde_json::{Value, json};

use super::models::*;
use super::support::fixture;

fn keys() -> Value {
    let text = std::fs::read_to_string(fixture("dsv4-small/config.json")).expect("the configuration");
    serde_json::from_str(&text).expect("JSON")
}

/// Reads the configuration with other values of keys that it has; those that become null are as good as missing.
fn with(changes: &[(&str, Value)]) -> Result<Config, String> {
    let mut config = keys();
    for (pointer, value) in changes {
        *config.pointer_mut(pointer).expect("a key of the configuration") = value.clone();
    }
    serde_json::from_value(config).map_err(|error| error.to_string())
}

#[test]
fn configurations() {
    let error = |changes: &[(&str, Value)], want: &str| {
        let got = with(changes).expect_err(want);
        assert!(got.contains(want), "{got}");
    };
    let right = with(&[]).expect("a configuration");
    assert_eq!(right.check(), Ok(()));
    let model = Model::<f32>::load(
        Config {
            head_dim: 0,
            ..right.clone()
        },
        &mut &SMALL.weights,
    );
    assert_eq!(model.err(), Some("the configuration: head_dim is 0".into()));
    let wide = Config {
        moe_intermediate_size: 1 << 63,
        ..right.clone()
    };
    assert_eq!(
        wide.check(),
        Err("moe_intermediate_size is 9223372036854775808, expected at most 268435456".into())
    );
    let long = Config {
        hc_sinkhorn_iters: 1 << 20,
        ..right
    };
    assert_eq!(
        long.check(),
        Err("hc_sinkhorn_iters is 1048576, expected at most 1000".into())
    );
    for name in [
        "vocab_size",
        "hidden_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "num_experts_per_tok",
        "n_routed_experts",
        "sliding_window",
        "o_groups",
        "o_lora_rank",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "hc_mult",
        "hc_sinkhorn_iters",
    ] {
        let key = format!("/{name}");
        for wrong in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1u64 << 40),
            json!(u64::MAX),
            json!("3"),
            json!([3]),
        ] {
            let error = with(&[(&key, wrong.clone())]).expect_err("an error");
            assert!(error.starts_with(name), "{name} = {wrong}: {error}");
        }
        // Factors say how many channels are turned, too.
        if name != "qk_rope_head_dim" {
            error(&[(&key, Value::Null)], &format!("{name} is missing"));
        }
    }
    error(
        &[("/layer_types", json!(["sliding_attention"]))],
        "layer_types has 1 entries, num_hidden_layers is 6",
    );
    error(
        &[("/mlp_layer_types", json!(["moe", "moe"]))],
        "mlp_layer_types has 2 entries, num_hidden_layers is 6",
    );
    let turns = |count: usize| {
        let factor = json!(count as f64 / 32.0);
        let mut config = keys();
        config["qk_rope_head_dim"] = json!(count);
        for at in [
            "/partial_rotary_factor",
            "/rope_parameters/main/partial_rotary_factor",
            "/rope_parameters/compress/partial_rotary_factor",
        ] {
            *config.pointer_mut(at).expect("a key") = factor.clone();
        }
        serde_json::from_value::<Config>(config)
            .expect_err("an error")
            .to_string()
    };
    assert!(turns(7).contains("qk_rope_head_dim 7 is not even"), "{}", turns(7));
    assert!(turns(34).contains("more than head_dim 32"), "{}", turns(34));
    assert!(turns(18).contains("index_head_dim 16"), "{}", turns(18));
    error(
        &[("/num_attention_heads", json!(5))],
        "num_attention_heads 5 is not a multiple of o_groups 2",
    );
    error(
        &[("/num_experts_per_tok", json!(9))],
        "num_experts_per_tok 9 is more than n_routed_experts 8",
    );
    error(
        &[("/compress_rates", json!({ "heavily_compressed_attention": 8 }))],
        "compress_rates has no positive entry for Sparse layers",
    );
    error(
        &[("/compress_rates/heavily_compressed_attention", json!(0))],
        "compress_rates.heavily_compressed_attention is 0",
    );
    error(
        &[("/rope_parameters/main/rope_type", json!("linear"))],
        "rope_type 'linear' is unknown",
    );
    error(
        &[("/rope_parameters/compress/factor", Value::Null)],
        "rope_parameters.compress.factor is missing",
    );
    error(
        &[(
            "/rope_parameters/compress/original_max_position_embeddings",
            Value::Null,
        )],
        "rope_parameters.compress.original_max_position_embeddings is missing",
    );
}

/// Keys that change what `transformers` computes and what is not computed here. Others of the kind: keys of later releases, of which
/// none is known, and every key in an object that is read.
#[test]
fn keys_that_would_change_the_result_are_refused() {
    let cases = [
        ("", "attn_logit_softcapping", json!(30.0)),
        ("", "hidden_act", json!("gelu")),
        ("", "hidden_act", json!("relu")),
        ("", "scoring_func", json!("sigmoid")),
        ("", "scoring_func", json!("softmax")),
        ("", "norm_topk_prob", json!(false)),
        ("", "topk_method", json!("group_limited_greedy")),
        ("", "n_group", json!(2)),
        ("", "n_shared_experts", json!(2)),
        ("", "num_key_value_heads", json!(2)),
        ("", "first_k_dense_replace", json!(1)),
        ("", "attention_bias", json!(true)),
        ("", "mlp_bias", json!(true)),
        ("", "tie_word_embeddings", json!(true)),
        ("", "intermediate_size", json!(48)),
        ("", "num_local_experts", json!(4)),
        ("", "partial_rotary_factor", json!(0.5)),
        ("", "qk_rope_head_dim", json!(16)),
        ("", "num_hash_layers", json!(3)),
        ("", "compress_ratios", json!([0, 128, 4, 128, 4, 0])),
        ("", "compress_rate_csa", json!(8)),
        ("", "compress_rate_hca", json!(128)),
        ("", "rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        ("", "rope_theta", json!(5e5)),
        ("", "compress_rope_theta", json!(1e4)),
        ("", "rope_parameters", json!({"main": {"rope_theta": 1e4}})),
        ("/compress_rates", "sliding_attention", json!(2)),
        ("/rope_parameters", "main_2", json!({})),
        ("/rope_parameters/main", "partial_rotary_factor", json!(0.5)),
        ("/rope_parameters/main", "partial_rotary_factor", json!(1)),
        ("/rope_parameters/main", "mrope_section", json!([2, 2])),
        ("/rope_parameters/main", "factor", json!(4.0)),
        ("/rope_parameters/main", "rope_theta", Value::Null),
        ("/rope_parameters/main", "rope_type", json!("linear")),
        ("/rope_parameters/compress", "attention_factor", json!(0.5)),
        ("/rope_parameters/compress", "attention_factor", Value::Null),
        ("/rope_parameters/compress", "partial_rotary_factor", json!(0.125)),
        ("/rope_parameters/compress", "truncate", json!(false)),
        ("/rope_parameters/compress", "rope_type", json!("llama3")),
        ("/rope_parameters/compress", "rope_theta", json!(1.0)),
        ("/rope_parameters/compress", "factor", json!(-16.0)),
        ("", "swiglu_limit", json!(0.0)),
        ("", "swiglu_limit", Value::Null),
        ("", "routed_scaling_factor", Value::Null),
        ("", "rms_norm_eps", json!(-1e-6)),
        ("", "hc_eps", json!("1e-6")),
    ];
    for (at, key, value) in cases {
        let mut config = keys();
        config.pointer_mut(at).expect("an object")[key] = value.clone();
        let error = serde_json::from_value::<Config>(config).expect_err(key).to_string();
        let named = error.contains(key) || error.contains("rope_parameters");
        assert!(named, "{at}/{key} = {value}: {error}");
    }
}

/// Published checkpoints have other keys than `transformers` writes for them.
#[test]
fn both_spellings_are_the_same() {
    let mut new = keys();
    new["compress_rates"] = json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128});
    let mut old = new.as_object().expect("an object").clone();
    for key in [
        "layer_types",
        "mlp_layer_types",
        "compress_rates",
        "partial_rotary_factor",
        "rope_parameters",
    ] {
        old.remove(key).expect(key);
    }
    let more = json!({
        "compress_ratios": [0, 128, 4, 128, 4, 0, 0],
        "num_hash_layers": 2,
        "topk_method": "noaux_tc",
        "expert_dtype": "fp4",
        "rope_scaling": {
            "type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1
        },
    });
    old.extend(more.as_object().expect("an object").clone());
    let read = |value: Value| serde_json::from_value::<Config>(value);
    let [new, published] = [new, Value::Object(old.clone())].map(|value| read(value).expect("a configuration"));
    assert_eq!(new, published);
    for (key, named) in [
        ("compress_ratios", "layer_types is missing"),
        ("num_hash_layers", "mlp_layer_types is missing"),
        ("qk_rope_head_dim", "qk_rope_head_dim is missing"),
        ("compress_rope_theta", "compress_rope_theta is missing"),
        ("rope_theta", "rope_theta is missing"),
    ] {
        let mut less = old.clone();
        less.remove(key).expect(key);
        let error = read(less.into()).expect_err(key).to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn ids() {
    let model = &SMALL.f32;
    let mut state = model.state();
    let mut feed = |ids: &[u32]| model.run(&mut state, ids, &mut Plain);
    assert_eq!(feed(&[]), Err("no tokens to feed".into()));
    assert_eq!(feed(&[3, 96]), Err("token 96 is beyond the vocabulary of 96".into()));
    let first = feed(&[3]).expect("an id of the vocabulary");
    assert_eq!(state.tokens(), 1, "errors leave the state alone");
    assert_eq!(model.run(&mut model.state(), &[3], &mut Plain), Ok(first));
}

/// Whatever tensor cannot be had, its error comes through.
#[test]
fn weights() {
    struct Missing(String);
    impl Weights for Missing {
        type Error = String;

        fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
            if name == self.0 {
                return Err(format!("no {name}"));
            }
            Ok(vec![0.5; shape.iter().product()])
        }

        fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
            self.floats(name, shape).map(|values| vec![0; values.len()])
        }
    }
    let specs = SMALL.config.tensors();
    assert_eq!(specs.len(), SMALL.weights.0.len());
    for spec in specs {
        assert_eq!(SMALL.weights.get(&spec.name).shape, spec.shape);
        let model = Model::<f32>::load(SMALL.config.clone(), &mut Missing(spec.name.clone()));
        assert_eq!(model.err(), Some(format!("no {}", spec.name)));
    }
}

/// Tensors that are not as they were asked for are refused, and read no further.
#[test]
fn weights_that_cannot_be_used() {
    struct Wrong {
        elements: usize,
        expert: u32,
    }
    impl Weights for Wrong {
        type Error = String;

        fn floats(&mut self, _: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
            Ok(vec![0.5; shape.iter().product::<usize>() - self.elements])
        }

        fn integers(&mut self, _: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
            let mut table = vec![0; shape.iter().product::<usize>()];
            table[shape[1] + 1] = self.expert;
            Ok(table)
        }
    }
    let load = |elements, expert| Model::<f32>::load(SMALL.config.clone(), &mut Wrong { elements, expert }).err();
    assert_eq!(load(0, 7), None);
    let error = load(1, 0).expect("a tensor is too short");
    assert!(error.starts_with("tensor 'model.embed_tokens.weight' has "), "{error}");
    let error = load(0, 8).expect("there are 8 experts");
    assert!(
        error.contains(".mlp.gate.tid2eid' has expert 8 at [1, 1] of 8 experts"),
        "{error}"
    );
}

/// A state of another model.
#[test]
fn states() {
    let mut config = SMALL.config.clone();
    config.layer_types.rotate_left(1);
    assert_ne!(config.layer_types, SMALL.config.layer_types);
    let mut state = State::new(&config).expect("a good configuration");
    assert_eq!(
        SMALL.f32.run(&mut state, &[3], &mut Plain),
        Err("the state is that of a model with another configuration".into())
    );
}
