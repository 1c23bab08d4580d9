// What the thread blocks of `warpgroups` have in shared memory, and how weights are packed for them.
//
// Weights are packed into tiles of 32 rows, and these into units of 32 rows and 128 columns, 4 KB as wgmma reads them: with the
// 128-byte swizzle, zeros outside of the matrix. Units of a tile lie next to each other, so a stage of four is one contiguous copy.
// Within a tile, rows are in the order that gives each thread eight neighbours of y: a thread of lane q has columns 8 j + 2 q + i of
// the instruction, i = 0, 1, and these are rows 8 q + 2 j + i.
#pragma once

#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "lib/vec.cuh"
#include "wgmma/widths.cuh"

constexpr int TILE_WEIGHTS = 32, UNIT = TILE_WEIGHTS * 128, BLOCKS = 4, STAGE = BLOCKS * UNIT;
// A chunk has the columns of a stage. 16 bytes more than these, and rows at the same column lie in different banks.
constexpr int CHUNK = BLOCKS * 128, X_STRIDE = CHUNK + 16;
constexpr int MOST_STAGES = 12, X_ROWS = 192, MOST_SLOTS = X_ROWS / 8;
// All that a multiprocessor of compute capability 9.0 has for one thread block; `launch.shared` in the header.
constexpr int SHARED = 232448;
constexpr int PRODUCERS = 128, CONSUMERS = 256;
constexpr int X_REQUESTED = 1, SCALES_READY = 2; // named barriers

struct Barriers {
    u64 full[MOST_STAGES], empty[MOST_STAGES], x_full[MOST_SLOTS], x_empty[MOST_SLOTS];
};

// A place in a ring: its slot, and the parity of the round.
struct Place {
    int slot = 0;
    u32 parity = 0;

    __device__ __forceinline__ void skip(int count, int slots) {
        for (slot += count; slot >= slots; slot -= slots)
            parity ^= 1;
    }
};

// What a thread block does, and where it has what. All follows from the sizes, as do the numbers in the header.
struct Work {
    int N, K, blocks, chunks; // of 128 and of 512 columns
    int per, first, tiles;    // tiles of weights of a thread block and of this one; those past the last are copies of the last
    int begin, tokens;        // rows of x
    int rows;                 // rows with a place in shared memory: 8, 16, 32 or 64
    int groups, passes;       // consumer warpgroups that have a tile in the first pass, and passes
    int slots, stages;        // of the ring of x, and of that of each warpgroup's weights
    bool pair, resident;      // whether two thread blocks share x, and whether all of x stays
    int x_scale_stride, w_scale_stride;
    u8 *ring, *x;
    float *x_scale, *w_scale;
    Barriers *barriers;

    __device__ __forceinline__ Work(u8 *shared, int B, int N, int K) : N(N), K(K) {
        u32 cluster;
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(cluster));
        pair = cluster == 2;
        blocks = (K + 127) / 128, chunks = (blocks + BLOCKS - 1) / BLOCKS;
        per = (all_tiles() + gridDim.x - 1) / gridDim.x;
        first = blockIdx.x * per;
        // Thread blocks that share x need it equally often.
        tiles = pair ? per : min(per, all_tiles() - first);
        groups = min(tiles, 2), passes = (tiles + groups - 1) / groups;
        begin = blockIdx.y * 64, tokens = min(64, B - begin);
        rows = B <= 8 ? 8 : B <= 16 ? 16 : B <= 32 ? 32 : 64;
        slots = min(chunks, X_ROWS / rows);
        resident = slots == chunks;
        // Four scales more, and eight rows are read without bank conflicts.
        x_scale_stride = BLOCKS * chunks + 4, w_scale_stride = BLOCKS * chunks;
        const int scales = (rows * x_scale_stride + scale_rows() * w_scale_stride) * 4;
        const int left = SHARED - (int)sizeof(Barriers) - slots * rows * X_STRIDE - scales;
        stages = min(MOST_STAGES, left / STAGE) / groups;
        ring = shared;
        x = ring + groups * stages * STAGE;
        x_scale = (float *)(x + slots * rows * X_STRIDE);
        w_scale = x_scale + rows * x_scale_stride;
        barriers = (Barriers *)(w_scale + scale_rows() * w_scale_stride);
    }

    __device__ __forceinline__ int all_tiles() const {
        return (N + TILE_WEIGHTS - 1) / TILE_WEIGHTS;
    }

    // Rows of scales of weights, one for 128 rows, that the tiles of a thread block can meet.
    __device__ __forceinline__ int scale_rows() const {
        return per / 4 + 2;
    }

    // The first producer warp waits until the others have requested the first chunks of x.
    __device__ __forceinline__ void x_requested() const {
        if (pair)
            cluster_wait();
        named_barrier_sync(X_REQUESTED, PRODUCERS);
    }

    __device__ __forceinline__ u8 *stage(int slot) const {
        return ring + slot * STAGE;
    }
    __device__ __forceinline__ u8 *chunk(int slot) const {
        return x + slot * rows * X_STRIDE;
    }
};

// Packs a unit: a thread for 16 bytes.
__device__ __forceinline__ void pack_unit(const u8 *w, u8 *packed, int N, int K) {
    const int slot = threadIdx.x / 8, chunk = threadIdx.x % 8, blocks = (K + 127) / 128;
    const int row = blockIdx.x * TILE_WEIGHTS + slot / 2 % 4 * 8 + slot / 8 * 2 + slot % 2, col = blockIdx.y * 128 + chunk * 16;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if (row < N && col < K)
        bytes = *(const uint4 *)(w + size_t(row) * K + col);
    u8 *const unit = packed + (size_t(blockIdx.x) * blocks + blockIdx.y) * UNIT;
    *(uint4 *)(unit + slot * 128 + ((chunk ^ slot) & 7) * 16) = bytes;
    // A launch that need not wait for this one to end begins with copies of what is written here.
    __threadfence();
}
