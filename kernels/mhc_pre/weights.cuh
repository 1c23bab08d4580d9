// The weights of the mHC pre-block, from the products of the projection; all variants share them.
#pragma once

#include "lib/ptx.cuh"

// A token has STREAMS vectors of D channels; v is their concatenation. Of the MUS = 24 products fn·v, the first 4 are for pre, the
// next 4 for post, the rest for comb, row by row.
constexpr int STREAMS = 4, MUS = 24, ITERATIONS = 20, DIM = 7168, K = STREAMS * DIM;

struct Parameters {
    const float *base, *scale;
    float norm_eps, eps;
};

__device__ __forceinline__ float logit(float mu, int i, Parameters c) {
    return mu * c.scale[(i >= STREAMS) + (i >= 2 * STREAMS)] + c.base[i];
}

__device__ __forceinline__ float sigmoid(float x) {
    return rcp_approx(1 + expf(-x));
}

// What is added to the weights of streams.
__device__ __forceinline__ float eps_of_pre(Parameters parameters) {
#ifdef MUTANT_NORM_EPS_OF_PRE
    return parameters.norm_eps;
#else
    return parameters.eps;
#endif
}

// A number of the projection.
__device__ __forceinline__ float projection(float f) {
#ifdef MUTANT_PROJECTION_BF16
    return __uint_as_float(to_bf16x2(f, f) << 16);
#else
    return f;
#endif
}

// What is subtracted from the logits of a row.
__device__ __forceinline__ float top_of_row(float top) {
#ifdef MUTANT_SINKHORN_WITHOUT_TOP
    return 0.0f;
#else
    return top;
#endif
}

// ITERATIONS column normalisations of positive numbers with row normalisations between, each of which divides by sum + ε. The matrix is
// kept as first / (row · column): the next divisor of a line is the sum of what the other divisors leave of it, plus ε times its last
// one.
template <class Inverse> __device__ __forceinline__ void normalise_lines(float (&c)[16], float eps, Inverse inverse) {
    float row[4], column[4], by_row[4], by_column[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        row[j] = column[j] = by_row[j] = by_column[j] = 1;
#ifdef MUTANT_SINKHORN_EPS_ONCE
    eps = 0;
#endif
    const auto columns = [&] {
#pragma unroll
        for (int k = 0; k < 4; k++)
            column[k] = fmaf(c[k], by_row[0], fmaf(c[4 + k], by_row[1], eps * column[k])) +
                        fmaf(c[8 + k], by_row[2], c[12 + k] * by_row[3]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            by_column[k] = inverse(column[k]);
    };
    columns();
#ifdef MUTANT_ONE_ITERATION
    for (int i = 1; i < 1; i++) {
#elif defined(MUTANT_NINETEEN_ITERATIONS)
    for (int i = 1; i < ITERATIONS - 1; i++) {
#else
    for (int i = 1; i < ITERATIONS; i++) {
#endif
#pragma unroll
        for (int j = 0; j < 4; j++)
            row[j] = fmaf(c[4 * j], by_column[0], fmaf(c[4 * j + 1], by_column[1], eps * row[j])) +
                     fmaf(c[4 * j + 2], by_column[2], c[4 * j + 3] * by_column[3]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            by_row[j] = inverse(row[j]);
        columns();
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        c[i] *= by_row[i / 4] * by_column[i % 4];
}

// Row softmax, + ε, then lines are normalised.
__device__ __forceinline__ void sinkhorn(float (&c)[16], float eps) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float *entry = c + 4 * j;
        const float top = top_of_row(fmaxf(fmaxf(entry[0], entry[1]), fmaxf(entry[2], entry[3])));
        for (int k = 0; k < 4; k++)
            entry[k] = expf(entry[k] - top);
        const float inverse = rcp_approx((entry[0] + entry[1]) + (entry[2] + entry[3]));
        for (int k = 0; k < 4; k++)
            entry[k] = fmaf(entry[k], inverse, eps);
    }
    normalise_lines(c, eps, [](float x) { return rcp_approx(x); });
}

// The weights that mix the block's output back; mu(i) already includes the inverse rms of v.
template <class Mu> __device__ __forceinline__ void make_post(Mu mu, Parameters parameters, float *post) {
    float weight[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++)
        weight[i] = 2 * sigmoid(logit(mu(STREAMS + i), STREAMS + i, parameters));
    *(float4 *)post = make_float4(weight[0], weight[1], weight[2], weight[3]);
}

__device__ __forceinline__ void store_comb(const float (&c)[16], float *comb) {
#pragma unroll
    for (int row = 0; row < 4; row++)
#ifdef MUTANT_COMB_TRANSPOSED
        *(float4 *)(comb + 4 * row) = make_float4(c[row], c[row + 4], c[row + 8], c[row + 12]);
#else
        *(float4 *)(comb + 4 * row) = make_float4(c[4 * row], c[4 * row + 1], c[4 * row + 2], c[4 * row + 3]);
#endif
}

template <class Mu> __device__ __forceinline__ void make_comb(Mu mu, Parameters parameters, float *comb) {
    float c[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        c[i] = logit(mu(2 * STREAMS + i), 2 * STREAMS + i, parameters);
    sinkhorn(c, parameters.eps);
    store_comb(c, comb);
}

// The weights that mix the block's output back, by a warp: a lane has each logit of comb, or one of those of post. All lanes iterate. Sums
// of lines are at least ε times the last ones, and not denormal.
template <class Mu> __device__ __forceinline__ void make_post_and_comb(Mu mu, Parameters parameters, float *post, float *comb) {
    const int lane = threadIdx.x % 32, unit = lane < 16 ? 2 * STREAMS + lane : STREAMS + lane % STREAMS;
    const float x = logit(mu(unit), unit, parameters);
    float top = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    top = top_of_row(fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
    const float power = expf(lane < 16 ? x - top : -x);
    float sum = power + __shfl_xor_sync(~0u, power, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float inverse = rcp_approx(lane < 16 ? sum : 1 + power);
    if (lane >= 16 && lane < 16 + STREAMS)
        post[lane - 16] = 2 * inverse;
    const float own = fmaf(power, inverse, parameters.eps);
    float c[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        c[i] = __shfl_sync(~0u, own, i);
    normalise_lines(c, parameters.eps, [](float x) { return rcp_approx_ftz(x); });
    if (lane == 0)
        store_comb(c, comb);
}
