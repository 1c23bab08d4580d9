//! Table of the differences between the families of models, one entry per family.

/// A family of models: properties that the `config.json` of a model does not state, and defaults for missing keys.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Base θ of RoPE if `config.json` does not give θ.
    pub theta: f64,
    /// Default RoPE object (JSON) for a `config.json` without one; `None` if the default is RoPE without scaling.
    pub rope: Option<&'static str>,
    /// Names of the RoPE scalings that the family allows.
    pub scalings: &'static [&'static str],
    /// True if `num_key_value_heads` may be missing; the default is the number of query heads.
    pub key_value_heads: bool,
    /// Number of channels of a head if `config.json` has no `head_dim`; `None` if the number is then `hidden_size /
    /// num_attention_heads`.
    pub head_dim: Option<usize>,
    /// True if a model whose `config.json` has no `tie_word_embeddings` uses the embedding as the output head.
    pub tied: bool,
    /// Rule that decides which attention projections have a bias.
    pub attention_bias: Biases,
    /// True if `config.json` may give the feed-forward layers biases, by the key `mlp_bias`.
    pub mlp_bias: bool,
    /// Kind of the norms of queries and keys.
    pub query_key_norm: QueryKeyNorm,
    /// True if norms are applied to the outputs of attention and feed-forward layer, false if to their inputs.
    pub norm_after: bool,
    /// True if norms round x / rms(x) to the model's data type before the multiplication by the weight; false if they round only
    /// the product.
    pub norm_before_weight: bool,
    /// Rule that selects the layers with an attention window.
    pub windows: Windows,
    /// True if the key `no_rope_layers` or `no_rope_layer_interval` selects layers without RoPE.
    pub skips_rope: bool,
    /// True if the key `partial_rotary_factor` may restrict RoPE to a part of the channels.
    pub partial_rope: bool,
    /// True if the RoPE of layers with a window may differ from the RoPE of layers without a window.
    pub rope_by_type: bool,
    /// True if query heads have attention sinks.
    pub sinks: bool,
    /// True if projections of the same input are fused in one tensor: `qkv_proj`, `gate_up_proj`.
    pub fused: bool,
    /// True if `config.json` may have `embedding_multiplier`, `attention_multiplier`, `residual_multiplier`, `logits_scaling`.
    pub multipliers: bool,
    /// Layout of the experts, if the family has experts.
    pub experts: Experts,
}

/// Rule that decides which attention projections (query, key, value, output) have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// No projection has a bias.
    Never,
    /// The query, key and value projections have a bias; the output projection has none.
    QueryKeyValue,
    /// All four projections have a bias if the key `attention_bias` is true. The `bool` is the default for a missing key.
    Said(bool),
}

/// Norms of queries and keys before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// No norms.
    None,
    /// One RMSNorm over the channels of each head.
    Head,
    /// One RMSNorm over the channels of all heads together.
    Whole,
}

/// Rule that selects the layers whose attention reads only the last `sliding_window` tokens (layers with a window).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// No layer has a window: each token reads all earlier tokens.
    Never,
    /// All layers have a window, if the key `sliding_window` is given.
    All,
    /// All layers have a window, if the key `use_sliding_window` is true.
    AllIfUsed,
    /// Layers of type `sliding_attention` in `layer_types` have a window. If this key is missing, layers from index
    /// `max_window_layers` on have a window, provided that `use_sliding_window` is true.
    FromLayer,
    /// Layers of type `sliding_attention` in `layer_types` have a window. If this key is missing, layers without RoPE have a
    /// window, provided that `use_sliding_window` is true.
    WithoutRope,
    /// Layers of type `sliding_attention` in `layer_types` have a window. If this key is missing, all layers have a window except
    /// the layers n − 1, 2n − 1, … (counted from 0), where n is the value of the variant.
    ButEach(usize),
}

/// Experts of a family, and the names of their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// No experts.
    None,
    /// Qwen3-MoE: `mlp.experts.N.gate_proj`; `decoder_sparse_step` and `mlp_only_layers` select the layers with experts.
    Qwen,
    /// Mixtral: `block_sparse_moe.experts.N.w1` in all layers.
    Mixtral,
    /// gpt-oss: all layers have experts. Tensors are stacked over experts, with biases; gate and up outputs alternate.
    GptOss,
}

/// RoPE scalings that `transformers` supports for every family except Phi-3.
pub(in crate::paths) const SCALINGS: &[&str] = &["default", "linear", "dynamic", "llama3", "yarn", "longrope"];

const LLAMA: Family = Family {
    model_type: "llama",
    theta: 1e4,
    rope: None,
    scalings: SCALINGS,
    key_value_heads: true,
    head_dim: None,
    tied: false,
    attention_bias: Biases::Said(false),
    mlp_bias: true,
    query_key_norm: QueryKeyNorm::None,
    norm_after: false,
    norm_before_weight: true,
    windows: Windows::Never,
    skips_rope: false,
    partial_rope: false,
    rope_by_type: false,
    sinks: false,
    fused: false,
    multipliers: false,
    experts: Experts::None,
};

const MISTRAL: Family = Family {
    model_type: "mistral",
    key_value_heads: false,
    attention_bias: Biases::Never,
    mlp_bias: false,
    windows: Windows::All,
    ..LLAMA
};

const QWEN3: Family = Family {
    model_type: "qwen3",
    key_value_heads: false,
    head_dim: Some(128),
    query_key_norm: QueryKeyNorm::Head,
    mlp_bias: false,
    windows: Windows::FromLayer,
    ..LLAMA
};

const OLMO2: Family = Family {
    model_type: "olmo2",
    mlp_bias: false,
    query_key_norm: QueryKeyNorm::Whole,
    norm_after: true,
    norm_before_weight: false,
    ..LLAMA
};

/// All model families that this path can load.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    MISTRAL,
    Family {
        model_type: "qwen2",
        key_value_heads: false,
        attention_bias: Biases::QueryKeyValue,
        mlp_bias: false,
        windows: Windows::FromLayer,
        ..LLAMA
    },
    QWEN3,
    Family {
        model_type: "qwen3_moe",
        head_dim: None,
        windows: Windows::AllIfUsed,
        experts: Experts::Qwen,
        ..QWEN3
    },
    Family {
        model_type: "mixtral",
        theta: 1e6,
        experts: Experts::Mixtral,
        ..MISTRAL
    },
    Family {
        model_type: "gpt_oss",
        theta: 1.5e5,
        rope: Some(
            r#"{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096}"#,
        ),
        key_value_heads: false,
        head_dim: Some(64),
        attention_bias: Biases::Said(true),
        mlp_bias: false,
        norm_before_weight: false,
        windows: Windows::ButEach(2),
        sinks: true,
        experts: Experts::GptOss,
        ..LLAMA
    },
    Family {
        model_type: "phi3",
        scalings: &["default", "longrope", "su"],
        key_value_heads: true,
        partial_rope: true,
        fused: true,
        ..MISTRAL
    },
    Family {
        model_type: "smollm3",
        theta: 2e6,
        key_value_heads: false,
        tied: true,
        windows: Windows::WithoutRope,
        skips_rope: true,
        ..LLAMA
    },
    Family {
        model_type: "granite",
        multipliers: true,
        ..LLAMA
    },
    OLMO2,
    Family {
        model_type: "olmo3",
        theta: 5e5,
        windows: Windows::ButEach(4),
        rope_by_type: true,
        ..OLMO2
    },
];
