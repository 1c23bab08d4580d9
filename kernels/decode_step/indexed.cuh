// What a step does besides where index keys are records.
#pragma once

#include "decode_step/records.cuh"
#include "lib/reduce.cuh"

constexpr int INDEX_CHANNELS = 128;

// A row's pages follow each other, and those of the row before.
KERNEL(decode_step_table, __launch_bounds__(128))(int *table, int pages) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (at < pages)
        table[at] = at;
}

// Rotates 128 numbers by a Hadamard matrix, four for each lane of a warp: butterflies, then one multiplication by 128^-1/2.
__device__ __forceinline__ float4 hadamard(float4 x) {
#ifdef MUTANT_LAST_BUTTERFLY_LOST
    constexpr int LAST = INDEX_CHANNELS / 8;
#else
    constexpr int LAST = INDEX_CHANNELS / 4;
#endif
    x = make_float4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
    x = make_float4(x.x + x.z, x.y + x.w, x.x - x.z, x.y - x.w);
    const auto butterfly = [](float own, int step) {
        const float other = __shfl_xor_sync(0xffffffff, own, step);
        return threadIdx.x & step ? other - own : own + other;
    };
#pragma unroll
    for (int step = 1; step < LAST; step *= 2)
        x = make_float4(butterfly(x.x, step), butterfly(x.y, step), butterfly(x.z, step), butterfly(x.w, step));
    const float by = 1.0f / sqrtf((float)INDEX_CHANNELS);
    return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}

// The key of the entry that a token completes, as it is stored, four channels for each lane of a warp: rotated if it will have four
// bits, and rounded to bfloat16.
template <bool ROTATED> __device__ __forceinline__ uint2 index_key(float4 x) {
#ifdef MUTANT_KEY_UNROTATED
    return to_bf16x4(x);
#else
    return to_bf16x4(ROTATED ? hadamard(x) : x);
#endif
}

template <bool ROTATED> __device__ __forceinline__ void index_row(const float *stages, uint2 *to) {
    const float *const last = stages + ((size_t)blockIdx.x * 3 + 2) * INDEX_CHANNELS;
    to[blockIdx.x * 32 + threadIdx.x] = index_key<ROTATED>(((const float4 *)last)[threadIdx.x]);
}

KERNEL(decode_step_index_row_index_fp8, __launch_bounds__(32))(const float *stages, uint2 *to) {
    index_row<false>(stages, to);
}

KERNEL(decode_step_index_row_index_mxfp4, __launch_bounds__(32))(const float *stages, uint2 *to) {
    index_row<true>(stages, to);
}

// A head of the queries of a row, which a warp has, four channels for each lane.
struct IndexHead {
    // Its number among those of all rows.
    size_t head;
    bool exists;
    float4 x;

    // Loads one of four heads, and turns its last `rotated` channels by RoPE in place. 0 if that has been done before.
    __device__ __forceinline__ IndexHead(float *query, const float *cos, const float *sin, int heads, int rotated, int four) {
        const int of_row = four * 4 + threadIdx.x / 32, channel = threadIdx.x % 32 * 4, first = INDEX_CHANNELS - rotated;
        head = (size_t)blockIdx.y * heads + of_row, exists = of_row < heads;
        wait_on_dependent_grids();
        launch_dependent_grids();
        if (!exists)
            return;
        float4 *const at = (float4 *)(query + head * INDEX_CHANNELS + channel);
        x = *at;
        if (channel >= first) {
            const size_t angle = (size_t)blockIdx.y * (rotated / 2) + (channel - first) / 2;
            const float c[2] = {cos[angle], cos[angle + 1]}, s[2] = {sin[angle], sin[angle + 1]};
            x = make_float4(x.x * c[0] - x.y * s[0], x.y * c[0] + x.x * s[0], x.z * c[1] - x.w * s[1], x.w * c[1] + x.z * s[1]);
            *at = x;
        }
    }

    // The largest magnitude of the channels of LANES lanes.
    template <int LANES> __device__ __forceinline__ u32 amax() const {
        const auto larger = [](u32 so_far, float x) { return max_magnitude(so_far, __float_as_uint(x) & 0x7fffffff); };
        return lanes_max<LANES>(larger(larger(larger(larger(0, x.x), x.y), x.z), x.w));
    }
};

// A head as E4M3 under a power of two, which its weight takes.
__device__ __forceinline__ void code_head(const IndexHead &own, u32 *coded, float *head_weights) {
    const fp8_b128::Level level(nullptr);
    const fp8_b128::Stored scale = fp8_b128::Rule::scale<E4m3>(own.amax<32>(), level);
    const float factor = fp8_b128::Rule::factor(scale, level);
    coded[own.head * 32 + threadIdx.x % 32] =
        E4m3::encode2(own.x.x * factor, own.x.y * factor) | E4m3::encode2(own.x.z * factor, own.x.w * factor) << 16;
#ifndef MUTANT_QUERY_SCALE_DROPPED
    if (threadIdx.x % 32 == 0)
        head_weights[own.head] *= fp8_b128::Rule::decode(scale, level);
#endif
}

// A head, rotated, as the bfloat16 numbers that its MXFP4 codes stand for.
__device__ __forceinline__ void code_head(IndexHead own, uint2 *coded, float *) {
    own.x = hadamard(own.x);
    const mxfp4::Level level(nullptr);
    const mxfp4::Stored scale = mxfp4::Rule::scale<E2m1>(own.amax<mxfp4::width / 4>(), level);
    const float factor = mxfp4::Rule::factor(scale, level), by = mxfp4::Rule::decode(scale, level);
    const auto decoded = [=](float x) { return E2m1::decode(E2m1::encode(x * factor)) * by; };
    coded[own.head * 32 + threadIdx.x % 32] =
        to_bf16x4(make_float4(decoded(own.x.x), decoded(own.x.y), decoded(own.x.z), decoded(own.x.w)));
}

// Each warp has a head of a row's queries, of four that a thread block has. Coded is u32 for E4M3, and uint2 for bfloat16.
template <class Coded>
__device__ __forceinline__ void index_query(float *query, Coded *coded, float *head_weights, const float *cos, const float *sin,
                                            int heads, int rotated, int four) {
    const IndexHead own(query, cos, sin, heads, rotated, four);
    if (own.exists)
        code_head(own, coded, head_weights);
}

KERNEL(decode_step_index_query_index_fp8, __launch_bounds__(128))(float *query, u32 *coded, float *head_weights, const float *cos,
                                                                  const float *sin, int heads, int rotated) {
    index_query(query, coded, head_weights, cos, sin, heads, rotated, blockIdx.x);
}

KERNEL(decode_step_index_query_index_mxfp4, __launch_bounds__(128))(float *query, uint2 *coded, float *head_weights,
                                                                    const float *cos, const float *sin, int heads, int rotated) {
    index_query(query, coded, head_weights, cos, sin, heads, rotated, blockIdx.x);
}
