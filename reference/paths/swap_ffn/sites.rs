//! The sites of Swap-FFN: the named tensors and decisions that the model passes to the hooks of [`crate::Numerics`]. The `layer`
//! of a site is the index of the event (an exchange with memory, then FFN steps). Sites of parameters, and of tensors computed
//! from parameters, are called when a model is loaded; the other sites are called for every token. The site `x` and the sites of
//! the FFN are called in every FFN step.

use crate::sites::{Decision, Growth, Held};

crate::sites! { pub SITES =
    EMBED: "weights.core_embed" [core_count, d_embed] "embeddings of the cores" .at_load();
    SCALE_WEIGHT: "weights.film_scale" [d_model, d_embed] "FiLM's scale of an embedding" .at_load();
    SCALE_BIAS: "weights.film_scale_bias" [d_model] "its bias" .at_load();
    SHIFT_WEIGHT: "weights.film_shift" [d_model, d_embed] "FiLM's shift of an embedding" .at_load();
    SHIFT_BIAS: "weights.film_shift_bias" [d_model] "its bias" .at_load();
    ALPHA_WEIGHT: "weights.film_alpha" [collapse_k, d_embed] "pooling logits of an embedding" .at_load();
    ALPHA_BIAS: "weights.film_alpha_bias" [collapse_k] "their bias" .at_load();
    ROUTER_NORM: "weights.router_norm" [d_model] "weight of the router's norm" .at_load();
    ROUTER_W: "weights.router_w" [d_router, d_model] "the router's projection" .at_load();
    SWAP_W: "weights.router_swap_w" [d_router] "weight of the gate's logit" .at_load();
    SWAP_B: "weights.router_swap_b" [1] "its bias" .at_load();
    BANK_W: "weights.bank_w" [d_router, 4] "weights of the banks' logits" .at_load();
    BANK_B: "weights.bank_b" [4] "their bias" .at_load();
    FFN_NORM: "weights.norm" [d_model] "weight of the FFN's norm" .at_load();
    W1: "weights.w1" [d_ff, d_model] "the FFN's gate projection" .at_load();
    W3: "weights.w3" [d_ff, d_model] "the FFN's up projection" .at_load();
    W2: "weights.w2" [d_model, d_ff] "the FFN's down projection" .at_load();
    BASIS: "weights.collapse_basis" [collapse_k, collapse_r, d_model] "what pooled cores are multiplied by" .at_load();
    DECODER: "weights.collapse_decoder" [d_model, collapse_r] "the decoder" .at_load();
    SCALE: "film.scale" [core_count, d_model] "S, one added" .at_load();
    SHIFT: "film.shift" [core_count, d_model] "T" .at_load();
    ALPHA: "film.alpha" [core_count, collapse_k] "A, a softmax over the cores" .at_load();
    INPUT: "input" [B, d_model] "the token";
    SPREAD: "film.x" [B * core_count, d_model] "x before the first event";
    ROUTER_INPUT: "router.input" [B * core_count, d_model] "the router's copy of x" .layered();
    ROUTER_NORMED: "router.n" [B * core_count, d_model] "that normed, where the router is unfolded"
        .layered_if(&["unfolded"]);
    ROUTER_Z: "router.z" [B * core_count, d_router] "its projection, where the router is unfolded"
        .layered_if(&["unfolded"]);
    LOGITS: "router.logits" [B * core_count, 5] "logits of the gate and of the four banks" .layered();
    PROBABILITIES: "router.probabilities" [B * core_count, 5] "sigmoid and softmax of them, where these decide"
        .layered_if(&["probabilities"]);
    GATE: "router.gate" [B * core_count, 1] "whether x is exchanged (1) or stays (0)" .layered().choice(Decision::Gate);
    BANK: "router.bank" [B * core_count, 1] "the lane of the bank it is exchanged with"
        .layered().choice(Decision::Bank);
    RAM: "ram" [{rows that are exchanged}, d_model] "what is stored in banks"
        .layered().cached(Growth::State, Held::State);
    FFN_INPUT: "ffn.n" [B * core_count, d_model] "x normed" .layered();
    FFN_GATE: "ffn.gate" [B * core_count, d_ff] "W1 n" .layered();
    FFN_UP: "ffn.up" [B * core_count, d_ff] "W3 n" .layered();
    FFN_SILU: "ffn.silu" [B * core_count, d_ff] "silu of the gate" .layered();
    FFN_HIDDEN: "ffn.h" [B * core_count, d_ff] "silu times up" .layered();
    FFN_DOWN: "ffn.down" [B * core_count, d_model] "W2 h" .layered();
    X: "x" [B * core_count, d_model] "x after an FFN step" .layered().leaves().compared();
    POOLED: "collapse.pooled" [B, collapse_k * d_model] "sums of the cores, weighted by A";
    COLLAPSED: "collapse.z" [B, collapse_r] "what the decoder reads";
    DELTA: "delta" [B, d_model] "what is to be added to the token" .output();
}
