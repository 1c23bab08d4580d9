// A layer of the variant `persistent`: the weights of its compressors, and the state of a row.
#pragma once

#include "decode_step/arguments.cuh"

namespace persistent {

// A compressor of one layer, with its state of one row.
struct Compressor {
    const float *kv, *gate, *ape, *norm;
    float *ring_kv, *ring_gate, *entries;
    // Windows overlap if there are two halves.
    int rate, dim, halves;

    __device__ __forceinline__ int width() const {
        return dim * halves;
    }

    __device__ __forceinline__ int slots() const {
        return rate * halves;
    }

    __device__ __forceinline__ bool closes(int t) const {
        return (t + 1) % rate == 0;
    }

    // The channel of number `at` of a share of all halves.
    __device__ __forceinline__ int channel(int at, Share share) const {
        return at / share.count * dim + share.first + at % share.count;
    }

    // What is added to its logit; 0 if there is no such number.
    __device__ __forceinline__ float ape_of(int t, int at, Share share) const {
        return at < halves * share.count ? __ldg(ape + (size_t)(t % rate) * width() + channel(at, share)) : 0.0f;
    }
};

// Whether a layer is a sparse one, and its number among those of its kind.
struct Kind {
    bool sparse;
    int number;

    __device__ __forceinline__ Kind(const Arguments &a, int layer) {
        sparse = layer >= a.lead && (layer - a.lead) % 2 == 0;
        number = sparse ? (layer - a.lead) / 2 : min(layer, a.lead) + max(0, layer - a.lead) / 2;
    }
};

// A layer, with the state of one row.
struct Layer : Kind {
    int layer;
    float *window;
    Compressor main, index;

    __device__ __forceinline__ Layer(const Arguments &a, int layer, int row) : Kind(a, layer), layer(layer) {
        const size_t at = (size_t)number * a.B + row;
        window = a.window + ((size_t)layer * a.B + row) * a.Wn * a.D;
        const auto compressor = [&](const float *kv, const float *gate, const float *ape, const float *norm, float *ring_kv,
                                    float *ring_gate, float *entries, int rate, int dim, int halves, int capacity) {
            const size_t width = (size_t)dim * halves, slots = rate * halves;
            return Compressor{kv + number * width * a.C,
                              gate + number * width * a.C,
                              ape + number * rate * width,
                              norm + number * dim,
                              ring_kv + at * slots * width,
                              ring_gate + at * slots * width,
                              entries + at * capacity * dim,
                              rate,
                              dim,
                              halves};
        };
        if (sparse) {
            main = compressor(a.csa_kv, a.csa_gate, a.csa_ape, a.csa_norm, a.csa_ring_kv, a.csa_ring_gate, a.csa_entries, a.ms,
                              a.D, 2, a.Ns);
            index = compressor(a.index_kv, a.index_gate, a.index_ape, a.index_norm, a.index_ring_kv, a.index_ring_gate,
                               a.index_entries, a.ms, a.DI, 2, a.Ns);
        } else {
            main = compressor(a.hca_kv, a.hca_gate, a.hca_ape, a.hca_norm, a.hca_ring_kv, a.hca_ring_gate, a.hca_entries, a.mh,
                              a.D, 1, a.Nh);
            index = {};
        }
    }
};

// What a CTA has of the first products of a layer of a kind: the rank of queries, the vector of the window, the weights of index heads,
// and of each compressor the halves of values, then the halves of logits.
struct DownShares {
    Share low, kv, heads, index;
    int halves;

    __device__ __forceinline__ DownShares(const Context &c, bool sparse) : halves(sparse ? 2 : 1) {
        low = c.team.share<4>(c.a.Rq), kv = c.team.share<8>(c.a.D);
        heads = c.team.share<1>(sparse ? c.a.HI : 0), index = c.team.share<8>(sparse ? c.a.DI : 0);
    }

    __device__ __forceinline__ int of_main() const {
        return 2 * halves * kv.count;
    }

    __device__ __forceinline__ int count() const {
        return low.count + kv.count + heads.count + of_main() + 2 * halves * index.count;
    }

    // The row of a unit: the number of its matrix, and the row there.
    __device__ __forceinline__ u32 row(int unit, const Arguments &a) const {
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

// The matrices of a layer, as `DownShares::row` counts them.
__device__ __forceinline__ void list_matrices(const Context &c, const Layer &layer) {
    const Arguments &a = c.a;
    const float *const matrices[7] = {a.q_a + (size_t)layer.layer * a.Rq * a.C,
                                      a.kv + (size_t)layer.layer * a.D * a.C,
                                      a.index_heads + (size_t)layer.number * a.HI * a.C,
                                      layer.main.kv,
                                      layer.main.gate,
                                      layer.index.kv,
                                      layer.index.gate};
#pragma unroll
    for (int i = 0; i < 7; i++)
        if (threadIdx.x == i)
            c.s.down_matrices[i] = matrices[i];
}

} // namespace persistent
