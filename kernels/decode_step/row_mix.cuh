// A row's streams, mixed by a whole thread block. Several of them mix the same row, each for the columns or the experts that it goes on
// with: that takes less time than to wait for one that does.
//
// Each instruction runs once a layer: code is short, rather than unrolled.
#pragma once

#include "decode_step/mixed.cuh"

namespace row_mix {

using mhc_pre_parts::load_four, mhc_pre_parts::MOST_PARTS, mhc_pre_parts::QUAD, mhc_pre_parts::QUADS, mhc_pre_parts::place_of;
using mhc_pre_parts::sums_over_warp;
using mixed::STREAMS;
// A warp has EACH times 128 channels.
constexpr int WARPS = 16, THREADS = 32 * WARPS, EACH = 2;

// The first of four channels of a thread, of each 128 of its warp.
__device__ __forceinline__ int channel_of(int i) {
    return (threadIdx.x / 32 * EACH + i) * 128 + threadIdx.x % 32 * 4;
}

struct Shared {
    float squares[WARPS], norms[WARPS], base[MUS], scale[3], mus[MUS], pre[STREAMS];
};

// How streams are mixed, and where it is kept how a block's output is mixed back.
struct Mixing {
    const float *sums, *base, *scale, *weight;
    float *post, *comb;
    int parts;
    float eps;

    // Loads what no launch writes, and asks for the norm's weights. A barrier must follow.
    __device__ __forceinline__ void load(Shared &s, int dim) const {
        if (threadIdx.x == 0)
            tma_prefetch_l2(weight, dim * 4);
        if (threadIdx.x < MUS)
            s.base[threadIdx.x] = base[threadIdx.x];
        if (threadIdx.x < 3)
            s.scale[threadIdx.x] = scale[threadIdx.x];
    }
};

// The products of one row, number i for the lanes that begin at i · 32 / QUAD.
__device__ __forceinline__ float products_of(const float *from, int parts) {
    const int lane = threadIdx.x % 32;
    float in[MOST_PARTS / 32][QUAD] = {}, sum[QUAD];
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 32; i++)
        if (i * 32 + lane < parts)
            load_four<true>(from + (i * 32 + lane) * QUAD, in[i]);
#pragma unroll
    for (int j = 0; j < QUAD; j++)
        sum[j] = (in[0][j] + in[1][j]) + (in[2][j] + in[3][j]);
    return sums_over_warp(sum);
}

// One over the root of a mean of squares, of which each warp has added up a part.
__device__ __forceinline__ float inverse_rms(const float *parts, int count, float eps) {
    const int lane = threadIdx.x % 32;
#ifdef MUTANT_NORM_OF_HALF
    return rsqrtf(warp_sum(lane < WARPS / 2 ? parts[lane] : 0.0f) / count + eps);
#else
    return rsqrtf(warp_sum(lane < WARPS ? parts[lane] : 0.0f) / count + eps);
#endif
}

// The streams of a row, all of them in the registers of a thread block.
struct Row {
    float v[EACH][STREAMS][4] = {}, inverse;

    // Streams do not come from the last launch, so nothing is waited for. Has a barrier.
    __device__ __forceinline__ Row(Shared &s, const mixed::Streams &x, int row, float eps) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (const int channel = channel_of(i); channel < x.dim)
                x.load_all(row, channel, v[i]);
#pragma unroll
        for (int i = 0; i < EACH * STREAMS * 4; i++)
            squares = fmaf(v[i / 16][i / 4 % 4][i % 4], v[i / 16][i / 4 % 4][i % 4], squares);
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0)
            s.squares[threadIdx.x / 32] = squares;
        __syncthreads();
        inverse = inverse_rms(s.squares, STREAMS * x.dim, eps);
    }

    // The streams' mixture and its norm, when the sums are there; zeros after the last channel. Has barriers.
    __device__ __forceinline__ void mix(Shared &s, const Mixing &m, int row, int dim, float4 (&normed)[EACH]) const {
        const int lane = threadIdx.x % 32;
        // Many warps that read the same few lines would wait for each other in L2, so one of a thread block does.
        if (threadIdx.x < 32) {
            const float product = products_of(m.sums + place_of(row, 0, m.parts), m.parts);
            const int stream = lane / (32 / QUAD);
            const Parameters parameters = {s.base, s.scale, m.eps, m.eps};
            if (lane % (32 / QUAD) == 0)
                s.pre[stream] = sigmoid(logit(product * inverse, stream, parameters)) + eps_of_pre(parameters);
        }
        __syncthreads();
        float u[EACH][4] = {}, squares = 0.0f;
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++) {
            const float pre = s.pre[stream];
#pragma unroll
            for (int i = 0; i < EACH * 4; i++)
                u[i / 4][i % 4] = fmaf(pre, v[i / 4][stream][i % 4], u[i / 4][i % 4]);
        }
#pragma unroll
        for (int i = 0; i < EACH * 4; i++)
            squares = fmaf(u[i / 4][i % 4], u[i / 4][i % 4], squares);
        squares = warp_sum(squares);
        if (lane == 0)
            s.norms[threadIdx.x / 32] = squares;
        __syncthreads();
        const float norm = inverse_rms(s.norms, dim, m.eps);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float w[4] = {};
            if (const int channel = channel_of(i); channel < dim)
                load_four<false>(m.weight + channel, w);
            normed[i] = make_float4(u[i][0] * norm * w[0], u[i][1] * norm * w[1], u[i][2] * norm * w[2], u[i][3] * norm * w[3]);
        }
    }

    // By a warp, when the sums are there: how a block's output is mixed back.
    __device__ __forceinline__ void mix_back(Shared &s, const Mixing &m, int row) const {
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int quad = 1; quad < QUADS; quad++) {
            const float product = products_of(m.sums + place_of(row, quad, m.parts), m.parts);
            if (lane % (32 / QUAD) == 0)
                s.mus[quad * QUAD + lane / (32 / QUAD)] = product;
        }
        __syncwarp();
        make_post_and_comb([&](int i) { return s.mus[i] * inverse; }, {s.base, s.scale, m.eps, m.eps},
                           m.post + (size_t)row * STREAMS, m.comb + (size_t)row * STREAMS * STREAMS);
    }
};

// Of each row, the first thread block has attention's input as codes, and the second how streams are mixed back.
KERNEL(decode_step_mix_fp8_b128_f32, __launch_bounds__(THREADS))(const float *x, float *next, const float *y, const float *post,
                                                                 const float *comb, const float *sums, const float *base,
                                                                 const float *scale, const float *weight, float *kept, bf16 *half,
                                                                 u8 *codes, float *scales, float *next_post, float *next_comb,
                                                                 int parts, int dim, float eps) {
    __shared__ Shared s;
    const int row = blockIdx.y;
    const mixed::Streams x_of = {x, next, y, post, comb, dim};
    const Mixing mixing = {sums, base, scale, weight, next_post, next_comb, parts, eps};
    mixing.load(s, dim);
    const Row streams(s, x_of, row, eps);
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (blockIdx.x > 0) {
        if (threadIdx.x < 32)
            streams.mix_back(s, mixing, row);
        return;
    }
    float4 normed[EACH];
    streams.mix(s, mixing, row, dim, normed);
    const mixed::ToCodes<fp8_b128_f32> to = {{kept, half, dim}, codes, scales};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = channel_of(i);
        if (channel / 128 * 128 >= dim)
            break;
        to.store(row, channel, normed[i]);
        if (channel < dim)
            x_of.keep(row, channel, streams.v[i]);
    }
}

} // namespace row_mix
