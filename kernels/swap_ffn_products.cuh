// The two products of a step of the FFN in tensor cores, weights read once for 128 rows. A thread block has two groups of
// warps that multiply, 64 rows of the left operand each, and one that fetches into a ring of tiles ahead of them,
// weights before what others have yet to write. No clusters that share weights: what limits an SM is how much comes in, and
// of clusters of four, 128 thread blocks do not all find room at once on an H200.
//
// Against weights in E4M3, n is in MXFP8, for those that write it have 32 columns of a row. Where these have not all one exponent, codes
// get the largest of the row before they are multiplied. h has a scale for 128 columns, those of a tile.
#pragma once

#include "swap_ffn.cuh"

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

constexpr int WIDTH = 1024, HIDDEN = 4096; // D and F
constexpr int PRODUCT_THREADS = 384, GATE_UP_COLUMNS = 256, DOWN_COLUMNS = 128;
constexpr int UP_PARTS = HIDDEN / (GATE_UP_COLUMNS / 2), DOWN_PARTS = WIDTH / DOWN_COLUMNS;
constexpr int WARP_ROWS = 16;

// Scales of h where it is in codes: one for 128 numbers of a row, after all of them.
__device__ __forceinline__ float *hidden_scales(unsigned char *h, int rows, int block, int tile) {
    return (float *)(h + (size_t)rows * HIDDEN) + ((size_t)block * UP_PARTS + tile) * TILE_ROWS;
}

constexpr int RING_BYTES = 196608, MOST_STAGES = 6, EXPONENTS = TILE_ROWS * WIDTH / 32;

struct RingBarriers {
    u64 full[MOST_STAGES], empty[MOST_STAGES];
};

// What both products go through, one after the other; and what is left of the first, which after that has room for what a
// mate's second product leaves here.
template <class T> struct Tiles {
    unsigned char ring[RING_BYTES];
    // Where h is in codes it has half, and exponents of n the other, until a mate needs it.
    unsigned char h[2 * TILE];
    // Scales of the weights of a tile of the first product, where they have some.
    float gate_scale[GATE_UP_COLUMNS / 2], up_scale[GATE_UP_COLUMNS / 2];
    RingBarriers up, down;
    // Of each group of warps: its rows of h have been copied; there is room at the mate's; what it left is here.
    u64 h_copied[2], room_there[2], left_here[2][2];
    // What the thread that fetches tells those that multiply: rows are there to be swapped, for the first product, and their exponents.
    // And others to it: they have what was left for them; what they have of h is told.
    u64 x_there, n_there, exponents_there, taken, h_told;

    // 8 KB of h for a group, of columns 64·half on.
    __device__ __forceinline__ unsigned char *h_of(int half, int group) {
        return h + half * TILE + group * PANEL;
    }
    // [WIDTH / 128, TILE_ROWS, 4], of an even product or an odd one.
    __device__ __forceinline__ unsigned char *exponents(u32 odd) {
        return h + TILE + odd * EXPONENTS;
    }
};

