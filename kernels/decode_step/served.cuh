/*
[[variant]]
name = "served"
doc = "attention's products of E4M3 codes, all others and queries bfloat16, experts MXFP4, keys and index keys records: the operations' fast kernels; 16 heads of attention for a thread block, for few rows"
like = "indexed"
without = [
    "q_down", "kv_down", "q_low_norm", "query_rope", "kv_row_norm", "kv_rope", "push", "csa_values", "csa_logits", "index_values",
    "index_logits", "index_weights", "hca_values", "hca_logits", "heads_rope",
]
arch = "sm_90a"
needs = ["records == 1", "indexed == 1", "DI == 128", "D == 512", "R <= 512", "sixteen == 1", "HD / G % 16 == 0", "Rq <= 4096"]
sequence = """
begin places table
layers(
    attn_mix tap_attention_input input_code tap_input_codes tap_input_scales
    down low_code tap_low_query tap_low_codes tap_low_scales
    q_up head_norm tap_query tap_kv_window window_write
    [@layers >= lead && (@layers - lead) % 2 == 0](
        csa_products csa_compress tap_csa_entry entry_row csa_write
        index_up index_rope tap_index_query index_compress tap_index_key index_row index_write
        index_query index_score select tap_topk
        attend_sparse
    )
    [@layers < lead || (@layers - lead) % 2 == 1](
        hca_products hca_compress tap_hca_entry entry_row hca_write
        attend_heavy
    )
    heads_code tap_heads tap_heads_codes tap_heads_scales
    o_down tap_low_heads low_heads_code tap_low_heads_codes tap_low_heads_scales o_up tap_attention_output attn_post
    moe_mix tap_moe_input moe_input
    router_logits
    [@layers < hashes](route_table) [@layers >= hashes](route_bias tap_router)
    tap_experts tap_expert_weights mixture tap_hidden tap_moe_output moe_post tap_output
)
head_mix tap_head_input head_input head_product keep_logits next end
"""
more_scratch = [
    { name = "input_codes", bytes = "B * C" }, { name = "input_scales", bytes = "B * ceil(C, 128) * 4" },
    { name = "half_input", bytes = "B * C * 2" }, { name = "low_codes", bytes = "B * Rq" },
    { name = "low_scales", bytes = "B * ceil(Rq, 128) * 4" }, { name = "half_query", bytes = "B * HD * 2" },
    { name = "attended", bytes = "B * HD * 2" }, { name = "heads_codes", bytes = "B * HD" },
    { name = "heads_scales", bytes = "B * G * ceil(HD / G, 128) * 4" }, { name = "low_heads_codes", bytes = "B * G * Ro" },
    { name = "low_heads_scales", bytes = "B * ceil(G * Ro, 128) * 4" }, { name = "index_values", bytes = "B * 2 * DI * 4" },
    { name = "index_logits", bytes = "B * 2 * DI * 4" }, { name = "hidden", bytes = "B * (K + 1) * I * 2" },
]

# streams mixed
[[variant.launch]]
name = "attn_mix"
call = "mhc_pre.parts"
[[variant.launch]]
name = "moe_mix"
call = "mhc_pre.parts"

# attention's input: codes, and bfloat16
[[variant.launch]]
name = "input_code"
entry = "decode_step_input_{activations}"
grid = ["ceil(C, 128)", "B"]
block = [32]
args = ["normed", "input_codes", "input_scales", "half_input", "C"]
[[variant.launch]]
name = "tap_input_codes"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["input_codes", "at_attention_input_codes", "clock", "@layers", "layers", "B", "S", "C / 4", "C / 4", "0"]
[[variant.launch]]
name = "tap_input_scales"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = [
    "input_scales", "at_attention_input_scales", "clock", "@layers", "layers", "B", "S", "ceil(C, 128)", "ceil(C, 128)", "0",
]
[[variant.launch]]
name = "down"
entry = "decode_step_products_codes"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (B <= 2 && ceil(Rq, 64) + ceil(D, 64) <= 132 && C <= 8192) * ((ceil(Rq, 64) + ceil(D, 64) <= 66) + 2 * (ceil(Rq, 64) + ceil(D, 64) <= 33)))", "ceil(Rq, 64) + ceil(D, 64)"]
cluster = ["1 + (B <= 2 && ceil(Rq, 64) + ceil(D, 64) <= 132 && C <= 8192) * ((ceil(Rq, 64) + ceil(D, 64) <= 66) + 2 * (ceil(Rq, 64) + ceil(D, 64) <= 33))"]
block = ["128 + 384 * (B <= 2 && ceil(Rq, 64) + ceil(D, 64) <= 132 && C <= 8192)"]
shared = "(1 - (B <= 2 && ceil(Rq, 64) + ceil(D, 64) <= 132 && C <= 8192)) * ((8 - 2 * (B > 32) - 2 * (B <= 8 && ceil(Rq, 64) + ceil(D, 64) > 396)) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + 4 * ceil(C, 128) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))) + (B <= 2 && ceil(Rq, 64) + ceil(D, 64) <= 132 && C <= 8192) * (131088 + (1024 + 260 * B) * ceil(C, 128))"
programmatic = true
args = [
    "input_codes", "input_scales", "q_a[@layers]", "q_a_scales[@layers]", "low", "Rq", "kv[@layers]", "kv_scales[@layers]", "raw_kv",
    "D", "B", "C",
]

# the low-rank query: norm and codes
[[variant.launch]]
name = "low_code"
entry = "decode_step_low_{activations}"
grid = ["B"]
block = ["32 * ceil(Rq, 128)"]
args = ["low", "q_norm[@layers]", "low_normed", "low_codes", "low_scales", "Rq", "eps"]
taps = ["low_normed"]
[[variant.launch]]
name = "tap_low_query"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_normed", "at_low_query", "clock", "@layers", "layers", "B", "S", "Rq", "Rq", "0"]
[[variant.launch]]
name = "tap_low_codes"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_codes", "at_low_query_codes", "clock", "@layers", "layers", "B", "S", "Rq / 4", "Rq / 4", "0"]
[[variant.launch]]
name = "tap_low_scales"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_scales", "at_low_query_scales", "clock", "@layers", "layers", "B", "S", "ceil(Rq, 128)", "ceil(Rq, 128)", "0"]
[[variant.launch]]
name = "q_up"
call = "fp8_gemm.split"
programmatic = true
with = [
    { x = "low_codes", x_scale = "low_scales", w = "q_b[@layers]", w_scale = "q_b_scales[@layers]", y = "raw_query" },
    { N = "HD", K = "Rq" },
]

# norm and RoPE of all heads and of the window's vector
[[variant.launch]]
name = "head_norm"
entry = "decode_step_heads"
grid = ["H + 1", "B"]
block = [128]
args = ["raw_query", "raw_kv", "kv_norm[@layers]", "cos_t", "sin_t", "query", "half_query", "kv_row", "row", "H", "R", "eps"]
taps = ["query", "kv_row"]

# sparse layers: compressor, indexer, attention
[[variant.launch]]
name = "csa_products"
entry = "decode_step_products_5"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 66) + 2 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 44) + 4 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 16))", "2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64)"]
cluster = ["1 + (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 66) + 2 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 44) + 4 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 16)"]
block = [128]
shared = "(6 - (B > 8) - (B > 16) - (B > 32) + ((2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64)) * (1 + (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 66) + 2 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 44) + 4 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 16)) <= 132 + 132 * (B <= 8)) * (5 + (B > 8) + 2 * (B > 16) - (B > 32))) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + (B <= 16) * (16 + 2048 * (1 + (B > 8)) * (1 + (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 66) + 2 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 44) + 4 * (2 * ceil(2 * D, 64) + 2 * ceil(2 * DI, 64) + ceil(HI, 64) <= 16) - 1))"
programmatic = true
args = [
    "half_input", "csa_kv[(@layers - lead) / 2]", "values", "2 * D", "csa_gate[(@layers - lead) / 2]", "logits_of_slots", "2 * D",
    "index_kv[(@layers - lead) / 2]", "index_values", "2 * DI", "index_gate[(@layers - lead) / 2]", "index_logits", "2 * DI",
    "index_heads[(@layers - lead) / 2]", "head_weights", "HI", "B", "C",
]
[[variant.launch]]
name = "csa_compress"
call = "compressor.warps"
[[variant.launch]]
name = "index_compress"
call = "compressor.warps"
with = [
    { kv = "index_values", gate = "index_logits", ape = "index_ape[(@layers - lead) / 2]" },
    { weight = "index_norm[(@layers - lead) / 2]", ring_kv = "index_ring_kv[(@layers - lead) / 2]" },
    { ring_gate = "index_ring_gate[(@layers - lead) / 2]", entries = "unread", m = "ms", D = "DI", N = "Ns", overlap = "1" },
]
[[variant.launch]]
name = "hca_compress"
call = "compressor.cluster"
[[variant.launch]]
name = "index_score"
call = "index_records.tensor"
[[variant.launch]]
name = "select"
call = "top_k.cluster"
[[variant.launch]]
name = "index_up"
call = "fp8_gemm.split"
programmatic = true
with = [
    { x = "low_codes", x_scale = "low_scales", w = "index_q[(@layers - lead) / 2]", w_scale = "index_q_scales[(@layers - lead) / 2]" },
    { y = "index_query", N = "HI * DI", K = "Rq" },
]
[[variant.launch]]
name = "attend_sparse"
call = "record_attention.heads_16"
with = [
    { q = "half_query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "csa_pages[(@layers - lead) / 2]", slots = "chosen", count = "chosen_count", sinks = "sinks[@layers]" },
    { out = "attended", K = "topk", window_own = "window_pages_of_row", own = "csa_pages_of_row", window_listed = "0" },
    { listed = "1", scale = "attention_scale", size = 2, dtype = "bf16" },
]

# heavy layers: compressor, attention
[[variant.launch]]
name = "hca_products"
entry = "decode_step_products_2"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44) + 4 * (2 * ceil(D, 64) <= 16))", "2 * ceil(D, 64)"]
cluster = ["1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44) + 4 * (2 * ceil(D, 64) <= 16)"]
block = [128]
shared = "(6 - (B > 8) - (B > 16) - (B > 32) + ((2 * ceil(D, 64)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44) + 4 * (2 * ceil(D, 64) <= 16)) <= 132 + 132 * (B <= 8)) * (5 + (B > 8) + 2 * (B > 16) - (B > 32))) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + (B <= 16) * (16 + 2048 * (1 + (B > 8)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44) + 4 * (2 * ceil(D, 64) <= 16) - 1))"
programmatic = true
args = [
    "half_input", "hca_kv[min(@layers, lead) + max(0, @layers - lead) / 2]", "values", "D",
    "hca_gate[min(@layers, lead) + max(0, @layers - lead) / 2]", "logits_of_slots", "D", "B", "C",
]
[[variant.launch]]
name = "attend_heavy"
call = "record_attention.heads_16"
with = [
    { q = "half_query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", slots = "chosen", count = "heavy_count" },
    { sinks = "sinks[@layers]", out = "attended", K = "Nh", window_own = "window_pages_of_row", own = "hca_pages_of_row" },
    { window_listed = "0", listed = "0", scale = "attention_scale", size = 2, dtype = "bf16" },
]

# heads: RoPE undone, codes, those of each group apart; and attention's output
[[variant.launch]]
name = "heads_code"
entry = "decode_step_heads_{activations}"
grid = ["ceil(HD / G, 128)", "G", "B"]
block = [32]
args = ["attended", "cos_t", "sin_t", "heads", "heads_codes", "heads_scales", "HD / G", "D", "R"]
taps = ["heads"]
[[variant.launch]]
name = "tap_heads_codes"
entry = "decode_step_tap_groups"
grid = ["B", "G"]
block = [128]
tap = true
args = ["heads_codes", "at_heads_codes", "clock", "@layers", "layers", "S", "HD / G / 4"]
[[variant.launch]]
name = "tap_heads_scales"
entry = "decode_step_tap_groups"
grid = ["B", "G"]
block = [128]
tap = true
args = ["heads_scales", "at_heads_scales", "clock", "@layers", "layers", "S", "ceil(HD / G, 128)"]
[[variant.launch]]
name = "o_down"
entry = "decode_step_groups"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (B <= 2 && G * ceil(Ro, 64) <= 132 && HD / G <= 8192) * ((G * ceil(Ro, 64) <= 66) + 2 * (G * ceil(Ro, 64) <= 33)))", "ceil(Ro, 64)", "G"]
cluster = ["1 + (B <= 2 && G * ceil(Ro, 64) <= 132 && HD / G <= 8192) * ((G * ceil(Ro, 64) <= 66) + 2 * (G * ceil(Ro, 64) <= 33))"]
block = ["128 + 384 * (B <= 2 && G * ceil(Ro, 64) <= 132 && HD / G <= 8192)"]
shared = "(1 - (B <= 2 && G * ceil(Ro, 64) <= 132 && HD / G <= 8192)) * ((8 - 2 * (B > 32) - 2 * (B <= 8 && G * ceil(Ro, 64) > 396)) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + 4 * ceil(HD / G, 128) * (8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32))) + (B <= 2 && G * ceil(Ro, 64) <= 132 && HD / G <= 8192) * (131088 + (1024 + 260 * B) * ceil(HD / G, 128))"
programmatic = true
args = ["heads_codes", "heads_scales", "o_a[@layers]", "o_a_scales[@layers]", "low_heads", "B", "Ro", "HD / G"]
[[variant.launch]]
name = "tap_low_heads"
entry = "decode_step_tap_groups"
grid = ["B", "G"]
block = [128]
tap = true
args = ["low_heads", "at_low_heads", "clock", "@layers", "layers", "S", "Ro"]
[[variant.launch]]
name = "low_heads_code"
entry = "decode_step_low_heads_{activations}"
grid = ["ceil(G * Ro, 128)", "B"]
block = [32]
args = ["low_heads", "low_heads_codes", "low_heads_scales", "G", "Ro"]
[[variant.launch]]
name = "tap_low_heads_codes"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_heads_codes", "at_low_heads_codes", "clock", "@layers", "layers", "B", "S", "G * Ro / 4", "G * Ro / 4", "0"]
[[variant.launch]]
name = "tap_low_heads_scales"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = [
    "low_heads_scales", "at_low_heads_scales", "clock", "@layers", "layers", "B", "S", "ceil(G * Ro, 128)", "ceil(G * Ro, 128)", "0",
]
[[variant.launch]]
name = "o_up"
call = "fp8_gemm.split"
programmatic = true
with = [
    { x = "low_heads_codes", x_scale = "low_heads_scales", w = "o_b[@layers]", w_scale = "o_b_scales[@layers]", y = "out" },
    { N = "C", K = "G * Ro" },
]

# router and experts
[[variant.launch]]
name = "moe_input"
entry = "decode_step_half"
grid = ["ceil(C, 1024)", "B"]
block = [256]
args = ["normed", "half_input", "C"]
[[variant.launch]]
name = "router_logits"
call = "linear.tensor"
programmatic = true
with = { x = "half_input", w = "gate[@layers]", y = "expert_logits", G = 1, N = "E", K = "C", dtype = "bf16", size = 2 }
[[variant.launch]]
name = "tap_experts"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["expert", "at_experts", "clock", "@layers", "layers", "B", "S", "K", "K", "0"]
[[variant.launch]]
name = "tap_expert_weights"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["expert_weight", "at_expert_weights", "clock", "@layers", "layers", "B", "S", "K", "K", "0"]
[[variant.launch]]
name = "mixture"
call = "moe_fp4.grouped"
each = { of = "layers", count = "banks" }
with = [
    { format = "mxfp4", x = "half_input", experts = "expert", weights = "expert_weight", y = "out", D = "C" },
    { gate_up = "gate_up[@layers % banks]", gate_up_scale = "gate_up_scales[@layers % banks]" },
    { gate_up_tensor = "gate_up_level[@layers % banks]", down = "down[@layers % banks]" },
    { down_scale = "down_scales[@layers % banks]", down_tensor = "down_level[@layers % banks]" },
]
[[variant.launch]]
name = "tap_hidden"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["hidden", "at_hidden", "clock", "@layers", "layers", "B", "S", "(K + 1) * I / 2", "(K + 1) * I / 2", "0"]

# head, and the next token
[[variant.launch]]
name = "tap_head_input"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["normed", "at_head_input", "clock", "0", "1", "B", "S", "C", "C", "0"]
[[variant.launch]]
name = "head_input"
entry = "decode_step_half"
grid = ["ceil(C, 1024)", "B"]
block = [256]
args = ["normed", "half_input", "C"]
[[variant.launch]]
name = "head_product"
call = "linear.tensor"
programmatic = true
with = { x = "half_input", w = "head", y = "row_logits", G = 1, N = "V", K = "C", dtype = "bf16", size = 2 }
[[variant.launch]]
name = "next"
call = "sample.split"
with = { logits = "row_logits", token = "sampled" }

[[variant]]
name = "served_many"
doc = "as `served`, with 64 heads of attention for a thread block, and two thread blocks for a row's choice: for many rows"
like = "served"
[[variant.launch]]
name = "attend_sparse"
call = "record_attention.cluster"
[[variant.launch]]
name = "attend_heavy"
call = "record_attention.cluster"
[[variant.launch]]
name = "select"
call = "top_k.stream"

[[mutant]]
name = "groups_scales_shared"
doc = "all rows of a group have the scales of its first row"
variants = ["served", "served_many"]

[[mutant]]
name = "products_exchanged"
doc = "of a launch that has several products, those after the first have neighbouring tiles of weights exchanged"
variants = ["served", "served_many"]

[[mutant]]
name = "heads_turned_on"
doc = "heads are turned on by RoPE, and not back"
variants = ["served", "served_many"]

[[mutant]]
name = "norm_of_first_warp"
doc = "a low-rank query has the norm of its first 128 columns"
variants = ["served", "served_many"]

[[mutant]]
name = "half_cut"
doc = "what becomes bfloat16 is cut off, and not rounded"
variants = ["served", "served_many"]
*/

