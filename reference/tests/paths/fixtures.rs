//! Small models of every path.

use std::path::PathBuf;

use reference::Tensor;
use reference::paths::{Config, Input, Model, Scalar, State, Takes, Weights, load, read};
use reference::sites::When;
use reference::weights::Safetensors;

use super::support::*;

/// A small model, by the text of its `config.json`.
pub struct Fixture {
    pub path: &'static str,
    pub json: String,
    /// Its file of weights, or none if they are drawn.
    weights: Option<PathBuf>,
}

/// At least one of every path.
pub fn all() -> Vec<Fixture> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/dsv4-small"));
    let small = Fixture {
        path: "deepseek_v4",
        json: std::fs::read_to_string(folder.join("config.json")).expect("a configuration"),
        weights: Some(folder.join("weights.safetensors")),
    };
    let swap = |reading: &str| Fixture {
        path: "swap_ffn",
        json: format!(
            r#"{{"model_type": "swap_ffn", "d_model": 12, "d_ff": 17, "core_count": 5, "n_events": 3, "d_router": 7,
                "collapse_k": 3, "collapse_r": 6, "d_embed": 4 {reading}}}"#
        ),
        weights: None,
    };
    let drawn = |path: &'static str, json: &str| Fixture {
        path,
        json: json.into(),
        weights: None,
    };
    let gqa = |json: &str| drawn("gqa", json);
    let hybrid = |json: &str| drawn("hybrid", json);
    vec![
        small,
        swap(""),
        swap(r#", "router": "unfolded", "decision": "probabilities", "lane_rule": "move_to_front", "residual": true"#),
        // Dense layers and layers with experts, all with a window, and the embedding as the head.
        gqa(
            r#"{"model_type": "qwen3_moe", "vocab_size": 29, "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 3,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "num_experts": 5, "num_experts_per_tok": 2,
                "moe_intermediate_size": 14, "mlp_only_layers": [1], "rms_norm_eps": 1e-6, "use_sliding_window": true,
                "sliding_window": 9, "tie_word_embeddings": true}"#,
        ),
        // A window in every second layer, sinks, and a head of its own.
        gqa(
            r#"{"model_type": "gpt_oss", "vocab_size": 31, "hidden_size": 20, "intermediate_size": 18, "num_hidden_layers": 2,
                "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "num_local_experts": 4,
                "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "sliding_window": 7}"#,
        ),
        // Dense layers and layers with experts, of both types, with projections in groups, and a head of its own.
        hybrid(
            r#"{"model_type": "qwen3_next", "vocab_size": 29, "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 4,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2,
                "moe_intermediate_size": 14, "shared_expert_intermediate_size": 10, "mlp_only_layers": [0, 1], "rms_norm_eps": 1e-6,
                "full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 8,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4}"#,
        ),
        // The text model of one with pictures, and the embedding as the head.
        hybrid(
            r#"{"model_type": "qwen3_5", "tie_word_embeddings": true, "image_token_id": 28, "vision_config": {"depth": 1},
                "text_config": {"model_type": "qwen3_5_text", "vocab_size": 29, "hidden_size": 20, "intermediate_size": 28,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6,
                "full_attention_interval": 2, "linear_conv_kernel_dim": 3, "linear_key_head_dim": 6, "linear_value_head_dim": 4,
                "linear_num_key_heads": 3, "linear_num_value_heads": 3}}"#,
        ),
        // Attention over latents, a delta rule with a decay by channel, groups of experts, and keys as published files have them.
        hybrid(
            r#"{"model_type": "kimi_linear", "vocab_size": 29, "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 3,
                "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
                "v_head_dim": 5, "q_lora_rank": null, "mla_use_nope": true, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
                "head_dim": 72, "num_experts": 6, "num_experts_per_token": 2, "num_expert_group": 3, "topk_group": 2,
                "num_shared_experts": 1, "moe_intermediate_size": 14, "moe_renormalize": true, "routed_scaling_factor": 2.446,
                "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1, "first_k_dense_replace": 1, "use_grouped_topk": true,
                "model_max_length": 4096, "linear_attn_config": {"head_dim": 6, "num_heads": 2, "short_conv_kernel_size": 4,
                "kda_layers": [1, 3], "full_attn_layers": [2]}}"#,
        ),
    ]
}

