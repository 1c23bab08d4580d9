// The streams of the variant `persistent`: what goes into a block, how its output is mixed back, and the head. All CTAs compute it.
#pragma once

#include "decode_step/arguments.cuh"

namespace persistent {

// What goes into a block: the weighted sum of the streams, normed. A matrix of `count` rows times the streams gives the logits; the
// first four are those of the weights, from the others a warp of its own computes how the block's output is mixed back.
template <bool STAGED, class W>
__device__ __forceinline__ void enter(const Context<W> &c, const float *fn, const float *base, const float *scale,
                                      const float *norm, int count) {
    constexpr int PARTS = MOST_C / 32;
    static_assert(MUS <= WORKERS / 16, "each row has its lanes");
    const int channels = c.a.C, wide = STREAMS * channels, unit = threadIdx.x / 16, lane = threadIdx.x % 16;
    const float own_base = base[min(unit, count - 1)], own_scale = scale[0];
    float norms[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        norms[part] = threadIdx.x + 32 * part < channels ? norm[threadIdx.x + 32 * part] : 0.0f;
    if (threadIdx.x < (count + 1) / 2 * 32) {
        const float *const row = fn + (size_t)min(unit, count - 1) * wide;
        float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
        for (int at = 4 * lane; at < wide; at += 64) {
            const float4 weights = STAGED ? load4(row + at) : ldg4(row + at), x = load4(c.s.x + at);
            sum = dot4(weights, x, sum), squares = dot4(x, x, squares);
        }
        const float mu = lanes_sum<16>(sum) * rsqrtf(lanes_sum<16>(squares) / wide + c.a.eps);
        if (lane == 0 && unit < count) {
            c.s.mus[unit] = mu;
            if (unit < STREAMS)
                c.s.weights[unit] = sigmoid(mu * own_scale + own_base) + c.a.eps;
        }
    }
    if (count > STREAMS)
        named_barrier_arrive(PRODUCTS_READY, THREADS);
    workers_sync();
    if (threadIdx.x < 32) {
        float mixed[PARTS] = {}, squares = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int channel = threadIdx.x + 32 * part;
            if (channel < channels) {
#pragma unroll
                for (int stream = 0; stream < STREAMS; stream++)
                    mixed[part] = fmaf(c.s.weights[stream], c.s.x[stream * channels + channel], mixed[part]);
            }
            squares = fmaf(mixed[part], mixed[part], squares);
        }
        const float inverse = rsqrtf(warp_sum(squares) / channels + c.a.eps);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (threadIdx.x + 32 * part < channels)
                c.s.normed[threadIdx.x + 32 * part] = mixed[part] * inverse * norms[part];
    }
    workers_sync();
}

// By the mixer: the weights that mix a block's output back. Sinkhorn's iterations take longer than a phase.
template <class W> __device__ __forceinline__ void make_mixing(const Context<W> &c, const Mixing &mixing) {
    const auto mu = [&](int i) { return c.s.mus[i]; };
    if (threadIdx.x % 32 == 0) {
        const Parameters parameters = {mixing.base, mixing.scale, c.a.eps, c.a.eps};
        make_post(mu, parameters, c.s.post);
        make_comb(mu, parameters, c.s.comb);
    }
    __syncwarp();
}

// Mixes a block's output, in `out`, back into the streams.
template <class W> __device__ __forceinline__ void leave(const Context<W> &c) {
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
template <class W> __device__ __forceinline__ void head(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    enter<false>(c, a.head_fn, a.head_base, a.head_scale, a.final_norm, STREAMS);
    const Share share = c.team.template share<1>(a.V);
    float *logits = a.logits + ((size_t)c.row.run * a.B + c.row.row) * a.V;
    products<1>(
        share.count, a.C, c.s.normed,
        [&](int unit) { return typename W::Row(a.head, a.head_scales, nullptr, share.first + unit, a.C); },
        [&](int unit, float product) {
            if (unit >= share.count)
                return;
            const int token = share.first + unit, lane = threadIdx.x % 4;
            if (lane == 0)
                logits[token] = product;
            c.team.template give_by<4>(c.s.arrived + LOGITS, c.s.row_logits + token, product, lane);
        });
    c.exchange(LOGITS, 0, a.V);
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
