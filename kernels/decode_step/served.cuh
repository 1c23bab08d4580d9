/*
[[variant]]
name = "served"
doc = "attention's products of E4M3 codes, all others and queries bfloat16, experts MXFP4, keys and index keys records: the operations' fast kernels; 16 heads of attention for a thread block, and one thread block for a row of the choice: for few rows of up to 65,536 tokens"
like = "indexed"
changes_of = "w8a8"
without = [
    "q_down", "kv_down", "q_low_norm", "query_rope", "kv_row_norm", "kv_rope", "push", "window_write", "csa_values", "csa_logits",
    "csa_compress", "csa_write", "index_compress", "index_write", "index_query", "hca_compress", "hca_write", "entry_row", "index_rope", "index_values", "index_logits", "index_row", "index_weights", "hca_values", "hca_logits", "heads_rope",
    "attn_post", "moe_mix", "moe_post", "attend_sparse", "attend_heavy", "heads_code", "router_logits", "route_table", "route_bias",
]
arch = "sm_90a"
needs = ["records == 1", "indexed == 1", "DI == 128", "ms == 4", "mh == 128", "D == 512", "R % 4 == 0", "R <= 512", "sixteen == 1", "HD / G % 128 == 0", "Rq <= 4096", "C % 8 == 0", "C <= 4096", "E <= 256", "K <= 32"]
sequence = """
begin places table
layers(
    [@layers == 0](attn_mix input_code) [@layers > 0](attn_sums attn_code tap_output)
    tap_attention_input tap_input_codes tap_input_scales
    [@layers < lead || (@layers - lead) % 2 == 1](hca_products) down low_code tap_low_query tap_low_codes tap_low_scales
    q_up head_norm tap_query tap_kv_window
    [@layers >= lead && (@layers - lead) % 2 == 0](
        csa_products index_up sparse_entry tap_csa_entry tap_index_key tap_index_query
        index_score select tap_topk
        attend_sparse
    )
    [@layers < lead || (@layers - lead) % 2 == 1](
        heavy_entry tap_hca_entry
        attend_heavy
    )
    tap_heads tap_heads_codes tap_heads_scales
    o_down tap_low_heads low_heads_code tap_low_heads_codes tap_low_heads_scales o_up tap_attention_output
    moe_sums [@layers < hashes](moe_route_table) [@layers >= hashes](moe_route_bias tap_router)
    tap_moe_input tap_experts tap_expert_weights
    [B > 1](mixture_1) mixture_2 mixture_3 mixture_4 tap_hidden tap_moe_output
)
last_post tap_last_output head_mix tap_head_input head_input head_product keep_logits next end
"""
more_scratch = [
    { name = "half_input", bytes = "B * C * 2" }, { name = "half_query", bytes = "B * HD * 2" },
    { name = "index_values", bytes = "B * 2 * DI * 4" }, { name = "index_stages", bytes = "B * 3 * DI * 4" },
    { name = "index_logits", bytes = "B * 2 * DI * 4" }, { name = "hidden", bytes = "B * (K + 1) * I * 2" },
    { name = "moe_x", bytes = "B * wide * 4" }, { name = "moe_post", bytes = "B * 4 * 4" }, { name = "moe_comb", bytes = "B * 16 * 4" },
    { name = "arrived", bytes = "B * 4" }, { name = "expert_scores", bytes = "B * E * 8" }, { name = "mix_sums", bytes = "B * 24 * ceil(C, 32 * ceil(C, 4096)) * 4" },
]

# what follows from positions
[[variant.launch]]
name = "places"
programmatic = true
[[variant.launch]]
name = "table"
programmatic = true
# streams with what experts gave, mixed; and attention's input: codes, and bfloat16
[[variant.launch]]
name = "attn_mix"
call = "mhc_pre.parts"
[[variant.launch]]
name = "attn_sums"
entry = "decode_step_sums"
grid = ["ceil(C, 32 * ceil(C, 4096))", "min(4, ceil(B, 4))"]
block = [192]
programmatic = true
args = ["moe_x", "out", "moe_post", "moe_comb", "attn_fn[@layers]", "mix_sums", "arrived", "B", "C"]
[[variant.launch]]
name = "attn_code"
entry = "decode_step_mix_{activations}"
grid = [2, "B"]
block = [512]
programmatic = true
args = [
    "moe_x", "x", "out", "moe_post", "moe_comb", "mix_sums", "attn_base[@layers]", "attn_scale[@layers]", "attn_norm[@layers]", "normed",
    "half_input", "input_codes", "input_scales", "post", "comb", "ceil(C, 32 * ceil(C, 4096))", "C", "eps",
]
taps = ["normed"]
[[variant.launch]]
name = "tap_output"
args = ["x", "at_output", "clock", "@layers - 1", "layers", "B", "S", "wide", "wide", "0"]
[[variant.launch]]
name = "input_code"
entry = "decode_step_input_{activations}"
grid = ["ceil(C, 512)", "B"]
block = [128]
programmatic = true
args = ["normed", "input_codes", "input_scales", "half_input", "C"]
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
programmatic = true
args = ["low", "q_norm[@layers]", "low_normed", "low_codes", "low_scales", "Rq", "eps"]
taps = ["low_normed"]
[[variant.launch]]
name = "q_up"
call = "fp8_gemm.split"
programmatic = true
with = [
    { x = "low_codes", x_scale = "low_scales", w = "q_b[@layers]", w_scale = "q_b_scales[@layers]", y = "raw_query" },
    { N = "HD", K = "Rq" },
]

# norm and RoPE of all heads and of the window's vector, and the vector's record
[[variant.launch]]
name = "head_norm"
entry = "decode_step_head_norm_{record}"
grid = ["H + 1", "B"]
block = [128]
programmatic = true
args = [
    "raw_query", "raw_kv", "kv_norm[@layers]", "cos_t", "sin_t", "query", "half_query", "kv_row", "window_at", "window_pages[@layers]",
    "H", "R", "eps",
]
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
name = "sparse_entry"
entry = "decode_step_sparse_{record}_{index}"
grid = ["2 + ceil(HI, 4)", "B"]
block = [128]
programmatic = true
args = [
    "values", "logits_of_slots", "csa_ape[(@layers - lead) / 2]", "csa_norm[(@layers - lead) / 2]", "csa_ring_kv[(@layers - lead) / 2]",
    "csa_ring_gate[(@layers - lead) / 2]", "stages", "csa_pages[(@layers - lead) / 2]",
    "index_values", "index_logits", "index_ape[(@layers - lead) / 2]", "index_norm[(@layers - lead) / 2]",
    "index_ring_kv[(@layers - lead) / 2]", "index_ring_gate[(@layers - lead) / 2]", "index_stages", "index_pages[(@layers - lead) / 2]",
    "csa_at", "cos", "sin", "position", "B", "R", "eps", "index_query", "coded_query", "head_weights", "cos_t", "sin_t", "HI",
]
taps = ["stages", "index_stages"]
[[variant.launch]]
name = "tap_index_key"
args = ["index_stages", "at_index_key", "clock", "(@layers - lead) / 2", "sparse", "B", "S", "DI", "3 * DI", "2 * DI"]
[[variant.launch]]
name = "heavy_entry"
entry = "decode_step_heavy_{record}"
grid = ["8 * B"]
block = [256]
cluster = [8]
programmatic = true
args = [
    "values", "logits_of_slots", "hca_ape[min(@layers, lead) + max(0, @layers - lead) / 2]",
    "hca_norm[min(@layers, lead) + max(0, @layers - lead) / 2]", "hca_ring_kv[min(@layers, lead) + max(0, @layers - lead) / 2]",
    "hca_ring_gate[min(@layers, lead) + max(0, @layers - lead) / 2]", "stages",
    "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", "hca_at", "cos", "sin", "position", "B", "R", "eps",
]
taps = ["stages"]
[[variant.launch]]
name = "index_score"
call = "index_records.tensor"
programmatic = true
[[variant.launch]]
name = "select"
call = "top_k.block"
programmatic = true
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
entry = "decode_step_attend_{record}"
grid = ["B * min(max(ceil(Wn + topk, 80), 1), 8)", "ceil(H, 16)"]
cluster = ["min(max(ceil(Wn + topk, 80), 1), 8)"]
block = [512]
shared = 215040
programmatic = true
args = [
    "half_query", "window_pages[@layers]", "chosen", "window_count", "csa_pages[(@layers - lead) / 2]", "chosen", "chosen_count", "sinks[@layers]", "cos_t", "sin_t",
    "heads", "heads_codes", "heads_scales", "B", "HD / G", "R", "H", "Wn", "topk", "window_pages_of_row", "csa_pages_of_row", "0", "1",
    "attention_scale",
]
taps = ["heads"]

# heavy layers: compressor, attention
[[variant.launch]]
name = "hca_products"
entry = "decode_step_products_2"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44))", "2 * ceil(D, 64)"]
cluster = ["1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44)"]
block = [128]
shared = "(6 - (B > 8) - (B > 16) - (B > 32) + ((2 * ceil(D, 64)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44)) <= 132 + 132 * (B <= 8)) * (5 + (B > 8) + 2 * (B > 16) - (B > 32))) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + (B <= 16) * (16 + 2048 * (1 + (B > 8)) * (1 + (2 * ceil(D, 64) <= 66) + 2 * (2 * ceil(D, 64) <= 44) - 1))"
programmatic = true
args = [
    "half_input", "hca_kv[min(@layers, lead) + max(0, @layers - lead) / 2]", "values", "D",
    "hca_gate[min(@layers, lead) + max(0, @layers - lead) / 2]", "logits_of_slots", "D", "B", "C",
]
[[variant.launch]]
name = "attend_heavy"
entry = "decode_step_attend_{record}"
grid = ["B * min(max(ceil(Wn + Nh, 80), 1), 8)", "ceil(H, 16)"]
cluster = ["min(max(ceil(Wn + Nh, 80), 1), 8)"]
block = [512]
shared = 215040
programmatic = true
args = [
    "half_query", "window_pages[@layers]", "chosen", "window_count", "hca_pages[min(@layers, lead) + max(0, @layers - lead) / 2]", "chosen", "heavy_count", "sinks[@layers]", "cos_t", "sin_t",
    "heads", "heads_codes", "heads_scales", "B", "HD / G", "R", "H", "Wn", "Nh", "window_pages_of_row", "hca_pages_of_row", "0", "0",
    "attention_scale",
]
taps = ["heads"]

# attention's output
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
grid = ["ceil(G * Ro, 512)", "B"]
block = [128]
programmatic = true
args = ["low_heads", "low_heads_codes", "low_heads_scales", "G", "Ro"]
[[variant.launch]]
name = "o_up"
call = "fp8_gemm.split"
programmatic = true
with = [
    { x = "low_heads_codes", x_scale = "low_heads_scales", w = "o_b[@layers]", w_scale = "o_b_scales[@layers]", y = "out" },
    { N = "C", K = "G * Ro" },
]

# streams with attention's output, mixed; router and experts
[[variant.launch]]
name = "moe_sums"
entry = "decode_step_sums"
grid = ["ceil(C, 32 * ceil(C, 4096))", "min(4, ceil(B, 4))"]
block = [192]
programmatic = true
args = ["x", "out", "post", "comb", "moe_fn[@layers]", "mix_sums", "arrived", "B", "C"]
[[variant.launch]]
name = "moe_route_table"
entry = "decode_step_route_table"
grid = ["ceil(E, 8) + 1", "min(B, 4)"]
block = [512]
shared = "16 * C"
programmatic = true
args = [
    "x", "moe_x", "out", "post", "comb", "mix_sums", "moe_base[@layers]", "moe_scale[@layers]", "moe_norm[@layers]", "normed",
    "half_input", "moe_post", "moe_comb", "gate[@layers]", "bias[@layers]", "table[min(@layers, max(1, hashes) - 1)]", "token",
    "expert_scores", "arrived", "expert", "expert_weight", "mixture_packed_x", "mixture_tiles", "mixture_order", "B",
    "ceil(C, 32 * ceil(C, 4096))", "C", "E", "K", "eps", "router_scale",
]
taps = ["normed"]
[[variant.launch]]
name = "moe_route_bias"
entry = "decode_step_route_bias"
grid = ["ceil(E, 8) + 1", "min(B, 4)"]
block = [512]
shared = "16 * C"
programmatic = true
args = [
    "x", "moe_x", "out", "post", "comb", "mix_sums", "moe_base[@layers]", "moe_scale[@layers]", "moe_norm[@layers]", "normed",
    "half_input", "moe_post", "moe_comb", "gate[@layers]", "bias[@layers]", "table[min(@layers, max(1, hashes) - 1)]", "token",
    "expert_scores", "arrived", "expert", "expert_weight", "mixture_packed_x", "mixture_tiles", "mixture_order", "B",
    "ceil(C, 32 * ceil(C, 4096))", "C", "E", "K", "eps", "router_scale",
]
taps = ["normed"]
[[variant.launch]]
name = "last_post"
call = "mhc_post.simple"
programmatic = true
with = { x = "moe_x", y = "out", post = "moe_post", comb = "moe_comb" }
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
programmatic = true
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
name = "tap_last_output"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["moe_x", "at_output", "clock", "layers - 1", "layers", "B", "S", "wide", "wide", "0"]
[[variant.launch]]
name = "head_mix"
call = "hyper_head.cluster"
programmatic = true
with = { x = "moe_x", fn = "head_fn", base = "head_base", scale = "head_scale", weight = "final_norm", y = "normed" }
[[variant.launch]]
name = "keep_logits"
programmatic = true
[[variant.launch]]
name = "end"
programmatic = true
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
programmatic = true
args = ["normed", "half_input", "C"]
[[variant.launch]]
name = "head_product"
call = "linear.tensor"
programmatic = true
with = { x = "half_input", w = "head", y = "row_logits", G = 1, N = "V", K = "C", dtype = "bf16", size = 2 }
[[variant.launch]]
name = "next"
call = "sample.split"
programmatic = true
with = { logits = "row_logits", token = "sampled" }

[[mutant]]
name = "groups_scales_shared"
doc = "all rows of a group have the scales of its first row"
variants = ["served", "served_many"]

[[mutant]]
name = "products_exchanged"
doc = "of a launch that has several products, those after the first have neighbouring tiles of weights exchanged"
variants = ["served", "served_many"]

[[mutant]]
name = "sums_before_post"
doc = "the mixture's weights are those of streams without what the block before gave"
variants = ["served", "served_many"]

[[mutant]]
name = "streams_not_kept"
doc = "streams stay as they are, and only the mixture has what the block before gave"
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

[[mutant]]
name = "scores_of_first_warp"
doc = "experts have the scores of the first 256 channels"
variants = ["served"]

[[mutant]]
name = "norm_of_half"
doc = "a mixture has the norm of the first 2,048 channels"
variants = ["served"]

[[mutant]]
name = "experts_of_first_lanes"
doc = "no expert after the 32nd is chosen"
variants = ["served"]

[[mutant]]
name = "first_routes"
doc = "the thread block routes whose scores are there first"
variants = ["served"]

[[mutant]]
name = "last_group_not_packed"
doc = "the last expert of a single row reads what was there before"
variants = ["served"]
*/

