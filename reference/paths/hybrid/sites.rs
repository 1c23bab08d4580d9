//! The sites of hybrid models: the named tensors and decisions that the hooks of [`crate::Numerics`] can change. Sites of full
//! attention and of feed-forward layers have the same names as in [`gqa`](crate::paths::gqa::sites).

use crate::sites::Decision;
use crate::sites::Growth::{self, Token};
use crate::sites::Held::{self, Key, KeyValue, Value};

/// Names of layer types. Mixers: full attention, attention over latents, a delta rule with a decay per head or per key channel.
/// Feed-forward parts: one dense layer, or experts; `WEIGHED` if a gate multiplies the output of the shared expert.
const FULL: &[&str] = &["full_attention"];
const LATENTS: &[&str] = &["latent_attention"];
const EITHER: &[&str] = &["full_attention", "latent_attention"];
const LINEAR: &[&str] = &["linear_attention"];
const HEAD_DECAY: &[&str] = &["head_decay"];
const CHANNEL_DECAY: &[&str] = &["channel_decay"];
const DENSE: &[&str] = &["dense"];
const EXPERTS: &[&str] = &["experts"];
const WEIGHED: &[&str] = &["weighed_shared_expert"];

crate::sites! { pub SITES =
    EMBEDDING_WEIGHT: "embedding.weight" [vocab_size, hidden_size] "the embedding, which is the head too where these are tied" .at_load();
    QUERY_WEIGHT: "attention.query.weight" [{query channels}, hidden_size] "the query projection" .layered_if(EITHER).at_load();
    OUTPUT_GATE_WEIGHT: "attention.gate.weight" [{query channels}, hidden_size] "the projection to attention's gate"
        .layered_if(FULL).at_load();
    KEY_WEIGHT: "attention.key.weight" [{key channels}, hidden_size] "the key projection" .layered_if(FULL).at_load();
    VALUE_WEIGHT: "attention.value.weight" [{value channels}, hidden_size] "the value projection" .layered_if(FULL).at_load();
    LATENT_DOWN_WEIGHT: "attention.latent.down.weight" [{channels of a latent and of a shared key}, hidden_size] "the projection to latents and to the keys that all heads share"
        .layered_if(LATENTS).at_load();
    LATENT_UP_WEIGHT: "attention.latent.up.weight" [{key and value channels of all heads}, kv_lora_rank] "the projection of latents to keys and values"
        .layered_if(LATENTS).at_load();
    HEADS_WEIGHT: "attention.heads.weight" [hidden_size, num_attention_heads * v_head_dim] "the output projection of attention"
        .layered_if(EITHER).at_load();
    LINEAR_QKV_WEIGHT: "linear.qkv.weight" [linear_conv_channels, hidden_size] "the projection to queries, keys and values of the delta rule"
        .layered_if(LINEAR).at_load();
    LINEAR_GATE_WEIGHT: "linear.gate.weight" [{value channels}, hidden_size] "the projection to the delta rule's output gate"
        .layered_if(HEAD_DECAY).at_load();
    LINEAR_GATE_DOWN_WEIGHT: "linear.gate.down.weight" [linear_low_rank, hidden_size] "the first of two projections to the output gate"
        .layered_if(CHANNEL_DECAY).at_load();
    LINEAR_GATE_UP_WEIGHT: "linear.gate.up.weight" [{value channels}, linear_low_rank] "the second of two projections to the output gate"
        .layered_if(CHANNEL_DECAY).at_load();
    LINEAR_BETA_WEIGHT: "linear.beta.weight" [linear_num_value_heads, hidden_size] "the projection to the logits of β"
        .layered_if(LINEAR).at_load();
    LINEAR_DECAY_WEIGHT: "linear.decay.weight" [linear_num_value_heads, hidden_size] "the projection to the raw gates of decays"
        .layered_if(HEAD_DECAY).at_load();
    LINEAR_DECAY_DOWN_WEIGHT: "linear.decay.down.weight" [linear_low_rank, hidden_size] "the first of two projections to the raw gates of decays"
        .layered_if(CHANNEL_DECAY).at_load();
    LINEAR_DECAY_UP_WEIGHT: "linear.decay.up.weight" [{key channels}, linear_low_rank] "the second of two projections to the raw gates of decays"
        .layered_if(CHANNEL_DECAY).at_load();
    LINEAR_CONV_WEIGHT: "linear.conv.weight" [linear_conv_channels, linear_conv_kernel_dim] "the convolution" .layered_if(LINEAR).at_load();
    LINEAR_HEADS_WEIGHT: "linear.heads.weight" [hidden_size, linear_num_value_heads * linear_value_head_dim] "the output projection of the delta rule"
        .layered_if(LINEAR).at_load();
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
    SHARED_GATE_WEIGHT: "shared.gate.weight" [shared_expert_intermediate_size, hidden_size] "the gate projection of the shared expert"
        .layered_if(EXPERTS).at_load();
    SHARED_UP_WEIGHT: "shared.up.weight" [shared_expert_intermediate_size, hidden_size] "the up projection of the shared expert"
        .layered_if(EXPERTS).at_load();
    SHARED_DOWN_WEIGHT: "shared.down.weight" [hidden_size, shared_expert_intermediate_size] "the down projection of the shared expert"
        .layered_if(EXPERTS).at_load();
    SHARED_SCALE_WEIGHT: "shared.scale.weight" [1, hidden_size] "the projection to the factor of the shared expert"
        .layered_if(WEIGHED).at_load();
    HEAD_WEIGHT: "head.weight" [vocab_size, hidden_size] "the head, where it is not tied to the embedding" .at_load();
    INPUT: "input" [T, hidden_size] "residual stream that enters the layer" .layered().enters();
    ATTENTION_INPUT: "attention.input" [T, hidden_size] "what the projections of attention or of the delta rule are fed" .layered();
    QUERY_BEFORE_ROPE: "attention.query.before_rope" [T, num_attention_heads, head_dim] "queries after norm, before RoPE"
        .layered_if(FULL);
    KEY_BEFORE_ROPE: "attention.key.before_rope" [T, num_key_value_heads, head_dim] "keys after norm, before RoPE" .layered_if(FULL);
    QUERY: "attention.query" [T, num_attention_heads, head_dim] "queries after norm and RoPE, where there are such" .layered_if(EITHER);
    LATENT: "attention.kv.latent" [T, kv_lora_rank] "latents of the cache, after norm: keys and values of all heads are projections of them"
        .layered_if(LATENTS).cached(Token, KeyValue).compared();
    SHARED_KEY: "attention.kv.shared_key" [T, qk_rope_head_dim] "the part of the cache's keys that all heads share, which no RoPE turns"
        .layered_if(LATENTS).cached(Token, Key).compared();
    LATENT_KEY: "attention.latent.key" [T, num_attention_heads, qk_nope_head_dim] "keys that latents are projected to, without the shared part"
        .layered_if(LATENTS);
    LATENT_VALUE: "attention.latent.value" [T, num_attention_heads, v_head_dim] "values that latents are projected to" .layered_if(LATENTS);
    KEY: "attention.kv.key" [T, num_key_value_heads, head_dim] "keys of the cache, after norm and RoPE"
        .layered_if(FULL).cached(Token, Key).compared();
    VALUE: "attention.kv.value" [T, num_key_value_heads, head_dim] "values of the cache"
        .layered_if(FULL).cached(Token, Value).compared();
    OUTPUT_GATE: "attention.gate" [T, num_attention_heads * head_dim] "logits of the gate of attention's result" .layered_if(FULL);
    HEADS: "attention.heads" [T, num_attention_heads * v_head_dim] "attention's result by head, times its gate if it has one, which the output projection is fed"
        .layered_if(EITHER);
    LINEAR_QKV: "linear.qkv" [T, linear_conv_channels] "what the convolution is fed" .layered_if(LINEAR);
    LINEAR_CONV_STATE: "linear.conv.state" [{tokens before}, linear_conv_channels] "the convolution's state after a call: what it was fed of the last tokens, oldest first"
        .layered_if(LINEAR).cached(Growth::State, Held::State);
    LINEAR_QUERY: "linear.query" [T, linear_num_key_heads, linear_key_head_dim] "queries of the delta rule, normalised" .layered_if(LINEAR);
    LINEAR_KEY: "linear.key" [T, linear_num_key_heads, linear_key_head_dim] "keys of the delta rule, normalised" .layered_if(LINEAR);
    LINEAR_VALUE: "linear.value" [T, linear_num_value_heads, linear_value_head_dim] "values of the delta rule" .layered_if(LINEAR);
    LINEAR_BETA: "linear.beta" [T, linear_num_value_heads] "β of the delta rule" .layered_if(LINEAR);
    LINEAR_DECAY: "linear.decay" [T, linear_num_value_heads] "log decays of the delta rule; what is above 0 becomes 0" .layered_if(HEAD_DECAY);
    LINEAR_DECAY_LOW: "linear.decay.low" [T, linear_low_rank] "what the second projection to decays is fed" .layered_if(CHANNEL_DECAY);
    LINEAR_CHANNEL_DECAY: "linear.decay.channel" [T, linear_num_value_heads, linear_key_head_dim] "log decays of the delta rule by key channel; what is above 0 becomes 0"
        .layered_if(CHANNEL_DECAY);
    LINEAR_STATE: "linear.state" [linear_num_value_heads, linear_key_head_dim, linear_value_head_dim] "the delta rule's state after a call"
        .layered_if(LINEAR).cached(Growth::State, Held::State);
    LINEAR_OUTPUT: "linear.output" [T, linear_num_value_heads, linear_value_head_dim] "the delta rule's output" .layered_if(LINEAR);
    LINEAR_NORMED: "linear.normed" [T, linear_num_value_heads, linear_value_head_dim] "norm of the output before its weight, which the model's type rounds"
        .layered_if(LINEAR);
    LINEAR_GATE_LOW: "linear.gate.low" [T, linear_low_rank] "what the second projection to the output's gate is fed" .layered_if(CHANNEL_DECAY);
    LINEAR_GATE: "linear.gate" [T, linear_num_value_heads * linear_value_head_dim] "what silu, or a sigmoid in layers with a decay by channel, makes the output's gate of"
        .layered_if(LINEAR);
    LINEAR_HEADS: "linear.heads" [T, linear_num_value_heads * linear_value_head_dim] "the normed output times its gate, which the output projection is fed"
        .layered_if(LINEAR);
    ATTENTION_OUTPUT: "attention.output" [T, hidden_size] "output of attention or of the delta rule after its projection" .layered().compared();
    MLP_INPUT: "mlp.input" [T, hidden_size] "what router, gate and up projections are fed" .layered();
    ROUTER: "experts.router" [T, num_experts_per_tok] "experts that the router selects" .layered_if(EXPERTS).choice(Decision::Router);
    MLP_HIDDEN: "mlp.hidden" [T, intermediate_size] "what the down projection is fed" .layered_if(DENSE);
    EXPERTS_HIDDEN: "experts.hidden" [T, num_experts_per_tok, moe_intermediate_size] "what the down projections of the selected experts are fed"
        .layered_if(EXPERTS);
    SHARED_HIDDEN: "shared.hidden" [T, shared_expert_intermediate_size] "what the down projection of the shared expert is fed"
        .layered_if(EXPERTS);
    SHARED_SCALE: "shared.scale" [T, 1] "logits of the shared expert's factor" .layered_if(WEIGHED);
    MLP_OUTPUT: "mlp.output" [T, hidden_size] "output of the feed-forward layer, or sum of the experts" .layered();
    OUTPUT: "output" [T, hidden_size] "residual stream that leaves the layer" .layered().leaves().compared();
    HEAD_INPUT: "head.input" [T, hidden_size] "the last norm's result, which the head is fed";
    LOGITS: "logits" [T, vocab_size] "logits" .output();
}
