//! The sites of DeepSeek-V4: the named tensors and decisions that the model passes to the hooks of [`crate::Numerics`].

use crate::sites::Growth::{Entry, Window};
use crate::sites::Held::{Index, KeyValue};
use crate::sites::{Decision, Dim};

/// Number of channels that RoPE has rotated (the last channels of each row).
const ROPE: Dim = Dim::Size("qk_rope_head_dim");
/// Names in `config.json` of the layer types with a compressor, of the layer types with an indexer, and of the learned router.
const COMPRESSES: &[&str] = &["compressed_sparse_attention", "heavily_compressed_attention"];
const INDEXES: &[&str] = &["compressed_sparse_attention"];
const ROUTES: &[&str] = &["moe"];
const INDEXED: Decision = Decision::TopK {
    query: INDEX_QUERY,
    key: INDEX_KEY,
    mass: Some(MASS),
};

crate::sites! { pub SITES =
    INPUT: "input" [T, hc_mult, hidden_size] "residual streams that enter the layer" .layered().enters();
    ATTENTION_INPUT: "attention.input" [T, hidden_size] "attention's input, mixed from the streams and normed"
        .layered();
    QUERY: "attention.query" [T, num_attention_heads, head_dim] "queries after norm and RoPE" .layered().turned(ROPE);
    WINDOW: "attention.kv.window" [T, head_dim] "KV vectors of the window cache, after norm and RoPE"
        .layered().cached(Window, KeyValue).turned(ROPE).compared();
    COMPRESSED: "attention.kv.compressed" [n, head_dim] "new entries of the compressed KV cache, after norm and RoPE"
        .layered_if(COMPRESSES).cached(Entry, KeyValue).turned(ROPE).compared();
    INDEX_QUERY: "attention.indexer.query" [T, index_n_heads, index_head_dim] "indexer queries after RoPE"
        .layered_if(INDEXES).turned(ROPE);
    INDEX_KEY: "attention.indexer.key" [n, index_head_dim] "new indexer keys, after norm and RoPE"
        .layered_if(INDEXES).cached(Entry, Index).turned(ROPE);
    TOPK: "attention.indexer.topk" [T, index_topk] "entries the indexer selects" .layered_if(INDEXES).choice(INDEXED);
    MASS: "attention.indexer.mass" [T, index_topk] "attention probability of each selected entry, mean over heads"
        .layered_if(INDEXES).watched();
    HEADS: "attention.heads" [T, num_attention_heads, head_dim] "attention's result by head, RoPE undone" .layered();
    ATTENTION_OUTPUT: "attention.output" [T, hidden_size] "attention's output after its projections"
        .layered().compared();
    MOE_INPUT: "moe.input" [T, hidden_size] "the experts' input, mixed from the streams and normed" .layered();
    ROUTER: "moe.router" [T, num_experts_per_tok] "experts a learned router selects"
        .layered_if(ROUTES).choice(Decision::Router);
    GATE_UP: "moe.gate_up" [T, 2 * moe_intermediate_size] "the shared expert's two projections, before the activation"
        .layered().watched();
    MOE_OUTPUT: "moe.output" [T, hidden_size] "sum of the experts" .layered();
    OUTPUT: "output" [T, hc_mult, hidden_size] "residual streams that leave the layer" .layered().leaves().compared();
    LOGITS: "logits" [T, vocab_size] "logits" .output();
}