// What a step does where all products but attention's take bfloat16, besides the operations.
#pragma once

#include "decode_step/entries.cuh"
#include "decode_step/products.cuh"
#include "decode_step/row_mix.cuh"

// Keeps [groups, B, cols] at a site, [runs, layers, B, groups · cols].
KERNEL(decode_step_tap_groups, __launch_bounds__(128))(const u32 *from, u32 *to, const int *clock, int layer, int layers,
                                                       int runs, int cols) {
    const int row = blockIdx.x, rows = gridDim.x, group = blockIdx.y, run = min(*clock, runs - 1);
    from += ((size_t)group * rows + row) * cols;
    to += ((((size_t)run * layers + layer) * rows + row) * gridDim.y + group) * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        to[col] = from[col];
}

#if __CUDA_ARCH__ == 900
#include "decode_step/routed.cuh"

// The products of each group's rows, x [groups, B, K], with its weights, y [groups, B, N].
KERNEL(decode_step_groups, __launch_bounds__(512, 1))(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale,
                                                      float *y, int B, int N, int K) {
    const size_t group = blockIdx.z, across = (K + 127) / 128, down = (N + 127) / 128;
    x += group * B * K, y += group * B * N;
#ifndef MUTANT_GROUPS_SCALES_SHARED
    x_scale += group * B * across;
#endif
    w += group * N * K, w_scale += group * down * across;
    fp8_gemm_file::split(blockIdx.y, gridDim.y * gridDim.z, x, x_scale, w, w_scale, y, B, N, K);
}
#endif
