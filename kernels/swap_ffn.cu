/*
[[variant]]
name = "simple"
doc = "products without tensor cores, any shape of few products"
needs = ["D % 8 == 0", "F % 4 == 0", "D <= 4096", "F <= 4096", "E * J * B * C * F <= 8388608", "B * C <= 64 * 65535"]

[[variant]]
name = "unfused"
doc = "every tensor operation a launch, matrix products by cuBLASLt"
needs = ["size == 2", "D % 8 == 0", "F % 8 == 0", "D <= 4096", "B * C <= 64 * 65535"]
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"

[[variant]]
name = "cublaslt"
doc = "an event is one launch for router, swap and norm, and four for each step of the FFN, two of them by cuBLASLt"
needs = ["size == 2", "D == 1024", "F % 16 == 0", "F <= 4096"]
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"

[[variant]]
name = "cublaslt_bf16"
doc = "as cublaslt, with gate and up rounded to bf16 on their way"
needs = ["size == 2", "D == 1024", "F % 16 == 0", "F <= 4096"]
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"

[[variant]]
name = "fused"
doc = "two launches for each step of the FFN, in tensor cores"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C % 128 == 0"]
arch = "sm_90a"

[[variant]]
name = "programmatic"
doc = "as fused, each launch begins before the last has ended and prefetches its weights"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C % 128 == 0"]
arch = "sm_90a"

[[variant]]
name = "persistent"
doc = "a token up to its last event is one launch, whose thread blocks wait for each other"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C == 512", "sms >= 128"]
arch = "sm_90a"

[[variant]]
name = "persistent_many"
doc = "as persistent, without split-K, for enough rows"
needs = ["size == 2", "D == 1024", "F == 4096", "B * C % 2048 == 0", "16384 % (B * C) == 0", "sms >= 128"]
arch = "sm_90a"

[[variant]]
name = "cublaslt_fp8"
doc = "as cublaslt, operands in E4M3"
needs = ["size == 1", "D == 1024", "F % 16 == 0", "F <= 4096"]
products = "e4m3"
varies_with_batch = "cuBLASLt may choose another algorithm for another number of rows"

[[variant]]
name = "fp8"
doc = "as programmatic, in E4M3: n with a power of two for 32 numbers, h with a scale for 128"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C % 128 == 0"]
arch = "sm_90a"
products = "e4m3"

[[variant]]
name = "fp8_persistent"
doc = "as fp8, all events in one launch"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C == 512", "sms >= 128"]
arch = "sm_90a"
products = "e4m3"

[[variant]]
name = "fp8_persistent_many"
doc = "as fp8_persistent, without split-K, for enough rows"
needs = ["size == 1", "D == 1024", "F == 4096", "B * C % 2048 == 0", "16384 % (B * C) == 0", "sms >= 128"]
arch = "sm_90a"
products = "e4m3"

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
