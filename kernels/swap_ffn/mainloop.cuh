// The mainloop of both products of a step of the FFN: warp-specialised wgmma, each weight read once for 128 rows. A CTA has two
// consumer warpgroups with 64 rows of A each, and a producer thread that fills a pipeline of swizzled tiles ahead of them: weights
// before A, which other CTAs have yet to write. Weights are not multicast: the SM is limited by how much comes in, and in
// clusters of four, 128 CTAs do not all fit at once on an H200.
//
// Against weights in E4M3, n is in MXFP8, because a CTA that writes n has only 32 columns of a row. If a row's exponents differ,
// its codes are aligned to the largest exponent before they are multiplied. h has a scale for 128 columns, those of a tile.
#pragma once

#include "swap_ffn/rows.cuh"

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

constexpr int WIDTH = 1024, HIDDEN = 4096; // D and F
constexpr int PRODUCT_THREADS = 384, GATE_UP_COLUMNS = 256, DOWN_COLUMNS = 128;
constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;
constexpr int WARP_ROWS = 16;

// The scales of E4M3 h, one for 128 numbers of a row; they lie after all of h.
__device__ __forceinline__ float *hidden_scales(unsigned char *h, int rows, int block, int tile) {
    return (float *)(h + (size_t)rows * HIDDEN) + ((size_t)block * UP_PARTS + tile) * TILE_ROWS;
}

constexpr int PIPELINE_BYTES = 196608, MAX_STAGES = 6, EXPONENTS = TILE_ROWS * WIDTH / 32;

struct PipelineBarriers {
    u64 full[MAX_STAGES], empty[MAX_STAGES];
};

// Both products use the same pipeline, one after the other. h of the first product stays; then its place holds the partials that
// the peer CTA sends in the second.
template <class T> struct SharedStorage {
    unsigned char pipeline[PIPELINE_BYTES];
    // E4M3 h takes half of this, and exponents of n the other half, until the peer needs it.
    unsigned char h[2 * TILE];
    // The scales of E4M3 weights of a tile of the first product.
    float gate_scale[GATE_UP_COLUMNS / 2], up_scale[GATE_UP_COLUMNS / 2];
    PipelineBarriers up, down;
    // For each consumer warpgroup: its rows of h are stored; the peer's memory is free; the peer's partials are here.
    u64 h_stored[2], peer_smem_free[2], peer_partials_full[2][2];
    // The producer signals the consumers: rows can be swapped; n is ready for the first product; its exponents are here. The other
    // way: the partials for this CTA have been read; this CTA's h has been signalled to others.
    u64 x_ready, n_ready, exponents_full, partials_read, h_signalled;

    // 8 KB of h of a warpgroup, from column 64·half on.
    __device__ __forceinline__ unsigned char *h_of(int half, int group) {
        return h + half * TILE + group * PANEL;
    }
    // [WIDTH / 128, TILE_ROWS, 4], double-buffered by the parity of the product.
    __device__ __forceinline__ unsigned char *exponents(u32 phase) {
        return h + TILE + phase * EXPONENTS;
    }
};

// A pipeline of as many stages as fit. A stage holds 128 bytes of each row of A, its scales if A has one for each row of a stage,
// and 128 bytes of each of COLUMNS rows of weights.
template <class T, int COLUMNS> struct Pipeline {
    static constexpr int A = TILE, B = COLUMNS * 128, SCALES = is_same<T, Fp8Scaled> ? TILE_ROWS * 4 : 0;
    static constexpr int STAGE = (A + B + SCALES + 1023) / 1024 * 1024, STAGES = PIPELINE_BYTES / STAGE;
    static_assert(STAGES <= MAX_STAGES, "there are barriers for all stages");
    unsigned char *stages;
    PipelineBarriers *barriers;

    __device__ __forceinline__ unsigned char *a(u32 slot) const {
        return stages + slot * STAGE;
    }
    __device__ __forceinline__ unsigned char *b(u32 slot) const {
        return a(slot) + A;
    }
    __device__ __forceinline__ float *scales(u32 slot) const {
        return (float *)(b(slot) + B);
    }
    __device__ __forceinline__ u64 *full(u32 slot) const {
        return barriers->full + slot;
    }
    __device__ __forceinline__ u64 *empty(u32 slot) const {
        return barriers->empty + slot;
    }
};

