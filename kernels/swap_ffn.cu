/*
[[variant]]
name = "simple"
doc = "products without tensor cores, any shape of few products"
needs = ["D % 8 == 0", "F % 4 == 0", "D <= 4096", "F <= 4096", "E * J * B * C * F <= 8388608", "B * C <= 64 * 65535"]
scratch = [
    { name = "sums", bytes = "B * C * 1152" }, { name = "n", bytes = "B * C * D * size" },
    { name = "n_scale", bytes = "B * C * 4" }, { name = "gate_up", bytes = "B * C * F * 8" }, { name = "h", bytes = "B * C * F * size" },
    { name = "h_scale", bytes = "B * C * 4" }, { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
sequence = "start E(swap J(gate_up activate down settle)) end(pool reduce decode)"
launch = [
    { name = "start", entry = "swap_ffn_start_simple_{W}", grid = ["B * C"], block = [256], args = ["x_in", "film_scale", "film_shift", "x", "router", "ffn_g", "sums", "n", "n_scale", "C", "D", "begin", "eps"] },
    { name = "swap", entry = "swap_ffn_swap_simple_{W}_{L}", grid = ["B * C"], block = [256], bytes = "B * C * (1152 + (12 + size) * D)", args = ["x", "ram", "map", "decisions", "@E", "sums", "router_bias", "ffn_g", "n", "n_scale", "D", "eps"] },
    { name = "settle", entry = "swap_ffn_settle_simple_{W}", grid = ["B * C"], block = [256], args = ["x", "router", "ffn_g", "sums", "n", "n_scale", "D", "eps"] },
    { name = "gate_up", entry = "swap_ffn_gate_up_simple_{W}", grid = ["ceil(F, 64)", "ceil(B * C, 64)", "2"], block = [256], flops = "4 * B * C * D * F", args = ["n", "w1", "w3", "n_scale", "w1_scale", "w3_scale", "gate_up", "B", "C", "D", "F"] },
    { name = "activate", entry = "swap_ffn_activate_{W}", grid = ["B * C"], block = [256], args = ["gate_up", "h", "h_scale", "F"] },
    { name = "down", entry = "swap_ffn_down_simple_{W}", grid = ["ceil(D, 64)", "ceil(B * C, 64)"], block = [256], flops = "2 * B * C * D * F", args = ["h", "w2", "h_scale", "w2_scale", "x", "B", "C", "D", "F", "RES"] },
    { name = "pool", entry = "swap_ffn_pool", grid = ["B * D / 8"], block = [256], args = ["x", "film_alpha", "pooled", "C", "D"] },
    { name = "reduce", entry = "swap_ffn_reduce", grid = ["B * 224"], block = [256], args = ["pooled", "basis", "reduced", "D"] },
    { name = "decode", entry = "swap_ffn_decode", grid = ["B * D / 8"], block = [256], args = ["reduced", "decoder", "delta", "B", "D"] },
]

[[variant]]
name = "unfused"
doc = "every tensor operation a launch, matrix products by cuBLASLt"
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"
needs = ["size == 2", "D % 8 == 0", "F % 8 == 0", "D <= 4096", "B * C <= 64 * 65535"]
scratch = [
    { name = "norm", bytes = "B * C * 4" }, { name = "logit", bytes = "B * C * 4" },
    { name = "normed", bytes = "B * C * D * 4" }, { name = "z", bytes = "B * C * 256" }, { name = "banks", bytes = "B * C * 16" },
    { name = "gate", bytes = "B * C" }, { name = "bank", bytes = "B * C" }, { name = "physical", bytes = "B * C" },
    { name = "lanes", bytes = "B * C * 4" }, { name = "next_lanes", bytes = "B * C * 4" }, { name = "gathered", bytes = "B * C * D * 2" },
    { name = "next_ram", bytes = "B * C * D * 8" }, { name = "n", bytes = "B * C * D * 2" }, { name = "gates", bytes = "B * C * F * 4" },
    { name = "ups", bytes = "B * C * F * 4" }, { name = "h", bytes = "B * C * F * 2" }, { name = "kept", bytes = "B * C * D * 4" },
    { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "products", bytes = "B * 8 * 224 * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
sequence = "film E(norm scale project logit gate banks bank lanes physical gather write_0 write_1 write_2 write_3 take stack first_lane middle_lane last_lane pack J(operand gate_product up_product activate RES(keep) down_product RES(add))) end(pool reduce sum silu decode)"
launch = [
    { name = "film", entry = "swap_ffn_unfused_film", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["x_in", "film_scale", "film_shift", "x", "B", "C", "D", "begin"] },
    { name = "norm", entry = "swap_ffn_unfused_norm", grid = ["B * C"], block = [256], args = ["x", "norm", "D", "eps"] },
    { name = "scale", entry = "swap_ffn_unfused_scale", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["x", "norm", "router_g", "normed", "B", "C", "D"] },
    { name = "project", entry = "swap_ffn_unfused_project", grid = ["1", "ceil(B * C, 64)"], block = [256], args = ["normed", "router_w", "z", "B", "C", "D"] },
    { name = "logit", entry = "swap_ffn_unfused_logit", grid = ["ceil(B * C, 8)"], block = [256], args = ["z", "router_swap", "router_bias", "logit", "B", "C"] },
    { name = "gate", entry = "swap_ffn_unfused_gate", grid = ["ceil(B * C, 256)"], block = [256], args = ["logit", "gate", "B", "C"] },
    { name = "banks", entry = "swap_ffn_unfused_banks", grid = ["ceil(B * C, 256)"], block = [256], args = ["z", "bank_w", "banks", "B", "C"] },
    { name = "bank", entry = "swap_ffn_unfused_bank", grid = ["ceil(B * C, 256)"], block = [256], args = ["banks", "router_bias", "bank", "B", "C"] },
    { name = "lanes", entry = "swap_ffn_unfused_lanes", grid = ["ceil(B * C, 256)"], block = [256], args = ["map", "lanes", "B", "C"] },
    { name = "physical", entry = "swap_ffn_unfused_physical", grid = ["ceil(B * C, 256)"], block = [256], args = ["lanes", "bank", "physical", "B", "C"] },
    { name = "gather", entry = "swap_ffn_unfused_gather", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["ram", "physical", "gathered", "B", "C", "D"] },
    { name = "write_0", entry = "swap_ffn_unfused_write_0", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["gate", "physical", "ram", "x", "next_ram", "B", "C", "D"] },
    { name = "write_1", entry = "swap_ffn_unfused_write_1", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["gate", "physical", "ram", "x", "next_ram", "B", "C", "D"] },
    { name = "write_2", entry = "swap_ffn_unfused_write_2", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["gate", "physical", "ram", "x", "next_ram", "B", "C", "D"] },
    { name = "write_3", entry = "swap_ffn_unfused_write_3", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["gate", "physical", "ram", "x", "next_ram", "B", "C", "D"] },
    { name = "take", entry = "swap_ffn_unfused_take", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["gate", "gathered", "x", "B", "C", "D"] },
    { name = "stack", entry = "swap_ffn_unfused_stack", grid = ["4 * B * C * ceil(D, 256)"], block = [256], args = ["next_ram", "ram", "B", "C", "D"] },
    { name = "first_lane", entry = "swap_ffn_unfused_first_lane_{L}", grid = ["ceil(B * C, 256)"], block = [256], args = ["gate", "bank", "physical", "lanes", "next_lanes", "B", "C"] },
    { name = "middle_lane", entry = "swap_ffn_unfused_middle_lane_{L}", grid = ["ceil(B * C, 256)"], block = [256], args = ["gate", "bank", "physical", "lanes", "next_lanes", "B", "C"] },
    { name = "last_lane", entry = "swap_ffn_unfused_last_lane_{L}", grid = ["ceil(B * C, 256)"], block = [256], args = ["gate", "bank", "physical", "lanes", "next_lanes", "B", "C"] },
    { name = "pack", entry = "swap_ffn_unfused_pack", grid = ["ceil(B * C, 256)"], block = [256], args = ["gate", "bank", "next_lanes", "map", "decisions", "@E", "B", "C"] },
    { name = "operand", entry = "swap_ffn_unfused_operand", grid = ["B * C"], block = [256], args = ["x", "ffn_g", "n", "D", "eps"] },
    { name = "gate_product", matmul = { a = "n", b = "w1", d = "gates", m = "B * C", n = "F", k = "D", of = "bf16", into = "f32" } },
    { name = "up_product", matmul = { a = "n", b = "w3", d = "ups", m = "B * C", n = "F", k = "D", of = "bf16", into = "f32" } },
    { name = "activate", entry = "swap_ffn_unfused_activate", grid = ["B * C * ceil(F, 256)"], block = [256], args = ["gates", "ups", "h", "B", "C", "F"] },
    { name = "keep", entry = "swap_ffn_unfused_keep", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["x", "kept", "B", "C", "D"] },
    { name = "down_product", matmul = { a = "h", b = "w2", d = "x", m = "B * C", n = "D", k = "F", of = "bf16", into = "f32" } },
    { name = "add", entry = "swap_ffn_unfused_add", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["kept", "x", "B", "C", "D"] },
    { name = "pool", entry = "swap_ffn_pool", grid = ["B * D / 8"], block = [256], args = ["x", "film_alpha", "pooled", "C", "D"] },
    { name = "reduce", entry = "swap_ffn_unfused_reduce", grid = ["B * 8 * 224"], block = [256], args = ["pooled", "basis", "products", "D"] },
    { name = "sum", entry = "swap_ffn_unfused_sum", grid = ["ceil(B * 224, 256)"], block = [256], args = ["products", "reduced", "B"] },
    { name = "silu", entry = "swap_ffn_unfused_silu", grid = ["ceil(B * 224, 256)"], block = [256], args = ["reduced", "B"] },
    { name = "decode", entry = "swap_ffn_decode", grid = ["B * D / 8"], block = [256], args = ["reduced", "decoder", "delta", "B", "D"] },
]

[[variant]]
name = "cublaslt"
doc = "an event is one launch for router, swap and norm, and four for each step of the FFN, two of them by cuBLASLt"
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"
needs = ["size == 2", "D == 1024", "F % 16 == 0", "F <= 4096"]
scratch = [
    { name = "sums", bytes = "B * C * 1152" }, { name = "n", bytes = "B * C * D * size" },
    { name = "n_scale", bytes = "B * C * 4" }, { name = "w13", bytes = "2 * F * D * size" }, { name = "w13_scale", bytes = "2 * F * 4" },
    { name = "gate_up", bytes = "B * C * F * 8" }, { name = "h", bytes = "B * C * F * size" }, { name = "h_scale", bytes = "B * C * 4" },
    { name = "kept", bytes = "B * C * D * 4" }, { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
sequence = "start E(swap J(gate_up activate RES(keep) down RES(add) settle)) end(pool reduce decode)"
prepare = [
    { entry = "swap_ffn_join_{W}", grid = ["2 * F"], block = [256], args = ["w1", "w3", "w1_scale", "w3_scale", "w13", "w13_scale", "D", "F"] },
]
launch = [
    { name = "start", entry = "swap_ffn_start_rows_{W}", grid = ["B * C"], block = [256], args = ["x_in", "film_scale", "film_shift", "x", "router", "ffn_g", "sums", "n", "n_scale", "C", "D", "begin", "eps"] },
    { name = "swap", entry = "swap_ffn_swap_rows_{W}_{L}", grid = ["B * C"], block = [256], bytes = "B * C * (1152 + (12 + size) * D)", args = ["x", "ram", "map", "decisions", "@E", "sums", "router_bias", "ffn_g", "n", "n_scale", "D", "eps"] },
    { name = "settle", entry = "swap_ffn_settle_rows_{W}", grid = ["B * C"], block = [256], args = ["x", "router", "ffn_g", "sums", "n", "n_scale", "D", "eps"] },
    { name = "gate_up", matmul = { a = "n", b = "w13", d = "gate_up", m = "B * C", n = "2 * F", k = "D", of = "bf16", into = "f32" } },
    { name = "activate", entry = "swap_ffn_activate_{W}", grid = ["B * C"], block = [256], args = ["gate_up", "h", "h_scale", "F"] },
    { name = "keep", entry = "swap_ffn_unfused_keep", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["x", "kept", "B", "C", "D"] },
    { name = "down", matmul = { a = "h", b = "w2", d = "x", m = "B * C", n = "D", k = "F", of = "bf16", into = "f32" } },
    { name = "add", entry = "swap_ffn_unfused_add", grid = ["B * C * ceil(D, 256)"], block = [256], args = ["kept", "x", "B", "C", "D"] },
    { name = "pool", entry = "swap_ffn_pool", grid = ["B * D / 8"], block = [256], args = ["x", "film_alpha", "pooled", "C", "D"] },
    { name = "reduce", entry = "swap_ffn_reduce", grid = ["B * 224"], block = [256], args = ["pooled", "basis", "reduced", "D"] },
    { name = "decode", entry = "swap_ffn_decode", grid = ["B * D / 8"], block = [256], args = ["reduced", "decoder", "delta", "B", "D"] },
]

[[variant]]
name = "cublaslt_bf16"
doc = "as cublaslt, with gate and up rounded to bf16 on their way"
like = "cublaslt"
scratch = [
    { name = "sums", bytes = "B * C * 1152" }, { name = "n", bytes = "B * C * D * size" },
    { name = "n_scale", bytes = "B * C * 4" }, { name = "w13", bytes = "2 * F * D * size" }, { name = "w13_scale", bytes = "2 * F * 4" },
    { name = "gate_up", bytes = "B * C * F * 4" }, { name = "h", bytes = "B * C * F * size" }, { name = "h_scale", bytes = "B * C * 4" },
    { name = "kept", bytes = "B * C * D * 4" }, { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
launch = [
    { name = "gate_up", matmul = { a = "n", b = "w13", d = "gate_up", m = "B * C", n = "2 * F", k = "D", of = "bf16", into = "bf16" } },
    { name = "activate", entry = "swap_ffn_activate_bf16_in" },
]

[[variant]]
name = "fused"
doc = "two launches for each step of the FFN, in tensor cores"
arch = "sm_90a"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C % 128 == 0"]
scratch = [
    { name = "sums", bytes = "B * C * 1152" }, { name = "n", bytes = "B * C * D * 2" }, { name = "h", bytes = "B * C * F * 2" },
    { name = "packed_13", bytes = "8388608 * size" }, { name = "packed_2", bytes = "4194304 * size" }, { name = "joint", bytes = "B * C" },
    { name = "parts", bytes = "B * C * 4096" }, { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
sequence = "start E(swap J(gate_up down)) end(pool reduce decode)"
prepare = [
    { entry = "swap_ffn_pack_gate_up_{W}", grid = ["2 * F"], block = [256], args = ["w1", "w3", "packed_13", "D"] },
    { name = "pack_down", entry = "swap_ffn_pack_down_4_{W}", grid = ["D"], block = [256], args = ["w2", "packed_2", "F"] },
    { entry = "swap_ffn_absent", grid = ["B * C"], block = [256], args = ["parts", "joint"] },
]
launch = [
    { name = "start", entry = "swap_ffn_start_tiles_{W}", grid = ["B * C"], block = [256], args = ["x_in", "film_scale", "film_shift", "x", "router", "ffn_g", "sums", "n", "joint", "B", "C", "D", "begin", "eps"] },
    { name = "swap", entry = "swap_ffn_swap_tiles_{W}_{L}", grid = ["B * C"], block = [256], bytes = "B * C * (1152 + (12 + size) * D)", args = ["x", "ram", "map", "decisions", "@E", "sums", "router_bias", "ffn_g", "n", "B", "C", "D", "eps"] },
    { name = "gate_up", entry = "swap_ffn_gate_up_{W}", grid = ["B * C / 128 * 32"], block = [384], shared = 230696, bytes = "(2 * F * D + B * C * (D + F)) * size", flops = "4 * B * C * D * F", args = ["n", "packed_13", "sums", "w1_scale", "w3_scale", "h", "joint", "B", "C", "eps"] },
    { name = "down", entry = "swap_ffn_down_{W}", grid = ["B * C / 128 * 32"], block = [384], cluster = [2], shared = 230696, bytes = "F * D * size + B * C * (F * size + D * (4 + size))", flops = "2 * B * C * D * F", args = ["h", "packed_2", "w2_scale", "router", "ffn_g", "x", "sums", "n", "joint", "parts", "B", "C", "J", "@E", "@J", "RES"] },
    { name = "pool", entry = "swap_ffn_pool", grid = ["B * D / 8"], block = [256], args = ["x", "film_alpha", "pooled", "C", "D"] },
    { name = "reduce", entry = "swap_ffn_reduce", grid = ["B * 224"], block = [256], args = ["pooled", "basis", "reduced", "D"] },
    { name = "decode", entry = "swap_ffn_decode", grid = ["B * D / 8"], block = [256], args = ["reduced", "decoder", "delta", "B", "D"] },
]

[[variant]]
name = "programmatic"
doc = "as fused, each launch begins before the last has ended and prefetches its weights"
like = "fused"
each = { programmatic = true }

[[variant]]
name = "persistent"
doc = "a token up to its last event is one launch, whose thread blocks wait for each other"
arch = "sm_90a"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C == 512", "sms >= 128"]
scratch = [
    { name = "sums", bytes = "B * C * 1152" }, { name = "n", bytes = "B * C * D * 2" }, { name = "h", bytes = "B * C * F * 2" },
    { name = "packed_13", bytes = "8388608 * size" }, { name = "packed_2", bytes = "4194304 * size" }, { name = "joint", bytes = "B * C" },
    { name = "parts", bytes = "B * C * 4096" }, { name = "pooled", bytes = "B * 8 * D * 4" }, { name = "reduced", bytes = "B * 224 * 4" },
]
sequence = "events end(pool reduce decode)"
prepare = [
    { entry = "swap_ffn_pack_gate_up_{W}", grid = ["2 * F"], block = [256], args = ["w1", "w3", "packed_13", "D"] },
    { name = "pack_down", entry = "swap_ffn_pack_down_4_{W}", grid = ["D"], block = [256], args = ["w2", "packed_2", "F"] },
    { entry = "swap_ffn_absent", grid = ["B * C"], block = [256], args = ["parts", "joint"] },
]
each = { programmatic = true }
launch = [
    { name = "events", entry = "swap_ffn_events_4_{W}", grid = [128], block = [384], cluster = [2], shared = 230952, bytes = "begin * (B * 2 + C * 8 + B * C * 6) * D + E * (B * C * (1152 + (12 + size) * D) + J * (3 * F * D * size + B * C * (D * (4 + 2 * size) + F * 2 * size)))", flops = "E * J * 6 * B * C * D * F", args = ["x_in", "film_scale", "film_shift", "x", "ram", "map", "decisions", "sums", "router_bias", "router", "ffn_g", "n", "packed_13", "w1_scale", "w3_scale", "h", "packed_2", "w2_scale", "joint", "parts", "B", "C", "D", "begin", "E", "J", "rule", "RES", "eps"] },
    { name = "pool", entry = "swap_ffn_pool", grid = ["B * D / 8"], block = [256], args = ["x", "film_alpha", "pooled", "C", "D"] },
    { name = "reduce", entry = "swap_ffn_reduce", grid = ["B * 224"], block = [256], args = ["pooled", "basis", "reduced", "D"] },
    { name = "decode", entry = "swap_ffn_decode", grid = ["B * D / 8"], block = [256], args = ["reduced", "decoder", "delta", "B", "D"] },
]

[[variant]]
name = "persistent_many"
doc = "as persistent, without split-K, for enough rows"
like = "persistent"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C % 2048 == 0", "16384 % (B * C) == 0", "sms >= 128"]
prepare = [
    { name = "pack_down", entry = "swap_ffn_pack_down_1_{W}" },
]
launch = [
    { name = "events", entry = "swap_ffn_events_1_{W}" },
]

[[variant]]
name = "cublaslt_fp8"
doc = "as cublaslt, operands in E4M3"
like = "cublaslt"
products = "e4m3"
needs = ["size == 1", "D == 1024", "F % 16 == 0", "F <= 4096"]
launch = [
    { name = "gate_up", matmul = { a = "n", b = "w13", d = "gate_up", m = "B * C", n = "2 * F", k = "D", of = "e4m3", into = "f32", scales = ["n_scale", "w13_scale"] } },
    { name = "down", matmul = { a = "h", b = "w2", d = "x", m = "B * C", n = "D", k = "F", of = "e4m3", into = "f32", scales = ["h_scale", "w2_scale"] } },
]

[[variant]]
name = "fp8"
doc = "as programmatic, in E4M3: n with a power of two for 32 numbers, h with a scale for 128"
like = "programmatic"
products = "e4m3"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C % 128 == 0"]

[[variant]]
name = "fp8_persistent"
doc = "as fp8, all events in one launch"
like = "persistent"
products = "e4m3"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C == 512", "sms >= 128"]

[[variant]]
name = "fp8_persistent_many"
doc = "as fp8_persistent, without split-K, for enough rows"
like = "persistent_many"
products = "e4m3"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C % 2048 == 0", "16384 % (B * C) == 0", "sms >= 128"]

[[mutant]]
name = "lane_literal"
doc = "of the map only lane 0 changes"
variants = ["simple", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "not_written_back"
doc = "what is swapped out is lost"
variants = ["simple", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "bank_offset_32"
doc = "the bytes before the banks of a row are counted in 32 bits"
variants = ["simple", "fused", "programmatic", "fp8"]

[[mutant]]
name = "neighbour_map"
doc = "the map of the row beside"
variants = ["simple", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "gate_at_zero"
doc = "a logit of 0 opens the gate"
variants = ["simple", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "last_bank"
doc = "of equal banks the last is taken"
variants = ["simple", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "plane_lost"
doc = "half of the hidden numbers is left out"
variants = ["fused", "programmatic", "persistent", "fp8", "fp8_persistent"]

[[mutant]]
name = "interleave_off"
doc = "columns of gate and up meet others than their own"
variants = ["fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "tile_lost"
doc = "a part of the sum of squares is left out"
variants = ["fused", "programmatic", "persistent", "fp8", "fp8_persistent"]

[[mutant]]
name = "barrier_missing"
doc = "h is stored before all of it is written"
variants = ["fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "join_missing"
doc = "partials of other thread blocks are read before they are written"
variants = ["fused", "programmatic", "persistent", "fp8", "fp8_persistent"]

[[mutant]]
name = "pair_unclamped"
doc = "powers under a common reciprocal are not kept within the range of f32"
variants = ["fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "exponent_never_lowered"
doc = "codes keep the exponent of a row however small its numbers become"
variants = ["fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "squares_before_residual"
doc = "the sum of squares is that of the product, without what it is added to"
variants = ["fused", "programmatic", "persistent", "persistent_many", "fp8", "fp8_persistent", "fp8_persistent_many"]

[[mutant]]
name = "cores_by_64"
doc = "of the cores only whole groups of 64 are pooled"
variants = ["simple", "unfused", "cublaslt", "cublaslt_bf16", "cublaslt_fp8", "fused", "programmatic", "persistent", "fp8", "fp8_persistent"]
*/

// reference: reference/paths/swap_ffn/model.rs
//
// x [B·C, D] in f32 from step to step, ram [B·C, 4, D] in bf16, map [B·C] of four lanes of two bits; decisions [E, B·C] are
// gate · 4 + bank. Weights W1, W3 [F, D] and W2 [D, F] in bf16, or in E4M3 with a scale for each row; the router is folded into
// five rows of D numbers and as many biases. begin: x comes from x_in; end: it is collapsed to delta [B, D]; RES: the FFN adds.

#include "swap_ffn/unfused_entries.cuh"
#include "swap_ffn/tensor_entries.cuh"
