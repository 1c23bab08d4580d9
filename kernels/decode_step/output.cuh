// The output of attention of the variant `persistent`: what heads read comes down to a rank, and up to the channels.
#pragma once

#include "decode_step/streams.cuh"

namespace persistent {

// Sixteen lanes for each row, four of which have every fourth chunk of channels; the sum is that of chunks, one after the other.
template <class W> __device__ __forceinline__ void output_down(const Context<W> &c, const Layer<W> &layer) {
    constexpr int LANES = 16, BATCH = 2;
    const Arguments<W> &a = c.a;
    const int of_group = a.H * a.D / a.G, chunks = (of_group + CHUNK - 1) / CHUNK;
    const Share share = c.team.template share<1>(a.G * a.Ro);
#pragma unroll 1
    for (int unit = threadIdx.x / LANES; unit / 2 * 2 < share.count; unit += c.WORKERS / LANES) {
        const int row = share.first + min(unit, share.count - 1);
        const auto weights = Matrix<W>{a.o_a, a.o_a_scales}.from((size_t)layer.layer * a.G * a.Ro, of_group).row(row, of_group);
        const float *const heads = c.s.heads + row / a.Ro * of_group;
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < chunks; first += 4 * BATCH) {
            FourParts loaded[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                loaded[i].load(weights, min(first + 4 * i + (int)threadIdx.x / 4 % 4, chunks - 1) * CHUNK, of_group);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int column = min(first + 4 * i + (int)threadIdx.x / 4 % 4, chunks - 1) * CHUNK;
                const float product = loaded[i].product(heads + column, min(CHUNK, of_group - column));
#pragma unroll
                for (int of = 0; of < 4; of++) {
                    const float of_chunk = __shfl_sync(0xffffffff, product, 4 * of, LANES);
                    sum = first + 4 * i + of < chunks ? sum + of_chunk : sum;
                }
            }
        }
        if (unit < share.count)
            c.team.template broadcast_by<LANES>(c.s.arrived + LOW_HEADS, c.s.low_heads + row, sum, threadIdx.x % LANES);
    }
}

// The same if a CTA has read a chunk of channels: it multiplies the columns of these, and sends the products to all CTAs, which add them.
template <class W> __device__ __forceinline__ void output_part(const Context<W> &c, const float *chunk) {
    const Arguments<W> &a = c.a;
    const int of_group = a.H * a.D / a.G / CHUNK, group = c.team.rank / of_group, number = c.team.rank % of_group;
    if (const int unit = threadIdx.x / 4; unit < a.Ro) {
        const float sum = product_of<true>(c.s.staged.output_down_row(unit, number), chunk, CHUNK);
        c.team.broadcast_four(c.s.arrived + LOW_HEADS, c.s.low_parts + (number * a.G + group) * a.Ro + unit / 4 * 4, sum);
    }
}

// By each CTA, all of it; the output is mixed back into the streams.
template <class W> __device__ __forceinline__ void output_up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int rank = a.G * a.Ro, channel = threadIdx.x / 4;
    if constexpr (W::STAGED) {
        if (threadIdx.x < rank) {
            float sum = 0.0f;
#pragma unroll
            for (int chunk = 0; chunk < a.H * a.D / a.G / CHUNK; chunk++)
                sum += c.s.low_parts[chunk * rank + threadIdx.x];
            c.s.low_heads[threadIdx.x] = sum;
        }
        c.sync();
    }
    float out = 0.0f;
    if (channel / 8 * 8 < a.C) {
        const int row = min(channel, a.C - 1);
        if constexpr (W::STAGED)
            out = product_of<true>(c.s.staged.output_up.row(row), c.s.low_heads, rank);
        else
            out = product_of<false>(Matrix<W>{a.o_b, a.o_b_scales}.from((size_t)layer.layer * a.C, rank).row(row, rank),
                                    c.s.low_heads, rank);
    }
    leave(c, c.s.x[0], c.s.x[1], channel, out,
          a.at_attention_output ? c.kept(a.at_attention_output, layer.layer, a.layers, a.C) : nullptr);
}

} // namespace persistent
