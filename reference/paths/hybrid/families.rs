//! Differences between the families of models, one family in a row.

/// A family of models: what its `config.json` does not say.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// `model_type` of the object `text_config`, if the keys of the language model are there; its tensors are then named
    /// `model.language_model.`.
    pub nested: Option<&'static str>,
    /// Layers that have experts.
    pub experts: Experts,
    /// Parts of its layers.
    pub form: Form,
    /// True if RoPE may have positions of several dimensions, which are equal in texts: `mrope_section`, `mrope_interleaved`.
    pub mrope: bool,
}

/// Kind of the part that mixes tokens, and the names and cuts of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Gated attention, and a delta rule with a decay for each head, whose projections are two tensors with the rows of a key head
    /// together: `in_proj_qkvz`, `in_proj_ba`.
    Grouped,
    /// The same, of a tensor for each projection: `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a`.
    Apart,
    /// Attention over latents, without positions, and a delta rule with a decay for each key channel; see [`kimi`](super::kimi).
    Kimi,
}

/// Experts of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// None.
    None,
    /// All layers, with weights that sum to 1.
    All,
    /// Keys say which layers, and whether weights sum to 1.
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

/// The names of [`FAMILIES`].
pub(super) fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.model_type).collect()
}