// What a step does where all products but attention's take bfloat16, besides the operations: what lies between them, fused.
#pragma once

#include "decode_step/eight.cuh"
#include "decode_step/indexed.cuh"
#include "decode_step/products.cuh"

__device__ __forceinline__ void to_half(bf16 &to, float x) {
#ifdef MUTANT_HALF_CUT
    to.bits = (u16)(__float_as_uint(x) >> 16);
#else
    from_f32(to, x);
#endif
}

// Attention's input as codes, and as bfloat16.
template <class F>
__device__ __forceinline__ void input(const float *x, u8 *codes, typename F::Stored *scales, bf16 *half, int cols) {
    const size_t row = blockIdx.y;
    x += row * cols, half += row * cols;
    code_block<F>(blockIdx.x, cols, codes + row * cols, scales + row * gridDim.x + blockIdx.x, [=](int, int col) {
        to_half(half[col], x[col]);
        return x[col];
    });
}

// A low-rank query: its norm, and codes of it. A warp has a block of columns. `kept` may be null.
template <class F>
__device__ __forceinline__ void low_query(const float *x, const float *weight, float *kept, u8 *codes, typename F::Stored *scales,
                                          int cols, float eps) {
    __shared__ float partials[32];
    const size_t row = blockIdx.x;
    const int block = threadIdx.x / 32, blocks = (cols + F::width - 1) / F::width;
    x += row * cols;
    float values[F::width / 32], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < F::width / 32; i++) {
        const int col = block * F::width + threadIdx.x % 32 + 32 * i;
        values[i] = col < cols ? x[col] : 0.0f;
        sum = fmaf(values[i], values[i], sum);
    }
    sum = block_sum(sum, partials);
