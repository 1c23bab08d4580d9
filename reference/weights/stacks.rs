//! Finds matrices that files store in another way than a model requests: under another name, within a stack of matrices, or as
//! single matrices although the model requests a stack.

/// Substitutions in names within a layer, from the names of published files to the names that models use; applied one after the
/// other. The last three are for dense layers of Kimi-Linear, which `transformers` stores under the names of layers with experts;
/// the others are for DeepSeek-V4.
const RENAMES: &[(&str, &str)] = &[
    (".attn.", ".self_attn."),
    (".ffn.", ".mlp."),
    (".indexer.compressor.", ".compressor.indexer."),
    (
        ".self_attn.indexer.weights_proj.",
        ".self_attn.compressor.indexer.scorer.weights_proj.",
    ),
    (".self_attn.indexer.wq_b.", ".self_attn.compressor.indexer.q_b_proj."),
    (".attn_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".hc_attn_", ".attn_hc."),
    (".hc_ffn_", ".ffn_hc."),
    (".attn_sink", ".sinks"),
    (".norm.", ".kv_norm."),
    (".ape", ".position_bias"),
    (".wq_a.", ".q_a_proj."),
    (".wq_b.", ".q_b_proj."),
    (".wkv.", ".kv_proj."),
    (".wgate.", ".gate_proj."),
    (".wo_a.", ".o_a_proj."),
    (".wo_b.", ".o_b_proj."),
    (".q_norm.", ".q_a_norm."),
    (".gate.bias", ".gate.e_score_correction_bias"),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
    (".block_sparse_moe.gate_proj.", ".mlp.gate_proj."),
    (".block_sparse_moe.up_proj.", ".mlp.up_proj."),
    (".block_sparse_moe.down_proj.", ".mlp.down_proj."),
];

/// Names of tensors outside of layers: the name in published files, without a leading `model.`, and the name in models.
const OUTSIDE: &[(&str, &str)] = &[
    ("embed.weight", "model.embed_tokens.weight"),
    ("embed_tokens.weight", "model.embed_tokens.weight"),
    ("norm.weight", "model.norm.weight"),
    ("head.weight", "lm_head.weight"),
    ("hc_head_fn", "model.hc_head.hc_fn"),
    ("hc_head_base", "model.hc_head.hc_base"),
    ("hc_head_scale", "model.hc_head.hc_scale"),
];

/// Converts a published name to the name that models use; `None` if the name does not change. If a file has tensors under both
/// names, the caller prefers the tensor under the name that models use.
pub(super) fn renamed(name: &str) -> Option<String> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    let new = match inner.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => {
            let renamed = |name: String, (old, new): &(&str, &str)| name.replace(old, new);
            let rest = RENAMES.iter().fold(format!(".{rest}"), renamed);
            format!("model.layers.{layer}{rest}")
        }
        None => OUTSIDE.iter().find(|(old, _)| *old == inner)?.1.into(),
    };
    (new != name).then_some(new)
}

/// Splits the name of a stack, `STEM.gate_up_proj` or `STEM.down_proj`, into STEM and the names of the matrices that are
/// concatenated for each expert. `None` if STEM does not end with `.experts`.
fn of_stack(name: &str) -> Option<(&str, &'static [&'static str])> {
    let (stem, parts): (_, &[&str]) = match name.rsplit_once('.')? {
        (stem, "gate_up_proj") => (stem, &["gate_proj", "up_proj"]),
        (stem, "down_proj") => (stem, &["down_proj"]),
        _ => return None,
    };
    stem.ends_with(".experts").then_some((stem, parts))
}

/// Lists, in order, the names and shapes of the matrices that form the stack of experts with this name and shape. Empty if `name`
/// or `shape` cannot belong to a stack of experts.
pub(super) fn matrices(name: &str, shape: &[usize]) -> impl Iterator<Item = (String, [usize; 2])> {
    let stack = match (of_stack(name), shape) {
        (Some((stem, parts)), &[count, outputs, inputs])
            if outputs.is_multiple_of(parts.len()) && outputs > 0 && inputs > 0 =>
        {
            Some((stem.to_string(), parts, count, [outputs / parts.len(), inputs]))
        }
        _ => None,
    };
    stack.into_iter().flat_map(|(stem, parts, count, shape)| {
        (0..count).flat_map(move |expert| {
            let stem = stem.clone();
            parts
                .iter()
                .map(move |part| (format!("{stem}.{expert}.{part}.weight"), shape))
        })
    })
}
