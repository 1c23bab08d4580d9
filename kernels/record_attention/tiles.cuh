// What the thread blocks of a cluster have in shared memory, and how records become tiles of keys there.
//
// A tile is 32 keys of bfloat16, as wgmma reads them: half of the rows of eight panels of 64 channels. It is operand B of both
// products, with the scores and with the values.
#pragma once

#include "lib/cluster.cuh"
#include "lib/tma.cuh"
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
    u64 full[STAGES], empty[STAGES];
    // A byte of each producer warp, a bit for each key that there is.
    u64 valid[STAGES];
    // The maxima and the sums of exponentials of each rank, which sends them.
    float maxima[MOST_RANKS][HEADS], sums[MOST_RANKS][2][HEADS], sinks[HEADS];

    // Slices of the results of all ranks, in place of queries and keys.
    __device__ __forceinline__ float *slices() {
        return (float *)q;
    }
};
static_assert(sizeof(Attention) <= 215680, "launch.shared in the header");

// ---- the producer warpgroups: four keys of a tile for a warp

// The record of a key of this lane; no row if there is none.
struct Found {
    u64 row;
    int tail; // behind the row

    template <class R> __device__ __forceinline__ void find(const Keys<R> &keys, int key, int slot) {
        row = 0, tail = 0;
        if (slot < 0)
            return;
        const Token<const u8> token = keys.record(key, slot);
        row = (u64)token.row, tail = token.tail - token.row;
    }

    // That of another lane, named by all lanes of the warp.
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

template <class R, int KEYS> struct Raw {
    static constexpr bool CODES = R::CODED > 0;
    static constexpr int RUNS = R::CODED / RUN, EIGHTS = (R::DIM - R::CODED) / 8;
    // A group of lanes loads the channels of a key that are stored as they are.
    static constexpr int LANES = EIGHTS < 32 ? EIGHTS : 32, GROUPS = EIGHTS ? 32 / LANES : 1;
    static constexpr int OF_LOAD = GROUPS < KEYS ? GROUPS : KEYS;
    static constexpr int LOADS = EIGHTS ? KEYS / OF_LOAD * (EIGHTS / LANES) : 0;
    Run<R> runs[CODES ? KEYS : 1];
    uint4 plain[LOADS ? LOADS : 1];
    u32 valid; // a bit for each key that there is

    // The number of the key of a load, and its vector of eight channels.
    static __device__ __forceinline__ int2 of_load(int load, int lane) {
        constexpr int TIMES = EIGHTS ? EIGHTS / LANES : 1;
        return make_int2(load / TIMES * OF_LOAD + lane / (LANES ? LANES : 1), load % TIMES * LANES + lane % (LANES ? LANES : 1));
    }

    // Lane `from` + l has the record of key l.
    __device__ __forceinline__ void load(const Found &found, int from, int lane) {
        valid = __ballot_sync(0xffffffff, found.row != 0) >> from & ((1 << KEYS) - 1);
        if constexpr (CODES) {
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                const Token<const u8> token = found.of_lane(from + key);
                if (valid >> key & 1 && lane < RUNS)
                    runs[key].load(token, lane);
            }
        }
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            const int2 of = of_load(load, lane);
            const Token<const u8> token = found.of_lane(from + of.x);
            plain[load] = make_uint4(0, 0, 0, 0);
            if (of.x < KEYS && valid >> of.x & 1)
                plain[load] = plain_eight<R>(token, of.y);
        }
    }

    // Rows of the panels from `row` on.
    __device__ __forceinline__ void store(u8 *panels, int row, int lane) const {
        if constexpr (CODES) {
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                uint4 out[2] = {};
                if (lane >= RUNS)
                    continue;
                // Lanes that are four apart have the same banks, unless they exchange their halves.
                const int odd = lane / 4 % 2;
                if (valid >> key & 1)
                    runs[key].decode(out, odd);
                *(uint4 *)(panels + swizzle_128b(row + key, 2 * lane + odd)) = out[0];
                *(uint4 *)(panels + swizzle_128b(row + key, 2 * lane + 1 - odd)) = out[1];
            }
        }
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            const int2 of = of_load(load, lane);
            if (of.x < KEYS)
                *(uint4 *)(panels + swizzle_128b(row + of.x, R::CODED / 8 + of.y)) = plain[load];
        }
    }
};

// A producer warp finds its keys in eight tiles at once, one for a lane.
constexpr int FOUND_TILES = 32 / WARP_KEYS;

// The key of a lane, in tiles from `tile` on.
__device__ __forceinline__ int key_of_lane(int tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return (tile + lane / WARP_KEYS) * TILE + warp * WARP_KEYS + lane % WARP_KEYS;
}

// Tiles from `first` to before `end`, of which the first eight are found.
//
// Records of a tile are on their way to registers while those of the one before are decoded, and those of four to twelve tiles
// are on their way to L2.
template <class R>
__device__ __forceinline__ void produce(Attention &shared, const Keys<R> &keys, int first, int end, Found found) {
    constexpr int HALF = WARP_KEYS / 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = min(end * TILE, keys.count());
    const auto slot_of = [&](int key) { return key < all ? keys.slot(key) : -1; };
    Raw<R, HALF> some, others;
    some.load(found, 0, lane), others.load(found, HALF, lane);
    found.prefetch<R>();
    Found later;
    int slot = slot_of(key_of_lane(first + FOUND_TILES));
    for (int tile = 0; tile < end - first; tile++) {
        const int stage = tile % STAGES, at = stage % 2 * TILE + warp * WARP_KEYS, next = tile + 1;
        const int of_next = next % FOUND_TILES * WARP_KEYS;
        const u32 valid = some.valid | others.valid << HALF, parity = tile / STAGES % 2 ^ 1;
        u8 *const panels = shared.keys[stage / 2];
#ifndef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        some.store(panels, at, lane);
        if (next % FOUND_TILES == FOUND_TILES / 2) {
            const int key = key_of_lane(first + next + FOUND_TILES / 2);
            later.find(keys, key, slot);
            later.prefetch<R>();
            slot = slot_of(key + FOUND_TILES * TILE);
        } else if (next % FOUND_TILES == 0) {
            found = later;
        }
        some.load(found, of_next, lane);
        others.store(panels, at + HALF, lane);
        others.load(found, of_next + HALF, lane);
#ifdef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        if (lane == 0)
            ((u8 *)(shared.valid + stage))[warp] = valid;
        fence_proxy_async_smem();
        mbarrier_arrive(shared.full + stage);
    }
}