#ifdef MUTANT_NORM_OF_FIRST_WARP
    sum = partials[0];
#endif
    const float inverse = 1.0f / sqrtf(sum / cols + eps);
    code_block<F>(block, cols, codes + row * cols, scales + row * blocks + block, [&](int i, int col) {
        const float y = values[i] * weight[col] * inverse;
        if (kept != nullptr)
            kept[row * cols + col] = y;
        return y;
    });
}

// Rotates a pair by an angle.
__device__ __forceinline__ float2 turned(float2 x, float cos, float sin) {
    return make_float2(x.x * cos - x.y * sin, x.y * cos + x.x * sin);
}

// Norm and RoPE of every head of a query, and of the vector of the window, which comes after them and whose norm has weights. Both
// become bfloat16; the f32 numbers may go nowhere.
extern "C" __global__ void __launch_bounds__(128)
    decode_step_heads(const float *raw_query, const float *raw_kv, const float *kv_weight, const float *cos, const float *sin,
                      float *query, bf16 *half_query, float *kv, bf16 *half_kv, int heads, int rotated, float eps) {
    constexpr int D = 512;
    __shared__ float partials[32];
    const size_t row = blockIdx.y, head = row * heads + blockIdx.x;
    const bool of_window = blockIdx.x == heads;
    const size_t first = (of_window ? row : head) * D + threadIdx.x * 4;
    float4 x = *(const float4 *)((of_window ? raw_kv : raw_query) + first);
    const float sum = block_sum(fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w))), partials);
    const float inverse = 1.0f / sqrtf(sum / D + eps);
    float4 weight = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (of_window)
        weight = *(const float4 *)(kv_weight + threadIdx.x * 4);
    float2 low = make_float2(x.x * weight.x * inverse, x.y * weight.y * inverse);
    float2 high = make_float2(x.z * weight.z * inverse, x.w * weight.w * inverse);
    const int pair = ((int)threadIdx.x * 4 - (D - rotated)) / 2;
    if ((int)threadIdx.x * 4 >= D - rotated) {
        const size_t at = row * (rotated / 2) + pair;
        low = turned(low, cos[at], sin[at]);
        high = turned(high, cos[at + 1], sin[at + 1]);
    }
    float *const kept = of_window ? kv : query;
    if (kept != nullptr)
        *(float4 *)(kept + first) = make_float4(low.x, low.y, high.x, high.y);
    bf16 *const half = (of_window ? half_kv : half_query) + first;
    to_half(half[0], low.x), to_half(half[1], low.y), to_half(half[2], high.x), to_half(half[3], high.y);
}

