/*
[[variant]]
name = "simple"
doc = "a launch for each operation, by the simplest kernel of each"
needs = ["records == 0", "eight == 0"]
sequence = """
begin
layers(
    attn_mix tap_attention_input
    q_down q_low_norm q_up head_norm query_rope tap_query
    kv_down kv_row_norm kv_rope tap_kv_window push
    [@layers >= lead && (@layers - lead) % 2 == 0](
        csa_values csa_logits csa_compress tap_csa_entry
        index_up index_rope tap_index_query index_values index_logits index_compress tap_index_key
        index_weights index_score select tap_topk
        attend_sparse
    )
    [@layers < lead || (@layers - lead) % 2 == 1](
        hca_values hca_logits hca_compress tap_hca_entry
        attend_heavy
    )
    heads_rope tap_heads o_down o_up tap_attention_output attn_post
    moe_mix tap_moe_input
    router_logits [@layers < hashes](route_table) [@layers >= hashes](route_bias tap_router)
    mixture tap_moe_output moe_post tap_output
)
head_mix head_product keep_logits next end
"""
scratch = [
    { name = "x", bytes = "B * wide * 4" }, { name = "normed", bytes = "B * C * 4" }, { name = "post", bytes = "B * 4 * 4" },
    { name = "comb", bytes = "B * 16 * 4" }, { name = "low", bytes = "B * Rq * 4" },
    { name = "low_normed", bytes = "B * Rq * 4" }, { name = "raw_query", bytes = "B * HD * 4" },
    { name = "query", bytes = "B * HD * 4" }, { name = "raw_kv", bytes = "B * D * 4" },
    { name = "kv_row", bytes = "B * D * 4" }, { name = "values", bytes = "B * 2 * max(D, DI) * 4" },
    { name = "logits_of_slots", bytes = "B * 2 * max(D, DI) * 4" }, { name = "stages", bytes = "B * 3 * max(D, DI) * 4" },
    { name = "index_query", bytes = "B * HI * DI * 4" }, { name = "head_weights", bytes = "B * HI * 4" },
    { name = "scores", bytes = "B * Ns * 4" }, { name = "chosen", bytes = "B * topk * 4" },
    { name = "heads", bytes = "B * HD * 4" }, { name = "low_heads", bytes = "B * G * Ro * 4" },
    { name = "out", bytes = "B * C * 4" }, { name = "expert_logits", bytes = "B * E * 4" },
    { name = "expert", bytes = "B * K * 4" }, { name = "expert_weight", bytes = "B * K * 4" },
    { name = "row_logits", bytes = "B * V * 4" }, { name = "sampled", bytes = "B * 4" },
    { name = "cos_t", bytes = "B * R / 2 * 4" }, { name = "sin_t", bytes = "B * R / 2 * 4" },
    { name = "sparse_count", bytes = "B * 4" }, { name = "heavy_count", bytes = "B * 4" },
]
with = { dtype = "f32", out = "f32", T = "B", norm_eps = "eps" }

# where the step begins
[[variant.launch]]
name = "begin"
entry = "decode_step_begin"
grid = ["ceil(C, 512)", "B"]
block = [128]
args = ["token", "position", "embedding", "cos", "sin", "x", "cos_t", "sin_t", "sparse_count", "heavy_count", "C", "R", "ms", "mh"]
[[variant.launch]]
name = "attn_mix"
call = "mhc_pre.simple"
with = [
    { fn = "attn_fn[@layers]", base = "attn_base[@layers]", scale = "attn_scale[@layers]", weight = "attn_norm[@layers]" },
    { y = "normed" },
]
[[variant.launch]]
name = "tap_attention_input"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["normed", "at_attention_input", "clock", "@layers", "layers", "B", "S", "C", "C", "0"]

# queries
[[variant.launch]]
name = "q_down"
call = "linear.simple"
with = { x = "normed", w = "q_a[@layers]", w_scale = "q_a_scales[@layers]", y = "low", G = 1, N = "Rq", K = "C" }
[[variant.launch]]
name = "q_low_norm"
call = "rmsnorm.simple"
with = { x = "low", weight = "q_norm[@layers]", y = "low_normed", C = "Rq" }
[[variant.launch]]
name = "q_up"
call = "linear.simple"
with = { x = "low_normed", w = "q_b[@layers]", w_scale = "q_b_scales[@layers]", y = "raw_query", G = 1, N = "HD", K = "Rq" }
[[variant.launch]]
name = "head_norm"
call = "rmsnorm.simple"
with = { x = "raw_query", weight = "ones", y = "query", T = "B * H", C = "D" }
[[variant.launch]]
name = "query_rope"
call = "rope.simple"
with = { direction = "forward", x = "query", cos = "cos_t", sin = "sin_t" }
[[variant.launch]]
name = "tap_query"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["query", "at_query", "clock", "@layers", "layers", "B", "S", "HD", "HD", "0"]

# the window
[[variant.launch]]
name = "kv_down"
call = "linear.simple"
with = { x = "normed", w = "kv[@layers]", w_scale = "kv_scales[@layers]", y = "raw_kv", G = 1, N = "D", K = "C" }
[[variant.launch]]
name = "kv_row_norm"
call = "rmsnorm.simple"
with = { x = "raw_kv", weight = "kv_norm[@layers]", y = "kv_row", C = "D" }
[[variant.launch]]
name = "kv_rope"
call = "rope.simple"
with = { direction = "forward", x = "kv_row", cos = "cos_t", sin = "sin_t", H = "1" }
[[variant.launch]]
name = "tap_kv_window"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["kv_row", "at_kv_window", "clock", "@layers", "layers", "B", "S", "D", "D", "0"]
[[variant.launch]]
name = "push"
entry = "decode_step_push"
grid = ["B"]
block = [128]
args = ["kv_row", "position", "window[@layers]", "Wn", "D"]

# sparse layers: compressor, indexer, attention
[[variant.launch]]
name = "csa_values"
call = "linear.simple"
with = [
    { x = "normed", w = "csa_kv[(@layers - lead) / 2]", w_scale = "csa_kv_scales[(@layers - lead) / 2]", y = "values", G = 1 },
    { N = "2 * D", K = "C" },
]
[[variant.launch]]
name = "csa_logits"
call = "linear.simple"
with = [
    { x = "normed", w = "csa_gate[(@layers - lead) / 2]", w_scale = "csa_gate_scales[(@layers - lead) / 2]" },
    { y = "logits_of_slots", G = 1, N = "2 * D", K = "C" },
]
[[variant.launch]]
name = "csa_compress"
call = "compressor.simple"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "csa_ape[(@layers - lead) / 2]" },
    { weight = "csa_norm[(@layers - lead) / 2]", ring_kv = "csa_ring_kv[(@layers - lead) / 2]" },
    { ring_gate = "csa_ring_gate[(@layers - lead) / 2]", entries = "csa_entries[(@layers - lead) / 2]", m = "ms", N = "Ns" },
    { overlap = "1" },
]
[[variant.launch]]
name = "tap_csa_entry"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["stages", "at_kv_compressed", "clock", "@layers", "layers", "B", "S", "D", "3 * D", "2 * D"]
[[variant.launch]]
name = "index_up"
call = "linear.simple"
with = [
    { x = "low_normed", w = "index_q[(@layers - lead) / 2]", w_scale = "index_q_scales[(@layers - lead) / 2]", y = "index_query" },
    { G = 1, N = "HI * DI", K = "Rq" },
]
[[variant.launch]]
name = "index_rope"
call = "rope.simple"
with = { direction = "forward", x = "index_query", cos = "cos_t", sin = "sin_t", H = "HI", D = "DI" }
[[variant.launch]]
name = "tap_index_query"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["index_query", "at_index_query", "clock", "(@layers - lead) / 2", "sparse", "B", "S", "HI * DI", "HI * DI", "0"]
[[variant.launch]]
name = "index_values"
call = "linear.simple"
with = [
    { x = "normed", w = "index_kv[(@layers - lead) / 2]", w_scale = "index_kv_scales[(@layers - lead) / 2]", y = "values", G = 1 },
    { N = "2 * DI", K = "C" },
]
[[variant.launch]]
name = "index_logits"
call = "linear.simple"
with = [
    { x = "normed", w = "index_gate[(@layers - lead) / 2]", w_scale = "index_gate_scales[(@layers - lead) / 2]" },
    { y = "logits_of_slots", G = 1, N = "2 * DI", K = "C" },
]
[[variant.launch]]
name = "index_compress"
call = "compressor.simple"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "index_ape[(@layers - lead) / 2]" },
    { weight = "index_norm[(@layers - lead) / 2]", ring_kv = "index_ring_kv[(@layers - lead) / 2]" },
    { ring_gate = "index_ring_gate[(@layers - lead) / 2]", entries = "index_entries[(@layers - lead) / 2]", m = "ms" },
    { D = "DI", N = "Ns", overlap = "1" },
]
[[variant.launch]]
name = "tap_index_key"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["stages", "at_index_key", "clock", "(@layers - lead) / 2", "sparse", "B", "S", "DI", "3 * DI", "2 * DI"]
[[variant.launch]]
name = "index_weights"
call = "linear.simple"
with = [
    { x = "normed", w = "index_heads[(@layers - lead) / 2]", w_scale = "index_heads_scales[(@layers - lead) / 2]" },
    { y = "head_weights", G = 1, N = "HI", K = "C" },
]
[[variant.launch]]
name = "index_score"
call = "index_scores.simple"
with = [
    { q = "index_query", keys = "index_entries[(@layers - lead) / 2]", count = "sparse_count", H = "HI", D = "DI", N = "Ns" },
    { scale = "index_scale" },
]
[[variant.launch]]
name = "select"
call = "top_k.simple"
with = { count = "sparse_count", indices = "chosen", N = "Ns", K = "topk" }
[[variant.launch]]
name = "tap_topk"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["chosen", "at_topk", "clock", "(@layers - lead) / 2", "sparse", "B", "S", "topk", "topk", "0"]
[[variant.launch]]
name = "attend_sparse"
call = "sparse_attention.simple"
with = [
    { reads = "indices", q = "query", window = "window[@layers]", entries = "csa_entries[(@layers - lead) / 2]" },
    { indices = "chosen", count = "sparse_count", sinks = "sinks[@layers]", out = "heads", N = "Ns", K = "topk" },
    { scale = "attention_scale" },
]

# heavy layers: compressor, attention
[[variant.launch]]
name = "hca_values"
call = "linear.simple"
with = [
    { x = "normed", w = "hca_kv[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { w_scale = "hca_kv_scales[min(@layers, lead) + max(0, @layers - lead) / 2]", y = "values", G = 1, N = "D", K = "C" },
]
[[variant.launch]]
name = "hca_logits"
call = "linear.simple"
with = [
    { x = "normed", w = "hca_gate[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { w_scale = "hca_gate_scales[min(@layers, lead) + max(0, @layers - lead) / 2]", y = "logits_of_slots", G = 1, N = "D" },
    { K = "C" },
]
[[variant.launch]]
name = "hca_compress"
call = "compressor.simple"
with = [
    { kv = "values", gate = "logits_of_slots", ape = "hca_ape[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { weight = "hca_norm[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { ring_kv = "hca_ring_kv[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { ring_gate = "hca_ring_gate[min(@layers, lead) + max(0, @layers - lead) / 2]" },
    { entries = "hca_entries[min(@layers, lead) + max(0, @layers - lead) / 2]", m = "mh", N = "Nh", overlap = "0" },
]
[[variant.launch]]
name = "tap_hca_entry"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["stages", "at_kv_compressed", "clock", "@layers", "layers", "B", "S", "D", "3 * D", "2 * D"]
[[variant.launch]]
name = "attend_heavy"
call = "sparse_attention.simple"
with = [
    { reads = "all", q = "query", window = "window[@layers]" },
    { entries = "hca_entries[min(@layers, lead) + max(0, @layers - lead) / 2]", indices = "chosen", count = "heavy_count" },
    { sinks = "sinks[@layers]", out = "heads", N = "Nh", K = "1", scale = "attention_scale" },
]

# attention's output
[[variant.launch]]
name = "heads_rope"
call = "rope.simple"
with = { direction = "inverse", x = "heads", cos = "cos_t", sin = "sin_t" }
[[variant.launch]]
name = "tap_heads"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["heads", "at_heads", "clock", "@layers", "layers", "B", "S", "HD", "HD", "0"]
[[variant.launch]]
name = "o_down"
call = "linear.simple"
with = { x = "heads", w = "o_a[@layers]", w_scale = "o_a_scales[@layers]", y = "low_heads", N = "Ro", K = "HD / G" }
[[variant.launch]]
name = "o_up"
call = "linear.simple"
with = { x = "low_heads", w = "o_b[@layers]", w_scale = "o_b_scales[@layers]", y = "out", G = 1, N = "C", K = "G * Ro" }
[[variant.launch]]
name = "tap_attention_output"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["out", "at_attention_output", "clock", "@layers", "layers", "B", "S", "C", "C", "0"]
[[variant.launch]]
name = "attn_post"
call = "mhc_post.simple"
with = { y = "out" }

# experts
[[variant.launch]]
name = "moe_mix"
call = "mhc_pre.simple"
with = [
    { fn = "moe_fn[@layers]", base = "moe_base[@layers]", scale = "moe_scale[@layers]", weight = "moe_norm[@layers]" },
    { y = "normed" },
]
[[variant.launch]]
name = "tap_moe_input"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["normed", "at_moe_input", "clock", "@layers", "layers", "B", "S", "C", "C", "0"]
[[variant.launch]]
name = "router_logits"
call = "linear.simple"
with = { x = "normed", w = "gate[@layers]", w_scale = "gate_scales[@layers]", y = "expert_logits", G = 1, N = "E", K = "C" }
[[variant.launch]]
name = "route_table"
call = "router.simple"
with = [
    { select = "table", logits = "expert_logits", bias = "bias[@layers]", table = "table[min(@layers, max(1, hashes) - 1)]" },
    { experts = "expert", weights = "expert_weight", scale = "router_scale" },
]
[[variant.launch]]
name = "route_bias"
call = "router.simple"
with = [
    { select = "bias", logits = "expert_logits", bias = "bias[@layers]", table = "table[min(@layers, max(1, hashes) - 1)]" },
    { experts = "expert", weights = "expert_weight", scale = "router_scale" },
]
[[variant.launch]]
name = "tap_router"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["expert", "at_router", "clock", "@layers - hashes", "layers - hashes", "B", "S", "K", "K", "0"]
[[variant.launch]]
name = "mixture"
call = "experts.simple"
with = [
    { x = "normed", experts = "expert", weights = "expert_weight", gate_up = "gate_up[@layers]", down = "down[@layers]" },
    { gate_up_scale = "gate_up_scales[@layers]", down_scale = "down_scales[@layers]", gate_up_level = "gate_up_level[@layers]" },
    { down_level = "down_level[@layers]", shared_gate_up = "shared_gate_up[@layers]", shared_down = "shared_down[@layers]" },
    { shared_gate_up_scale = "shared_gate_up_scales[@layers]", shared_down_scale = "shared_down_scales[@layers]" },
    { y = "out", D = "C" },
]
[[variant.launch]]
name = "tap_moe_output"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["out", "at_moe_output", "clock", "@layers", "layers", "B", "S", "C", "C", "0"]
[[variant.launch]]
name = "moe_post"
call = "mhc_post.simple"
with = { y = "out" }
[[variant.launch]]
name = "tap_output"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["x", "at_output", "clock", "@layers", "layers", "B", "S", "wide", "wide", "0"]

# head, and the next token
[[variant.launch]]
name = "head_mix"
call = "hyper_head.simple"
with = { fn = "head_fn", base = "head_base", scale = "head_scale", weight = "final_norm", y = "normed" }
[[variant.launch]]
name = "head_product"
call = "linear.simple"
with = { x = "normed", w = "head", w_scale = "head_scales", y = "row_logits", G = 1, N = "V", K = "C" }
[[variant.launch]]
name = "keep_logits"
entry = "decode_step_keep"
grid = ["B", "ceil(V, 1024)"]
block = [256]
args = ["row_logits", "logits", "clock", "B", "S", "V"]
[[variant.launch]]
name = "next"
call = "sample.simple"
with = { logits = "row_logits", token = "sampled" }
[[variant.launch]]
name = "end"
entry = "decode_step_end"
grid = [1]
block = [256]
args = ["sampled", "forced", "clock", "token", "position", "tokens", "B", "S", "P"]

[[mutant]]
name = "window_slot"
doc = "a vector is stored one slot too far in the window"

[[mutant]]
name = "count_of_last_step"
doc = "entries are counted without the one that this token completes"

[[mutant]]
name = "one_stream"
doc = "the last stream begins with zeros"

[[mutant]]
name = "position_kept"
doc = "positions stay after the first run"

[[mutant]]
name = "own_token_lost"
doc = "a row reads the token of the row before it"

[[mutant]]
name = "rope_of_row_0"
doc = "all rows have the angles of the first"

[[mutant]]
name = "heavy_as_sparse"
doc = "heavy entries are counted as sparse ones are"
*/

// reference: reference/paths/deepseek_v4/model.rs, reference/paths/deepseek_v4/layer.rs
//
// A decode step of B sequences. The operations' own files are included, each in a namespace; here is what lies between them. State and
// weights are [layers, ..], of which a launch gets the part of its layer.

#include "decode_step/operations.cuh"

#include "decode_step/step.cuh"

#include "decode_step/records.cuh"

#include "decode_step/indexed.cuh"

#include "decode_step/persistent.cuh"

#include "decode_step/eight.cuh"

#include "decode_step/served.cuh"

#include "decode_step/served_many.cuh"