/// What is fed in one call: token ids, or the number of a vector.
pub enum Piece {
    Ids(Vec<u32>),
    Vector(usize),
}

/// Prefill and decode.
pub fn pieces(config: &dyn Config) -> Vec<Piece> {
    match config.takes() {
        Takes::Ids { vocabulary } => {
            let ids: Vec<u32> = (0..40).map(|at| (at * at * 7 + 3) % vocabulary as u32).collect();
            let (prefill, decode) = ids.split_at(36);
            let decode = decode.iter().map(|&id| Piece::Ids(vec![id]));
            std::iter::once(Piece::Ids(prefill.to_vec())).chain(decode).collect()
        }
        Takes::Vectors { .. } => (0..4).map(Piece::Vector).collect(),
    }
}

/// Sequences of a model that takes vectors.
pub const SEQUENCES: usize = 2;

pub fn vector<T: Scalar>(cols: usize, number: usize) -> Tensor<T> {
    tensor(&format!("vector {number}"), &[SEQUENCES, cols])
}

impl Fixture {
    pub fn config(&self) -> Box<dyn Config> {
        read(&self.json).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// The model, with what is passed at load held to the table.
    pub fn model<T: Scalar>(&self) -> Box<dyn Model<T>> {
        let config = self.config();
        let mut checked = Checked::new(&*config, config.path().sites, When::Load);
        let model = self.with_weights(&mut |weights| load(&*config, weights, &mut checked));
        checked.finish();
        model
    }

    /// Has the weights used.
    pub fn with_weights<R>(&self, work: &mut dyn FnMut(&mut dyn Weights<Error = String>) -> Result<R, String>) -> R {
        let mut file = self
            .weights
            .as_ref()
            .map(|file| File(Safetensors::open(file).expect("weights")));
        let weights: &mut dyn Weights<Error = String> = match &mut file {
            Some(file) => file,
            None => &mut Drawn,
        };
        work(weights).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

struct File(Safetensors);

impl Weights for File {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        self.0.floats(name, shape).map_err(|error| error.to_string())
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        Weights::integers(&mut self.0, name, shape).map_err(|error| error.to_string())
    }
}

/// The state before the first token.
pub fn begin<T: Scalar>(model: &dyn Model<T>) -> Box<dyn State<T>> {
    let start = model.config().start(SEQUENCES).into_iter();
    let start = start.map(|spec| tensor(&spec.name, &spec.shape)).collect();
    model.state(start).expect("a state")
}

/// What the model gives for every piece.
pub fn run<T: Scalar>(model: &dyn Model<T>, numerics: &mut dyn reference::Numerics<T>) -> Vec<Tensor<T>> {
    let mut state = begin(model);
    let feed = |piece| one(model, &mut *state, &piece, numerics);
    pieces(model.config()).into_iter().map(feed).collect()
}

/// What the model gives for one piece.
pub fn one<T: Scalar>(
    model: &dyn Model<T>,
    state: &mut dyn State<T>,
    piece: &Piece,
    numerics: &mut dyn reference::Numerics<T>,
) -> Tensor<T> {
    let vector = match (piece, model.config().takes()) {
        (Piece::Vector(number), Takes::Vectors { cols }) => vector(cols, *number),
        _ => Tensor::new([0], Vec::new()),
    };
    let input = match piece {
        Piece::Ids(ids) => Input::Ids(ids),
        Piece::Vector(_) => Input::Vectors(&vector),
    };
    model.run(state, input, numerics).expect("inputs that the model takes")
}