// What attention gives, RoPE undone, as codes: those of a group [B, cols] follow those of the group before. `kept` [B, groups, cols] may
// be null.
template <class F>
__device__ __forceinline__ void heads(const bf16 *x, const float *cos, const float *sin, float *kept, u8 *codes,
                                      typename F::Stored *scales, int cols, int dim, int rotated) {
    const int block = blockIdx.x, group = blockIdx.y, row = blockIdx.z, groups = gridDim.y, rows = gridDim.z;
    const size_t from = ((size_t)row * groups + group) * cols, to = (size_t)group * rows + row;
    cos += (size_t)row * (rotated / 2), sin += (size_t)row * (rotated / 2);
    code_block<F>(block, cols, codes + to * cols, scales + to * gridDim.x + block, [=](int, int col) {
        float y = to_f32(x[from + col]);
        const int channel = (group * cols + col) % dim - (dim - rotated);
        if (channel >= 0) {
            const float other = to_f32(x[from + (col ^ 1)]);
#ifdef MUTANT_HEADS_TURNED_ON
            const float s = sin[channel / 2];
#else
            const float s = -sin[channel / 2];
#endif
            const float2 pair = turned(channel % 2 == 0 ? make_float2(y, other) : make_float2(other, y), cos[channel / 2], s);
            y = channel % 2 == 0 ? pair.x : pair.y;
        }
        if (kept != nullptr)
            kept[from + col] = y;
        return y;
    });
}

