// The variant `persistent`: a cluster of CTAs runs all layers for one sequence.
#pragma once

#include "decode_step/attention.cuh"
#include "decode_step/mixture.cuh"
#include "decode_step/prefetch.cuh"

namespace persistent {

// ---- all layers

// The streams of the token, and angles.
template <class W> __device__ __forceinline__ void begin(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    const int t = rotation_position(a.position, c.row.row), pairs = a.R / 2;
#pragma unroll 1
    for (int at = threadIdx.x; at < STREAMS * a.C; at += c.WORKERS)
        c.s.x[0][at] = stream_begins(a.embedding[(size_t)c.row.token * a.C + at % a.C], at / a.C);
#pragma unroll 1
    for (int at = threadIdx.x; at < 3 * pairs; at += c.WORKERS) {
        const int table = at / pairs, pair = at % pairs;
#ifdef MUTANT_ENTRY_TURNED_LATE
        const int from = t;
#else
        const int from = table == 0 ? t : table == 1 ? t / a.ms * a.ms : t / a.mh * a.mh;
#endif
        c.s.cos[table][pair] = from < 0 ? 1.0f : a.cos[(size_t)from * pairs + pair];
        c.s.sin[table][pair] = from < 0 ? 0.0f : a.sin[(size_t)from * pairs + pair];
    }
    list_shares(c);
    c.sync();
}

// Zeros in the place of values that a tap keeps.
template <class W, class T> __device__ __forceinline__ void clear(const Context<W> &c, T *tap, int layers, int cols) {
#pragma unroll 1
    for (int layer = 0; tap && layer < layers; layer++)
#pragma unroll 1
        for (int at = threadIdx.x; at < cols; at += c.THREADS)
            c.kept(tap, layer, layers, cols)[at] = 0;
}

// What a row of padding leaves.
template <class W> __device__ __forceinline__ void pad(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    clear(c, a.at_attention_input, a.layers, a.C);
    clear(c, a.at_query, a.layers, a.H * a.D);
    clear(c, a.at_kv_window, a.layers, a.D);
    clear(c, a.at_kv_compressed, a.layers, a.D);
    clear(c, a.at_index_query, a.sparse, a.HI * a.DI);
    clear(c, a.at_index_key, a.sparse, a.DI);
    clear(c, a.at_topk, a.sparse, a.topk);
    clear(c, a.at_heads, a.layers, a.H * a.D);
    clear(c, a.at_attention_output, a.layers, a.C);
    clear(c, a.at_moe_input, a.layers, a.C);
    clear(c, a.at_router, a.layers - a.hashes, a.K);
    clear(c, a.at_moe_output, a.layers, a.C);
    clear(c, a.at_output, a.layers, STREAMS * a.C);
    clear(c, a.logits, 1, a.V);
    if (threadIdx.x == 0)
        a.sampled[c.row.row] = -1;
}

// How often attention of a layer exchanges where all wait for each other.
template <class W> __device__ __forceinline__ int exchanges(const Context<W> &c, bool sparse) {
    return (chooses(c, sparse) ? 6 : 5) - heads_apart(c);
}

// By the copier: what is copied before the first layer.
template <class W> __device__ __forceinline__ void begin_copies(const Context<W> &c) {
    if constexpr (W::STAGED) {
        if (threadIdx.x % 32 == 0)
            list_copies(c);
        __syncwarp();
#pragma unroll 1
        for (int full = 0; full < EXPERTS; full++)
            copy_ahead(c, (Full)full, 0);
    }
    list_ranges(c);
}

// By the copier, once the products of the streams are there: all have done what is before these, and have read their matrix.
template <class W> __device__ __forceinline__ void copy_next(const Context<W> &c, int half) {
    const int layer = half / 2, next = layer + 1;
    const bool experts = half % 2, more = next < c.a.layers;
    if constexpr (W::STAGED) {
        if (!experts)
            copy_keys(c, c.s.layers[layer % 2]);
        // Copies that are needed first are started first.
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const bool of_streams = i == 1;
            if (more || (!experts && !of_streams))
                copy_ahead(c,
                           of_streams ? experts ? EXPERTS_STREAMS : ATTENTION_STREAMS
                           : experts  ? ATTENTION
                                      : EXPERTS,
                           of_streams || experts ? next : layer);
        }
    }
    if (experts)
        return;
    if (more) {
        prefetch(c, next);
        find(c, next, c.s.layers[next % 2]);
        __syncwarp();
    } else {
        prefetch_head(c);
    }
    if constexpr (W::STAGED) {
        // Most bytes of a layer are those of the first products.
        named_barrier_sync(FIRST_READ, c.WORKERS + 32);
        if (more)
            copy_ahead(c, FIRST, next);
    }
}