// Of as many stages as there is room for: 128 bytes of each row of the left operand, of its scales where it has some for a stage, and
// of each of COLUMNS rows of weights.
template <class T, int COLUMNS> struct Ring {
    static constexpr int A = TILE, B = COLUMNS * 128, SCALES = same<T, Codes> ? TILE_ROWS * 4 : 0;
    static constexpr int STAGE = (A + B + SCALES + 1023) / 1024 * 1024, STAGES = RING_BYTES / STAGE;
    static_assert(STAGES <= MOST_STAGES, "room for barriers");
    unsigned char *stages;
    RingBarriers *barriers;

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

// By all threads.
template <class T> __device__ __forceinline__ void tiles_init(Tiles<T> &tiles) {
    if (threadIdx.x < MOST_STAGES) {
        barrier_init(tiles.up.full + threadIdx.x, 1), barrier_init(tiles.up.empty + threadIdx.x, 8);
        barrier_init(tiles.down.full + threadIdx.x, 1), barrier_init(tiles.down.empty + threadIdx.x, 8);
        if (threadIdx.x < 2) {
            // All warps of a group there, and the one that copies.
            barrier_init(tiles.h_copied + threadIdx.x, 1), barrier_init(tiles.room_there + threadIdx.x, 5);
            barrier_init(tiles.left_here[threadIdx.x], 1), barrier_init(tiles.left_here[threadIdx.x] + 1, 1);
        }
        if (threadIdx.x == 0) {
            barrier_init(&tiles.x_there, 1), barrier_init(&tiles.n_there, 1), barrier_init(&tiles.exponents_there, 1);
            barrier_init(&tiles.taken, 8), barrier_init(&tiles.h_told, 2);
        }
        barriers_ready();
    }
    __syncthreads();
}

// By one thread: until nothing that has been fetched, `count` stages, is needed any more.
template <class T, int COLUMNS> __device__ __forceinline__ void drain(Ring<T, COLUMNS> ring, u32 count) {
    for (u32 i = 1; i <= min(count, (u32)ring.STAGES); i++)
        arrival_wait(ring.empty((count - i) % ring.STAGES), (count - i) / ring.STAGES & 1);
}

// What a thread block has of its left operand itself, so that it need not be fetched: `count` stages from number `first` on,
// which it multiplies before all others. Those come in their order, for thread blocks that fetch the same at the same time are
// served together.
struct Own {
    int first, count;

    __device__ __forceinline__ int stage(int i) const {
        return i < count ? first + i : i < first + count ? i - count : i;
    }
};

// How weights are fetched. For few rows they are needed once in a step, come from memory as there are more of them than the L2
// cache has room for, and keep back all that thread blocks tell each other meanwhile: so weights of `at_once` stages come first,
// and those of `all` before what they are multiplied by is there.
struct Ahead {
    bool few;
    int at_once, all;
};

// By one thread: COUNT stages that lie next to each other, as do their scales if they have some, the first of them number `begin` of
// all that go through the ring. `told` returns when this thread block has told others what it has to, `ready` when the left operand is there.
template <int COUNT, class T, int COLUMNS, class Told, class Ready>
__device__ __forceinline__ void fetch(Ring<T, COLUMNS> ring, u32 begin, const unsigned char *a, const float *scales, const unsigned char *b, Own own,
                                      Ahead ahead, Told told, Ready ready) {
    const auto fetch_b = [&](int i) {
        const u32 it = begin + i, slot = it % ring.STAGES;
        arrival_wait(ring.empty(slot), it / ring.STAGES & 1 ^ 1);
        barrier_expect(ring.full(slot), i < own.count ? ring.B : ring.A + ring.SCALES + ring.B);
        const unsigned char *const from = b + (size_t)own.stage(i) * ring.B;
        if (ahead.few)
            copy_in_kept(ring.b(slot), from, ring.B, ring.full(slot));
        else
            copy_in(ring.b(slot), from, ring.B, ring.full(slot));
    };
    const auto fetch_a = [&](int i) {
        const u32 slot = (begin + i) % ring.STAGES;
        if (i < own.count)
            return;
        copy_in(ring.a(slot), a + (size_t)own.stage(i) * ring.A, ring.A, ring.full(slot));
        if (ring.SCALES)
            copy_in(ring.scales(slot), scales + own.stage(i) * TILE_ROWS, ring.SCALES, ring.full(slot));
    };
    const int early = min(min(ahead.all, COUNT), ring.STAGES);
    for (int i = 0; i < early; i++) {
        if (i == ahead.at_once)
            told();
        fetch_b(i);
    }
    ready();
    fence_copies();
    for (int i = 0; i < COUNT; i++) {
        if (i >= early)
            fetch_b(i);
        fetch_a(i);
    }
}

// Four codes of E4M3 by 2 to the power of -`below`, rounded where they become subnormal.
__device__ __forceinline__ u32 lowered(u32 codes, u32 below) {
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

template <int N> struct Number {
    static constexpr int value = N;
};

struct Nothing {
    template <int N> __device__ __forceinline__ void operator()(Number<N>) const {}
};

// Sums as one product makes them.
__device__ __forceinline__ float (&whole_of(float (&c)[1][16][4]))[16][4] {
    return c[0];
}
__device__ __forceinline__ float (&whole_of(float (&c)[2][16][4]))[2][16][4] {
    return c;
}

// The largest of exponents of a row, four in each of COUNT words TILE_ROWS apart.
template <int COUNT> __device__ __forceinline__ u32 largest_exponent(const u32 *exponents) {
    u32 most = exponents[0];
#pragma unroll
    for (int i = 1; i < COUNT; i++)
        most = __vmaxu4(most, exponents[i * TILE_ROWS]);
    most = __vmaxu4(most, most >> 16);
    return max(most & 255, most >> 8 & 255);
}

// By a group of four warps, whose rows of a tile in codes get the exponents of the rows: two threads have a row, whose exponents are
// `below` of that.
__device__ __forceinline__ void lower_rows(unsigned char *tile, int group, u32 below) {
    const int thread = threadIdx.x % 128, row = group * 64 + thread / 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int chunk = thread % 2 * 4 + i;
        const u32 by = below >> 8 * (chunk / 2) & 255;
        if (by == 0)
            continue;
        uint4 *const at = (uint4 *)(tile + tile_byte(row, chunk));
        const uint4 codes = *at;
        *at = make_uint4(lowered(codes.x, by), lowered(codes.y, by), lowered(codes.z, by), lowered(codes.w, by));
    }
    group_publish();
    warps_barrier(1 + group, 128);
}

// By a group of four warps, for rows 64·`group` on: sums of 128 columns, or of twice as many. Of its left operand stage i is at
// left(i, slot), after prepare(i, slot); where it has scales, products of it count scale(i, slot) in each of a thread's two rows;
// `past(i)` is called when
// products of stages before that are done; `whole` with the number of each half of the sums when it is.
template <int COUNT, class T, int COLUMNS, class Left, class Prepare, class Past, class Scale, class Whole>
__device__ __forceinline__ void products(Ring<T, COLUMNS> ring, u32 begin, float (&c)[COLUMNS / 128][16][4], int group, Left left,
                                         Prepare prepare, Past past, Scale scale, Whole &&whole) {
    // Were the first product not to add, what it leaves would be taken for needed between products, and kept in registers.
#pragma unroll
    for (int half = 0; half < COLUMNS / 128; half++)
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[half][j][i] = 0;
    const auto slot_of = [&](int i) { return (begin + i) % ring.STAGES; };
    const auto await_stage = [&](int i) { arrival_wait(ring.full(slot_of(i)), (begin + i) / ring.STAGES & 1); };
    const auto release = [&](int i) {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(ring.empty(slot_of(i)));
    };
    const auto b_of = [&](int i) { return group_tile(shared_address(ring.b(slot_of(i)))); };
    if constexpr (!same<T, Codes>) {
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
            await_stage(i);
            prepare(i, slot_of(i));
            const u64 a = group_tile(shared_address(left(i, slot_of(i)) + group * PANEL)), b = b_of(i);
            group_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                group_multiply(T(), whole_of(c), a + 2 * step, b + 2 * step);
            group_commit();
            group_wait<1>();
            if (i > 0)
                release(i - 1);
            past(i);
        }
        group_wait<0>();
        release(COUNT - 1);
        whole(Number<0>());
        if constexpr (COLUMNS == 256)
            whole(Number<1>());
    } else {
        static_assert(COLUMNS == 128, "room for sums of a stage besides");
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
            await_stage(i);
            const float2 by = scale(i, slot_of(i));
            const u64 a = group_tile(shared_address(left(i, slot_of(i)) + group * PANEL)), b = b_of(i);
            float stage[16][4];
            group_fence();
            group_multiply_first(T(), stage, a, b);
#pragma unroll
            for (int step = 1; step < 4; step++)
                group_multiply(T(), stage, a + 2 * step, b + 2 * step);
            group_commit();
            // Meanwhile those of the other group run.
            group_wait<0>();
            release(i);
            past(i + 1);
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    c[0][j][k] = fmaf(stage[j][k], k < 2 ? by.x : by.y, c[0][j][k]);
        }
        whole(Number<0>());
    }
}

