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

// The maximum of a head's scores, to base 2, and the sum of their exponentials and the sink's, over ranks of which each has its own.
struct AllRanks {
    float top, denominator;

    // `maximum` and `sum` are functions of the rank, of which there are at most RANKS.
    template <int RANKS, class Maximum, class Sum>
    static __device__ __forceinline__ AllRanks of(int active, float sink, Maximum maximum, Sum sum) {
        float maxima[RANKS], top = -infinity(), denominator = 0.0f;
#pragma unroll
        for (int from = 0; from < RANKS; from++) {
            maxima[from] = from < active ? maximum(from) : -infinity();
            top = fmaxf(top, maxima[from]);
        }
        top = finite_maximum(top);
#pragma unroll
        for (int from = 0; from < RANKS; from++)
            if (from < active)
                denominator = fmaf(ex2_approx_ftz(maxima[from] - top), sum(from), denominator);
#ifndef MUTANT_SINK_LEFT_OUT
        sink = ex2_approx_ftz(sink * 1.44269504f - top);
#ifdef MUTANT_SINK_OF_EACH_RANK
        denominator += active * sink;
#else
        denominator += sink;
#endif
#endif
        return {top, denominator};
    }

    // What the results of a rank are multiplied by, so that they add up to what is wanted.
    __device__ __forceinline__ float weight(float maximum) const {
        const float relative = ex2_approx_ftz(maximum - top);
        return denominator == 0.0f ? relative : relative / denominator;
    }
};
