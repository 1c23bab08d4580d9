/*
[[variant]]
name = "simple"
doc = "a warpgroup for 64 rows of a matrix and one token, 64 columns after the other, decoded in f32"
arch = "sm_90a"
needs = ["B * (K + 1) < 2147483648"]

[[variant.launch]]
entry = "moe_fp4_simple_hidden_{format}"
grid = ["ceil(I, 32)", "min(B * (K + 1), 65535)"]
block = [128]
args = ["x", "experts", "weights", "gate_up", "gate_up_scale", "gate_up_tensor", "hidden", "B", "E", "K", "D", "I", "limit"]

[[variant.launch]]
entry = "moe_fp4_simple_down_{format}_{out}"
grid = ["ceil(D, 64)", "min(B, 65535)"]
block = [128]
args = ["hidden", "experts", "weights", "down", "down_scale", "down_tensor", "y", "B", "E", "K", "D", "I"]

[[variant]]
name = "grouped"
doc = "rows are sorted by expert; a producer warp copies in bulk, two warpgroups decode 64 rows of a matrix each into registers, for up to 16 tokens; matrices repacked at load, gate and up interleaved"
arch = "sm_90a"
needs = ["B * (K + 1) <= 2147483392", "K <= 256", "E < 8192"]
scratch = [
    { name = "packed_gate_up", bytes = "(E + 1) * ceil(I, 64) * ceil(D, 64) * 4608" },
    { name = "packed_down", bytes = "(E + 1) * ceil(D, 128) * ceil(I, 64) * 4608" },
    { name = "general_gate_up", bytes = "(E + 1) * ceil(I, 64) * 4" },
    { name = "general_down", bytes = "(E + 1) * ceil(D, 128) * 4" },
    { name = "tiles", bytes = "(2 + E + ceil(B * (K + 1), 16)) * 16" },
    { name = "order", bytes = "B * (K + 1) * 8" },
    { name = "packed_x", bytes = "(E + 1 + ceil(B * (K + 1), 8)) * ceil(D, 64) * 1024" },
    { name = "packed_hidden", bytes = "(E + 1 + ceil(B * (K + 1), 8)) * ceil(I, 64) * 1024" },
    { name = "parts", bytes = "B * (K + 1) * D * 4" },
]
prepare = [
    { entry = "moe_fp4_pack_gate_up_{format}", grid = ["ceil(I, 64)", "E + 1"], block = [256], args = ["gate_up", "gate_up_scale", "packed_gate_up", "general_gate_up", "I", "D"] },
    { entry = "moe_fp4_pack_down_{format}", grid = ["ceil(D, 128)", "E + 1"], block = [256], args = ["down", "down_scale", "packed_down", "general_down", "D", "I"] },
]

[[variant.launch]]
name = "sort"
entry = "moe_fp4_sort"
grid = ["min(E + 1, B * (K + 1))", "ceil(D, 512)"]
block = [256]
shared = "(E + 1) * 4"
args = ["x", "experts", "weights", "tiles", "order", "packed_x", "B", "E", "K", "D"]

[[variant.launch]]
name = "gate_up"
entry = "moe_fp4_gate_up_{format}"
grid = ["2 * sms"]
block = [288]
shared = "106496"
programmatic = true
args = ["packed_x", "tiles", "order", "packed_gate_up", "general_gate_up", "gate_up_tensor", "packed_hidden", "hidden", "E", "D", "I", "limit"]
taps = ["hidden"]

[[variant.launch]]
name = "down"
entry = "moe_fp4_down_{format}"
grid = ["2 * sms"]
block = [288]
shared = "106496"
programmatic = true
args = ["packed_hidden", "tiles", "order", "packed_down", "general_down", "down_tensor", "parts", "E", "D", "I"]

[[variant.launch]]
name = "sum"
entry = "moe_fp4_sum_{out}"
grid = ["ceil(D, 256)", "min(B, 65535)"]
block = [256]
programmatic = true
args = ["parts", "experts", "weights", "y", "hidden", "B", "K", "D", "I"]
taps = ["hidden"]

[[mutant]]
name = "neighbours_scale"
doc = "weights have the scale of the next block of columns"

[[mutant]]
name = "nibbles_swapped"
doc = "the high nibble is taken for the first column"

[[mutant]]
name = "no_bias"
doc = "E4M3 scales are widened without the difference of biases"

[[mutant]]
name = "subnormal_formula"
doc = "subnormal E4M3 scales are decoded as if they had a leading one"

[[mutant]]
name = "tensor_scales_exchanged"
doc = "the scales of the tensors of gate and up are exchanged"

[[mutant]]
name = "clamp_below"
doc = "the gate clamped from below too"

[[mutant]]
name = "clamp_after"
doc = "the product of both is clamped, and not its factors"

[[mutant]]
name = "shared_unclamped"
doc = "the shared expert has no limit"

[[mutant]]
name = "weight_after_down"
doc = "the router's weight multiplies what the second product gives"

[[mutant]]
name = "last_part_lost"
doc = "the last of several parts of 1024 columns is not added"

[[mutant]]
name = "tail_skipped"
doc = "columns after the last whole 64 are left out"

[[mutant]]
name = "none_is_first"
doc = "a slot without an expert goes to the first"

[[mutant]]
name = "slots_in_order"
doc = "a row's experts are added in the order of its slots"

[[mutant]]
name = "rows_of_the_grid"
doc = "rows after the first 65,535 are left as they are"

[[mutant]]
name = "tiles_cut"
doc = "rows of an expert after its first tile are left out"
variants = ["grouped"]

[[mutant]]
name = "order_off_by_one"
doc = "what a token gave goes to the next one of the same expert"
variants = ["grouped"]

[[mutant]]
name = "slot_overwritten"
doc = "later copies go one slot too far, over numbers that are still to be read"
variants = ["grouped"]

[[mutant]]
name = "always_plain"
doc = "scales are decoded as if none were NaN, negative or large"
variants = ["grouped"]
*/

