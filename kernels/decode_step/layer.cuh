// A layer of the variant `persistent`: the weights of its compressors, and the state of a row.
#pragma once

#include "decode_step/arguments.cuh"

namespace persistent {

// Whether a layer is a sparse one, and its number among those of its kind.
struct Kind {
    bool sparse;
    int number;

    template <class W> __device__ __forceinline__ Kind(const Arguments<W> &a, int layer) {
        sparse = layer >= a.lead && (layer - a.lead) % 2 == 0;
        number = sparse ? (layer - a.lead) / 2 : min(layer, a.lead) + max(0, layer - a.lead) / 2;
    }
};

// Whether a layer chooses among its entries: if there are no more than it may read, it reads all of them, and nobody needs their scores.
template <class W> __device__ __forceinline__ bool chooses(const Context<W> &c, bool sparse) {
    return sparse && entries_seen(c.row.position) >= (c.a.topk + 1) * c.a.ms;
}

// How many entries a layer has, with that of the token.
template <class W> __device__ __forceinline__ int available(const Context<W> &c, const Layer<W> &layer) {
    return entries_seen(c.row.position) / (layer.sparse ? c.a.ms : heavy_rate(c.a.ms, c.a.mh));
}

// Index queries that are made: a tap keeps them where nobody needs them.
template <class W> __device__ __forceinline__ int index_queries(const Context<W> &c, bool sparse) {
    return chooses(c, sparse) || (sparse && c.a.at_index_query) ? c.a.HI * c.a.DI : 0;
}

// By the copier: where everything of a layer is.
template <class W> __device__ __forceinline__ void find(const Context<W> &c, int layer, Layer<W> &to) {
    const Arguments<W> &a = c.a;
    const Kind kind(a, layer);
    const int number = kind.number, t = c.row.position;
    const size_t at = (size_t)number * a.B + c.row.row, wide = STREAMS * a.C;
    const auto take = [](float *to, const float *from, int count) {
#pragma unroll 1
        for (int at = threadIdx.x % 32; at < count; at += 32)
            to[at] = __ldg(from + at);
    };
    take(to.base[0], a.attn_base + layer * MUS, MUS), take(to.base[1], a.moe_base + layer * MUS, MUS);
    take(to.scale[0], a.attn_scale + layer * 3, 3), take(to.scale[1], a.moe_scale + layer * 3, 3);
    take(to.norm[0], a.attn_norm + layer * a.C, a.C), take(to.norm[1], a.moe_norm + layer * a.C, a.C);
    take(to.q_norm, a.q_norm + layer * a.Rq, a.Rq), take(to.sinks, a.sinks + layer * a.H, a.H);
    take(to.bias, a.bias + layer * a.E, a.E);
    if (threadIdx.x % 32 > 0)
        return;
    to.layer = layer, to.sparse = kind.sparse, to.number = number;
    to.mixing[0] = {a.attn_fn + layer * MUS * wide, to.base[0], to.scale[0], to.norm[0]};
    to.mixing[1] = {a.moe_fn + layer * MUS * wide, to.base[1], to.scale[1], to.norm[1]};
    to.window = a.window + ((size_t)layer * a.B + c.row.row) * a.Wn * a.D;
    to.token_vector = to.window + (size_t)window_slot(t, a.Wn) * a.D;
    const auto compressor = [&](const float *ape, const float *norm, float *ring_kv, float *ring_gate, float *entries, int rate,
                                int dim, int halves, int capacity) {
        const int width = dim * halves, slots = rate * halves, window = t / rate * rate;
#ifdef MUTANT_ABSENT_POOLED_AS_ZEROS
        const int first = window - rate * (halves - 1);
#else
        const int first = max(0, window - rate * (halves - 1));
#endif
        const size_t ring = at * slots * width, slot = ring + t % slots * width;
        float *const layer_entries = entries + at * capacity * dim;
        return Compressor{ape + ((size_t)number * rate + t % rate) * width,
                          norm + number * dim,
                          ring_kv + ring,
                          ring_gate + ring,
                          ring_kv + slot,
                          ring_gate + slot,
                          layer_entries,
                          (t + 1) % rate == 0 ? layer_entries + (size_t)(t / rate) * dim : nullptr,
                          (t + 1) % rate == 0 ? t / rate : -1,
                          slots,
                          dim,
                          halves,
                          first,
                          (first + slots) % slots,
                          window};
    };
    if (kind.sparse) {
        to.main = compressor(a.csa_ape, a.csa_norm, a.csa_ring_kv, a.csa_ring_gate, a.csa_entries, a.ms, a.D, 2, a.Ns);
        to.index =
            compressor(a.index_ape, a.index_norm, a.index_ring_kv, a.index_ring_gate, a.index_entries, a.ms, a.DI, 2, a.Ns);
    } else {
        to.main = compressor(a.hca_ape, a.hca_norm, a.hca_ring_kv, a.hca_ring_gate, a.hca_entries, a.mh, a.D, 1, a.Nh);
    }
    if constexpr (!W::STAGED) {
        const auto matrix = [&](int which, const typename W::Code *codes, const typename W::Scale *scales, int at, int rows) {
            to.matrices[which] = Matrix<W>{codes, scales}.from((size_t)at * rows, a.C);
        };
        matrix(0, a.q_a, a.q_a_scales, layer, a.Rq), matrix(1, a.kv, a.kv_scales, layer, a.D);
        if (kind.sparse) {
            matrix(2, a.index_heads, a.index_heads_scales, number, a.HI);
            matrix(3, a.csa_kv, a.csa_kv_scales, number, 2 * a.D), matrix(4, a.csa_gate, a.csa_gate_scales, number, 2 * a.D);
            matrix(5, a.index_kv, a.index_kv_scales, number, 2 * a.DI);
            matrix(6, a.index_gate, a.index_gate_scales, number, 2 * a.DI);
        } else {
            matrix(3, a.hca_kv, a.hca_kv_scales, number, a.D), matrix(4, a.hca_gate, a.hca_gate_scales, number, a.D);
        }
    }
}

// What a CTA has of the first products of a layer of a kind: the rank of queries, the vector of the window, the weights of index heads,
// and of each compressor the halves of values, then the halves of logits.
struct DownShares {
    Share low, kv, heads, index;
    int halves;

