// What the variant `persistent` is given, in the order of its launch, and its shared memory.
#pragma once

#include "decode_step/staged.cuh"

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

// Counts that follow from the case, and the sizes of a layer, which may be known when this is compiled.
#define DECODE_STEP_COUNTS(X) X(B) X(S) X(layers) X(lead) X(hashes) X(sparse) X(Ns) X(Nh)
#define DECODE_STEP_SIZES(X)                                                                                          \
    X(V) X(C) X(Rq) X(H) X(D) X(R) X(G) X(Ro) X(Wn) X(HI) X(DI) X(topk) X(E) X(K) X(I) X(ms) X(mh)
// clang-format on

template <class Code, class Scale> struct Pointers {
#define FIELD(TYPE, NAME) TYPE *NAME;
    DECODE_STEP_POINTERS(FIELD)
#undef FIELD
};

struct Counts {
#define FIELD(NAME) int NAME;
    DECODE_STEP_COUNTS(FIELD)
#undef FIELD
};

struct Scalars {
    float eps, index_scale, attention_scale, router_scale, limit;
    long long seed;
};

// Sizes as they are given.
struct AnySizes {
    static constexpr bool KNOWN = false;
#define FIELD(NAME) int NAME;
    DECODE_STEP_SIZES(FIELD)
#undef FIELD
};

// Those of dsv4-mini: nobody multiplies or divides by them, and weights have their places in shared memory.
struct MiniSizes {
    static constexpr bool KNOWN = true;
    static constexpr int V = 256, C = 64, Rq = 48, H = 2, D = 512, R = 64, G = 2, Ro = 32, Wn = 64, HI = 4, DI = 128, topk = 32,
                         E = 4, K = 2, I = 48, ms = 4, mh = 128;

    static __device__ __forceinline__ bool are(const AnySizes &given) {
        bool same = true;
#define COMPARE(NAME) same = same && given.NAME == NAME;
        DECODE_STEP_SIZES(COMPARE)
#undef COMPARE
        return same;
    }
};

// The exchanges of a layer, and that of the head.
enum Exchange { DOWN, UP, INDEX_SCORES, SCORES, HEADS, LOW_HEADS, HIDDEN, LOGITS, EXCHANGES };

// What a kernel is compiled for: how matrices are stored, the sizes, and the CTAs of a cluster.
template <class STORED, class SIZES, class RANKS> struct Model : STORED {
    typedef SIZES Sizes;
    typedef RANKS Ranks;
    // Whether weights are in shared memory before they are needed.
    static constexpr bool STAGED = SIZES::KNOWN;
};

template <class W> using PointersOf = Pointers<typename W::Code, typename W::Scale>;

template <class W> struct Arguments : PointersOf<W>, Counts, W::Sizes, Scalars {
    __device__ __forceinline__ Arguments(const PointersOf<W> &pointers, const Counts &counts, const typename W::Sizes &sizes,
                                         const Scalars &scalars)
        : PointersOf<W>(pointers), Counts(counts), W::Sizes(sizes), Scalars(scalars) {}
};

// ---- shared memory

// Most of each size.
constexpr int MOST_C = 64, MOST_RQ = 64, MOST_D = 512, MOST_HD = 1024, MOST_H = 8, MOST_DI = 128, MOST_HI = 8, MOST_HIDI = 512,
              MOST_O = 64, MOST_R = 64, MOST_E = 32, MOST_K = 4, MOST_HIDDEN = 256, MOST_V = 256, MOST_TOPK = 64;
// Tokens that are pooled.
constexpr int MOST_POOLED = 128;
// If they are many, they are pooled in so many parts.
constexpr int POOLED_PARTS = 16;

// What parts of tokens hand over: their largest logits, the sums of their shares, and what these are worth. A lane of a part has one
// or two channels.
template <int WARPS> struct PoolRoom {
    static constexpr int WIDE = 32 * WARPS / FEW_WARPS;
    float tops[POOLED_PARTS][WIDE], sums[POOLED_PARTS][WIDE], outs[POOLED_PARTS][WIDE];
};

// Most numbers of the first products that a CTA has, and channels of a compressor.
template <class W, bool STAGED> struct Room {
    static constexpr int DOWN_PRODUCTS = MOST_RQ + MOST_D + MOST_HI + 4 * MOST_D + 4 * MOST_DI, CHANNELS = 2 * MOST_D,
                         ROWS = DOWN_PRODUCTS;
};

template <class W> struct Room<W, true> {
    static constexpr int DOWN_PRODUCTS = sizeof(Staged<W>::down.codes) / sizeof(typename W::Code) / W::Sizes::C,
                         CHANNELS = 2 * Staged<W>::KV, ROWS = 1;
};

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
    // The rings, and the slots of this token in them.
    float *ring_kv, *ring_gate, *token_kv, *token_gate;
    // The entries, and the one that the token completes, if it does, and its number, or -1.
    float *entries, *entry;
    int newest;
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
    // Matrices of the first products, as `DownShares::row` counts them; nobody reads them where weights are staged.
    Matrix<W> matrices[W::STAGED ? 1 : 7];
    // Vectors of the window, and the one of the token.
    float *window, *token_vector;
    Compressor main, index;
    // Small vectors, which would take as long as a matrix from L2: what `mixing` points to, the norm of queries' rank, sinks, and
    // what is added to the scores of experts. Norms are read as vectors.
    alignas(16) float norm[2][MOST_C], q_norm[MOST_RQ];
    float base[2][MUS], scale[2][3], sinks[MOST_H], bias[MOST_E];
};

