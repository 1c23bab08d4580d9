// Copies of weights to shared memory, which the copier asks for.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// By a thread of the copier: lists what this CTA has a share of.
template <class W> __device__ __forceinline__ void list_copies(const Context<W> &c) {
    typedef Staged<W> Staged;
    typedef typename W::Code Code;
    typedef typename W::Scale Scale;
    const Arguments<W> &a = c.a;
    Staged &to = c.s.staged;
    constexpr int SPARSE = 1, HEAVY = 2, BOTH = 3;
    int count = 0;
    const auto bytes = [&](Full full, int kinds, const void *from, size_t stride, void *to_bytes, u32 size) {
        if (size > 0)
            to.copies[count++] = {(const char *)from, stride, to_bytes, size, (u8)full, (u8)(kinds & SPARSE), (u8)(kinds >> 1)};
    };
    // Some of the rows that each layer has, behind `at` rows that are here already.
    const auto rows = [&](Full full, int kinds, const Code *codes, const Scale *scales, int of_layer, int first, int count,
                          Place<W> to, int at) {
        const int each = to.each * (int)sizeof(Code), each_scales = to.each_scales * (int)sizeof(Scale);
        bytes(full, kinds, codes + first * to.each, of_layer * each, to.codes + at * to.each, count * each);
        bytes(full, kinds, scales + first * to.each_scales, of_layer * each_scales, to.scales + at * to.each_scales,
              count * each_scales);
    };
    const size_t of_streams = sizeof(float) * MUS * STREAMS * a.C;
    bytes(ATTENTION_STREAMS, BOTH, a.attn_fn, of_streams, to.streams[0], of_streams);
    bytes(EXPERTS_STREAMS, BOTH, a.moe_fn, of_streams, to.streams[1], of_streams);
    const auto vector = [&](int kinds, const float *from, int count, float *to) {
        bytes(ATTENTION, kinds, from, count * sizeof(float), to, count * sizeof(float));
    };
    vector(BOTH, a.kv_norm, a.D, to.kv_norm);
    vector(SPARSE, a.csa_norm, a.D, to.norm), vector(HEAVY, a.hca_norm, a.D, to.norm);
    vector(SPARSE, a.index_norm, a.DI, to.index_norm);
    // The first products, in the order of the units of `DownShares`.
    const auto part = [&](int kinds, const Code *codes, const Scale *scales, int of_layer, int first, Share share, int at) {
        rows(FIRST, kinds, codes, scales, of_layer, first + share.first, share.count, to.down.place(), at);
        return at + share.count;
    };
    const auto compressor = [&](int kinds, const Code *codes, const Scale *scales, int dim, int halves, Share share, int at) {
#pragma unroll 1
        for (int half = 0; half < halves; half++)
            at = part(kinds, codes, scales, halves * dim, half * dim, share, at);
        return at;
    };
    const DownShares shares(c, true);
    int at = part(BOTH, a.q_a, a.q_a_scales, a.Rq, 0, shares.low, 0);
    const int behind = part(BOTH, a.kv, a.kv_scales, a.D, 0, shares.kv, at);
    at = part(SPARSE, a.index_heads, a.index_heads_scales, a.HI, 0, shares.heads, behind);
    at = compressor(SPARSE, a.csa_kv, a.csa_kv_scales, a.D, 2, shares.kv, at);
    at = compressor(SPARSE, a.csa_gate, a.csa_gate_scales, a.D, 2, shares.kv, at);
    at = compressor(SPARSE, a.index_kv, a.index_kv_scales, a.DI, 2, shares.index, at);
    compressor(SPARSE, a.index_gate, a.index_gate_scales, a.DI, 2, shares.index, at);
    at = compressor(HEAVY, a.hca_kv, a.hca_kv_scales, a.D, 1, shares.kv, behind);
    compressor(HEAVY, a.hca_gate, a.hca_gate_scales, a.D, 1, shares.kv, at);

    const auto share_of = [&](int kinds, const Code *codes, const Scale *scales, int of_layer, Share share, Place<W> to, int at) {
        rows(ATTENTION, kinds, codes, scales, of_layer, share.first, share.count, to, at);
    };
    const Share query = c.team.template share<4>(a.H * a.D), index_query = c.team.template share<4>(a.HI * a.DI);
    share_of(BOTH, a.q_b, a.q_b_scales, a.H * a.D, query, to.up.place(), 0);
    share_of(SPARSE, a.index_q, a.index_q_scales, a.HI * a.DI, index_query, to.up.place(), query.count);
    const int of_group = a.H * a.D / a.G, chunks = of_group / CHUNK, group = c.team.rank / chunks * a.Ro;
    const size_t row_bytes = row_codes((const W *)nullptr, of_group) * sizeof(Code);
    const u32 chunk_bytes = row_codes((const W *)nullptr, CHUNK) * sizeof(Code);
#pragma unroll 1
    for (int at = 0; at < a.Ro; at++)
        bytes(ATTENTION, BOTH, (const char *)a.o_a + (group + at) * row_bytes + c.team.rank % chunks * chunk_bytes,
              a.G * a.Ro * row_bytes, (char *)to.output_down.codes + at * chunk_bytes, chunk_bytes);
    rows(ATTENTION, BOTH, (const Code *)nullptr, a.o_a_scales, a.G * a.Ro, group, a.Ro, to.output_down_scales.place(), 0);
    share_of(BOTH, a.o_b, a.o_b_scales, a.C, {0, a.C}, to.output_up.place(), 0);

    rows(EXPERTS, BOTH, a.gate, a.gate_scales, a.E, 0, a.E, to.gate.place(), 0);
    const Share hidden = c.team.template share<1>(a.I);
#pragma unroll 1
    for (int of = 0; of < 2 * (a.E + 1); of++) {
        const bool shared = of >= 2 * a.E;
        rows(EXPERTS, BOTH, shared ? a.shared_gate_up : a.gate_up, (const Scale *)nullptr, (shared ? 2 : 2 * a.E) * a.I,
             (shared ? of - 2 * a.E : of) * a.I + hidden.first, hidden.count, to.hidden.place(), of * hidden.count);
    }
    rows(EXPERTS, BOTH, (const Code *)nullptr, a.gate_up_scales, 2 * a.E * a.I, 0, 2 * a.E * a.I, to.hidden_scales.place(), 0);
    rows(EXPERTS, BOTH, (const Code *)nullptr, a.shared_gate_up_scales, 2 * a.I, 0, 2 * a.I, to.hidden_scales.place(),
         2 * a.E * a.I);
    rows(EXPERTS, BOTH, a.shared_down, a.shared_down_scales, a.C, 0, a.C, to.mixed.place(), a.K * a.C);
    to.count = count;
}

