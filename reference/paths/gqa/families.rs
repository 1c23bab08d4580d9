//! Table of the differences between the families of models, one entry per family.

/// A family of models: properties that its `config.json` does not state, and the family's defaults of missing keys.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Default of θ of RoPE, for a file without θ.
    pub theta: f64,
    /// Default of the RoPE object as JSON, for a file without one; `None`: the default is a RoPE without scaling.
    pub rope: Option<&'static str>,
    /// Names of the RoPE scalings that the family allows.
    pub scalings: &'static [&'static str],
    /// True if `num_key_value_heads` may be missing; the default is the number of query heads.
    pub key_value_heads: bool,
    /// Default of `head_dim`, the channels of a head. `None`: the default is `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// True if a file without `tie_word_embeddings` uses the embedding as the output head.
    pub tied: bool,
    /// Rule for biases of the attention projections.
    pub attention_bias: Biases,
    /// True if `mlp_bias` may give the feed-forward layers a bias.
    pub mlp_bias: bool,
    /// Kind of the norms of queries and keys.
    pub query_key_norm: QueryKeyNorm,
    /// True if norms are applied to the outputs of attention and feed-forward layer, false if to their inputs.
    pub norm_after: bool,
    /// True if a norm's result is rounded to the model's type before it is multiplied by the weight, and not only after.
    pub norm_before_weight: bool,
    /// Rule for which layers have an attention window.
    pub windows: Windows,
    /// True if only some layers have RoPE: `no_rope_layers`, `no_rope_layer_interval`.
    pub skips_rope: bool,
    /// True if RoPE may rotate only a part of the channels: `partial_rotary_factor`.
    pub partial_rope: bool,
    /// True if the RoPE of layers with a window may differ from the RoPE of layers without a window.
    pub rope_by_type: bool,
    /// True if query heads have attention sinks.
    pub sinks: bool,
    /// True if projections of the same input are fused in one tensor: `qkv_proj`, `gate_up_proj`.
    pub fused: bool,
    /// True if the file has `embedding_multiplier`, `attention_multiplier`, `residual_multiplier` and `logits_scaling`.
    pub multipliers: bool,
    /// Layout of the experts, if the family has experts.
    pub experts: Experts,
}

/// Rule for biases of the attention projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// No projection has a bias.
    Never,
    /// The query, key and value projections have a bias; the output projection has none.
    QueryKeyValue,
    /// All four projections have a bias if `attention_bias` is true; the field is the default of that key.
    Said(bool),
}

/// Norms of queries and keys before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// No norms.
    None,
    /// Over the channels of each head.
    Head,
    /// Over the channels of all heads together.
    Whole,
}

/// Layers that read only the last `sliding_window` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// No layer reads only a window.
    Never,
    /// All layers, if `sliding_window` is given.
    All,
    /// All layers, if `use_sliding_window` is true.
    AllIfUsed,
    /// Layers of type `sliding_attention` in `layer_types`. Without this key: layers from `max_window_layers` on, if
    /// `use_sliding_window` is true.
    FromLayer,
    /// Layers of type `sliding_attention` in `layer_types`. Without this key: layers without RoPE, if `use_sliding_window` is
    /// true.
    WithoutRope,
    /// Layers of type `sliding_attention` in `layer_types`. Without this key: all layers except every n-th one (layers n − 1,
    /// 2n − 1, …).
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
    /// gpt-oss: one stacked tensor for all experts, with biases and with gate and up outputs that alternate, in all layers.
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

/// Every family that the path loads.
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
