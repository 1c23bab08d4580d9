// The streams of the variant `persistent`: what goes into a block, how its output is mixed back, and the head. All CTAs compute it.
#pragma once

#include "decode_step/arguments.cuh"

namespace persistent {

// What goes into a block: the weighted sum of the streams, normed. A matrix of `count` rows times the streams gives the logits; the
// first four are those of the weights, which the first warp has, so that it goes on by itself. From the others a warp of its own
// computes how the block's output is mixed back.
template <bool STAGED, class W>
__device__ __forceinline__ void enter(const Context<W> &c, const float *x, const float *fn, const float *base, const float *scale,
                                      const float *norm, int count) {
    constexpr int LANES = 32 / STREAMS;
    static_assert(MUS * LANES <= Context<W>::WORKERS && STREAMS == 4 && MOST_C <= 64,
                  "each row has its lanes, and a lane has two channels");
    const int channels = c.a.C, wide = STREAMS * channels, unit = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // What the first warp goes on with.
    const int channel = 2 * threadIdx.x;
    const bool there = channel < channels;
    float2 streams[STREAMS], by;
    const auto load = [&] {
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            streams[stream] = *(const float2 *)(x + (there ? stream * channels + channel : 0));
        by = *(const float2 *)(norm + (there ? channel : 0));
    };
    if (STAGED && threadIdx.x < 32)
        load();
    float own = 0.0f;
    if (threadIdx.x < count * LANES) {
        const float own_base = base[unit], own_scale = scale[0];
        const float *const row = fn + (size_t)unit * wide;
        // Every other part has a sum of its own.
        float sum[2] = {}, squares[2] = {};
        const auto add = [&](int part, float4 weights, float4 four) {
            sum[part] = dot4(weights, four, sum[part]), squares[part] = dot4(four, four, squares[part]);
        };
        // All is asked for at once.
        constexpr int PARTS = MOST_C / LANES;
        float4 weights[PARTS];
        if constexpr (STAGED) {
            float4 fours[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (const int at = 4 * (lane + LANES * part); at < wide)
                    weights[part] = load4(row + at), fours[part] = load4(x + at);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (4 * (lane + LANES * part) < wide)
                    add(part % 2, weights[part], fours[part]);
        } else {
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                weights[part] = ldg4(row + min(4 * (lane + LANES * part), wide - 4));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (const int at = 4 * (lane + LANES * part); at < wide)
                    add(part % 2, weights[part], load4(x + at));
        }
        const float product = lanes_sum<LANES>(sum[0] + sum[1]), square = lanes_sum<LANES>(squares[0] + squares[1]);
        const float mu = product * rsqrtf(square / wide + c.a.eps);
        if (threadIdx.x < 32)
            own = sigmoid(mu * own_scale + own_base) + c.a.eps;
        else if (lane == 0)
            c.s.mus[unit] = mu;
    }
    // The mixer begins while the first warp goes on.
    if (count > STREAMS)
        named_barrier_arrive(PRODUCTS_READY, Context<W>::WORKERS + 64);
    if (threadIdx.x < 32) {
        if (!STAGED)
            load();
        float2 mixed = make_float2(0, 0);
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++) {
            const float weight = __shfl_sync(0xffffffff, own, LANES * stream);
            mixed.x = fmaf(weight, streams[stream].x, mixed.x), mixed.y = fmaf(weight, streams[stream].y, mixed.y);
        }
        const float sum_of_squares = warp_sum(there ? fmaf(mixed.x, mixed.x, mixed.y * mixed.y) : 0.0f);
        const float inverse = rsqrtf(sum_of_squares / channels + c.a.eps);
        if (there)
            *(float2 *)(c.s.normed + channel) = make_float2(mixed.x * inverse * by.x, mixed.y * inverse * by.y);
    }
    c.sync();
}

// By the mixer: the weights that mix a block's output back. Sinkhorn's iterations take as long as all phases of the experts, so that
// they begin soon.
template <class W> __device__ __forceinline__ void make_mixing(const Context<W> &c, const Mixing &mixing) {
    make_post_and_comb([&](int unit) { return c.s.mus[unit]; }, {mixing.base, mixing.scale, c.a.eps, c.a.eps}, c.s.post,
                       c.s.comb);
    __syncwarp();
}

// Mixes a channel of a block's output back into the streams `from`, by four lanes, each of which has a stream of `to`. `out` is kept at
// `tap`, if there is one. Each warp calls it once, whether it has channels or not, when all have read `to`.
template <class W>
__device__ __forceinline__ void leave(const Context<W> &c, const float *from, float *to, int channel, float out, float *tap) {
    const int stream = threadIdx.x % STREAMS;
    named_barrier_sync(MIXING_READY, Context<W>::WORKERS + 64);
    if (channel < c.a.C) {
        float sum = c.s.post[stream] * out;
#pragma unroll
        for (int other = 0; other < STREAMS; other++)
            sum = fmaf(c.s.comb[other * STREAMS + stream], from[other * c.a.C + channel], sum);
        to[stream * c.a.C + channel] = sum;
        if (tap && c.team.rank == 0 && stream == 0)
            tap[channel] = out;
    }
    c.sync();
}

// Logits, and the next token.
template <class W> __device__ __forceinline__ void head(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    enter<false>(c, c.s.x[0], a.head_fn, a.head_base, a.head_scale, a.final_norm, STREAMS);
    const Share share = c.team.template share<1>(a.V);
    float *logits = a.logits + ((size_t)c.row.run * a.B + c.row.row) * a.V;
    products<typename W::Ranks, 1>(
        share.count, a.C, c.s.normed,
        [&](int unit) { return typename W::Row(a.head, a.head_scales, nullptr, share.first + unit, a.C); },
        [&](int unit, float product) {
            if (unit >= share.count)
                return;
            const int token = share.first + unit, lane = threadIdx.x % 4;
            if (lane == 0)
                logits[token] = product;
            c.team.template broadcast_by<4>(c.s.arrived + LOGITS, c.s.row_logits + token, product, lane);
        });
    c.exchange(LOGITS, 0, a.V);
    if (c.team.rank != 0)
        return;
    const float temperature = a.temperature[c.row.row];
    const int sequence = a.sequence[c.row.row], warp = threadIdx.x / 32;
    u64 best = 0;
#pragma unroll 1
    for (int token = threadIdx.x; token < a.V; token += c.WORKERS) {
        const float score = sample_file::noisy(c.s.row_logits[token], temperature, token, c.row.position, sequence, a.seed);
        best = max(best, sample_file::candidate(score, token));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (threadIdx.x % 32 == 0)
        c.s.bests[warp] = best;
    c.sync();
#pragma unroll 1
    for (int other = 0; other < c.WARPS; other++)
        best = max(best, c.s.bests[other]);
    if (threadIdx.x == 0)
        a.sampled[c.row.row] = sample_file::index_of(best);
}

} // namespace persistent
