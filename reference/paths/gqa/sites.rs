//! The sites of models with grouped-query attention: the named tensors and decisions that the hooks of [`crate::Numerics`] can
//! change.

use crate::sites::Decision;
use crate::sites::Growth::Token;
use crate::sites::Held::{Key, Value};

/// Names of layer types: layers with one dense feed-forward layer; layers with experts; and layers whose norms round x / rms(x)
/// to the model's data type before the multiplication by the norm's weight.
const DENSE: &[&str] = &["dense"];
const EXPERTS: &[&str] = &["experts"];
const ROUNDS_FIRST: &[&str] = &["norm_before_weight"];

/// Sites of the weights of a dense feed-forward layer: gate, up and down.
pub(in crate::paths) const MLP_WEIGHTS: [&str; 3] = [GATE_WEIGHT, UP_WEIGHT, DOWN_WEIGHT];

/// Sites of the gate, up and down weights of the experts; all experts of a layer share these three sites.
pub(in crate::paths) const EXPERT_WEIGHTS: [&str; 3] = [EXPERT_GATE_WEIGHT, EXPERT_UP_WEIGHT, EXPERT_DOWN_WEIGHT];

crate::sites! { pub SITES =
    EMBEDDING_WEIGHT: "embedding.weight" [vocab_size, hidden_size] "the embedding, which is the head too where these are tied" .at_load();
    QUERY_WEIGHT: "attention.query.weight" [{query channels}, hidden_size] "the query projection" .layered().at_load();
    KEY_WEIGHT: "attention.key.weight" [{key channels}, hidden_size] "the key projection" .layered().at_load();
    VALUE_WEIGHT: "attention.value.weight" [{value channels}, hidden_size] "the value projection" .layered().at_load();
    HEADS_WEIGHT: "attention.heads.weight" [hidden_size, num_attention_heads * head_dim] "the output projection of attention"
        .layered().at_load();
    GATE_WEIGHT: "mlp.gate.weight" [intermediate_size, hidden_size] "the gate projection" .layered_if(DENSE).at_load();
    UP_WEIGHT: "mlp.up.weight" [intermediate_size, hidden_size] "the up projection" .layered_if(DENSE).at_load();
    DOWN_WEIGHT: "mlp.down.weight" [hidden_size, intermediate_size] "the down projection" .layered_if(DENSE).at_load();
    ROUTER_WEIGHT: "experts.router.weight" [num_experts, hidden_size] "the router's projection" .layered_if(EXPERTS).at_load();
    EXPERT_GATE_WEIGHT: "experts.gate.weight" [moe_intermediate_size, hidden_size] "the gate projection of each expert in turn"
        .layered_if(EXPERTS).at_load();
    EXPERT_UP_WEIGHT: "experts.up.weight" [moe_intermediate_size, hidden_size] "the up projection of each expert in turn"
        .layered_if(EXPERTS).at_load();
    EXPERT_DOWN_WEIGHT: "experts.down.weight" [hidden_size, moe_intermediate_size] "the down projection of each expert in turn"
        .layered_if(EXPERTS).at_load();
    HEAD_WEIGHT: "head.weight" [vocab_size, hidden_size] "the head, where it is not tied to the embedding" .at_load();
    INPUT: "input" [T, hidden_size] "residual stream that enters the layer" .layered().enters();
    ATTENTION_NORMED: "attention.normed" [T, hidden_size] "norm of attention's input or output before its weight, which the model's type rounds"
        .layered_if(ROUNDS_FIRST);
    ATTENTION_INPUT: "attention.input" [T, hidden_size] "what the query, key and value projections are fed" .layered();
    QUERY_BEFORE_ROPE: "attention.query.before_rope" [T, num_attention_heads, head_dim] "queries after norm, before RoPE" .layered();
    KEY_BEFORE_ROPE: "attention.key.before_rope" [T, num_key_value_heads, head_dim] "keys after norm, before RoPE" .layered();
    QUERY: "attention.query" [T, num_attention_heads, head_dim] "queries after norm and RoPE" .layered();
    KEY: "attention.kv.key" [T, num_key_value_heads, head_dim] "keys of the cache, after norm and RoPE"
        .layered().cached(Token, Key).compared();
    VALUE: "attention.kv.value" [T, num_key_value_heads, head_dim] "values of the cache" .layered().cached(Token, Value).compared();
    HEADS: "attention.heads" [T, num_attention_heads * head_dim] "attention's result by head, which its output projection is fed"
        .layered();
    ATTENTION_OUTPUT: "attention.output" [T, hidden_size] "attention's output after its projection" .layered().compared();
    MLP_NORMED: "mlp.normed" [T, hidden_size] "norm of the feed-forward layer's input or output before its weight, which the model's type rounds"
        .layered_if(ROUNDS_FIRST);
    MLP_INPUT: "mlp.input" [T, hidden_size] "what router, gate and up projections are fed" .layered();
    ROUTER: "experts.router" [T, num_experts_per_tok] "experts that the router selects" .layered_if(EXPERTS).choice(Decision::Router);
    MLP_HIDDEN: "mlp.hidden" [T, intermediate_size] "what the down projection is fed" .layered_if(DENSE);
    EXPERTS_HIDDEN: "experts.hidden" [T, num_experts_per_tok, moe_intermediate_size] "what the down projections of the selected experts are fed"
        .layered_if(EXPERTS);
    MLP_OUTPUT: "mlp.output" [T, hidden_size] "output of the feed-forward layer, or sum of the experts" .layered();
    OUTPUT: "output" [T, hidden_size] "residual stream that leaves the layer" .layered().leaves().compared();
    HEAD_INPUT: "head.input" [T, hidden_size] "the last norm's result, which the head is fed";
    LOGITS: "logits" [T, vocab_size] "logits" .output();
}
