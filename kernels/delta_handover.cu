/*
[[variant]]
name = "pointer"
doc = "prefill writes its final states in [V, K], where decode reads and updates them: nothing between them"
arch = "sm_90a"
scratch = [{ name = "left", bytes = "(T / 64 + N) * H * (17408 + 49152 * (G / 128))" }]

[[variant.launch]]
name = "chunks"
entry = "delta_prefill_chunks_own_{gate}"
grid = ["(T / 64 + N) * H"]
block = [256]
shared = "60416 + 34816 * (G / 128)"
args = ["q", "k", "g", "beta", "starts", "left", "N", "H", "index", "scale"]
bytes = "T * H * (516 + 4 * G) + chunks * H * (17408 + 49152 * (G / 128)) + index * (N + 1)"

[[variant.launch]]
name = "states"
entry = "delta_prefill_chunks_states_{gate}"
grid = ["N * H * 2"]
block = [128]
shared = "3 * (58368 + 16384 * (G / 128)) + 32"
programmatic = true
args = ["q", "k", "v", "initial", "starts", "left", "o", "state", "N", "H", "index", "in_vk", "out_vk"]
bytes = "T * H * (512 + 512 * (G == 1)) + chunks * H * (17408 + 49152 * (G / 128)) + 8 * N * H * K * V + index * (N + 1)"

[[variant.launch]]
name = "decode"
entry = "delta_decode_vk_{gate}_f32"
grid = ["V / 64", "H * ceil(N, 65535)", "min(N, 65535)"]
block = [128]
args = ["next_q", "next_k", "next_v", "gate", "next_beta", "a_log", "dt_bias", "indices", "state", "next_o", "N", "H", "one", "K", "V", "bound"]
bytes = "N * H * (8 * K * V + 4 * K + 4 * V + 2 * G + 2) + 4 * H * (G + 1) + 4 * N"

[[variant]]
name = "turned"
doc = "prefill writes [K, V], a kernel transposes it to [V, K], decode goes on: what a prefill with a single layout needs"
like = "pointer"
scratch = [
    { name = "left", bytes = "(T / 64 + N) * H * (17408 + 49152 * (G / 128))" },
    { name = "final", bytes = "4 * N * H * K * V" },
]
sequence = "chunks states turn decode"

[[variant.launch]]
name = "states"
args = ["q", "k", "v", "initial", "starts", "left", "o", "final", "N", "H", "index", "in_vk", "in_vk"]

[[variant.launch]]
name = "turn"
entry = "state_transpose_registers_f32"
grid = ["N * H * ceil(K, 32) * ceil(V, 32)"]
block = [32]
args = ["final", "state", "K", "V"]

[[mutant]]
name = "layout_confused"
doc = "prefill leaves [K, V], and decode takes it for [V, K]"
variants = ["pointer"]

[[mutant]]
name = "final_rounded"
doc = "prefill rounds the states that it leaves to bf16"
*/

// reference: reference/ops/linear_attention/recurrent.rs
//
// The kernels are those of delta_prefill.cu, delta_decode.cu and state_transpose.cu, on buffers that they share.

#include "delta_prefill/inverse.cuh"
#include "lib/evict_last.cuh"
#include "lib/tma.cuh"
#include "lib/vec.cuh"
#include "lib/wgmma.cuh"

namespace prefill {
#include "delta_prefill.cu"
}
namespace decode {
#include "delta_decode.cu"
}
namespace turn {
#include "state_transpose.cu"
}