// By the copier: copies what one thing of a layer waits for, where nobody reads any more.
template <class W> __device__ __forceinline__ void copy_ahead(const Context<W> &c, Full full, int layer) {
    Staged<W> &to = c.s.staged;
    const Kind kind(c.a, layer);
    u32 bytes = 0;
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < to.count; at += 32) {
        const Copy &copy = to.copies[at];
        if (copy.full != full || !(kind.sparse ? copy.of_sparse : copy.of_heavy))
            continue;
        const int number = copy.of_sparse && copy.of_heavy ? layer : kind.number;
        tma_load_1d(copy.to, copy.from + number * copy.stride, copy.bytes, to.full + full);
        bytes += copy.bytes;
    }
    bytes = __reduce_add_sync(0xffffffff, bytes);
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive_expect_tx(to.full + full, bytes);
}

// By a warp: the second matrices of the experts of the token, one by each of the first lanes.
template <class W> __device__ __forceinline__ void copy_routed(const Context<W> &c, int layer, int expert) {
    typedef decltype(Staged<W>::mixed) Tile;
    Tile &to = c.s.staged.mixed;
    const Arguments<W> &a = c.a;
    const int slot = threadIdx.x % 32;
    const size_t first = ((size_t)layer * a.E + expert) * a.C;
    constexpr int CODES = sizeof(typename W::Code) * W::Sizes::C * Tile::EACH,
                  SCALES = sizeof(typename W::Scale) * W::Sizes::C * Tile::SCALES;
    u64 *const full = c.s.staged.full + ROUTED;
    if (slot == 0)
        mbarrier_arrive_expect_tx(full, a.K * (CODES + SCALES));
    if (slot >= a.K)
        return;
    tma_load_1d(to.codes + slot * a.C * to.EACH, a.down + first * to.EACH, CODES, full);
    if (SCALES > 0)
        tma_load_1d(to.scales + slot * a.C * to.SCALES, a.down_scales + first * to.SCALES, SCALES, full);
}

} // namespace persistent
