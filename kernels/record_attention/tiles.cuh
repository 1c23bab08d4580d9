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
constexpr int PRODUCERS = 256, CONSUMERS = 256;

// What a thread tells the same thread of the other warpgroup: its exponentials as operand A of two steps, by what to multiply the
// results so far, and the maxima from now on.
struct Handed {
    uint4 exponentials[2][128];
    float4 maxima[128];
};

struct Attention {
    u8 q[PANELS * PANEL], keys[STAGES / 2][PANELS * PANEL];
    Handed handed[2];
    // A word for each pair of keys, a bit for each that there is; those of the keys of a consumer's lane follow each other.
    u32 valid[STAGES][TILE / 2];
    u64 full[STAGES], empty[STAGES], received;
    // The maxima and the sums of exponentials of each rank, which sends them; then what its results are multiplied by.
    float maxima[MOST_RANKS][HEADS], sums[MOST_RANKS][2][HEADS], weights[MOST_RANKS][HEADS], sinks[HEADS];

    // Slices of the results of all ranks, in place of queries and keys.
    __device__ __forceinline__ float *slices() {
        return (float *)q;
    }
};
static_assert(sizeof(Attention) <= 217728, "launch.shared in the header");

// ---- pairs of thread blocks, neighbours in the cluster, that have the same keys and other heads

// Which thread block of its pair this one is.
template <bool PAIR> __device__ __forceinline__ int half_of_pair() {
    u32 rank = 0;
    if (PAIR)
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank % 2;
}

// The same place in the thread block that has keys of rank `rank`, and the heads of this one.
template <bool PAIR> __device__ __forceinline__ u32 map_rank(const void *at, int rank) {
    return map_shared_rank(at, PAIR ? 2 * rank + half_of_pair<PAIR>() : rank);
}

// Shared memory to that of the peer CTA, whose barrier counts the bytes; after `fence_proxy_async_smem` by those who wrote it.
__device__ __forceinline__ void tma_copy_to_peer(const void *at, u32 bytes, const u64 *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(map_shared_peer(at)),
        "r"(smem_address(at)), "r"(bytes), "r"(map_shared_peer(barrier))
        : "memory");
}

// ---- the producer warpgroups: four keys of a tile for a warp, or two, of which it sends the peer a copy

template <bool PAIR> constexpr int WARP_KEYS = TILE / (PRODUCERS / 32) / (PAIR ? 2 : 1);

// Warps find keys in so many tiles at once, one for a lane.
template <bool PAIR> constexpr int FOUND_TILES = 32 / WARP_KEYS<PAIR>;

// The first key of a warp in a tile.
template <bool PAIR> __device__ __forceinline__ int first_key() {
    return WARP_KEYS<PAIR> * (half_of_pair<PAIR>() * (PRODUCERS / 32) + threadIdx.x / 32);
}

// The key of a lane, in tiles from `tile` on.
template <bool PAIR> __device__ __forceinline__ int key_of_lane(int tile) {
    const int lane = threadIdx.x % 32, in_tile = first_key<PAIR>() + lane % WARP_KEYS<PAIR>;
    return in_tile + TILE * (tile + lane / WARP_KEYS<PAIR>);
}

// The records of the keys of a warp. Exponentials of a key that is missing are zero, so that what is read in its place matters
// only if it is not finite: it is the record of a key of the same row and tile, if the warp has one there.
template <bool PAIR> struct Found {
    static constexpr int EACH = WARP_KEYS<PAIR>;

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
        const int lane = threadIdx.x % 32, first = lane / EACH * EACH, place = __ffs(of_tile(lane / EACH)) - 1;
        const int from = slot >= 0 || place < 0 ? lane : first + place;
        row = __shfl_sync(0xffffffff, row, from), tail = __shfl_sync(0xffffffff, tail, from);
    }

    // A bit for each key that there is in a tile.
    __device__ __forceinline__ u32 of_tile(int tile) const {
        return there >> tile * EACH & ((1 << EACH) - 1);
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

// Tiles from `first` to before `end`, of which the first FOUND are found.
//
// Records of a tile are on their way to registers while those of the one before are decoded, and those of later tiles, half of FOUND
// ahead and more, are on their way to L2. The first FOUND are not asked for before: that took 1.2 us, as long as it would save.
template <class R, bool PAIR>
__device__ __forceinline__ void produce(Attention &shared, const Keys<R> &keys, int first, int end, Found<PAIR> found) {
    constexpr int EACH = WARP_KEYS<PAIR>, FOUND = FOUND_TILES<PAIR>;
    // The same in all lanes, it takes no register of a thread.
    const int own = __shfl_sync(0xffffffff, first_key<PAIR>(), 0);
    const int lane = threadIdx.x % 32, all = min(end * TILE, keys.count());
    const auto slot_of = [&](int key) { return key < all ? keys.slot(key) : -1; };
    // Key k of the warp lies k rows behind, where swizzling differs by k chunks.
    const int place = swizzle_128b(own, lane);
    Raw<R> raw[EACH] = {};
    u32 there = found.of_tile(0);
#pragma unroll
    for (int key = 0; key < EACH; key++)
        if (there)
            raw[key].load(found.of_lane(key));
    Found<PAIR> later;
    int slot = slot_of(key_of_lane<PAIR>(first + FOUND));
    for (int tile = 0; tile < end - first; tile++) {
        const int stage = tile % STAGES, next = tile + 1, of_next = next % FOUND;
        const u32 parity = tile / STAGES % 2 ^ 1;
        u64 *const full = shared.full + stage;
        u8 *const panels = shared.keys[stage / 2] + stage % 2 * TILE * 128;
        const u32 valid = there;
        if (of_next == FOUND / 2) {
            const int key = key_of_lane<PAIR>(first + next + FOUND / 2);
            later.find(keys, key, slot);
            later.template prefetch<R>();
            slot = slot_of(key + FOUND * TILE);
        } else if (of_next == 0) {
            found = later;
        }
        there = found.of_tile(of_next);
#ifndef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        if (lane < EACH / 2) {
            const int pair = own / 2 + lane;
            u32 *const word = shared.valid[stage] + pair % 4 * 4 + pair / 4;
            *word = valid >> 2 * lane;
#ifdef MUTANT_PEERS_KEYS_LOST
            if (PAIR)
                st_async(map_shared_peer(word), 0u, map_shared_peer(full));
#else
            if (PAIR)
                st_async(map_shared_peer(word), valid, map_shared_peer(full));
#endif
        }
#pragma unroll
        for (int key = 0; key < EACH; key++) {
            const Token<const u8> after = found.of_lane(of_next * EACH + key);
            raw[key].template store<4 * PANEL>(panels + (place ^ key * 16) + key * 128);
            if (there)
                raw[key].load(after);
        }
#ifdef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity);
#endif
        fence_proxy_async_smem();
        __syncwarp();
        if (PAIR) {
            if (lane < PANELS)
                tma_copy_to_peer(panels + lane * PANEL + own * 128, EACH * 128, full);
            // The peer's warp of the same number sends as much.
            if (lane == 0)
                mbarrier_arrive_expect_tx(full, EACH * PANELS * 128 + sizeof(u32));
        } else if (lane == 0) {
            mbarrier_arrive(full);
        }
    }
}
