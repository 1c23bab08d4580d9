/*
[[variant]]
name = "w8a8"
doc = "as `simple`; attention's products are of E4M3 codes with a scale for 128 columns and E4M3 weights with one for 128 × 128, on tensor cores"
like = "simple"
arch = "sm_90a"
needs = ["records == 0", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]
more_scratch = [
    { name = "input_codes", bytes = "B * C" }, { name = "input_scales", bytes = "B * ceil(C, 128) * 4" },
    { name = "low_codes", bytes = "B * Rq" }, { name = "low_scales", bytes = "B * ceil(Rq, 128) * 4" },
    { name = "heads_codes", bytes = "B * HD" }, { name = "heads_scales", bytes = "B * G * ceil(HD / G, 128) * 4" },
    { name = "low_heads_codes", bytes = "B * G * Ro" }, { name = "low_heads_scales", bytes = "B * ceil(G * Ro, 128) * 4" },
]

[variant.in_sequence]
tap_attention_input = "tap_attention_input input_code tap_input_codes tap_input_scales"
q_low_norm = "q_low_norm tap_low_query low_code tap_low_codes tap_low_scales"
tap_heads = "tap_heads heads_code tap_heads_codes tap_heads_scales"
o_down = "o_down tap_low_heads low_heads_code tap_low_heads_codes tap_low_heads_scales"

# attention's input as codes, and what is made of it
[[variant.launch]]
name = "input_code"
entry = "decode_step_code_{activations}"
grid = ["ceil(C, 128)", "B"]
block = [32]
args = ["normed", "input_codes", "input_scales", "C"]
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
name = "q_down"
call = "fp8_gemm.simple"
with = [
    { x = "input_codes", x_scale = "input_scales", w = "q_a[@layers]", w_scale = "q_a_scales[@layers]", y = "low" },
    { N = "Rq", K = "C" },
]
[[variant.launch]]
name = "kv_down"
call = "fp8_gemm.simple"
with = [
    { x = "input_codes", x_scale = "input_scales", w = "kv[@layers]", w_scale = "kv_scales[@layers]", y = "raw_kv" },
    { N = "D", K = "C" },
]

# the low-rank query as codes, and what is made of it
[[variant.launch]]
name = "tap_low_query"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_normed", "at_low_query", "clock", "@layers", "layers", "B", "S", "Rq", "Rq", "0"]
[[variant.launch]]
name = "low_code"
entry = "decode_step_code_{activations}"
grid = ["ceil(Rq, 128)", "B"]
block = [32]
args = ["low_normed", "low_codes", "low_scales", "Rq"]
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
call = "fp8_gemm.simple"
with = [
    { x = "low_codes", x_scale = "low_scales", w = "q_b[@layers]", w_scale = "q_b_scales[@layers]", y = "raw_query" },
    { N = "HD", K = "Rq" },
]
[[variant.launch]]
name = "index_up"
call = "fp8_gemm.simple"
with = [
    { x = "low_codes", x_scale = "low_scales", w = "index_q[(@layers - lead) / 2]", w_scale = "index_q_scales[(@layers - lead) / 2]" },
    { y = "index_query", N = "HI * DI", K = "Rq" },
]

# heads as codes, those of each group apart, and attention's output
[[variant.launch]]
name = "heads_code"
entry = "decode_step_code_{activations}"
grid = ["ceil(HD / G, 128)", "B * G"]
block = [32]
args = ["heads", "heads_codes", "heads_scales", "HD / G"]
[[variant.launch]]
name = "tap_heads_codes"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["heads_codes", "at_heads_codes", "clock", "@layers", "layers", "B", "S", "HD / 4", "HD / 4", "0"]
[[variant.launch]]
name = "tap_heads_scales"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = [
    "heads_scales", "at_heads_scales", "clock", "@layers", "layers", "B", "S", "G * ceil(HD / G, 128)", "G * ceil(HD / G, 128)", "0",
]
[[variant.launch]]
name = "o_down"
entry = "decode_step_group_products"
grid = [1, "ceil(Ro, 64)", "B * G"]
block = [128]
args = ["heads_codes", "heads_scales", "o_a[@layers]", "o_a_scales[@layers]", "low_heads", "G", "Ro", "HD / G"]
[[variant.launch]]
name = "tap_low_heads"
entry = "decode_step_tap"
grid = ["B"]
block = [128]
tap = true
args = ["low_heads", "at_low_heads", "clock", "@layers", "layers", "B", "S", "G * Ro", "G * Ro", "0"]
[[variant.launch]]
name = "low_heads_code"
entry = "decode_step_code_{activations}"
grid = ["ceil(G * Ro, 128)", "B"]
block = [32]
args = ["low_heads", "low_heads_codes", "low_heads_scales", "G * Ro"]
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
call = "fp8_gemm.simple"
with = [
    { x = "low_heads_codes", x_scale = "low_heads_scales", w = "o_b[@layers]", w_scale = "o_b_scales[@layers]", y = "out" },
    { N = "C", K = "G * Ro" },
]

[[variant]]
name = "w8a8_records"
doc = "as `records`; attention's products are those of `w8a8`"
like = "records"
changes_of = "w8a8"
arch = "sm_90a"
needs = ["records == 1", "indexed == 0", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]

[[variant]]
name = "w8a8_indexed"
doc = "as `indexed`; attention's products are those of `w8a8`"
like = "indexed"
changes_of = "w8a8"
arch = "sm_90a"
needs = ["records == 1", "indexed == 1", "DI == 128", "eight == 1", "sixteen == 0", "HD / G % 16 == 0"]

[[mutant]]
name = "codes_toward_zero"
doc = "codes are rounded toward zero"
variants = ["w8a8"]

[[mutant]]
name = "codes_halved"
doc = "codes are those of numbers half as large"
variants = ["w8a8"]

[[mutant]]
name = "last_block_unscaled"
doc = "numbers of a last block that is not whole become codes without their scale"
variants = ["w8a8"]

[[mutant]]
name = "weights_of_group_0"
doc = "all groups of heads have the weights of the first"
variants = ["w8a8"]

[[mutant]]
name = "scales_of_row_0"
doc = "all groups of heads, and all rows, have the scales of the first row's first group"
variants = ["w8a8"]

[[mutant]]
name = "neighbours_scale"
doc = "weights have the scale of the next block of columns"
variants = ["w8a8"]

[[mutant]]
name = "scaled_in_turn"
doc = "a sum of products is multiplied by both scales in turn, and not by their product"
variants = ["w8a8"]
*/

