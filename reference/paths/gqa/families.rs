//! Differences between the families of models, one family in a row.

/// A family of models: what its `config.json` does not say, or says with a default of its own.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// θ of RoPE where the file has none.
    pub theta: f64,
    /// The keys of RoPE where the file has none, if it then is one with scaling.
    pub rope: Option<&'static str>,
    /// Names of the RoPE scalings that the family allows.
    pub scalings: &'static [&'static str],
    /// True if there are as many heads of keys and values as of queries where the file does not say how many there are.
    pub key_value_heads: bool,
    /// Default of `head_dim`, the channels of a head. `None`: the default is `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// True if a file without `tie_word_embeddings` uses the embedding as the output head.
    pub tied: bool,
    /// Projections of attention that have a bias.
    pub attention_bias: Biases,
    /// True if `mlp_bias` may give the feed-forward layers a bias.
    pub mlp_bias: bool,
    /// Norms of queries and keys.
    pub query_key_norm: QueryKeyNorm,
    /// True if norms follow attention and feed-forward layer, in place of standing before them.
    pub norm_after: bool,
    /// True if a norm's result is rounded to the model's type before it is multiplied by the weight, and not only after.
    pub norm_before_weight: bool,
    /// Layers that have a window.
    pub windows: Windows,
    /// True if only some layers have RoPE: `no_rope_layers`, `no_rope_layer_interval`.
    pub skips_rope: bool,
    /// True if RoPE may turn a part of the channels: `partial_rotary_factor`.
    pub partial_rope: bool,
    /// True if RoPE of layers with a window may differ from that of the others.
    pub rope_by_type: bool,
    /// True if query heads have sinks.
    pub sinks: bool,
    /// True if projections of one input are one tensor: `qkv_proj`, `gate_up_proj`.
    pub fused: bool,
    /// True if the file has `embedding_multiplier`, `attention_multiplier`, `residual_multiplier` and `logits_scaling`.
    pub multipliers: bool,
    /// Experts.
    pub experts: Experts,
}

/// Projections of attention that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// None.
    Never,
    /// Queries, keys and values.
    QueryKeyValue,
    /// All four if `attention_bias` says so; this if it is missing.
    Said(bool),
}

/// Norms of queries and keys before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// None.
    None,
    /// Over the channels of each head.
    Head,
    /// Over all heads together.
    Whole,
}

/// Layers that read only the last `sliding_window` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None.
    Never,
    /// All, if `sliding_window` is given.
    All,
    /// All, if `use_sliding_window` says so.
    AllIfUsed,
    /// Layers that `layer_types` names; without it, if `use_sliding_window` is true, layers from `max_window_layers` on.
    FromLayer,
    /// Layers that `layer_types` names; without it, if `use_sliding_window` is true, layers without RoPE.
    WithoutRope,
    /// Layers that `layer_types` names; without it all except each n-th, of which layer n − 1 is the first.
    ButEach(usize),
}

/// Experts of a family, and the names of their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// None.
    None,
    /// Qwen3-MoE: `mlp.experts.N.gate_proj`; `decoder_sparse_step` and `mlp_only_layers` say which layers have them.
    Qwen,
    /// Mixtral: `block_sparse_moe.experts.N.w1` in all layers.
    Mixtral,
    /// gpt-oss: stacks with biases whose rows of gate and up take turns, in all layers.
    GptOss,
}

/// Scalings that `transformers` computes for every family but Phi-3.
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

/// The names of [`FAMILIES`].
pub(super) fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.model_type).collect()
}