// All threads call it.
template <class T> __device__ __forceinline__ void smem_init(SharedStorage<T> &tiles) {
    if (threadIdx.x < MAX_STAGES) {
        mbarrier_init(tiles.up.full + threadIdx.x, 1), mbarrier_init(tiles.up.empty + threadIdx.x, 8);
        mbarrier_init(tiles.down.full + threadIdx.x, 1), mbarrier_init(tiles.down.empty + threadIdx.x, 8);
        if (threadIdx.x < 2) {
            // Four consumer warps of the peer and its store warp arrive.
            mbarrier_init(tiles.h_stored + threadIdx.x, 1), mbarrier_init(tiles.peer_smem_free + threadIdx.x, 5);
            mbarrier_init(tiles.peer_partials_full[threadIdx.x], 1), mbarrier_init(tiles.peer_partials_full[threadIdx.x] + 1, 1);
        }
        if (threadIdx.x == 0) {
            mbarrier_init(&tiles.x_ready, 1), mbarrier_init(&tiles.n_ready, 1), mbarrier_init(&tiles.exponents_full, 1);
            mbarrier_init(&tiles.partials_read, 8), mbarrier_init(&tiles.h_signalled, 2);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
}

// One thread waits until all `count` stages that were produced have been released.
template <class T, int COLUMNS> __device__ __forceinline__ void drain(Pipeline<T, COLUMNS> pipeline, u32 count) {
    for (u32 i = 1; i <= min(count, (u32)pipeline.STAGES); i++)
        mbarrier_wait_parity(pipeline.empty((count - i) % pipeline.STAGES), (count - i) / pipeline.STAGES & 1);
}

// Stages of A that the CTA has in shared memory anyway, so that they are not copied: `count` stages from number `first` on, which
// are multiplied before all others. The others come in their order, because CTAs that read the same at the same time are served
// together.
struct ResidentA {
    int first, count;

    __device__ __forceinline__ int stage(int i) const {
        return i < count ? first + i : i < first + count ? i - count : i;
    }
};

// How weights are prefetched. With few rows each weight is read once in a step and comes from memory, because all weights exceed
// L2; their traffic delays the signals between CTAs. So weights of `before_signal` stages come first, and those of `all` stages
// before A is ready.
struct Prefetch {
    bool weights_read_once;
    int before_signal, all;
};

// The producer thread fills COUNT stages, contiguous in memory as are their scales, of which the first is number `begin` of all
// that go through the pipeline. `wait_signalled` returns when this CTA has sent its own signals, `ready` when A is there.
template <int COUNT, class T, int COLUMNS, class WaitSignalled, class Ready>
__device__ __forceinline__ void producer_mainloop(Pipeline<T, COLUMNS> pipeline, u32 begin, const unsigned char *a,
                                                  const float *scales, const unsigned char *b, ResidentA resident,
                                                  Prefetch prefetch, WaitSignalled wait_signalled, Ready ready) {
    const auto fetch_b = [&](int i) {
        const u32 it = begin + i, slot = it % pipeline.STAGES;
        mbarrier_wait_parity(pipeline.empty(slot), it / pipeline.STAGES & 1 ^ 1);
        mbarrier_arrive_expect_tx(pipeline.full(slot),
                                  i < resident.count ? pipeline.B : pipeline.A + pipeline.SCALES + pipeline.B);
        const unsigned char *const from = b + (size_t)resident.stage(i) * pipeline.B;
        if (prefetch.weights_read_once)
            tma_load_1d_part_resident(pipeline.b(slot), from, pipeline.B, pipeline.full(slot));
        else
            tma_load_1d(pipeline.b(slot), from, pipeline.B, pipeline.full(slot));
    };
    const auto fetch_a = [&](int i) {
        const u32 slot = (begin + i) % pipeline.STAGES;
        if (i < resident.count)
            return;
        tma_load_1d(pipeline.a(slot), a + (size_t)resident.stage(i) * pipeline.A, pipeline.A, pipeline.full(slot));
        if (pipeline.SCALES)
            tma_load_1d(pipeline.scales(slot), scales + resident.stage(i) * TILE_ROWS, pipeline.SCALES, pipeline.full(slot));
    };
    const int early = min(min(prefetch.all, COUNT), pipeline.STAGES);
    for (int i = 0; i < early; i++) {
        if (i == prefetch.before_signal)
            wait_signalled();
        fetch_b(i);
    }
    ready();
    fence_proxy_async();
    for (int i = 0; i < COUNT; i++) {
        if (i >= early)
            fetch_b(i);
        fetch_a(i);
    }
}

// Four codes of E4M3, times 2 to the power of -`below`; they are rounded if they become subnormal.
__device__ __forceinline__ u32 scale_down_e4m3(u32 codes, u32 below) {
    const u32 half = below < 15 ? 15 - below << 10 : below < 25 ? 1 << 24 - below : 0;
    u32 out;
    asm("{ .reg .b16 c0, c1; .reg .b32 x0, x1;\n"
        "mov.b32 {c0, c1}, %1;\ncvt.rn.f16x2.e4m3x2 x0, c0;\ncvt.rn.f16x2.e4m3x2 x1, c1;\n"
        "mul.rn.f16x2 x0, x0, %2;\nmul.rn.f16x2 x1, x1, %2;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 c0, x0;\ncvt.rn.satfinite.e4m3x2.f16x2 c1, x1;\nmov.b32 %0, {c0, c1}; }"
        : "=r"(out)
        : "r"(codes), "r"(half | half << 16));
    return out;
}

template <int N> struct Int {
    static constexpr int value = N;
};

struct NoOp {
    template <int N> __device__ __forceinline__ void operator()(Int<N>) const {}
};

// The accumulators of one wgmma.
__device__ __forceinline__ float (&accumulators(float (&c)[1][16][4]))[16][4] {
    return c[0];
}
__device__ __forceinline__ float (&accumulators(float (&c)[2][16][4]))[2][16][4] {
    return c;
}

// The largest of the exponents of a row, four in each of COUNT words that lie TILE_ROWS apart.
template <int COUNT> __device__ __forceinline__ u32 largest_exponent(const u32 *exponents) {
    u32 most = exponents[0];
#pragma unroll
    for (int i = 1; i < COUNT; i++)
        most = __vmaxu4(most, exponents[i * TILE_ROWS]);
    most = __vmaxu4(most, most >> 16);
    return max(most & 255, most >> 8 & 255);
}

// A warpgroup aligns the codes of its rows of a tile to one exponent for each row. Two threads have a row, whose exponents are
// `below` that one.
__device__ __forceinline__ void align_exponents(unsigned char *tile, int group, u32 below) {
    const int thread = threadIdx.x % 128, row = group * 64 + thread / 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int chunk = thread % 2 * 4 + i;
        const u32 by = below >> 8 * (chunk / 2) & 255;
        if (by == 0)
            continue;
        uint4 *const at = (uint4 *)(tile + swizzle_128b(row, chunk));
        const uint4 codes = *at;
        *at = make_uint4(scale_down_e4m3(codes.x, by), scale_down_e4m3(codes.y, by), scale_down_e4m3(codes.z, by),
                         scale_down_e4m3(codes.w, by));
    }
    fence_proxy_async_smem();
    named_barrier_sync(1 + group, 128);
}

// The mainloop of a consumer warpgroup, for rows from 64·`group` on and 128 or 256 columns. Stage i of A is at left(i, slot),
// after prepare(i, slot). If A has scales, the products of a stage are multiplied by scale(i, slot) in each of a thread's two
// rows. `past(i)` is called when the products of all stages before i are done, `whole` with the number of each half of the
// accumulators when that half is final.
template <int COUNT, class T, int COLUMNS, class Left, class Prepare, class Past, class Scale, class Whole>
__device__ __forceinline__ void consumer_mainloop(Pipeline<T, COLUMNS> pipeline, u32 begin, float (&c)[COLUMNS / 128][16][4],
                                                  int group, Left left, Prepare prepare, Past past, Scale scale, Whole &&whole) {
    // If the first wgmma overwrote its accumulators, the compiler would keep their old values in registers between products.
#pragma unroll
    for (int half = 0; half < COLUMNS / 128; half++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[half][j][i] = 0;
        }
    }
    const auto slot_of = [&](int i) { return (begin + i) % pipeline.STAGES; };
    const auto await_stage = [&](int i) { mbarrier_wait_parity(pipeline.full(slot_of(i)), (begin + i) / pipeline.STAGES & 1); };
    const auto release = [&](int i) {
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(pipeline.empty(slot_of(i)));
    };
    const auto b_of = [&](int i) { return wgmma_descriptor(smem_address(pipeline.b(slot_of(i)))); };
    if constexpr (!is_same<T, Fp8Scaled>) {
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
            await_stage(i);
            prepare(i, slot_of(i));
            const u64 a = wgmma_descriptor(smem_address(left(i, slot_of(i)) + group * PANEL)), b = b_of(i);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                wgmma_ss(T(), accumulators(c), a + 2 * step, b + 2 * step);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            if (i > 0)
                release(i - 1);
            past(i);
        }
        wgmma_wait_group<0>();
        release(COUNT - 1);
        whole(Int<0>());
        if constexpr (COLUMNS == 256)
            whole(Int<1>());
    } else {
        static_assert(COLUMNS == 128, "registers hold the accumulators of a stage besides");
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
            await_stage(i);
            const float2 by = scale(i, slot_of(i));
            const u64 a = wgmma_descriptor(smem_address(left(i, slot_of(i)) + group * PANEL)), b = b_of(i);
            float stage[16][4];
            wgmma_fence();
            wgmma_ss_overwrite(T(), stage, a, b);
#pragma unroll
            for (int step = 1; step < 4; step++)
                wgmma_ss(T(), stage, a + 2 * step, b + 2 * step);
            wgmma_commit_group();
            // The tensor cores run the other warpgroup meanwhile.
            wgmma_wait_group<0>();
            release(i);
            past(i + 1);
#pragma unroll
            for (int j = 0; j < 16; j++) {
#pragma unroll
                for (int k = 0; k < 4; k++)
                    c[0][j][k] = fmaf(stage[j][k], k < 2 ? by.x : by.y, c[0][j][k]);
            }
        }
        whole(Int<0>());
    }
}

