// What the variant `persistent` is given, in the order of its launch, and its shared memory.
#pragma once

#include "decode_step/team.cuh"

namespace persistent {

// ---- arguments: pointers, sizes, then numbers

// clang-format off
#define DECODE_STEP_POINTERS(X)                                                                                       \
    X(const float, embedding) X(const float, head_fn) X(const float, head_base) X(const float, head_scale)            \
    X(const float, final_norm) X(const Code, head) X(const Scale, head_scales)                                         \
    X(const float, attn_fn) X(const float, attn_base) X(const float, attn_scale) X(const float, attn_norm)            \
    X(const Code, q_a) X(const Scale, q_a_scales) X(const float, q_norm) X(const Code, q_b) X(const Scale, q_b_scales)  \
    X(const Code, kv) X(const Scale, kv_scales) X(const float, kv_norm) X(const float, sinks)                          \
    X(const Code, o_a) X(const Scale, o_a_scales) X(const Code, o_b) X(const Scale, o_b_scales)                         \
    X(const float, moe_fn) X(const float, moe_base) X(const float, moe_scale) X(const float, moe_norm)                \
    X(const Code, gate) X(const Scale, gate_scales) X(const Code, gate_up) X(const Scale, gate_up_scales)               \
    X(const Code, down) X(const Scale, down_scales) X(const Code, shared_gate_up) X(const Scale, shared_gate_up_scales) \
    X(const Code, shared_down) X(const Scale, shared_down_scales) X(const float, bias) X(const int, table)             \
    X(const Code, csa_kv) X(const Scale, csa_kv_scales) X(const Code, csa_gate) X(const Scale, csa_gate_scales)         \
    X(const float, csa_ape) X(const float, csa_norm)                                                                  \
    X(const Code, index_kv) X(const Scale, index_kv_scales) X(const Code, index_gate) X(const Scale, index_gate_scales) \
    X(const float, index_ape) X(const float, index_norm)                                                              \
    X(const Code, index_q) X(const Scale, index_q_scales) X(const Code, index_heads) X(const Scale, index_heads_scales) \
    X(const Code, hca_kv) X(const Scale, hca_kv_scales) X(const Code, hca_gate) X(const Scale, hca_gate_scales)         \
    X(const float, hca_ape) X(const float, hca_norm)                                                                  \
    X(const float, cos) X(const float, sin) X(const float, temperature) X(const int, sequence) X(const int, token)    \
    X(const int, position) X(const int, clock)                                                                        \
    X(float, window) X(float, csa_ring_kv) X(float, csa_ring_gate) X(float, csa_entries)                              \
    X(float, index_ring_kv) X(float, index_ring_gate) X(float, index_entries) X(float, hca_ring_kv)                   \
    X(float, hca_ring_gate) X(float, hca_entries)                                                                     \
    X(float, logits) X(int, sampled)                                                                                  \
    X(float, at_attention_input) X(float, at_query) X(float, at_kv_window) X(float, at_kv_compressed)                 \
    X(float, at_index_query) X(float, at_index_key) X(int, at_topk)                                                   \
    X(float, at_heads) X(float, at_attention_output) X(float, at_moe_input) X(int, at_router) X(float, at_moe_output) \
    X(float, at_output)

#define DECODE_STEP_SIZES(X)                                                                                          \
    X(B) X(S) X(layers) X(lead) X(hashes) X(V) X(C) X(Rq) X(H) X(D) X(R) X(G) X(Ro) X(Wn) X(HI) X(DI) X(topk)         \
    X(E) X(K) X(I) X(ms) X(mh) X(sparse) X(Ns) X(Nh)
// clang-format on

template <class W> struct Arguments {
    typedef typename W::Code Code;
    typedef typename W::Scale Scale;
#define FIELD(TYPE, NAME) TYPE *NAME;
    DECODE_STEP_POINTERS(FIELD)
#undef FIELD
#define FIELD(NAME) int NAME;
    DECODE_STEP_SIZES(FIELD)
#undef FIELD
    float eps, index_scale, attention_scale, router_scale, limit;
    long long seed;
};

// ---- shared memory

// Most of each size.
constexpr int MOST_C = 64, MOST_RQ = 64, MOST_D = 512, MOST_HD = 1024, MOST_H = 8, MOST_DI = 128, MOST_HI = 8, MOST_HIDI = 512,
              MOST_O = 64, MOST_R = 64, MOST_E = 32, MOST_K = 4, MOST_HIDDEN = 256, MOST_V = 256, MOST_TOPK = 64;
// Tokens that are pooled.
constexpr int MOST_POOLED = 128;
constexpr int OWN = MOST_RQ + MOST_D + MOST_HI + 4 * MOST_D + 4 * MOST_DI;

// Bytes that layers of a kind read: those of the first, and how far the next are from them.
struct Range {
    const char *start;
    size_t stride, count;
    int of_sparse, of_heavy;
};

constexpr int MOST_RANGES = 64;

// A matrix as it is stored; the rows that it begins with may be those of a layer.
template <class W> struct Matrix {
    const typename W::Code *codes;
    const typename W::Scale *scales;

    // The matrix from a row on.
    template <class At> __device__ __forceinline__ Matrix from(At row, int cols) const {
        return {codes + row * W::codes_of(cols), scales + row * W::scales_of(cols)};
    }

    __device__ __forceinline__ typename W::Row row(int at, int cols) const {
        return typename W::Row(codes, scales, nullptr, at, cols);
    }
};

// How streams are mixed at one place.
struct Mixing {
    const float *fn, *base, *scale, *norm;
};

// A compressor of one layer, with its state of one row, as the token finds it.
struct Compressor {
    // What is added to the token's logits, and the weights of the norm.
    const float *ape, *norm;
    // The rings, and where the token's own numbers go.
    float *ring_kv, *ring_gate, *own_kv, *own_gate;
    // The entries, and the one that the token completes, if it does.
    float *entries, *entry;
    // Windows overlap if there are two halves.
    int slots, dim, halves;
    // The tokens that are pooled: the first, the slot of the first, the first of the token's own window.
    int first, first_slot, window;
};

// A layer, with the state of one row.
template <class W> struct Layer {
    int layer;
    // Whether it is a sparse one, and its number among those of its kind.
    int sparse, number;
    // Before attention, and before the experts.
    Mixing mixing[2];
    // Of the first products, as `DownShares::row` counts them.
    Matrix<W> matrices[7];
    // Vectors of the window, and the one of the token.
    float *window, *own_vector;
    Compressor main, index;
};

template <class W> struct alignas(16) Shared {
    // The streams, and what goes into and comes out of a block.
    float x[4 * MOST_C], normed[MOST_C], out[MOST_C];
    float comb[16], post[4];
    // Of the streams: the weights of what goes into a block, and logits of mixing, as the mixer reads them.
    float weights[4], mus[28];
    // After the first products.
    float low[MOST_RQ], kv[MOST_D], pooled[MOST_D], index_pooled[MOST_DI], head_weights[MOST_HI];
    float query[MOST_HD], index_query[MOST_HIDI], heads[MOST_HD], low_heads[MOST_O];
    float expert_logits[MOST_E], expert_weights[MOST_K], hidden[MOST_HIDDEN];
    // This CTA's share of a product.
    float own[OWN];
    float tops[WARPS][32], sums[WARPS][32], outs[WARPS][32];
    // Angles of the token, and of the first tokens of its windows.
    float cos[3][MOST_R / 2], sin[3][MOST_R / 2];
    float inverse[MOST_H], inverse_totals[MOST_H], row_logits[MOST_V];
    int experts[MOST_K], chosen[MOST_TOPK];
    u64 bests[WARPS];
    // What this CTA has a share of, so that nobody divides. Rows of the first products, in heavy and in sparse layers: the number of
    // the matrix, and the row. Channels of compressors: of heavy and of sparse layers, and of the indexer. Numbers between the
    // products of experts: the slot, and the row of its expert.
    u32 down_rows[2][OWN];
    u16 channels[3][2 * MOST_D], hidden_rows[MOST_HIDDEN];
    // This layer and the next.
    Layer<W> layers[2];
    Range ranges[MOST_RANGES];

    // Behind it: index scores, whether each entry is chosen, and the scores of all heads.
    __device__ __forceinline__ float *index_scores() {
        return (float *)(this + 1);
    }

    __device__ __forceinline__ int *taken(const Arguments<W> &a) {
        return (int *)(index_scores() + a.Ns);
    }

    __device__ __forceinline__ float *scores(const Arguments<W> &a, int head) {
        return index_scores() + 2 * a.Ns + (size_t)head * (a.Wn + max(a.Nh, a.topk));
    }
};
static_assert(sizeof(Shared<stored_f32>) <= 81920 && sizeof(Shared<stored_fp8_b64_f32>) <= 81920, "the header reserves as much");

// A row of the batch in one run.
struct Row {
    int row, run, position, token;
};

// Everything that a phase needs.
template <class W> struct Context {
    const Arguments<W> &a;
    Shared<W> &s;
    Team team;
    Row row;

    // Where a tap keeps the values of this row; `layers` is the number of layers that have it.
    template <class T> __device__ __forceinline__ T *kept(T *tap, int layer, int layers, int cols) const {
        return tap + (((size_t)row.run * layers + layer) * a.B + row.row) * cols;
    }

    // Keeps values in shared memory that all CTAs have.
    template <class T> __device__ __forceinline__ void keep(T *tap, int layer, int layers, const T *from, int cols) const {
        if (!tap || team.rank != 0)
            return;
        T *to = kept(tap, layer, layers, cols);
#pragma unroll 1
        for (int at = threadIdx.x; at < cols; at += WORKERS)
            to[at] = from[at];
    }
};

} // namespace persistent