// What a step does besides where attention's products are of eight bits.
#pragma once

#include "decode_step/step.cuh"

// What the numbers of a block are multiplied by before they become codes, by a warp whose lanes have EACH of them. Stores the scale.
template <class F, int EACH>
__device__ __forceinline__ float factor_of_block(const float (&values)[EACH], int block, int cols, typename F::Stored *scale) {
    static_assert(EACH == F::width / 32, "a warp has a block");
    u32 amax = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        amax = max_magnitude(amax, __float_as_uint(values[i]) & 0x7fffffff);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        amax = max_magnitude(amax, __shfl_xor_sync(0xffffffff, amax, lanes));
    const typename F::Level level(nullptr);
    const typename F::Stored stored = F::Rule::template scale<typename F::Element>(amax, level);
    float factor = F::Rule::factor(stored, level);
#ifdef MUTANT_CODES_HALVED
    factor *= 0.5f;
#endif
#ifdef MUTANT_LAST_BLOCK_UNSCALED
    factor = (block + 1) * F::width > cols ? 1.0f : factor;
#endif
    if (threadIdx.x % 32 == 0)
        *scale = stored;
    return factor;
}

// The code of a number times the factor of its block.
template <class F> __device__ __forceinline__ u8 code_of(float x) {
    u8 code = F::Element::encode(x);
#ifdef MUTANT_CODES_TOWARD_ZERO
    code -= fabsf(F::Element::decode(code)) > fabsf(x);
#endif
    return code;
}

// Number `block` of the blocks of a row's columns as codes, and its scale, by a warp. `value` gives the number of a column; lanes have
// every 32nd.
template <class F, class Value>
__device__ __forceinline__ void code_block(int block, int cols, u8 *codes, typename F::Stored *scale, Value value) {
    constexpr int EACH = F::width / 32;
    const int first = block * F::width + threadIdx.x % 32;
    float values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        values[i] = first + 32 * i < cols ? value(i, first + 32 * i) : 0.0f;
    const float factor = factor_of_block<F>(values, block, cols, scale);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + 32 * i < cols)
            codes[first + 32 * i] = code_of<F>(values[i] * factor);
}

KERNEL(decode_step_code_fp8_b128_f32, __launch_bounds__(32))(const float *x, u8 *codes, float *scales, int cols) {
    const size_t row = blockIdx.y;
    x += row * cols;
    code_block<fp8_b128_f32>(blockIdx.x, cols, codes + row * cols, scales + row * gridDim.x + blockIdx.x,
                             [=](int, int col) { return x[col]; });
}

#if __CUDA_ARCH__ == 900
// The product of each group's part of a row with the group's weights: for each the one of `fp8_gemm.simple`, of one row.
KERNEL(decode_step_group_products, __launch_bounds__(128))(const u8 *x, const float *x_scale, const u8 *w, const float *w_scale,
                                                           float *y, int groups, int N, int K) {
    const size_t part = blockIdx.z, across = (K + 127) / 128, down = (N + 127) / 128;
#ifdef MUTANT_WEIGHTS_OF_GROUP_0
    const size_t group = 0;
#else
    const size_t group = part % groups;
#endif
#ifdef MUTANT_SCALES_OF_ROW_0
    const size_t scales = 0;
#else
    const size_t scales = part * across;
#endif
    fp8_gemm_file::simple(x + part * K, x_scale + scales, w + group * N * K, w_scale + group * down * across, y + part * N, 1, N,
                          K);
}
#endif
