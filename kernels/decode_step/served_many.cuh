/*
[[variant]]
name = "served_many"
doc = "as `served`, with 64 heads of attention for a thread block, and two thread blocks for a row's choice: for many rows"
like = "served"
without = ["attend_sparse", "attend_heavy", "attn_code", "moe_route_table", "moe_route_bias"]
in_sequence = { tap_heads = "heads_code tap_heads", moe_route_table = "moe_half router_logits route_table", moe_route_bias = "moe_half router_logits route_bias", mixture_2 = "[B == 1](mixture_1) mixture_2" }
needs = ["records == 1", "indexed == 1", "DI == 128", "ms == 4", "mh == 128", "D == 512", "R % 4 == 0", "R <= 512", "sixteen == 1", "HD / G % 128 == 0", "Rq <= 4096", "C <= 7296"]
more_scratch = [{ name = "attended", bytes = "B * HD * 2" }]
[[variant.launch]]
name = "attend_sparse"
call = "record_attention.cluster"
programmatic = true
with = [
    { q = "half_query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "csa_pages[(@layers - lead) / 2]", slots = "chosen", count = "chosen_count", sinks = "sinks[@layers]" },
    { out = "attended", K = "topk", window_own = "window_pages_of_row", own = "csa_pages_of_row", window_listed = "0" },
    { listed = "1", scale = "attention_scale", size = 2, dtype = "bf16" },
]
[[variant.launch]]
name = "attend_heavy"
call = "record_attention.cluster"
programmatic = true
with = [
    { q = "half_query", window_pages = "window_pages[@layers]", window_slots = "chosen", window_count = "window_count" },
    { pages = "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", slots = "chosen", count = "heavy_count" },
    { sinks = "sinks[@layers]", out = "attended", K = "Nh", window_own = "window_pages_of_row", own = "hca_pages_of_row" },
    { window_listed = "0", listed = "0", scale = "attention_scale", size = 2, dtype = "bf16" },
]
[[variant.launch]]
name = "attn_code"
entry = "decode_step_mix_parts_{activations}"
grid = ["B"]
block = ["32 * ceil(C, 384) + 64"]
programmatic = true
args = [
    "moe_x", "x", "out", "moe_post", "moe_comb", "mix_sums", "attn_base[@layers]", "attn_scale[@layers]", "attn_norm[@layers]", "normed",
    "half_input", "input_codes", "input_scales", "post", "comb", "ceil(C, 32 * ceil(C, 4096))", "C", "eps",
]
taps = ["normed"]
[[variant.launch]]
name = "moe_half"
entry = "decode_step_mix_half"
grid = ["B"]
block = ["32 * ceil(C, 384) + 64"]
programmatic = true
args = [
    "x", "moe_x", "out", "post", "comb", "mix_sums", "moe_base[@layers]", "moe_scale[@layers]", "moe_norm[@layers]", "normed",
    "half_input", "moe_post", "moe_comb", "ceil(C, 32 * ceil(C, 4096))", "C", "eps",
]
taps = ["normed"]
[[variant.launch]]
name = "route_table"
call = "router.registers"
programmatic = true
with = [
    { select = "table", logits = "expert_logits", bias = "bias[@layers]", table = "table[min(@layers, max(1, hashes) - 1)]" },
    { experts = "expert", weights = "expert_weight", scale = "router_scale" },
]
[[variant.launch]]
name = "route_bias"
call = "router.registers"
programmatic = true
with = [
    { select = "bias", logits = "expert_logits", bias = "bias[@layers]", table = "table[min(@layers, max(1, hashes) - 1)]" },
    { experts = "expert", weights = "expert_weight", scale = "router_scale" },
]
[[variant.launch]]
name = "router_logits"
call = "linear.tensor"
programmatic = true
with = { x = "half_input", w = "gate[@layers]", y = "expert_logits", G = 1, N = "E", K = "C", dtype = "bf16", size = 2 }
[[variant.launch]]
name = "heads_code"
entry = "decode_step_heads_{activations}"
grid = ["ceil(HD / G, 512)", "G", "B"]
block = [128]
programmatic = true
args = ["attended", "cos_t", "sin_t", "heads", "heads_codes", "heads_scales", "HD / G", "D", "R"]
taps = ["heads"]
[[variant.launch]]
name = "select"
call = "top_k.stream"
*/

// What `served_many` does in launches of their own, where `served` has one for several.
#pragma once

#include "decode_step/mixed.cuh"

// For up to 7,296 channels: more threads would leave too few registers for each.
#define MIX_THREADS (32 * (19 + mhc_pre_parts::ADD_WARPS))

KERNEL(decode_step_mix_parts_fp8_b128_f32,
       __launch_bounds__(MIX_THREADS))(const float *x, float *next, const float *y, const float *post, const float *comb,
                                       const float *sums, const float *base, const float *scale, const float *weight, float *kept,
                                       bf16 *half, u8 *codes, float *scales, float *next_post, float *next_comb, int parts,
                                       int dim, float eps) {
    mhc_pre_parts::parts_mix(mixed::Streams{x, next, y, post, comb, dim}, sums, base, scale, weight,
                             mixed::ToCodes<fp8_b128_f32>{{kept, half, dim}, codes, scales}, next_post, next_comb, parts, dim,
                             eps, eps);
}

KERNEL(decode_step_mix_half, __launch_bounds__(MIX_THREADS))(const float *x, float *next, const float *y, const float *post,
                                                             const float *comb, const float *sums, const float *base,
                                                             const float *scale, const float *weight, float *kept, bf16 *half,
                                                             float *next_post, float *next_comb, int parts, int dim, float eps) {
    mhc_pre_parts::parts_mix(mixed::Streams{x, next, y, post, comb, dim}, sums, base, scale, weight,
                             mixed::ToHalf{kept, half, dim}, next_post, next_comb, parts, dim, eps, eps);
}

KERNEL(decode_step_heads_fp8_b128_f32, __launch_bounds__(32 * CODING))(const bf16 *x, const float *cos, const float *sin,
                                                                       float *kept, u8 *codes, float *scales, int cols, int dim,
                                                                       int rotated) {
    heads<fp8_b128_f32>(x, cos, sin, kept, codes, scales, cols, dim, rotated);
}
