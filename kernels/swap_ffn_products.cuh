// The two products of a step of the FFN in tensor cores, weights read once for 128 rows. A thread block has two groups of
// warps that multiply, 64 rows of the left operand each, and one that fetches into a ring of tiles ahead of them,
// weights before what others have yet to write. No clusters that share weights: what limits an SM is how much comes in, and
// of clusters of four, 128 thread blocks do not all find room at once on an H200.
//
// Left operands lie in memory in bf16. Against weights in E4M3 they are rounded to that on their way into the tensor cores,
// when the largest of each row is known.
#pragma once

#include "swap_ffn.cuh"

constexpr int WIDTH = 1024, HIDDEN = 4096; // D and F
constexpr int PRODUCT_THREADS = 384, GATE_UP_COLUMNS = 256, DOWN_COLUMNS = 128;
constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;
constexpr int WARP_ROWS = 16;

constexpr int RING_BYTES = 196608, MOST_STAGES = 6;

struct RingBarriers {
    u64 full[MOST_STAGES], empty[MOST_STAGES];
};

// What both products go through, one after the other.
template <class T> struct Tiles {
    unsigned char ring[RING_BYTES];
    unsigned char h[2 * TILE];
    RingBarriers up, down;
};

// Of as many stages as there is room for: of weights 128 bytes of each of COLUMNS rows, of the left operand as many numbers.
template <class T, int COLUMNS> struct Ring {
    static constexpr int A = TILE * 2 / T::bytes, B = COLUMNS * 128, STAGES = RING_BYTES / (A + B);
    static_assert(STAGES <= MOST_STAGES, "room for barriers");
    unsigned char *stages;
    RingBarriers *barriers;

    __device__ __forceinline__ unsigned char *a(u32 slot) const {
        return stages + slot * (A + B);
    }
    __device__ __forceinline__ unsigned char *b(u32 slot) const {
        return a(slot) + A;
    }
    __device__ __forceinline__ u64 *full(u32 slot) const {
        return barriers->full + slot;
    }
    __device__ __forceinline__ u64 *empty(u32 slot) const {
        return barriers->empty + slot;
    }
};

// By all threads.
template <class T> __device__ __forceinline__ void tiles_init(Tiles<T> &tiles) {
    if (threadIdx.x < MOST_STAGES) {
        barrier_init(tiles.up.full + threadIdx.x, 1), barrier_init(tiles.up.empty + threadIdx.x, 8);
        barrier_init(tiles.down.full + threadIdx.x, 1), barrier_init(tiles.down.empty + threadIdx.x, 8);
        barriers_ready();
    }
    __syncthreads();
}

// By one thread: until nothing that has been fetched, `count` stages, is needed any more.
template <class T, int COLUMNS> __device__ __forceinline__ void drain(Ring<T, COLUMNS> ring, u32 count) {
    for (u32 i = 1; i <= min(count, (u32)ring.STAGES); i++)
        arrival_wait(ring.empty((count - i) % ring.STAGES), (count - i) / ring.STAGES & 1);
}

// By one thread: `count` stages that lie next to each other, the first of them number `begin` of all that go through the
// ring. Of the left operand from when `ready` returns.
template <class T, int COLUMNS, class Ready>
__device__ __forceinline__ void fetch(Ring<T, COLUMNS> ring, u32 begin, const unsigned char *a, const unsigned char *b, int count, Ready ready) {
    const auto fetch_b = [&](int i) {
        const u32 it = begin + i, slot = it % ring.STAGES;
        arrival_wait(ring.empty(slot), it / ring.STAGES & 1 ^ 1);
        barrier_expect(ring.full(slot), ring.A + ring.B);
        copy_in(ring.b(slot), b + (size_t)i * ring.B, ring.B, ring.full(slot));
    };
    const auto fetch_a = [&](int i) {
        const u32 slot = (begin + i) % ring.STAGES;
        copy_in(ring.a(slot), a + (size_t)i * ring.A, ring.A, ring.full(slot));
    };
    const int first = min(count, ring.STAGES);
    for (int i = 0; i < first; i++)
        fetch_b(i);
    ready();
    fence_copies();
    for (int i = 0; i < first; i++)
        fetch_a(i);
    for (int i = first; i < count; i++) {
        fetch_b(i);
        fetch_a(i);
    }
}

// Four numbers of a row of bf16 by a factor, in E4M3.
__device__ __forceinline__ u32 coded(const unsigned char *from, float by) {
    const float4 x = four((const bf16 *)from, 0);
    return E4m3::encode2(x.x * by, x.y * by) | E4m3::encode2(x.z * by, x.w * by) << 16;
}