// Where two keys are, for one load.
struct alignas(16) TwoRows {
    const float *of[2];
};

template <class W> struct alignas(16) Shared {
    typedef persistent::Room<W, W::STAGED> Room;
    typename StagedIf<W, W::STAGED>::Of staged;
    u64 arrived[EXCHANGES];
    // The streams, before attention and before the experts, and what goes into a block.
    alignas(16) float x[2][4 * MOST_C], normed[MOST_C];
    float comb[16], post[4];
    // Logits of mixing, as the mixer reads them.
    float mus[28];
    // After the first products.
    float low[MOST_RQ], kv[MOST_D], pooled[MOST_D], index_pooled[MOST_DI], head_weights[MOST_HI];
    union {
        struct {
            float query[MOST_HD], index_query[MOST_HIDI];
            // What heads read, of all channels or of this CTA's, and before, what quarters have read. Where weights are staged, a warp
            // keeps the weights of keys there; elsewhere, before it stores what it has read, where its keys are.
            float heads[W::STAGED ? CHUNK : MOST_HD];
            union {
                float read[W::STAGED ? W::Ranks::WARPS : QUARTERS][W::STAGED ? 16 : 32 * W::Ranks::WARPS];
                TwoRows rows[W::STAGED ? 1 : W::Ranks::WARPS][32];
            };
        };
        // What pools tokens has this room, before queries are there.
        PoolRoom<W::Ranks::WARPS> pool;
    };
    float low_heads[MOST_O];
    // What groups of keys are worth; or what they give, in rows whose neighbours have different banks, with their largest scores and
    // sums of weights.
    float factors[W::STAGED ? 1 : MOST_H][GROUPS], groups[W::STAGED ? GROUPS : 1][CHUNK + 8],
        group_sums[W::STAGED ? GROUPS : 1][4];
    // What parts of heads are worth in the rank of the output.
    float low_parts[W::STAGED ? MOST_HD / CHUNK * MOST_O / 2 : 4];
    float expert_logits[MOST_E], expert_weights[MOST_K], hidden[MOST_HIDDEN];
    // This CTA's share of a product.
    float down_products[Room::DOWN_PRODUCTS];
    // Angles of the token, and of the first tokens of its windows.
    float cos[3][MOST_R / 2], sin[3][MOST_R / 2];
    float inverse[MOST_H], row_logits[MOST_V];
    int experts[MOST_K], chosen[MOST_TOPK];
    u64 bests[W::Ranks::WARPS];
    // What this CTA has a share of, so that nobody divides. Rows of the first products, in heavy and in sparse layers: the number of
    // the matrix, and the row. Channels of compressors: of heavy and of sparse layers, and of the indexer. Numbers between the
    // products of experts: the slot, and the row of its expert.
    u32 down_rows[2][Room::ROWS];
    u16 channels[3][Room::CHANNELS], hidden_rows[MOST_HIDDEN];
    // This layer and the next.
    Layer<W> layers[2];
    Range ranges[MOST_RANGES];

    // Behind it: index scores as keys of the choice, a bit for each entry that is chosen, and the scores of all heads.
    __device__ __forceinline__ u32 *index_keys() {
        return (u32 *)(this + 1);
    }

    __device__ __forceinline__ u8 *taken(const Arguments<W> &a) {
        return (u8 *)(index_keys() + a.Ns);
    }

    __device__ __forceinline__ float *scores(const Arguments<W> &a, int head) {
        return (float *)(index_keys() + a.Ns + a.Ns / 32 + 1) + (size_t)head * (a.Wn + max(a.Nh, a.topk));
    }

    // Bytes of all.
    static __device__ __forceinline__ size_t bytes(int entries, int heads, int keys) {
        return sizeof(Shared) + 4 * ((size_t)entries + entries / 32 + 1 + (size_t)heads * keys);
    }
};
static_assert(sizeof(Shared<Model<stored_f32, AnySizes, AnyRanks<MANY_WARPS>>>) <= 81920, "the header reserves as much");
static_assert(sizeof(Shared<Model<stored_fp8_b64_f32, AnySizes, AnyRanks<MANY_WARPS>>>) <= 81920, "the header reserves as much");

// A row of the batch in one run.
struct Row {
    int row, run, position, token;
};

// Everything that a phase needs.
template <class W> struct Context {
    const Arguments<W> &a;
    Shared<W> &s;
    Team<typename W::Ranks> team;
    Row row;
    static constexpr int WARPS = W::Ranks::WARPS, WORKERS = 32 * WARPS, THREADS = threads_of(WARPS);

    // All that work together wait for each other.
    static __device__ __forceinline__ void sync() {
        named_barrier_sync(WORK, WORKERS);
    }

    // Waits for what others give: so many numbers. `use` counts how often this exchange was before.
    __device__ __forceinline__ void exchange(Exchange which, int use, int numbers) const {
        if constexpr (W::Ranks::COUNTED) {
            if (threadIdx.x == 0)
                mbarrier_arrive_expect_tx(s.arrived + which, numbers * (int)sizeof(float));
            mbarrier_wait_parity(s.arrived + which, use & 1);
        } else {
            // A fence takes hundreds of cycles, and waits for all that its warp has loaded. So one warp has it, once all have stored.
            sync();
            __syncwarp();
            if (threadIdx.x < 32)
                cluster_arrive();
            else
                cluster_arrive_relaxed();
            cluster_wait();
        }
    }

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
