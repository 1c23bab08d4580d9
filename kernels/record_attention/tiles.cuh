// What the thread blocks of a cluster have in shared memory, and how records become tiles of keys there.
//
// A tile is 32 keys of bfloat16, as wgmma reads them: half of the rows of eight panels of 64 channels. It is operand B of both
// products, with the scores and with the values.
#pragma once

#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "record_attention/softmax.cuh"
#include "wgmma/widths.cuh"

constexpr int TILE = 32, STAGES = 4, HEADS = 64, PANELS = 8, MOST_RANKS = 8;
constexpr int PRODUCERS = 256, CONSUMERS = 256, WARP_KEYS = TILE / (PRODUCERS / 32);

// What a thread tells the same thread of the other warpgroup: its exponentials as operand A of two steps, by what to multiply the
// results so far, and the maxima from now on.
struct Handed {
    uint4 exponentials[2][128];
    float4 maxima[128];
};

struct Attention {
    u8 q[PANELS * PANEL], keys[STAGES / 2][PANELS * PANEL];
    Handed handed[2];
    u64 full[STAGES], empty[STAGES], received;
    // A byte of each producer warp, a bit for each key that there is.
    u64 valid[STAGES];
    // The maxima and the sums of exponentials of each rank, which sends them; then what its results are multiplied by.
    float maxima[MOST_RANKS][HEADS], sums[MOST_RANKS][2][HEADS], weights[MOST_RANKS][HEADS], sinks[HEADS];

    // Slices of the results of all ranks, in place of queries and keys.
    __device__ __forceinline__ float *slices() {
        return (float *)q;
    }
};
static_assert(sizeof(Attention) <= 217728, "launch.shared in the header");

// ---- the producer warpgroups: four keys of a tile for a warp

// Warps find keys in eight tiles at once, one for a lane.
constexpr int FOUND_TILES = 32 / WARP_KEYS;

// The key of a lane, in tiles from `tile` on.
__device__ __forceinline__ int key_of_lane(int tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return (tile + lane / WARP_KEYS) * TILE + warp * WARP_KEYS + lane % WARP_KEYS;
}

// The records of the keys of a warp. Exponentials of a key that is missing are zero, so that what is read in its place matters
// only if it is not finite: it is the record of a key of the same row and tile, if the warp has one there.
struct Found {
    u64 row;
    u32 tail;  // behind the row
    u32 there; // a bit for each lane

    template <class R> __device__ __forceinline__ void find(const Keys<R> &keys, int key, int slot) {
        row = 0, tail = 0;
        if (slot >= 0) {
            const Token<const u8> token = keys.record(key, slot);
            row = (u64)token.row, tail = token.tail - token.row;
        }
        there = __ballot_sync(0xffffffff, slot >= 0);
        const int lane = threadIdx.x % 32, first = lane / WARP_KEYS * WARP_KEYS, place = __ffs(of_tile(lane / WARP_KEYS)) - 1;
        const int from = slot >= 0 || place < 0 ? lane : first + place;
        row = __shfl_sync(0xffffffff, row, from), tail = __shfl_sync(0xffffffff, tail, from);
    }

    // A bit for each key that there is in a tile.
    __device__ __forceinline__ u32 of_tile(int tile) const {
        return there >> tile * WARP_KEYS & ((1 << WARP_KEYS) - 1);
    }

    // The record that a lane found, named by all lanes of the warp.
    __device__ __forceinline__ Token<const u8> of_lane(int lane) const {
        const u8 *const begin = (const u8 *)__shfl_sync(0xffffffff, row, lane);
        return {begin, begin + __shfl_sync(0xffffffff, tail, lane)};
    }

    template <class R> __device__ __forceinline__ void prefetch() const {
        if (row == 0)
            return;
        const u8 *const begin = (const u8 *)row;
#pragma unroll
        for (int at = 0; at < R::ROW; at += 128)
            prefetch_l2(begin + at);
        prefetch_l2(begin + R::ROW - 1);
        if (R::TAIL)
            prefetch_l2(begin + tail);
    }
};

// Tiles from `first` to before `end`, of which the first eight are found.
//
// Records of a tile are on their way to registers while those of the one before are decoded, and those of four to eight later
// tiles are on their way to L2. The first eight tiles are not asked for before: that took 1.2 us, as long as it would save.
template <class R>
__device__ __forceinline__ void produce(Attention &shared, const Keys<R> &keys, int first, int end, Found found) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = min(end * TILE, keys.count());
    const auto slot_of = [&](int key) { return key < all ? keys.slot(key) : -1; };
    // Key k of the warp lies k rows behind, where swizzling differs by k chunks.
    const int place = swizzle_128b(warp * WARP_KEYS, lane);
    Raw<R> raw[WARP_KEYS] = {};
    u32 there = found.of_tile(0);
#pragma unroll
    for (int key = 0; key < WARP_KEYS; key++)
        if (there)
            raw[key].load(found.of_lane(key));
    Found later;
    int slot = slot_of(key_of_lane(first + FOUND_TILES));
    for (int tile = 0; tile < end - first; tile++) {
        const int stage = tile % STAGES, next = tile + 1, of_next = next % FOUND_TILES;
        const u32 parity = tile / STAGES % 2 ^ 1;
        u8 *const panels = shared.keys[stage / 2] + stage % 2 * TILE * 128;
        const u32 valid = there;
        if (of_next == FOUND_TILES / 2) {
            const int key = key_of_lane(first + next + FOUND_TILES / 2);
            later.find(keys, key, slot);
            later.prefetch<R>();
            slot = slot_of(key + FOUND_TILES * TILE);
        } else if (of_next == 0) {
            found = later;
        }
        there = found.of_tile(of_next);
#ifndef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        if (lane == 0)
            ((u8 *)(shared.valid + stage))[warp] = valid;
#pragma unroll
        for (int key = 0; key < WARP_KEYS; key++) {
            const Token<const u8> after = found.of_lane(of_next * WARP_KEYS + key);
            raw[key].template store<4 * PANEL>(panels + (place ^ key * 16) + key * 128);
            if (there)
                raw[key].load(after);
        }
#ifdef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        fence_proxy_async_smem();
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(shared.full + stage);
    }
}
