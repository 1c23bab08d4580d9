// The two products of a step of the FFN in tensor cores, weights read once for all rows. A thread block has two groups of
// warps that multiply, 64 rows of the left operand each, and one that fetches into a ring of STAGES tiles ahead of them.
// Weights are fetched before what the last launch wrote is there. SHARE thread blocks, a cluster, have the same weights and
// fetch a part each, for all. (Of four or eight not all clusters that 128 thread blocks make find room at once on an H200.)
#pragma once

#include "swap_ffn.cuh"

constexpr int WIDTH = 1024, HIDDEN = 4096; // D and F
constexpr int PRODUCT_THREADS = 384, GATE_UP_COLUMNS = 256, GATE_UP_STAGES = 4, DOWN_COLUMNS = 128, DOWN_STAGES = 6, SPLIT = 4;

// A tile of each operand and of each stage, 128 bytes of every row.
template <int COLUMNS, int STAGES> struct Ring {
    struct Stage {
        unsigned char a[TILE], b[COLUMNS * 128];
    };
    Stage stages[STAGES];
    u64 full[STAGES], empty[STAGES];
};

// By all threads.
template <int SHARE, int COLUMNS, int STAGES> __device__ __forceinline__ void ring_init(Ring<COLUMNS, STAGES> &ring) {
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; slot++) {
            barrier_init(ring.full + slot, 1);
            barrier_init(ring.empty + slot, SHARE * 8);
        }
        barriers_ready();
    }
    if (SHARE > 1)
        cluster_barrier();
    else
        __syncthreads();
}

// By one thread of number `own` of SHARE: `count` tiles that lie next to each other.
template <int SHARE, int COLUMNS, int STAGES>
__device__ __forceinline__ void fetch(Ring<COLUMNS, STAGES> &ring, int own, const unsigned char *a, const unsigned char *b, int count) {
    const auto fetch_b = [&](int it) {
        constexpr int PART = COLUMNS * 128 / SHARE;
        const int slot = it % STAGES, part = own * PART;
        barrier_expect(ring.full + slot, sizeof ring.stages[slot]);
        const unsigned char *from = b + (size_t)it * COLUMNS * 128 + part;
        if (SHARE == 1)
            copy_in(ring.stages[slot].b, from, PART, ring.full + slot);
        else
            copy_in_all(ring.stages[slot].b + part, from, PART, ring.full + slot, (u16)((1 << SHARE) - 1));
    };
    const auto fetch_a = [&](int it) {
        const int slot = it % STAGES;
        copy_in(ring.stages[slot].a, a + (size_t)it * TILE, TILE, ring.full + slot);
    };
    const int first = min(count, STAGES);
    for (int it = 0; it < first; it++)
        fetch_b(it);
    wait_for_last();
    fence_copies();
    for (int it = 0; it < first; it++)
        fetch_a(it);
    for (int it = first; it < count; it++) {
        arrival_wait(ring.empty + it % STAGES, (it / STAGES & 1) ^ 1);
        fetch_b(it);
        fetch_a(it);
    }
}

// By a group of four warps, for rows 64·`group` on of the left operand.
template <class T, int SHARE, int COLUMNS, int STAGES>
__device__ __forceinline__ void products(Ring<COLUMNS, STAGES> &ring, float (&c)[COLUMNS / 8][4], int group, int count) {
    const int lane = threadIdx.x % 32;
    const auto release = [&](int it) {
        if (lane < SHARE)
            barrier_arrive_at(ring.empty + it % STAGES, lane);
    };
#pragma unroll 1
    for (int it = 0; it < count; it++) {
        const int slot = it % STAGES;
        arrival_wait(ring.full + slot, it / STAGES & 1);
        const u64 a = group_tile(shared_address(ring.stages[slot].a + group * PANEL)), b = group_tile(shared_address(ring.stages[slot].b));
        group_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            group_multiply(T(), c, a + 2 * step, b + 2 * step, it + step);
        group_commit();
        group_wait<1>();
        if (it > 0)
            release(it - 1);
    }
    group_wait<0>();
}

// Both operands in bf16: n is without its norm. In E4M3: n and h have a scale for each row, n is without its norm.

// ---- Thread blocks that have parts of the same rows wait for each other, warp for warp, so all of them must be resident or
// get there without them: they come one after the other in the grid.

constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;
constexpr int WARP_ROWS = 16;
static_assert(PARTS == DOWN_PARTS * SPLIT, "each of the thread blocks that share rows has a part of their sums");

// In memory, zeros at first: largest magnitudes of rows of h and of n, as bits; how many warps have come, for each 16 rows.
struct Joint {
    u32 *at;
    int rows;

    __device__ __forceinline__ u32 *h(int row) const {
        return at + row;
    }
    __device__ __forceinline__ u32 *n(int row) const {
        return at + rows + row;
    }
    // All that have columns of h.
    __device__ __forceinline__ u32 *up(int row) const {
        return at + 2 * rows + row / WARP_ROWS;
    }
    // All that have columns of x.
    __device__ __forceinline__ u32 *down(int row) const {
        return at + 2 * rows + (rows + row) / WARP_ROWS;
    }
    // Those that have parts of the same columns of x.
    __device__ __forceinline__ u32 *splits(int row, int tile) const {
        return at + 2 * rows + ((2 + tile) * rows + row) / WARP_ROWS;
    }

    __device__ __forceinline__ int words() const {
        return 2 * rows + (2 + DOWN_PARTS) * rows / WARP_ROWS;
    }
};

// By a warp: returns when as many warps as there are to come have, with what all of them wrote.
__device__ __forceinline__ void meet(u32 *count, u32 warps) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        // Every launch adds as many.
        const u32 all = (atomicAdd(count, 1) / warps + 1) * warps;
#ifndef MUTANT_JOIN_MISSING
        // Should one never come, an error is better than no end.
        for (u32 looks = 0; load_acquired(count) < all; looks++)
            if (looks >> 24)
                __trap();
#endif
    }
    __syncwarp();
}
