// What the next layer reads comes to L2 while this one is computed.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// By the copier: lists the ranges. Weights are asked for once for the whole batch.
template <class W> __device__ __forceinline__ void list_ranges(const Context<W> &c) {
    typedef typename W::Code Code;
    typedef typename W::Scale Scale;
    const Arguments<W> &a = c.a;
    const int t = c.row.position, row = c.row.row;
    if (threadIdx.x % 32 == 0) {
        int count = 0;
        const auto range = [&](int sparse, int heavy, const void *start, size_t stride, size_t bytes) {
            c.s.ranges[count++] = {(const char *)start, stride, bytes, sparse, heavy};
        };
        // The state of a row, of which the first numbers are read.
        const auto state = [&](int sparse, int heavy, const float *start, int slots, int width, int read) {
            const size_t each = width * sizeof(float);
            range(sparse, heavy, start + (size_t)row * slots * width, a.B * slots * each, read * each);
        };
        const auto bytes = [&](int sparse, int heavy, const void *start, size_t count) {
            range(sparse, heavy, start, count, row == 0 ? count : 0);
        };
        const auto weights = [&](int sparse, int heavy, const float *start, size_t numbers) {
            bytes(sparse, heavy, start, numbers * sizeof(float));
        };
        const auto matrix = [&](int sparse, int heavy, const Code *codes, const Scale *scales, size_t rows, int cols) {
            bytes(sparse, heavy, codes, rows * W::codes_of(cols) * sizeof(Code));
            if (W::scales_of(cols) > 0)
                bytes(sparse, heavy, scales, rows * W::scales_of(cols) * sizeof(Scale));
        };
        const auto compressor = [&](int sparse, int heavy, const Code *kv, const Scale *kv_scales, const Code *gate,
                                    const Scale *gate_scales, const float *ape, const float *norm, const float *ring_kv,
                                    const float *ring_gate, int rate, int dim, int halves) {
            const int width = dim * halves, slots = rate * halves, read = (t + 1) % rate == 0 ? slots : 0;
            state(sparse, heavy, ring_kv, slots, width, read);
            state(sparse, heavy, ring_gate, slots, width, read);
            matrix(sparse, heavy, kv, kv_scales, width, a.C);
            matrix(sparse, heavy, gate, gate_scales, width, a.C);
            const size_t each = width * sizeof(float);
            range(sparse, heavy, ape + (size_t)(t % rate) * width, rate * each, row == 0 ? each : 0);
            weights(sparse, heavy, norm, dim);
        };
        state(1, 1, a.window, a.Wn, a.D, a.Wn);
        state(1, 0, a.csa_entries, a.Ns, a.D, min((t + 1) / a.ms, 4 * a.topk));
        state(1, 0, a.index_entries, a.Ns, a.DI, (t + 1) / a.ms);
        state(0, 1, a.hca_entries, a.Nh, a.D, (t + 1) / a.mh);
        compressor(1, 0, a.csa_kv, a.csa_kv_scales, a.csa_gate, a.csa_gate_scales, a.csa_ape, a.csa_norm, a.csa_ring_kv,
                   a.csa_ring_gate, a.ms, a.D, 2);
        compressor(1, 0, a.index_kv, a.index_kv_scales, a.index_gate, a.index_gate_scales, a.index_ape, a.index_norm,
                   a.index_ring_kv, a.index_ring_gate, a.ms, a.DI, 2);
        compressor(0, 1, a.hca_kv, a.hca_kv_scales, a.hca_gate, a.hca_gate_scales, a.hca_ape, a.hca_norm, a.hca_ring_kv,
                   a.hca_ring_gate, a.mh, a.D, 1);
        matrix(1, 0, a.index_q, a.index_q_scales, (size_t)a.HI * a.DI, a.Rq);
        matrix(1, 0, a.index_heads, a.index_heads_scales, a.HI, a.C);
        weights(1, 1, a.attn_fn, (size_t)MUS * STREAMS * a.C);
        weights(1, 1, a.attn_base, MUS);
        weights(1, 1, a.attn_scale, 3);
        weights(1, 1, a.attn_norm, a.C);
        matrix(1, 1, a.q_a, a.q_a_scales, a.Rq, a.C);
        weights(1, 1, a.q_norm, a.Rq);
        matrix(1, 1, a.q_b, a.q_b_scales, (size_t)a.H * a.D, a.Rq);
        matrix(1, 1, a.kv, a.kv_scales, a.D, a.C);
        weights(1, 1, a.kv_norm, a.D);
        weights(1, 1, a.sinks, a.H);
        matrix(1, 1, a.o_a, a.o_a_scales, (size_t)a.G * a.Ro, a.H * a.D / a.G);
        matrix(1, 1, a.o_b, a.o_b_scales, a.C, a.G * a.Ro);
        weights(1, 1, a.moe_fn, (size_t)MUS * STREAMS * a.C);
        weights(1, 1, a.moe_base, MUS);
        weights(1, 1, a.moe_scale, 3);
        weights(1, 1, a.moe_norm, a.C);
        matrix(1, 1, a.gate, a.gate_scales, a.E, a.C);
        weights(1, 1, a.bias, a.E);
        matrix(1, 1, a.gate_up, a.gate_up_scales, (size_t)a.E * 2 * a.I, a.C);
        matrix(1, 1, a.down, a.down_scales, (size_t)a.E * a.C, a.I);
        matrix(1, 1, a.shared_gate_up, a.shared_gate_up_scales, (size_t)2 * a.I, a.C);
        matrix(1, 1, a.shared_down, a.shared_down_scales, a.C, a.I);
        while (count < MOST_RANGES)
            c.s.ranges[count++] = {nullptr, 0, 0, 0, 0};
    }
    __syncwarp();
}

// Asks for the share of this CTA of so many bytes, in steps of 16 bytes.
template <class W> __device__ __forceinline__ void ask(const Context<W> &c, const char *from, size_t count) {
    const size_t before = (size_t)from & 15, steps = (before + count + 15) / 16;
    const size_t first = steps * c.team.rank >> c.team.bits, last = steps * (c.team.rank + 1) >> c.team.bits;
    if (count > 0 && first < last)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from - before + 16 * first),
                     "r"((u32)(last - first) * 16));
}

// By the copier: asks for what a layer reads.
template <class W> __device__ __forceinline__ void prefetch(const Context<W> &c, int layer) {
    const Kind kind(c.a, layer);
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < MOST_RANGES; at += 32) {
        const Range &range = c.s.ranges[at];
        const int number = range.of_sparse && range.of_heavy ? layer : kind.number;
        if (kind.sparse ? range.of_sparse : range.of_heavy)
            ask(c, range.start + number * range.stride, range.count);
    }
}

// By the copier: asks for what the head reads, a matrix for each of the first lanes.
template <class W> __device__ __forceinline__ void prefetch_head(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32;
    const void *const from = lane == 0   ? (const void *)a.head
                             : lane == 1 ? (const void *)a.head_fn
                             : lane == 2 ? (const void *)a.final_norm
                                         : (const void *)a.head_scales;
    const size_t count = lane == 0   ? a.V * W::codes_of(a.C) * sizeof(typename W::Code)
                         : lane == 1 ? STREAMS * STREAMS * a.C * sizeof(float)
                         : lane == 2 ? a.C * sizeof(float)
                         : lane == 3 ? a.V * W::scales_of(a.C) * sizeof(typename W::Scale)
                                     : 0;
    ask(c, (const char *)from, count);
}

} // namespace persistent