// ---- Thread blocks that have parts of the same rows tell each other when they are written. So all of them must be resident,
// or get there without those that wait: they come one after the other in the grid.

// In memory, zeros at the beginning of a token: of each block of 128 rows how often something has come.
struct Joint {
    u32 *at;
    int rows;

    // Thread blocks that have swapped rows of a block.
    __device__ __forceinline__ u32 *swapped(int block) const {
        return at + block;
    }
    // Groups of warps that have written columns of a quarter of h.
    __device__ __forceinline__ u32 *h(int block, int quarter) const {
        return at + blocks() + 4 * block + quarter;
    }
    // Thread blocks that have written columns of x.
    __device__ __forceinline__ u32 *x(int block) const {
        return at + 5 * blocks() + block;
    }

    // Thread blocks that have done everything.
    __device__ __forceinline__ u32 *done() const {
        return at + 6 * blocks();
    }

    // By the thread blocks that have a row each.
    __device__ __forceinline__ void clear(int row) const {
        for (int word = row + threadIdx.x * rows; word <= 6 * blocks(); word += blockDim.x * rows)
            at[word] = 0;
    }

    // By one thread of each of `all` thread blocks, at its end: the last leaves counts as they were found.
    __device__ __forceinline__ void leave(u32 all) const {
        __threadfence();
        if (atomicAdd(done(), 1) + 1 == all)
            for (u32 *count = at; count <= done(); count++)
                *count = 0;
    }

  private:
    __device__ __forceinline__ int blocks() const {
        return rows / TILE_ROWS;
    }
};

// Whether weights are for one row of thread blocks, or are used again soon.
__device__ __forceinline__ bool few(Joint joint) {
    return joint.rows <= 512;
}

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
