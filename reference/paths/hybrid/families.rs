//! Table of the differences between the families of models, one entry per family.

/// A family of models: properties that its `config.json` does not state.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// `model_type` of the object `text_config`, if that object has the keys of the language model; the tensor names then begin
    /// with `model.language_model.`. `None` if the keys are at the top level.
    pub nested: Option<&'static str>,
    /// Rule for which layers have experts.
    pub experts: Experts,
    /// Kind of the mixers, and the layout of their tensors.
    pub form: Form,
    /// True if RoPE may have multi-dimensional positions (`mrope_section`, `mrope_interleaved`), which in text are all equal.
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

/// Rule for which layers of a family have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// No layer has experts.
    None,
    /// All layers have experts, and the weights of a token's experts sum to 1.
    All,
    /// Keys of the file select the layers with experts, and say if the weights of a token's experts sum to 1.
    Said,
}

const QWEN35: Family = Family {
    model_type: "qwen3_5_text",
    nested: None,
    experts: Experts::None,
    form: Form::Apart,
    mrope: true,
};

/// Every family that the path loads.
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
