//! Bad input is an error that says what is wrong.

use reference::Plain;
use reference::paths::Weights;
use reference::paths::deepseek_v4::{Config, Model, State};
use serde_json::{Value, json};

use super::models::*;
use super::support::fixture;

fn with(changes: &[(&str, Value)]) -> Config {
    let text = std::fs::read_to_string(fixture("dsv4-small/config.json")).expect("the configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for (pointer, value) in changes {
        *config.pointer_mut(pointer).expect("a key of the configuration") = value.clone();
    }
    serde_json::from_value(config).expect("still of the right types")
}

#[test]
fn configurations() {
    let error = |changes: &[(&str, Value)], want: &str| {
        let got = with(changes).check().expect_err(want);
        assert!(got.contains(want), "{got}");
    };
    assert_eq!(with(&[]).check(), Ok(()));
    let model = Model::<f32>::load(with(&[("/head_dim", json!(0))]), &mut &SMALL.weights);
    assert_eq!(model.err(), Some("the configuration: head_dim is 0".into()));
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
        error(&[(&format!("/{name}"), json!(0))], &format!("{name} is 0"));
    }
    error(
        &[("/layer_types", json!(["sliding_attention"]))],
        "layer_types has 1 entries, num_hidden_layers is 6",
    );
    error(
        &[("/mlp_layer_types", json!(["moe", "moe"]))],
        "mlp_layer_types has 2 entries, num_hidden_layers is 6",
    );
    error(&[("/qk_rope_head_dim", json!(7))], "qk_rope_head_dim 7 is not even");
    error(&[("/qk_rope_head_dim", json!(34))], "more than head_dim 32");
    error(&[("/qk_rope_head_dim", json!(18))], "index_head_dim 16");
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
        "compress_rates has no positive entry for Heavy layers",
    );
    error(
        &[("/rope_parameters/main/rope_type", json!("linear"))],
        "rope_type 'linear' is unknown",
    );
    error(
        &[("/rope_parameters/compress/factor", Value::Null)],
        "rope_type 'yarn' needs factor",
    );
    error(
        &[(
            "/rope_parameters/compress/original_max_position_embeddings",
            Value::Null,
        )],
        "and original_max_position_embeddings",
    );
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