// ---- signals between CTAs that share rows
//
// CTAs wait for each other. So all of them must be resident, or their producers must come earlier in the grid.

// Counters in memory, zeros at the beginning of a token: for each block of 128 rows how often a part of it was written.
struct Counters {
    u32 *at;
    int rows;

    // CTAs that have swapped rows of a block.
    __device__ __forceinline__ u32 *swapped(int block) const {
        return at + block;
    }
    // Warpgroups that have written columns of a quarter of h.
    __device__ __forceinline__ u32 *h(int block, int quarter) const {
        return at + blocks() + 4 * block + quarter;
    }
    // CTAs that have written columns of x.
    __device__ __forceinline__ u32 *x(int block) const {
        return at + 5 * blocks() + block;
    }

    // CTAs that are done.
    __device__ __forceinline__ u32 *done() const {
        return at + 6 * blocks();
    }

    // The CTAs that have one row each call it: they are more than there are counters.
    __device__ __forceinline__ void clear(int row) const {
        if (threadIdx.x == 0 && row <= 6 * blocks())
            at[row] = 0;
    }

    // One thread of each of `all` CTAs calls it at its end: the last CTA resets the counters.
    __device__ __forceinline__ void reset_by_last(u32 all) const {
        __threadfence();
        if (atomicAdd(done(), 1) + 1 == all) {
            for (u32 *count = at; count <= done(); count++)
                *count = 0;
        }
    }

  private:
    __device__ __forceinline__ int blocks() const {
        return rows / TILE_ROWS;
    }
};

// Whether weights are read by one wave of CTAs only, not again soon.
__device__ __forceinline__ bool weights_read_once(Counters counters) {
    return counters.rows <= 512;
}

// One thread calls it. Whoever sees the count also sees what this thread, and others before a barrier, have written.
__device__ __forceinline__ void signal_counter(u32 *count) {
    red_release_increment(count);
}

// One thread waits until the counter has reached `all`.
__device__ __forceinline__ void wait_counter(const u32 *count, u32 all) {
#ifndef MUTANT_JOIN_MISSING
    // If one never comes, a trap is better than no end.
    for (u32 polls = 0; ld_acquire(count) < all; polls++)
        if (polls >> 24)
            __trap();
#endif
}
