//! Table of the differences between the families of models, one entry per family.

/// A family of models: properties that the `config.json` of a model does not state.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// `model_type` within `text_config`, the object that holds the keys of the language model; `None` if these keys are at the
    /// top level of the file. With `text_config`, tensor names begin with `model.language_model.`.
    pub nested: Option<&'static str>,
    /// Rule that selects the layers with experts.
    pub experts: Experts,
    /// Kind of the token mixers (attention, delta rule), and the layout of their tensors.
    pub form: Form,
    /// True if RoPE positions may be multi-dimensional (`mrope_section`, `mrope_interleaved`). A text token has the same position
    /// in all dimensions.
    pub mrope: bool,
}

/// Kind of the token mixers (attention, delta rule), with the names of their tensors and the weights in each tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Gated attention, and a delta rule with a decay per head. The projections of the delta rule are fused in two tensors whose
    /// rows are grouped by key head: `in_proj_qkvz`, `in_proj_ba`.
    Grouped,
    /// Same mixers as `Grouped`, but the tensors are `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a`, without groups.
    Apart,
    /// Attention over latents, without RoPE, and a delta rule with a decay per key channel; see [`kimi`](super::kimi).
    Kimi,
}

/// Rule that selects the layers with experts in the models of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// No layer has experts.
    None,
    /// All layers have experts, and the weights of a token's experts sum to 1.
    All,
    /// Keys of `config.json` select the layers with experts, and state if the weights of a token's experts sum to 1.
    Said,
}

const QWEN35: Family = Family {
    model_type: "qwen3_5_text",
    nested: None,
    experts: Experts::None,
    form: Form::Apart,
    mrope: true,
};

/// All model families that this path can load.
pub const FAMILIES: &[Family] = &[
    Family {
        model_type: "qwen3_next",
        nested: None,
        experts: Experts::Said,
        form: Form::Grouped,
        mrope: false,
    },
    QWEN35,
    Family {
        model_type: "qwen3_5",
        nested: Some("qwen3_5_text"),
        ..QWEN35
    },
    Family {
        model_type: "qwen3_5_moe_text",
        experts: Experts::All,
        ..QWEN35
    },
    Family {
        model_type: "qwen3_5_moe",
        nested: Some("qwen3_5_moe_text"),
        experts: Experts::All,
        ..QWEN35
    },
    Family {
        model_type: "kimi_linear",
        nested: None,
        experts: Experts::Said,
        form: Form::Kimi,
        mrope: false,
    },
];
