// The output of attention of the variant `persistent`: what heads read comes down to a rank, and up to the channels.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// A warp for each row.
template <class W> __device__ __forceinline__ void output_down(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int of_group = a.H * a.D / a.G;
    const Share share = c.team.template share<1>(a.G * a.Ro);
    const auto row = [&](int unit) {
        if constexpr (W::STAGED)
            return c.s.staged.output_down.row(unit);
        else
            return Matrix<W>{a.o_a, a.o_a_scales}
                .from((size_t)layer.layer * a.G * a.Ro + share.first, of_group)
                .row(unit, of_group);
    };
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < share.count; unit += WARPS) {
        const auto weights = row(unit);
        const float *const heads = c.s.heads + (share.first + unit) / a.Ro * of_group;
        float sum = 0.0f;
#pragma unroll 4
        for (int at = 4 * lane; at < of_group; at += 128)
            sum = dot4(weights.four(at), load4(heads + at), sum);
        c.team.give(c.s.arrived + LOW_HEADS, c.s.low_heads + share.first + unit, warp_sum(sum), lane);
    }
}

// By each CTA, all of it.
template <class W> __device__ __forceinline__ void output_up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int rank = a.G * a.Ro;
    const auto row = [&](int unit) {
        if constexpr (W::STAGED)
            return c.s.staged.output_up.row(unit);
        else
            return Matrix<W>{a.o_b, a.o_b_scales}.from((size_t)layer.layer * a.C, rank).row(unit, rank);
    };
    products<1, W::STAGED>(a.C, rank, c.s.low_heads, row, [&](int unit, float product) {
        if (threadIdx.x % 4 == 0 && unit < a.C)
            c.s.out[unit] = product;
    });
    workers_sync();
    c.keep(a.at_attention_output, layer.layer, a.layers, c.s.out, a.C);
}

} // namespace persistent