// Low-rank heads [groups, B, rank] as codes [B, groups · rank].
template <class F>
__device__ __forceinline__ void low_heads(const float *x, u8 *codes, typename F::Stored *scales, int groups, int rank) {
    const int block = blockIdx.x, row = blockIdx.y, rows = gridDim.y, cols = groups * rank;
    code_block<F>(block, cols, codes + (size_t)row * cols, scales + (size_t)row * gridDim.x + block,
                  [=](int, int col) { return x[((size_t)(col / rank) * rows + row) * rank + col % rank]; });
}

extern "C" __global__ void __launch_bounds__(32)
    decode_step_input_fp8_b128_f32(const float *x, u8 *codes, float *scales, bf16 *half, int cols) {
    input<fp8_b128_f32>(x, codes, scales, half, cols);
}

extern "C" __global__ void __launch_bounds__(1024) decode_step_low_fp8_b128_f32(const float *x, const float *weight, float *kept,
                                                                                u8 *codes, float *scales, int cols, float eps) {
    low_query<fp8_b128_f32>(x, weight, kept, codes, scales, cols, eps);
}

extern "C" __global__ void __launch_bounds__(32)
    decode_step_heads_fp8_b128_f32(const bf16 *x, const float *cos, const float *sin, float *kept, u8 *codes, float *scales,
                                   int cols, int dim, int rotated) {
    heads<fp8_b128_f32>(x, cos, sin, kept, codes, scales, cols, dim, rotated);
}