// reference: crates/operations/ops/moe_fp4.rs
//
// x and y [B, D], experts and weights [B, K], hidden [B, K + 1, I] in bfloat16. gate_up [E + 1, 2·I, D / 2] and down [E + 1, D,
// I / 2] with the first column in the low nibble, and a byte of scale for each block of columns. The last matrices are those of
// the shared expert, and the last slot is its slot. A slot of -1 has no expert.

#if __CUDA_ARCH__ == 900
#include "fp4_gemm.cu"
#include "swiglu/swiglu.cuh"

// A number between the products.
__device__ __forceinline__ float activate(float gate, float up, float limit, float weight, bool shared) {
#ifdef MUTANT_SHARED_UNCLAMPED
    limit = shared ? 3e38f : limit;
#endif
#ifdef MUTANT_CLAMP_AFTER
    return max_nan(min_nan(swiglu(gate, up, 3e38f), limit), -limit) * weight;
#elif defined(MUTANT_WEIGHT_AFTER_DOWN)
    return swiglu(gate, up, limit);
#else
    return swiglu(gate, up, limit) * weight;
#endif
}

// The scales of the tensors of gate and up.
__device__ __forceinline__ float2 gate_up_tensors(const float *tensors, int expert) {
    const float2 both = ((const float2 *)tensors)[expert];
#ifdef MUTANT_TENSOR_SCALES_EXCHANGED
    return make_float2(both.y, both.x);
#else
    return both;
#endif
}

// The weight of a product of a slot before it is added to y; K is the shared expert's slot.
__device__ __forceinline__ float late_weight(const float *weights, int slot, int K) {
#ifdef MUTANT_WEIGHT_AFTER_DOWN
    return slot < K ? weights[slot] : 1.0f;
#else
    return 1.0f;
#endif
}

__device__ __forceinline__ int expert_of(int slot) {
#ifdef MUTANT_NONE_IS_FIRST
    return max(slot, 0);
#else
    return slot;
#endif
}

// The place of a slot among those of its row, in the order in which they are added: by number of the expert, then by slot. It is
// that of an expert only.
__device__ __forceinline__ int rank_of(const int *experts, int slot, int K) {
#ifdef MUTANT_SLOTS_IN_ORDER
    const int own = 0;
    const auto expert = [&](int other) { return expert_of(experts[other]) < 0 ? -1 : 0; };
#else
    const int own = expert_of(experts[slot]);
    const auto expert = [&](int other) { return expert_of(experts[other]); };
#endif
    int rank = 0;
    for (int other = 0; other < K; other++) {
        const int its = expert(other);
        rank += its >= 0 && (its < own || (its == own && other < slot));
    }
    return rank;
}