template <class W> __device__ __forceinline__ void step(const Arguments<W> &a) {
    extern __shared__ float4 smem[];
    Shared<W> &s = *(Shared<W> *)smem;
    const Team<typename W::Ranks> team;
    const int row = blockIdx.x >> team.bits;
    const Context<W> c = {a, s, team, {row, min(*a.clock, a.S - 1), a.position[row], token_of(a.token, row)}};
    if (c.row.position < 0) {
        if (team.rank == 0)
            pad(c);
        return;
    }
    if (threadIdx.x >= c.THREADS - 32)
        find(c, 0, s.layers[0]);
    if constexpr (W::STAGED) {
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int full = 0; full < FULLS; full++)
                mbarrier_init(s.staged.full + full, 1);
#pragma unroll 1
            for (int which = 0; which < EXCHANGES; which++)
                mbarrier_init(s.arrived + which, 1);
#pragma unroll 1
            for (int warp = 0; warp < Staged<W>::KEYS; warp++)
                mbarrier_init(s.staged.keys_here + warp, 1);
            fence_mbarrier_init();
        }
    }
    // Others write to this shared memory, and wait for what it waits for, only once it exists.
    cluster_sync();
    if (threadIdx.x >= c.WORKERS) {
        const bool mixes = threadIdx.x < c.THREADS - 32;
        if (!mixes)
            begin_copies(c);
#pragma unroll 1
        for (int half = 0; half < 2 * a.layers; half++) {
            const Layer<W> &layer = s.layers[half / 2 % 2];
            named_barrier_sync(PRODUCTS_READY, c.WORKERS + 64);
            // Both arrive at the next exchange before they begin; they store nothing for others.
            if constexpr (!W::Ranks::COUNTED)
                cluster_arrive_relaxed();
            if (mixes)
                make_mixing(c, layer.mixing[half % 2]);
            // The copier is here once it has found the layer that is next.
            named_barrier_arrive(MIXING_READY, c.WORKERS + 64);
            if (!mixes)
                copy_next(c, half);
            else if constexpr (W::STAGED)
                if (half % 2 == 0)
                    store_window_key(c, layer);
            if constexpr (!W::Ranks::COUNTED) {
                cluster_wait();
#pragma unroll 1
                for (int left = half % 2 == 0 ? exchanges(c, layer.sparse) - 1 : 0; left > 0; left--)
                    cluster_arrive_relaxed(), cluster_wait();
            }
        }
        cluster_sync();
        return;
    }
    begin(c);
#pragma unroll 1
    for (int half = 0; half < 2 * a.layers; half++) {
        const Layer<W> &layer = s.layers[half / 2 % 2];
        const Mixing &mixing = layer.mixing[half % 2];
        if constexpr (W::STAGED) {
            s.staged.wait(half % 2 == 0 ? ATTENTION_STREAMS : EXPERTS_STREAMS, half / 2);
            // These are in shared memory, which `mixing` does not tell.
            enter<true>(c, s.x[half % 2], s.staged.streams[half % 2], layer.base[half % 2], layer.scale[half % 2],
                        layer.norm[half % 2], MUS);
        } else {
            enter<false>(c, s.x[half % 2], mixing.fn, mixing.base, mixing.scale, mixing.norm, MUS);
        }
        if (half % 2 == 0)
            attention(c, layer);
        else
            experts(c, layer);
        if (half % 2 == 1)
            c.keep(a.at_output, half / 2, a.layers, c.s.x[0], STREAMS * a.C);
    }
    head(c);
    // Others may still be giving.
    if constexpr (W::Ranks::COUNTED)
        cluster_sync();
}

// With what is known when this is compiled, if it is of this launch.
template <class STORED, int WARPS>
__device__ __forceinline__ void step_of(const PointersOf<STORED> &pointers, const Counts &counts, const AnySizes &sizes,
                                        const Scalars &scalars) {
    typedef AnyRanks<WARPS> Ranks;
    if constexpr (WARPS == MostRanks::WARPS) {
        typedef Model<STORED, MiniSizes, MostRanks> Mini;
        const size_t mini = Shared<Mini>::bytes(counts.Ns, sizes.H, sizes.Wn + max(counts.Nh, sizes.topk));
        u32 shared;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared));
        if (MiniSizes::are(sizes) && Ranks().bits == MostRanks::bits && mini <= shared) {
            step(Arguments<Mini>(pointers, counts, {}, scalars));
            return;
        }
    }
    step(Arguments<Model<STORED, AnySizes, Ranks>>(pointers, counts, sizes, scalars));
}

} // namespace persistent

#define PARAMETER(TYPE, NAME) TYPE *NAME,
#define SIZE_PARAMETER(NAME) int NAME,
#define POINTER(TYPE, NAME) NAME,
#define SIZE(NAME) NAME,
#define PERSISTENT(NAME, WEIGHTS, WARPS)                                                                                \
    KERNEL(decode_step_persistent_##NAME##WEIGHTS, __launch_bounds__(persistent::threads_of(WARPS), 1))(                \
        DECODE_STEP_POINTERS(PARAMETER) DECODE_STEP_COUNTS(SIZE_PARAMETER) DECODE_STEP_SIZES(SIZE_PARAMETER) float eps, \
        float index_scale, float attention_scale, float router_scale, float limit, long long seed) {                    \
        const persistent::PointersOf<stored_##WEIGHTS> pointers = {DECODE_STEP_POINTERS(POINTER)};                      \
        const persistent::Counts counts = {DECODE_STEP_COUNTS(SIZE)};                                                   \
        const persistent::AnySizes sizes = {DECODE_STEP_SIZES(SIZE)};                                                   \
        persistent::step_of<stored_##WEIGHTS, WARPS>(pointers, counts, sizes,                                           \
                                                     {eps, index_scale, attention_scale, router_scale, limit, seed});   \
    }

#define FOR_WEIGHTS(WEIGHTS)                               \
    namespace of_##WEIGHTS {                               \
        typedef stored_##WEIGHTS::Code Code;               \
        typedef stored_##WEIGHTS::Scale Scale;             \
        PERSISTENT(, WEIGHTS, persistent::FEW_WARPS)       \
        PERSISTENT(many_, WEIGHTS, persistent::MANY_WARPS) \
    }

FOR_WEIGHTS(f32)
FOR_WEIGHTS(bf16)
FOR_WEIGHTS(fp8_b64_f32)
