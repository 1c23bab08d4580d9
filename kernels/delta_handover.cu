/*
[[variant]]
name = "pointer"
doc = "prefill writes its final states in [V, K], where decode reads and updates them: nothing between them"
arch = "sm_90a"

[[variant]]
name = "turned"
doc = "prefill writes [K, V], a kernel transposes it to [V, K], decode goes on: what a prefill with a single layout needs"
arch = "sm_90a"

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
