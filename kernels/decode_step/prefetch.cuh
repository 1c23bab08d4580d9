// What the next layer reads comes to L2 while this one is computed.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// By the mixer: lists the ranges. Weights are asked for once for the whole batch.
__device__ __forceinline__ void list_ranges(const Context &c) {
    const Arguments &a = c.a;
    const int t = c.row.position, row = c.row.row;
    if (threadIdx.x % 32 == 0) {
        int count = 0;
        const auto range = [&](int sparse, int heavy, const float *start, size_t stride, size_t numbers) {
            c.s.ranges[count++] = {start, stride, numbers, sparse, heavy};
        };
        // The state of a row, of which the first numbers are read.
        const auto state = [&](int sparse, int heavy, const float *start, int slots, int width, int read) {
            range(sparse, heavy, start + (size_t)row * slots * width, (size_t)a.B * slots * width, (size_t)read * width);
        };
        const auto weights = [&](int sparse, int heavy, const float *start, size_t numbers) {
            range(sparse, heavy, start, numbers, row == 0 ? numbers : 0);
        };
        const auto compressor = [&](int sparse, int heavy, const float *kv, const float *gate, const float *ape,
                                    const float *norm, const float *ring_kv, const float *ring_gate, int rate, int dim,
                                    int halves) {
            const int width = dim * halves, slots = rate * halves, read = (t + 1) % rate == 0 ? slots : 0;
            state(sparse, heavy, ring_kv, slots, width, read);
            state(sparse, heavy, ring_gate, slots, width, read);
            weights(sparse, heavy, kv, (size_t)width * a.C);
            weights(sparse, heavy, gate, (size_t)width * a.C);
            range(sparse, heavy, ape + (size_t)(t % rate) * width, (size_t)rate * width, row == 0 ? width : 0);
            weights(sparse, heavy, norm, dim);
        };
        state(1, 1, a.window, a.Wn, a.D, a.Wn);
        state(1, 0, a.csa_entries, a.Ns, a.D, min((t + 1) / a.ms, 4 * a.topk));
        state(1, 0, a.index_entries, a.Ns, a.DI, (t + 1) / a.ms);
        state(0, 1, a.hca_entries, a.Nh, a.D, (t + 1) / a.mh);
        compressor(1, 0, a.csa_kv, a.csa_gate, a.csa_ape, a.csa_norm, a.csa_ring_kv, a.csa_ring_gate, a.ms, a.D, 2);
        compressor(1, 0, a.index_kv, a.index_gate, a.index_ape, a.index_norm, a.index_ring_kv, a.index_ring_gate, a.ms, a.DI, 2);
        compressor(0, 1, a.hca_kv, a.hca_gate, a.hca_ape, a.hca_norm, a.hca_ring_kv, a.hca_ring_gate, a.mh, a.D, 1);
        weights(1, 0, a.index_q, (size_t)a.HI * a.DI * a.Rq);
        weights(1, 0, a.index_heads, (size_t)a.HI * a.C);
        weights(1, 1, a.attn_fn, (size_t)MUS * STREAMS * a.C);
        weights(1, 1, a.attn_base, MUS);
        weights(1, 1, a.attn_scale, 3);
        weights(1, 1, a.attn_norm, a.C);
        weights(1, 1, a.q_a, (size_t)a.Rq * a.C);
        weights(1, 1, a.q_norm, a.Rq);
        weights(1, 1, a.q_b, (size_t)a.H * a.D * a.Rq);
        weights(1, 1, a.kv, (size_t)a.D * a.C);
        weights(1, 1, a.kv_norm, a.D);
        weights(1, 1, a.sinks, a.H);
        weights(1, 1, a.o_a, (size_t)a.Ro * a.H * a.D);
        weights(1, 1, a.o_b, (size_t)a.C * a.G * a.Ro);
        weights(1, 1, a.moe_fn, (size_t)MUS * STREAMS * a.C);
        weights(1, 1, a.moe_base, MUS);
        weights(1, 1, a.moe_scale, 3);
        weights(1, 1, a.moe_norm, a.C);
        weights(1, 1, a.gate, (size_t)a.E * a.C);
        weights(1, 1, a.bias, a.E);
        weights(1, 1, a.gate_up, (size_t)a.E * 2 * a.I * a.C);
        weights(1, 1, a.down, (size_t)a.E * a.C * a.I);
        weights(1, 1, a.shared_gate_up, (size_t)2 * a.I * a.C);
        weights(1, 1, a.shared_down, (size_t)a.C * a.I);
        while (count < MOST_RANGES)
            c.s.ranges[count++] = {nullptr, 0, 0, 0, 0};
    }
    __syncwarp();
}

// By the mixer: asks for the share of this CTA of what a layer reads.
__device__ __forceinline__ void prefetch(const Context &c, int layer) {
    const Kind kind(c.a, layer);
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < MOST_RANGES; at += 32) {
        const Range &range = c.s.ranges[at];
        const int number = range.of_sparse && range.of_heavy ? layer : kind.number;
        const float *const from = range.start + number * range.stride;
        // In steps of 16 bytes.
        const size_t before = ((size_t)from & 15) / 4, steps = (before + range.count + 3) / 4;
        const size_t first = steps * c.team.rank >> c.team.bits, last = steps * (c.team.rank + 1) >> c.team.bits;
        if ((kind.sparse ? range.of_sparse : range.of_heavy) && range.count > 0 && first < last)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from - before + 4 * first),
                         "r"((u32)(last - first) * 16));
    }
}

} // namespace persistent
