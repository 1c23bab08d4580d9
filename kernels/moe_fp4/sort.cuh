// Which rows go to which expert, and the rows of x in the order in which the experts take them.
//
// A place is row · (K + 1) + slot. The places of an expert follow those of the experts before it, in ascending order: `order` has
// the place and the bits of the weight of each. Rows of x, or of what lies between the products, are packed in this order, in
// groups of eight that begin anew with each expert: [group, 64 columns, 8 rows of 128 bytes], swizzled as wgmma reads them.
// Numbers of rows that an expert lacks in its last group are anything: columns of the instruction do not mix.
//
// The first of `tiles` has their number; each of the others has the expert, its first place in `order`, the number of its
// tokens, and its first group.
#pragma once

#include "moe_fp4/layout.cuh"

// The expert of a thread block, or -1 if it has nothing to do. There is one for each expert, which needs a place; or, with fewer places
// than experts, for each place, which must be the first of its expert. By all threads.
__device__ __forceinline__ int expert_of_block(const int *experts, int B, int E, int K) {
    const bool of_place = int(gridDim.x) <= E;
    const int row = blockIdx.x / (K + 1), slot = blockIdx.x % (K + 1), place = row * K + slot;
    if (of_place && slot == K)
        return row == 0 ? E : -1;
    const int own = of_place ? expert_of(experts[place]) : int(blockIdx.x);
    if (own == E)
        return E;
    bool any = false;
    for (int at = threadIdx.x; at < (of_place ? place : B * K); at += 256)
        any |= expert_of(experts[at]) == own;
    return bool(__syncthreads_or(any)) != of_place ? own : -1;
}

// A block for an expert and 512 columns of x. All blocks count the rows of all experts; there are few.
__device__ void sort(const bf16 *x, const int *experts, const float *weights, int4 *tiles, int2 *order, u8 *packed_x, int B,
                     int E, int K, int D) {
    extern __shared__ __align__(1024) int counts[]; // of rows, of each expert
    __shared__ int before[3];                       // places, tiles and groups of the experts before
    __shared__ int of_warps[8], listed[256];
    const int thread = threadIdx.x, chunks = (D + 63) / 64;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int own = expert_of_block(experts, B, E, K);
    if (own < 0)
        return;
    for (int i = thread; i < E; i += 256)
        counts[i] = 0;
    if (thread < 3)
        before[thread] = 0;
    __syncthreads();
    for (int at = thread; at < B * K; at += 256) {
        const int expert = expert_of(experts[at]);
        if (expert >= 0)
            atomicAdd(counts + expert, 1);
    }
    if (thread == 0)
        counts[E] = B;
    __syncthreads();
    int sums[3] = {0, 0, 0};
    for (int i = thread; i < own; i += 256)
        sums[0] += counts[i], sums[1] += (counts[i] + TOKENS - 1) / TOKENS, sums[2] += (counts[i] + 7) / 8;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (sums[i] != 0)
            atomicAdd(before + i, sums[i]);
    __syncthreads();
    const int first = before[0], first_tile = before[1], first_group = before[2], size = counts[own];
    const int own_tiles = (size + TOKENS - 1) / TOKENS;
    if (blockIdx.y == 0) {
        for (int i = thread; i < own_tiles; i += 256) {
#ifdef MUTANT_TILES_CUT
            const int tokens = i == 0 ? min(TOKENS, size) : 0;
#else
            const int tokens = min(TOKENS, size - i * TOKENS);
#endif
            tiles[1 + first_tile + i] = make_int4(own, first + i * TOKENS, tokens, first_group + i * (TOKENS / 8));
        }
        if (own == E && thread == 0)
            tiles[0].x = first_tile + own_tiles;
    }

    const bool shared = own == E;
    const int entries = size == 0 ? 0 : shared ? B : B * K;
    for (int start = 0, found = 0; start < entries; start += 256) {
        const int at = start + thread, lane = thread % 32;
        const bool goes = at < entries && (shared || expert_of(experts[at]) == own);
        const u32 of_warp = __ballot_sync(0xffffffff, goes);
        if (lane == 0)
            of_warps[thread / 32] = __popc(of_warp);
        const int here = __syncthreads_count(goes);
        if (here == 0)
            continue;
        int rank = __popc(of_warp & ((1u << lane) - 1));
        for (int i = 0; i < thread / 32; i++)
            rank += of_warps[i];
        if (goes) {
            const int row = shared ? at : at / K, slot = shared ? K : at % K;
            listed[rank] = row;
            if (blockIdx.y == 0)
                order[first + found + rank] =
                    make_int2(row * (K + 1) + slot, __float_as_int(shared ? 1.0f : weights[size_t(row) * K + slot]));
        }
        __syncthreads();
        for (int i = thread; i < here * 64; i += 256) {
            const int at = found + i / 64, chunk = blockIdx.y * 64 + i % 64;
            if (chunk >= chunks * 8)
                continue;
            uint4 eight = make_uint4(0, 0, 0, 0);
            if (chunk * 8 < D)
                eight = ((const uint4 *)(x + size_t(listed[i / 64]) * D))[chunk];
            *(uint4 *)(packed_x + packed_token(first_group, at, chunk, chunks)) = eight;
        }
        found += here;
        __syncthreads();
    }
}
