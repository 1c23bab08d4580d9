// The variant `simple`: a thread block for each token, which reads all of the projection.
#pragma once

#include "lib/reduce.cuh"
#include "mhc_pre/weights.cuh"

template <class T>
__device__ void simple(const T *__restrict__ all_x, const float *__restrict__ fn, Parameters parameters, const float *weight,
                       T *y, float *post, float *comb, int tokens, int dim) {
    __shared__ float partials[8][MUS + 1], sums[MUS + 1], warp_partials[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = STREAMS * dim;
#ifdef MUTANT_TOKENS_OF_THE_GRID
    tokens = min(tokens, (int)gridDim.x);
#endif
    // What is shared is written only after a barrier that all reach once they have read it for the token before.
    for (int token = blockIdx.x; token < tokens; token += gridDim.x) {
        const T *x = all_x + (size_t)token * k;
        float sum[MUS + 1] = {};
        for (int at = threadIdx.x; at < k; at += 256) {
            const float v = to_f32(x[at]);
            for (int i = 0; i < MUS; i++)
                sum[i] = fmaf(projection(fn[(size_t)i * k + at]), v, sum[i]);
            sum[MUS] = fmaf(v, v, sum[MUS]);
        }
        for (int i = 0; i <= MUS; i++) {
            const float total = warp_sum(sum[i]);
            if (lane == 0)
                partials[warp][i] = total;
        }
        __syncthreads();
        if (threadIdx.x <= MUS) {
            float total = 0;
#ifdef MUTANT_SHARE_LOST
            for (int part = 0; part < 7; part++)
#else
            for (int part = 0; part < 8; part++)
#endif
                total += partials[part][threadIdx.x];
            sums[threadIdx.x] = total;
        }
        __syncthreads();

        const float inverse = rsqrtf(sums[MUS] / k + parameters.norm_eps);
        const auto mu = [&](int i) { return sums[i] * inverse; };
        if (threadIdx.x == 0)
            make_comb(mu, parameters, comb + (size_t)token * STREAMS * STREAMS);
        if (threadIdx.x == 32)
            make_post(mu, parameters, post + (size_t)token * STREAMS);
        float pre[STREAMS];
        for (int i = 0; i < STREAMS; i++)
            pre[i] = sigmoid(logit(mu(i), i, parameters)) + eps_of_pre(parameters);
        const auto mixed = [&](int channel) {
            float u = 0;
            for (int i = 0; i < STREAMS; i++)
                u = fmaf(pre[i], to_f32(x[i * dim + channel]), u);
            return u;
        };
        float squares = 0;
        for (int channel = threadIdx.x; channel < dim; channel += 256)
            squares = fmaf(mixed(channel), mixed(channel), squares);
        const float norm = rsqrtf(block_sum(squares, warp_partials) / dim + parameters.norm_eps);
        for (int channel = threadIdx.x; channel < dim; channel += 256)
            from_f32(y[(size_t)token * dim + channel], mixed(channel) * norm * weight[channel]);
    }
}

#define ENTRIES(DTYPE, T)                                                                                                        \
    KERNEL(mhc_pre_simple_##DTYPE, __launch_bounds__(256))(                                                                      \
        const T *__restrict__ x, const float *__restrict__ fn, const float *base, const float *scale, const float *weight, T *y, \
        float *post, float *comb, int tokens, int dim, float norm_eps, float eps) {                                              \
        simple(x, fn, {base, scale, norm_eps, eps}, weight, y, post, comb, tokens, dim);                                         \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)

#undef ENTRIES
