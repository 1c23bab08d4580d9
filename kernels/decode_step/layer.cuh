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

    // The row of the matrix of values or of logits for a unit of a share: halves of values, then halves of logits.
    __device__ __forceinline__ const float *matrix_row(int unit, Share share, int channels) const {
        const int which = unit / share.count, channel = share.first + unit % share.count;
        return (which < halves ? kv : gate) + ((size_t)(which % halves) * dim + channel) * channels;
    }
};

// A layer, with the state of one row.
struct Layer {
    int layer;
    // Whether it is a sparse one, and its number among those of its kind.
    bool sparse;
    int number;
    float *window;
    Compressor main, index;

    __device__ __forceinline__ Layer(const Arguments &a, int layer, int row) : layer(layer) {
        sparse = layer >= a.lead && (layer - a.lead) % 2 == 0;
        number = sparse ? (layer - a.lead) / 2 : min(layer, a.lead) + max(0, layer - a.lead) / 2;
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

} // namespace persistent