extern "C" __global__ void __launch_bounds__(32)
    decode_step_low_heads_fp8_b128_f32(const float *x, u8 *codes, float *scales, int groups, int rank) {
    low_heads<fp8_b128_f32>(x, codes, scales, groups, rank);
}

// Four numbers of a row as bfloat16, for each thread.
extern "C" __global__ void __launch_bounds__(256) decode_step_half(const float *from, bf16 *to, int cols) {
    const size_t first = (size_t)blockIdx.y * cols;
    for (int i = 0; i < 4; i++) {
        const int col = blockIdx.x * 1024 + i * 256 + threadIdx.x;
        if (col < cols)
            to_half(to[first + col], from[first + col]);
    }
}

// Keeps [groups, B, cols] at a site, [runs, layers, B, groups · cols].
extern "C" __global__ void __launch_bounds__(128)
    decode_step_tap_groups(const u32 *from, u32 *to, const int *clock, int layer, int layers, int runs, int cols) {
    const int row = blockIdx.x, rows = gridDim.x, group = blockIdx.y, run = min(*clock, runs - 1);
    from += ((size_t)group * rows + row) * cols;
    to += ((((size_t)run * layers + layer) * rows + row) * gridDim.y + group) * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        to[col] = from[col];
}

#if __CUDA_ARCH__ == 900
// The products of each group's rows, x [groups, B, K], with its weights, y [groups, B, N].
extern "C" __global__ void __launch_bounds__(512, 1)
    decode_step_groups(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale, float *y, int B, int N, int K) {
    const size_t group = blockIdx.z, across = (K + 127) / 128, down = (N + 127) / 128;
    x += group * B * K, y += group * B * N;
#ifndef MUTANT_GROUPS_SCALES_SHARED
    x_scale += group * B * across;
#endif
    w += group * N * K, w_scale += group * down * across;
    fp8_gemm_file::split(blockIdx.y, gridDim.y * gridDim.z, x, x_scale, w, w_scale, y, B, N, K);
}
#endif
