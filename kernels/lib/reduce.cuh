// Sums and maxima over lanes, warps and CTAs.
#pragma once

#include "lib/common.cuh"

// ---- magnitudes, as the bits of an f32 without its sign

// The larger of two. As integers NaN > infinity > finite, so NaN is not lost.
__device__ __forceinline__ u32 max_magnitude(u32 a, u32 b) {
#ifdef MUTANT_NAN_DROPPED
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
#else
    return max(a, b);
#endif
}

// The larger of `mine` and of what the lane `step` away gives.
__device__ __forceinline__ u32 max_magnitude_xor(u32 mine, u32 given, int step) {
    const u32 other = __shfl_xor_sync(0xffffffff, given, step);
#ifdef MUTANT_LANE_LOST
    if (step == 1)
        return mine;
#endif
    return max_magnitude(mine, other);
}

// ---- lanes: groups of `LANES` neighbours, all of which get the result; all lanes of the warp take part

template <int LANES> __device__ __forceinline__ u32 lanes_max(u32 x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x = max_magnitude_xor(x, x, step);
    return x;
}

// The order of the sum is the same for each lane.
template <int LANES> __device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

__device__ __forceinline__ float warp_sum(float x) {
    return lanes_sum<32>(x);
}

__device__ __forceinline__ u32 warp_max(u32 x) {
    return __reduce_max_sync(0xffffffff, x);
}

// ---- CTAs of at most `WARPS` warps: all threads get the result

// `over_warp` reduces the numbers of a warp; `over_warps` reduces the results of the warps, one in each lane. `partials` is shared
// memory for WARPS numbers; two calls with the same partials need a barrier between them.
template <int WARPS, class T, class OverWarp, class OverWarps>
__device__ __forceinline__ T block_reduce(T x, T *partials, OverWarp over_warp, OverWarps over_warps) {
    const int lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    x = over_warp(x);
    if (lane == 0)
        partials[threadIdx.x / 32] = x;
    __syncthreads();
#ifdef MUTANT_WARP_LOST
    return partials[0];
#else
    return over_warps(lane % WARPS < warps ? partials[lane % WARPS] : T(0));
#endif
}

template <int WARPS = 32> __device__ __forceinline__ float block_sum(float x, float *partials) {
    return block_reduce<WARPS>(x, partials, warp_sum, lanes_sum<WARPS>);
}

// The largest of magnitudes.
__device__ __forceinline__ u32 block_max(u32 x, u32 *partials) {
    return block_reduce<32>(x, partials, warp_max, warp_max);
}
