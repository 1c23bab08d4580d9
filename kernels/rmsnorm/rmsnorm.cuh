// RMSNorm of rows: y = w ⊙ x · (mean(x²) + ε)^−½, in f32 and not rounded until it is stored.
#pragma once

#include "lib/vec.cuh"

__device__ __forceinline__ float inverse_rms(float sum, int cols, float eps) {
#ifdef MUTANT_NO_EPS
    eps = 0.0f;
#endif
    // Within one unit in the last place; the sum has many fewer roundings than its bound allows.
    return rsqrtf(sum * rcp_approx_ftz((float)cols) + eps);
}

// A warp computes (mean(x²) + ε)^−½ of a row.
template <class T> __device__ float inverse_rms_of(const T *row, int cols, float eps) {
    float sum = 0.0f;
    for (int i = threadIdx.x % 32; i < cols; i += 32) {
        const float x = to_f32(row[i]);
        sum = __fmaf_rn(x, x, sum);
    }
    return inverse_rms(warp_sum(sum), cols, eps);
}

// Eight consecutive weights.
__device__ __forceinline__ void load_weights(const float *weight, int at, float (&out)[8]) {
    const float4 low = __ldg((const float4 *)weight + 2 * at), high = __ldg((const float4 *)weight + 2 * at + 1);
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

// A CTA of at most WARPS warps norms a row, `V` vectors for each thread. All threads call emit(state, row, product, inverse,
// in_bounds): y of a vector is product · inverse; vectors out of bounds are zeros. The first warp makes the state for all with
// `prepare`, once the row is on its way.
template <int V, int WARPS, class T, class Prepare, class Emit, class... Hint>
__device__ __forceinline__ void norm_row(const T *x, const float *weight, float eps, int cols, Prepare prepare, Emit emit,
                                         Hint... hint) {
    typedef decltype(prepare()) State;
    __shared__ State state;
    __shared__ float partials[WARPS];
    const BelowCount in_bounds = {cols / 8};
    Vec8<T> in[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        const int at = first_vec8<V>() + v * 32;
        if (in_bounds(at))
            in[v].load(x, (size_t)blockIdx.x * (cols / 8) + at, hint...);
        else
            in[v].zero();
    }
    // The products x·w, and the sum of squares in two independent chains.
    float product[V][8], sum[2] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        const int at = first_vec8<V>() + v * 32;
        float w[8] = {};
        if (in_bounds(at))
            load_weights(weight, at, w);
        in[v].unpack(product[v]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i % 2] = __fmaf_rn(product[v][i], product[v][i], sum[i % 2]);
            product[v][i] *= w[i];
        }
    }
    if (threadIdx.x < 32)
        state = prepare();
#ifdef MUTANT_ROW_INDEX
    const int row = 0;
#else
    const int row = blockIdx.x;
#endif
    const float inverse = inverse_rms(block_sum<WARPS>(sum[0] + sum[1], partials), cols, eps);
    // No bounds checks are needed if the row has exactly as many vectors.
    if (cols == V * 8 * (int)blockDim.x)
        emit(State(state), row, product, inverse, NoBounds());
    else
        emit(State(state), row, product, inverse, in_bounds);
}