    template <class W> __device__ __forceinline__ DownShares(const Context<W> &c, bool sparse) : halves(sparse ? 2 : 1) {
        low = c.team.template share<4>(c.a.Rq), kv = c.team.template share<8>(c.a.D);
        heads = c.team.template share<W::STAGED ? 4 : 1>(c.a.HI).only_if(sparse),
        index = c.team.template share<8>(c.a.DI).only_if(sparse);
    }

    __device__ __forceinline__ int of_main() const {
        return 2 * halves * kv.count;
    }

    __device__ __forceinline__ int count() const {
        return low.count + kv.count + heads.count + of_main() + 2 * halves * index.count;
    }

    // The row of a unit: the number of its matrix, and the row there.
    template <class W> __device__ __forceinline__ u32 row(int unit, const Arguments<W> &a) const {
        const auto compressor = [&](u32 matrix, Share share, int dim) {
            const int which = unit / share.count, channel = share.first + unit % share.count;
            return matrix + which / halves << 24 | (which % halves * dim + channel);
        };
        if (unit < low.count)
            return low.first + unit;
        unit -= low.count;
        if (unit < kv.count)
            return 1u << 24 | (kv.first + unit);
        unit -= kv.count;
        if (unit < heads.count)
            return 2u << 24 | (heads.first + unit);
        unit -= heads.count;
        if (unit < of_main())
            return compressor(3, kv, a.D);
        unit -= of_main();
        return compressor(5, index, a.DI);
    }
};

// Lists what this CTA has a share of.
template <class W> __device__ __forceinline__ void list_shares(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    if constexpr (!W::STAGED) {
#pragma unroll 1
        for (int sparse = 0; sparse < 2; sparse++) {
            const DownShares shares(c, sparse);
#pragma unroll 1
            for (int unit = threadIdx.x; unit < shares.count(); unit += c.WORKERS)
                c.s.down_rows[sparse][unit] = shares.row(unit, a);
        }
    }
    const DownShares shares(c, true);
#pragma unroll 1
    for (int list = 0; list < 3; list++) {
        const Share share = list == 2 ? shares.index : shares.kv;
        const int dim = list == 2 ? a.DI : a.D, halves = list == 0 ? 1 : 2;
#pragma unroll 1
        for (int at = threadIdx.x; at < halves * share.count; at += c.WORKERS)
            c.s.channels[list][at] = at / share.count * dim + share.first + at % share.count;
    }
    // The share of an expert is that of each other.
    const Share hidden = c.team.template share<1>(a.I);
#pragma unroll 1
    for (int at = threadIdx.x; at < (a.K + 1) * hidden.count; at += c.WORKERS)
        c.s.hidden_rows[at] = at / hidden.count << 8 | (hidden.first + at % hidden.count);
}

} // namespace persistent
