// The streams of the variant `persistent`: what goes into a block, how its output is mixed back, and the head. All CTAs compute it.
#pragma once

#include "decode_step/arguments.cuh"

namespace persistent {

// How streams are mixed at one place.
struct Mixing {
    const float *fn, *base, *scale, *norm;

    // That of attention or of the experts of a layer.
    __device__ __forceinline__ Mixing(const Arguments &a, int layer, bool experts) {
        fn = (experts ? a.moe_fn : a.attn_fn) + (size_t)layer * MUS * STREAMS * a.C;
        base = (experts ? a.moe_base : a.attn_base) + layer * MUS, scale = (experts ? a.moe_scale : a.attn_scale) + layer * 3;
        norm = (experts ? a.moe_norm : a.attn_norm) + (size_t)layer * a.C;
    }

    __device__ __forceinline__ Parameters parameters(const Arguments &a) const {
        return {base, scale, a.eps, a.eps};
    }
};

// The inverse root mean square of the streams, by each warp for itself.
__device__ __forceinline__ float inverse_of_streams(const Context &c) {
    float squares = 0.0f;
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < STREAMS * c.a.C; at += 32)
        squares = fmaf(c.s.x[at], c.s.x[at], squares);
    return rsqrtf(warp_sum(squares) / (STREAMS * c.a.C) + c.a.eps);
}

// A lane's share of the weights of a norm, loaded before they are needed.
struct NormWeights {
    float of_lane[MOST_C / 32];

    __device__ __forceinline__ NormWeights(const float *norm, int channels) {
#pragma unroll
        for (int i = 0; i < MOST_C / 32; i++) {
            const int channel = threadIdx.x % 32 + 32 * i;
            of_lane[i] = channel < channels ? __ldg(norm + channel) : 0.0f;
        }
    }
};

// The weighted sum of the streams, normed; by each warp for itself, and written by the first.
__device__ __forceinline__ void combine(const Context &c, const float (&weights)[STREAMS], const NormWeights &norm) {
    const int lane = threadIdx.x % 32, channels = c.a.C;
    float mixed[MOST_C / 32] = {}, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_C / 32; i++) {
        const int channel = lane + 32 * i;
        if (channel < channels) {
#pragma unroll
            for (int stream = 0; stream < STREAMS; stream++)
                mixed[i] = fmaf(weights[stream], c.s.x[stream * channels + channel], mixed[i]);
        }
        squares = fmaf(mixed[i], mixed[i], squares);
    }
    const float inverse = rsqrtf(warp_sum(squares) / channels + c.a.eps);
#pragma unroll
    for (int i = 0; i < MOST_C / 32; i++)
        if (threadIdx.x < 32 && lane + 32 * i < channels)
            c.s.normed[lane + 32 * i] = mixed[i] * inverse * norm.of_lane[i];
    workers_sync();
}

// The products of a mixing matrix with the streams.
__device__ __forceinline__ void mixing_products(const Context &c, const float *fn, int count) {
    const int wide = STREAMS * c.a.C;
    products<16, 1>(
        count, wide, [&](int unit) { return fn + (size_t)unit * wide; }, [&](int) { return c.s.x; },
        [&](int unit, float product) {
            if (threadIdx.x % 16 == 0)
                c.s.products[unit] = product;
        });
}

// What goes into a block. The mixer computes the rest from the same products.
__device__ __forceinline__ void enter(const Context &c, const Mixing &mixing) {
    const NormWeights norm(mixing.norm, c.a.C);
    const float4 base = ldg4(mixing.base);
    const float scale = __ldg(mixing.scale), bases[STREAMS] = {base.x, base.y, base.z, base.w};
    mixing_products(c, mixing.fn, MUS);
    const float inverse = inverse_of_streams(c);
    named_barrier_arrive(PRODUCTS_READY, THREADS);
    workers_sync();
    float weights[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++)
        weights[i] = sigmoid(c.s.products[i] * inverse * scale + bases[i]) + c.a.eps;
    combine(c, weights, norm);
}

// By the mixer: the weights that mix a block's output back. Sinkhorn's iterations take longer than a phase, so the mixer arrives at
// the next exchange before it begins.
__device__ __forceinline__ void make_mixing(const Context &c, const Mixing &mixing) {
    named_barrier_sync(PRODUCTS_READY, THREADS);
    cluster_arrive();
    const float inverse = inverse_of_streams(c);
    const auto mu = [&](int i) { return c.s.products[i] * inverse; };
    if (threadIdx.x % 32 == 0) {
        make_post(mu, mixing.parameters(c.a), c.s.post);
        make_comb(mu, mixing.parameters(c.a), c.s.comb);
    }
    __syncwarp();
    named_barrier_arrive(MIXING_READY, THREADS);
    cluster_wait();
}

// Mixes a block's output, in `out`, back into the streams.
__device__ __forceinline__ void leave(const Context &c) {
    named_barrier_sync(MIXING_READY, THREADS);
#pragma unroll 1
    for (int channel = threadIdx.x; channel < c.a.C; channel += WORKERS) {
        float old[STREAMS];
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            old[stream] = c.s.x[stream * c.a.C + channel];
#pragma unroll
        for (int to = 0; to < STREAMS; to++) {
            float sum = c.s.post[to] * c.s.out[channel];
#pragma unroll
            for (int from = 0; from < STREAMS; from++)
                sum = fmaf(c.s.comb[from * STREAMS + to], old[from], sum);
            c.s.x[to * c.a.C + channel] = sum;
        }
    }
    workers_sync();
}

// Logits, and the next token.
__device__ __forceinline__ void head(const Context &c) {
    const Arguments &a = c.a;
    const NormWeights norm(a.final_norm, a.C);
    mixing_products(c, a.head_fn, STREAMS);
    const float inverse = inverse_of_streams(c);
    workers_sync();
    float weights[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++)
        weights[i] = 1.0f / (1.0f + expf(-fmaf(c.s.products[i] * inverse, *a.head_scale, a.head_base[i]))) + a.eps;
    combine(c, weights, norm);
    const Share share = c.team.share<1>(a.V);
    float *logits = a.logits + ((size_t)c.row.run * a.B + c.row.row) * a.V;
    products<16, 2>(
        share.count, a.C, [&](int unit) { return a.head + (size_t)(share.first + unit) * a.C; }, [&](int) { return c.s.normed; },
        [&](int unit, float product) {
            const int token = share.first + unit, lane = threadIdx.x % 16;
            if (lane == 0)
                logits[token] = product;
            c.team.give(c.s.row_logits + token, product, lane);
        });
    cluster_sync();
    if (c.team.rank != 0)
        return;
    const float temperature = a.temperature[c.row.row];
    const int sequence = a.sequence[c.row.row], warp = threadIdx.x / 32;
    u64 best = 0;
#pragma unroll 1
    for (int token = threadIdx.x; token < a.V; token += WORKERS) {
        const float score = sample_file::noisy(c.s.row_logits[token], temperature, token, c.row.position, sequence, a.seed);
        best = max(best, sample_file::candidate(score, token));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (threadIdx.x % 32 == 0)
        c.s.bests[warp] = best;
    workers_sync();
#pragma unroll 1
    for (int other = 0; other < WARPS; other++)
        best = max(best, c.s.bests[other]);
    if (threadIdx.x == 0)
        a.sampled[c.row.row] = sample_file::index_of(best);
}

} // namespace persistent
