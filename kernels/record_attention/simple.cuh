// A thread block for each head of a row. All arithmetic is f32; a lane has 16 channels of every key that its warp decodes.
#pragma once

#include "lib/reduce.cuh"

constexpr int RUN = 16;

// The channels of a lane.
template <class R> __device__ __forceinline__ void decode_run(const Token<const u8> &token, int lane, float (&x)[RUN]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 eight = decode_eight<R>(token, 2 * lane + half);
        const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 both = from_bf16x2(words[i]);
            x[half * 8 + 2 * i] = both.x, x[half * 8 + 2 * i + 1] = both.y;
        }
    }
}

template <class R, class T>
__device__ __forceinline__ void simple(const T *q, const Part window, const Part entries, const float *sinks, T *out,
                                       float *scores, int rows, int heads, float scale) {
    static_assert(R::DIM == 32 * RUN, "a warp has a key");
    constexpr int WARPS = 8;
    __shared__ float partials[2][32], shares[WARPS][R::DIM];
    const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const size_t at = (size_t)row * heads + head;
        const Keys<R> keys(window, entries, row);
        const int all = keys.count();
        float *const score = scores + at * (window.places + entries.places);
        float query[RUN], x[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i++)
            query[i] = to_f32(q[at * R::DIM + lane * RUN + i]);
        float top = -__int_as_float(0x7f800000);
        for (int key = warp; key < all; key += WARPS) {
            const int slot = keys.slot(key);
            float product = 0.0f;
            if (slot >= 0) {
                decode_run<R>(keys.record(key, slot), lane, x);
#pragma unroll
                for (int i = 0; i < RUN; i++)
                    product = fmaf(query[i], x[i], product);
            }
            product = warp_sum(product) * scale;
#ifdef MUTANT_SCORES_ROUNDED
            product = from_bf16x2(to_bf16x2(product, 0.0f)).x;
#endif
            product = slot >= 0 ? product : -__int_as_float(0x7f800000);
            if (lane == 0)
                score[key] = product;
            top = fmaxf(top, product);
        }
        if (lane == 0)
            partials[0][warp] = top;
        __syncthreads();
#ifdef MUTANT_MAXIMUM_OF_HALF
        top = partials[0][0];
#else
        for (int i = 0; i < WARPS; i++)
            top = fmaxf(top, partials[0][i]);
#endif
        // Without keys there is nothing to be less than.
        top = top == -__int_as_float(0x7f800000) ? 0.0f : top;
        float sum = 0.0f, o[RUN] = {};
        for (int key = warp; key < all; key += WARPS) {
            const float p = expf(score[key] - top);
            sum += p;
            const int slot = keys.slot(key);
            if (slot < 0)
                continue;
            decode_run<R>(keys.record(key, slot), lane, x);
#pragma unroll
            for (int i = 0; i < RUN; i++)
                o[i] = fmaf(p, x[i], o[i]);
        }
        if (lane == 0)
            partials[1][warp] = sum;
#pragma unroll
        for (int i = 0; i < RUN; i++)
            shares[warp][lane * RUN + i] = o[i];
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < WARPS; i++)
            sum += partials[1][i];
#ifndef MUTANT_SINK_LEFT_OUT
        sum += expf(sinks[head] - top);
#endif
        for (int i = threadIdx.x; i < R::DIM; i += blockDim.x) {
            float total = 0.0f;
            for (int share = 0; share < WARPS; share++)
                total += shares[share][i];
            from_f32(out[at * R::DIM + i], sum == 0.0f ? 0.0f : total / sum);
        }
        // The next row has the same shared memory.
        __syncthreads();
    }
}
