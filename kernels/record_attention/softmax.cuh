// The softmax of keys that several thread blocks share: exponentials are relative to the maximum of each, and what they add up is
// multiplied by a weight.
#pragma once

#include "lib/ptx.cuh"

__device__ __forceinline__ float infinity() {
    return __uint_as_float(INFINITY_BITS);
}

// Nothing is less than it, so that -infinity minus the maximum is no NaN where there are no keys.
__device__ __forceinline__ float finite_maximum(float x) {
    return x == -infinity() ? 0.0f : x;
}

template <int LANES> __device__ __forceinline__ float lanes_maximum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

constexpr int MOST_RANKS = 8;

// The maxima of a head's scores, to base 2, and the sums of their exponentials, of each rank; -infinity and 0 behind the last.
struct RankSums {
    float maxima[MOST_RANKS], sums[MOST_RANKS];

    // What the results of each rank are multiplied by, so that they add up to what is wanted; in place of the maxima.
    __device__ __forceinline__ void find_weights(float sink, int active) {
        float top = -infinity(), denominator = 0.0f;
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            top = fmaxf(top, maxima[from]);
        top = finite_maximum(top);
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            maxima[from] = ex2_approx_ftz(maxima[from] - top);
            if (from < active)
                denominator = fmaf(maxima[from], sums[from], denominator);
        }
#ifndef MUTANT_SINK_LEFT_OUT
        sink = ex2_approx_ftz(sink * 1.44269504f - top);
#ifdef MUTANT_SINK_OF_EACH_RANK
        denominator += active * sink;
#else
        denominator += sink;
#endif
#endif
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            maxima[from] = denominator == 0.0f ? maxima[from] : maxima[from] / denominator;
    }
};