// By a group of four warps, for rows 64·`group` on of the left operand: those of a thread are rounded to E4M3 after they are
// multiplied by `factors`.
template <class T, int COLUMNS>
__device__ __forceinline__ void products(Ring<T, COLUMNS> ring, u32 begin, float (&c)[COLUMNS / 8][4], int group, int count,
                                         const float (&factors)[2]) {
    const int lane = threadIdx.x % 32;
    // Were the first product not to add, what it leaves would be taken for needed between products, and kept in registers.
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] = 0;
    const auto release = [&](u32 it) {
        if (lane == 0)
            barrier_arrive(ring.empty(it % ring.STAGES));
    };
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const u32 it = begin + i, slot = it % ring.STAGES;
        arrival_wait(ring.full(slot), it / ring.STAGES & 1);
        const u64 b = group_tile(shared_address(ring.b(slot)));
        if constexpr (T::bytes == 2) {
            const u64 a = group_tile(shared_address(ring.a(slot) + group * PANEL));
            group_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                group_multiply(T(), c, a + 2 * step, b + 2 * step);
            group_commit();
            group_wait<1>();
            if (i > 0)
                release(it - 1);
        } else {
            const int row = group * 64 + threadIdx.x / 32 % 4 * WARP_ROWS + lane / 4;
            u32 a[2][4];
#pragma unroll
            for (int step = 0; step < 4; step++) {
                // 32 numbers are half of a row of a tile. The product that last had these registers is done.
                const unsigned char *tile = ring.a(slot) + step / 2 * TILE + lane % 2 * 8;
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int below = 0; below < 2; below++)
                        a[step % 2][2 * half + below] =
                            coded(tile + tile_byte(row + 8 * below, step % 2 * 4 + half * 2 + lane / 2 % 2), factors[below]);
                group_fence();
                group_multiply(T(), c, a[step % 2], b + 2 * step);
                group_commit();
                group_wait<1>();
                if (step == 0 && i > 0)
                    release(it - 1);
            }
        }
    }
    group_wait<0>();
    release(begin + count - 1);
}

// ---- Thread blocks that have parts of the same rows tell each other when they are written. So all of them must be resident,
// or get there without those that wait: they come one after the other in the grid.

// In memory, zeros at the beginning of a token: the largest magnitudes of rows of n and of h, as bits, one of two for one step
// and the other for the next; and of each block of 128 rows how often something has come.
struct Joint {
    u32 *at;
    int rows;

    __device__ __forceinline__ u32 *n_largest(int step, int row) const {
        return at + (step & 1) * rows + row;
    }
    __device__ __forceinline__ u32 *h_largest(int step, int row) const {
        return at + (2 + (step & 1)) * rows + row;
    }
    // Thread blocks that have swapped rows of a block.
    __device__ __forceinline__ u32 *swapped(int block) const {
        return counts() + block;
    }
    // Groups of warps that have written columns of a quarter of h.
    __device__ __forceinline__ u32 *h(int block, int quarter) const {
        return counts() + blocks() + 4 * block + quarter;
    }
    // Thread blocks that have written columns of x.
    __device__ __forceinline__ u32 *x(int block) const {
        return counts() + 5 * blocks() + block;
    }

    // Thread blocks that have done everything.
    __device__ __forceinline__ u32 *done() const {
        return counts() + 6 * blocks();
    }

    // By the thread blocks that have a row each.
    __device__ __forceinline__ void clear(int row) const {
        for (int word = row + threadIdx.x * rows; word <= 4 * rows + 6 * blocks(); word += blockDim.x * rows)
            at[word] = 0;
    }

    // By one thread of each of `all` thread blocks, at its end: the last leaves counts as they were found.
    __device__ __forceinline__ void leave(u32 all) const {
        __threadfence();
        if (atomicAdd(done(), 1) + 1 == all)
            for (u32 *count = counts(); count <= done(); count++)
                *count = 0;
    }

  private:
    __device__ __forceinline__ int blocks() const {
        return rows / TILE_ROWS;
    }
    __device__ __forceinline__ u32 *counts() const {
        return at + 4 * rows;
    }
};

// By one thread: what it and, before a barrier, others have written is there for who sees the count.
__device__ __forceinline__ void signal(u32 *count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

// By one thread: returns when so many have come.
__device__ __forceinline__ void await(const u32 *count, u32 all) {
#ifndef MUTANT_JOIN_MISSING
    // Should one never come, an error is better than no end.
    for (u32 looks = 0; load_acquired(count) < all; looks++)
        if (looks >> 24)
            __trap();
#endif
}
