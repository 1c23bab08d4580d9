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
