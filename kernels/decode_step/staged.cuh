// Weights in shared memory, a phase or more before they are needed: the copier copies what this CTA has a share of. There is room for
// the weights of one layer, and those of the next come where the last reader has been.
#pragma once

#include "lib/tma.cuh"

#include "decode_step/team.cuh"

namespace persistent {

// Channels of heads that are read, and whose products are added up, together.
constexpr int CHUNK = 64;

// Groups of keys, whose sums are merged.
constexpr int GROUPS = 16;

// Lanes that add up every fourth of them.
constexpr int QUARTERS = 4;

// ---- rows

template <class T> __device__ constexpr int row_codes(const Numbers<T> *, int cols) {
    return cols;
}

template <class F> __device__ constexpr int row_codes(const Coded<F> *, int cols) {
    return cols * F::Element::bits / 8;
}

template <class T> __device__ constexpr int row_scales(const Numbers<T> *, int) {
    return 0;
}

template <class F> __device__ constexpr int row_scales(const Coded<F> *, int cols) {
    return (cols + F::width - 1) / F::width;
}

__device__ __forceinline__ float4 four_of(const Numbers<float> *, const float *numbers, const float *, int col) {
    return load4(numbers + col);
}

__device__ __forceinline__ float4 four_of(const Numbers<bf16> *, const bf16 *numbers, const float *, int col) {
    const uint2 both = *(const uint2 *)(numbers + col);
    const float2 low = from_bf16x2(both.x), high = from_bf16x2(both.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

template <class F>
__device__ __forceinline__ float4 four_of(const Coded<F> *, const u8 *codes, const typename F::Stored *scales, int col) {
    const u32 all = *(const u32 *)(codes + col);
    const float by = F::Rule::decode(scales[col / F::width], typename F::Level((const float *)nullptr));
    float4 x;
    F::Element::decode2(all, x.x, x.y), F::Element::decode2(all >> 16, x.z, x.w);
    return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}

// A row of a matrix in shared memory, decoded as those in global memory are.
template <class W> struct StagedRow {
    const typename W::Code *codes;
    const typename W::Scale *scales;

    __device__ __forceinline__ float4 four(int col) const {
        return four_of((const W *)nullptr, codes, scales, col);
    }
};

// Where rows go, and how many codes and scales each has.
template <class W> struct Place {
    typename W::Code *codes;
    typename W::Scale *scales;
    int each, each_scales;
};

// ROWS rows of COLS columns, or their codes alone, or their scales.
template <class W, int ROWS, int COLS, bool CODES = true, bool SCALED = true> struct Tile {
    static constexpr int EACH = CODES ? row_codes((const W *)nullptr, COLS) : 0,
                         SCALES = SCALED ? row_scales((const W *)nullptr, COLS) : 0;
    alignas(16) typename W::Code codes[EACH > 0 ? ROWS *EACH : 1];
    alignas(16) typename W::Scale scales[SCALES > 0 ? ROWS *SCALES : 1];

    __device__ __forceinline__ StagedRow<W> row(int at) const {
        return {codes + at * EACH, scales + at * SCALES};
    }

    __device__ __forceinline__ Place<W> place() {
        return {codes, scales, EACH, SCALES};
    }
};

// ---- what is here

// What is waited for, each once a layer: the matrix of streams before attention and before the experts, those of the first products, the
// others of attention, those of the experts, and the second matrices of the experts of the token.
enum Full { ATTENTION_STREAMS, EXPERTS_STREAMS, FIRST, ATTENTION, EXPERTS, ROUTED, FULLS };

// Bytes to be copied for each layer: those of the first, how far the next are from them, and where they go.
struct Copy {
    const char *from;
    size_t stride;
    void *to;
    u32 bytes;
    // What waits for it, and whether sparse and heavy layers have it.
    u8 full, of_sparse, of_heavy;
};

template <class W> struct Staged {
    typedef typename W::Sizes S;
    static constexpr int RANKS = 1 << W::Ranks::bits, KV = S::D / RANKS, INDEX = S::DI / RANKS, HIDDEN = S::I / RANKS,
                         MOST_LOW = (S::Rq / 4 + RANKS - 1) / RANKS * 4, MOST_COPIES = 96;
    static_assert(KV % 8 == 0 && INDEX % 8 == 0 && S::I % RANKS == 0 && S::HI % 4 == 0, "shares are multiples of 16 bytes");
    static_assert(S::H * S::D / RANKS == CHUNK && S::H * S::D / S::G % CHUNK == 0, "a CTA reads a chunk of channels");

    alignas(16) float streams[2][MUS * STREAMS * S::C];
    // Weights of norms: the window's vectors, entries, and those of the indexer.
    alignas(16) float kv_norm[S::D], norm[S::D], index_norm[S::DI];
    Tile<W, MOST_LOW + 5 * KV + S::HI + 4 * INDEX, S::C> down;
    Tile<W, (S::H * S::D + S::HI * S::DI) / RANKS, S::Rq> up;
    // The columns of the channels that this CTA reads, with the scales of all.
    Tile<W, S::Ro, CHUNK, true, false> output_down;
    Tile<W, S::Ro, S::H * S::D / S::G, false> output_down_scales;
    Tile<W, S::C, S::G * S::Ro> output_up;
    Tile<W, S::E, S::C> gate;
    // The share of each expert, the shared one last: rows of gate, then rows of up. Scales are those of all rows.
    Tile<W, (S::E + 1) * 2 * HIDDEN, S::C, true, false> hidden;
    Tile<W, (S::E + 1) * 2 * S::I, S::C, false> hidden_scales;
    // Those of the token, then the shared one.
    Tile<W, (S::K + 1) * S::C, S::I> mixed;
    // Keys of this CTA's group, in the place of the second matrices of the token's experts if these are large enough: nobody has those
    // before attention is done.
    static constexpr int KEYS = 8, KEYS_APART = S::K * S::C * decltype(mixed)::EACH * sizeof(typename W::Code) <
                                                KEYS * S::D * sizeof(float);
    alignas(16) float keys_apart[KEYS_APART ? KEYS * S::D : 4];
    u64 full[FULLS], keys_here[KEYS];
    Copy copies[MOST_COPIES];
    int count;

    __device__ __forceinline__ float *key(int at) {
        return (KEYS_APART ? keys_apart : (float *)mixed.codes) + at * S::D;
    }

    // A row of chunk `number` of channels.
    __device__ __forceinline__ StagedRow<W> output_down_row(int at, int number) const {
        return {output_down.row(at).codes, output_down_scales.row(at).scales + row_scales((const W *)nullptr, CHUNK * number)};
    }

    __device__ __forceinline__ void wait(Full which, int layer) {
        mbarrier_wait_parity(full + which, layer & 1);
    }
};

struct NothingStaged {};

template <class W, bool STAGED> struct StagedIf {
    typedef NothingStaged Of;
};

template <class W> struct StagedIf<W, true> {
    typedef Staged<W> Of;
};

} // namespace persistent
