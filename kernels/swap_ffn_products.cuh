// The two products of a step of the FFN in tensor cores, weights read once for all rows. A thread block has two groups of
// warps that multiply, 64 rows of the left operand each, and one that fetches into a ring of STAGES tiles ahead of them.
// Weights are fetched before what the last launch wrote is there. Thread blocks of a cluster that have the same weights
// fetch a part each, for all.
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

// Thread blocks that have the same weights: this is number `own` of SHARE, whose ranks in the cluster lie `stride` apart.
template <int SHARE> struct Sharing {
    int own, first, stride;

    __device__ __forceinline__ int rank(int i) const {
        return first + i * stride;
    }

    __device__ __forceinline__ u16 mask() const {
        u32 ranks = 0;
#pragma unroll
        for (int i = 0; i < SHARE; i++)
            ranks |= 1u << rank(i);
        return (u16)ranks;
    }
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
    cluster_barrier();
}

// By one thread: `count` tiles that lie next to each other.
template <int SHARE, int COLUMNS, int STAGES>
__device__ __forceinline__ void fetch(Ring<COLUMNS, STAGES> &ring, Sharing<SHARE> sharing, const unsigned char *a, const unsigned char *b,
                                      int count) {
    const auto fetch_b = [&](int it) {
        constexpr int PART = COLUMNS * 128 / SHARE;
        const int slot = it % STAGES, part = sharing.own * PART;
        barrier_expect(ring.full + slot, sizeof ring.stages[slot]);
        const unsigned char *from = b + (size_t)it * COLUMNS * 128 + part;
        if (SHARE == 1)
            copy_in(ring.stages[slot].b, from, PART, ring.full + slot);
        else
            copy_in_all(ring.stages[slot].b + part, from, PART, ring.full + slot, sharing.mask());
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
__device__ __forceinline__ void products(Ring<COLUMNS, STAGES> &ring, Sharing<SHARE> sharing, float (&c)[COLUMNS / 8][4], int group,
                                         int count) {
    const int lane = threadIdx.x % 32;
    const auto release = [&](int it) {
        if (lane < SHARE)
            barrier_arrive_at(ring.empty + it % STAGES, sharing.rank(lane));
    };
#pragma unroll 1
    for (int it = 0; it < count; it++) {
        const int slot = it % STAGES;
        arrival_wait(ring.full + slot, it / STAGES & 1);
        const u64 a = group_tile(shared_address(ring.stages[slot].a + group * PANEL)), b = group_tile(shared_address(ring.stages[slot].b));
        group_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            group_multiply(typename T::Factor(), c, a + 2 * step, b + 2 * step, it + step);
        group_commit();
        group_wait<1>();
        if (it > 0)
            release(it - 1);
    }
    group_wait<0>();
}

// How operands come and go.
// Bf16: n without its norm, h in tiles. Fp8: n with its norm and a scale, h in rows of f32. Fp8Joined: n with a scale and
// without its norm, h in tiles under scales of whole rows.
struct Fp8Joined : Fp8 {};

template <class T> constexpr bool JOINED = false;
template <> constexpr bool JOINED<Fp8Joined> = true;

// ---- Largest magnitudes of whole rows, of which thread blocks have a part each: those that share rows wait for each other,
// so all of them must be resident. They come one after the other in the grid.

constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;

// In memory, zeros at first: of h and of n, bits of a magnitude for each row; how many have come, for each block of rows and
// for each SPLIT of one. A product clears the magnitudes of the other.
struct Joint {
    u32 *at;
    int rows;

    __device__ __forceinline__ u32 *h(int row) const {
        return at + row;
    }
    __device__ __forceinline__ u32 *n(int row) const {
        return at + rows + row;
    }
    __device__ __forceinline__ u32 *up(int block) const {
        return at + 2 * rows + block;
    }
    __device__ __forceinline__ u32 *down(int block, int split) const {
        return at + 2 * rows + rows / TILE_ROWS + block * SPLIT + split;
    }

    // All of what belongs to a row, by the row's thread.
    __device__ __forceinline__ void clear(int row) const {
        *h(row) = *n(row) = 0;
        if (row % TILE_ROWS == 0)
            *up(row / TILE_ROWS) = 0;
        if (row % (TILE_ROWS / SPLIT) == 0)
            at[2 * rows + rows / TILE_ROWS + row / (TILE_ROWS / SPLIT)] = 0;
    }
};

// By the 256 threads that multiply, in as many thread blocks as share the count: returns when all of them have come.
__device__ __forceinline__ void join(u32 *count, u32 blocks) {
    warps_barrier(3, 256);
    if (threadIdx.x == 128) {
        __threadfence();
        // Every launch adds as many.
        const u32 all = (atomicAdd(count, 1) / blocks + 1) * blocks;
#ifndef MUTANT_JOIN_MISSING
        // Were they not all resident, an error would be better than no end.
        for (u32 looks = 0; load_acquired(count) < all; looks++)
            if (looks >> 24)
                __trap();
#endif
    }
    warps_barrier(3, 256);
}