// Rows whose y is computed.
__device__ __forceinline__ int rows_of_y(int B) {
#ifdef MUTANT_ROWS_OF_THE_GRID
    return min(B, 65535);
#else
    return B;
#endif
}

#include "moe_fp4/down.cuh"
#include "moe_fp4/gate_up.cuh"
#include "moe_fp4/simple.cuh"
#include "moe_fp4/sort.cuh"

#define MOE_FORMATS(FORMAT, F)                                                                                                 \
    KERNEL(moe_fp4_simple_hidden_##FORMAT,                                                                                     \
           __launch_bounds__(128))(const bf16 *x, const int *experts, const float *weights, const u8 *codes, const u8 *scales, \
                                   const float *tensors, bf16 *hidden, int B, int E, int K, int D, int I, float limit) {       \
        simple_hidden<F>(x, experts, weights, {codes, scales, 2 * I, D}, tensors, hidden, B, E, K, I, limit);                  \
    }                                                                                                                          \
    KERNEL(moe_fp4_pack_gate_up_##FORMAT, __launch_bounds__(256))(const u8 *codes, const u8 *scales, u8 *packed, u32 *general, \
                                                                  int I, int D) {                                              \
        pack_matrix<F, true>(codes, scales, packed, general, I, D);                                                            \
    }                                                                                                                          \
    KERNEL(moe_fp4_pack_down_##FORMAT, __launch_bounds__(256))(const u8 *codes, const u8 *scales, u8 *packed, u32 *general,    \
                                                               int D, int I) {                                                 \
        pack_matrix<F, false>(codes, scales, packed, general, D, I);                                                           \
    }                                                                                                                          \
    KERNEL(moe_fp4_gate_up_##FORMAT, __launch_bounds__(THREADS, 2))(                                                           \
        const u8 *tokens, const int4 *tiles, const int2 *order, const u8 *packed, const u32 *general, const float *tensors,    \
        u8 *packed_hidden, bf16 *hidden, int E, int D, int I, float limit) {                                                   \
        gate_up<F>({tokens, tiles, order, packed, general, (I + 63) / 64, D}, tensors, packed_hidden, hidden, E, I, limit);    \
    }                                                                                                                          \
    KERNEL(moe_fp4_down_##FORMAT, __launch_bounds__(THREADS, 2))(const u8 *tokens, const int4 *tiles, const int2 *order,       \
                                                                 const u8 *packed, const u32 *general, const float *tensors,   \
                                                                 float *parts, int E, int D, int I) {                          \
        down<F>({tokens, tiles, order, packed, general, (D + 127) / 128, I}, tensors, parts, D);                               \
    }                                                                                                                          \
    MOE_OUTPUTS(FORMAT, F, bf16, bf16)                                                                                         \
    MOE_OUTPUTS(FORMAT, F, f32, float)
#define MOE_OUTPUTS(FORMAT, F, OUT, Y)                                                                                \
    KERNEL(moe_fp4_simple_down_##FORMAT##_##OUT,                                                                      \
           __launch_bounds__(128))(const bf16 *hidden, const int *experts, const float *weights, const u8 *codes,     \
                                   const u8 *scales, const float *tensors, Y *y, int B, int E, int K, int D, int I) { \
        simple_down<F>(hidden, experts, weights, {codes, scales, D, I}, tensors, y, B, E, K);                         \
    }
MOE_FORMATS(mxfp4, Mxfp4)
MOE_FORMATS(nvfp4, Nvfp4)

KERNEL(moe_fp4_sort, __launch_bounds__(256))(const bf16 *x, const int *experts, const float *weights, int4 *tiles, int2 *order,
                                             u8 *packed_x, int B, int E, int K, int D) {
    sort(x, experts, weights, tiles, order, packed_x, B, E, K, D);
}

#define MOE_SUM(OUT, Y)                                                                                                   \
    KERNEL(moe_fp4_sum_##OUT, __launch_bounds__(256))(const float *parts, const int *experts, const float *weights, Y *y, \
                                                      bf16 *hidden, int B, int K, int D, int I) {                         \
        sum(parts, experts, weights, y, hidden, B, K, D, I);                                                              \
    }
MOE_SUM(bf16, bf16)
MOE_SUM(f32, float)
#endif
