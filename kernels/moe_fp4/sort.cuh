// Which rows go to which expert, and the rows of x in the order in which the experts take them.
//
// A place is row · (K + 1) + slot. The places of the shared expert come first, and then those of each expert after those of the
// experts before it, in ascending order: `order` has the place and the bits of the weight of each. Rows of x, or of what lies
// between the products, are packed in this order, in groups of eight that begin anew with each expert: [group, 64 columns, 8 rows
// of 128 bytes], swizzled as wgmma reads them. Numbers of rows that an expert lacks in its last group are anything: columns of the
// instruction do not mix.
//
// The first of `tiles` has their number; each of the others has the expert, its first place in `order`, the number of its
// tokens, and its first group.
#pragma once

#include "moe_fp4/pipeline.cuh"

// Items of which the first part comes to L2: nearly as many as the next launch has thread blocks on 132 multiprocessors. Of V4-Flash
// they are 18 MB.
constexpr int FIRST_ITEMS = 256;

// The expert of a block: that of its number or, with fewer places than experts, that of the place of its number, or -1 if a place
// before it has the same expert. By all threads.
__device__ __forceinline__ int expert_of_block(const int *experts, int E, int K) {
    const int number = blockIdx.x, row = number / (K + 1), slot = number % (K + 1);
    if (int(gridDim.x) > E)
        return number;
    if (slot == K)
        return row == 0 ? E : -1;
    const int at = row * K + slot, own = expert_of(experts[at]);
    bool before = own < 0;
    for (int other = threadIdx.x; other < at; other += 256)
        before |= expert_of(experts[other]) == own;
    return __syncthreads_or(before) ? -1 : own;
}

// A block for an expert and 512 columns of x; blocks beyond the columns only help with what is brought to L2. All blocks count the
// rows of all experts; there are few.
//
// Memory would rest until the next launch knows its tiles. So the matrix of the shared expert comes to L2 before the launches before
// this one have ended, and then the first part of the items that the next launch begins with.
template <class F>
__device__ void sort(const bf16 *x, const int *experts, const float *weights, int4 *tiles, int2 *order, u8 *packed_x,
                     const u8 *packed_gate_up, int B, int E, int K, int D, int blocks) {
    extern __shared__ int counts[]; // of rows, of each expert
    __shared__ int before[3];       // places, tiles and groups of the experts before
    __shared__ int of_warps[8], listed[256];
    const int thread = threadIdx.x, chunks = (D + 63) / 64, stages = (chunks + CHUNKS - 1) / CHUNKS;
    const int of_shared[3] = {B, (B + TOKENS - 1) / TOKENS, (B + 7) / 8};
    launch_dependent_grids();
    const int number = blockIdx.x + blockIdx.y * gridDim.x, count = gridDim.x * gridDim.y;
    if (thread % 32 == 0)
        for (int i = number + thread / 32 * count; i < blocks * stages; i += 8 * count)
            prefetch_stage<F>(packed_gate_up, size_t(E) * blocks + i % blocks, i / blocks, chunks);
    for (int i = thread; i < E; i += 256)
        counts[i] = 0;
    if (thread < 3)
        before[thread] = 0;
    wait_on_dependent_grids();
    const int own = expert_of_block(experts, E, K);
    if (own < 0)
        return;
    if (own != E && int(gridDim.x) > E) {
        bool any = false;
        for (int at = thread; at < B * K; at += 256)
            any |= expert_of(experts[at]) == own;
        // An expert without rows has neither places nor tiles.
        if (!__syncthreads_or(any))
            return;
    }
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
    const bool shared = own == E;
    const int first = shared ? 0 : of_shared[0] + before[0], first_tile = shared ? 0 : of_shared[1] + before[1];
    const int first_group = shared ? 0 : of_shared[2] + before[2], size = counts[own];
    const int own_tiles = (size + TOKENS - 1) / TOKENS;
    if (!shared && thread % 32 == 0)
        for (int i = blockIdx.y + thread / 32 * gridDim.y; i < blocks * min(STAGES, stages); i += 8 * gridDim.y)
            if (first_tile * blocks + i % blocks < FIRST_ITEMS)
                prefetch_stage<F>(packed_gate_up, size_t(own) * blocks + i % blocks, i / blocks, chunks);
    if (int(blockIdx.y) * 512 >= D)
        return;
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
            tiles[0].x = own_tiles + before[1];
    }

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
