// The choice of entries in the variant `persistent`: index scores, and the largest of them.
#pragma once

#include "decode_step/attend.cuh"

namespace persistent {

// ---- queries and index scores

// Keeps queries for taps: those of heads are normed.
template <class W> __device__ __forceinline__ void keep_queries(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    if (layer.sparse)
        c.keep(a.at_index_query, layer.number, a.sparse, c.s.index_query, a.HI * a.DI);
    if (!a.at_query || c.team.rank != 0)
        return;
    float *const to = c.kept(a.at_query, layer.layer, a.layers, a.H * a.D);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int head = threadIdx.x / 32; head < a.H; head += c.WARPS) {
        const float inverse = inverse_rms_of(c, c.s.query + head * a.D, a.D);
#pragma unroll 1
        for (int at = lane; at < a.D; at += 32)
            to[head * a.D + at] = c.s.query[head * a.D + at] * inverse;
    }
}

// What an index query is compared with: four numbers of an entry for each lane.
template <class W> __device__ __forceinline__ float4 index_key(const Context<W> &c, const Layer<W> &layer, int entry) {
    const int at = 4 * (threadIdx.x % 32);
    if (at >= c.a.DI)
        return make_float4(0, 0, 0, 0);
    return load4((entry == layer.index.newest ? c.s.index_pooled : layer.index.entries + (size_t)entry * c.a.DI) + at);
}

// The first entry of a warp: the last warps, which have no keys of the window, have the first entries.
template <class W> __device__ __forceinline__ int first_entry(const Context<W> &c) {
    return (c.WARPS - 1 - (int)threadIdx.x / 32 << c.team.bits) + c.team.rank;
}

// Scores entries, a warp for each, of which the first is loaded already. Sends the scores as keys of the choice.
template <class W>
__device__ __forceinline__ void index_scores(const Context<W> &c, const Layer<W> &layer, int entries, float4 key) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, at = 4 * lane, first = first_entry(c);
    const auto product = [&](int head) {
        const float4 query = at < a.DI ? load4(c.s.index_query + head * a.DI + at) : make_float4(0, 0, 0, 0);
        return dot4(key, query, 0.0f);
    };
    float score = 0.0f;
    const auto add = [&](int head, float product) {
        score = fmaf(c.s.head_weights[head] * a.index_scale, product < 0.0f ? 0.0f : product, score);
    };
#pragma unroll 1
    for (int entry = first; entry < entries; entry += c.WARPS << c.team.bits) {
        if (entry != first)
            key = index_key(c, layer, entry);
        score = 0.0f;
        if constexpr (W::STAGED) {
            static_assert(W::Sizes::HI == 4, "lanes 0, 8, 16 and 24 have a head each");
            const float sums = warp_sums(product(0), product(1), product(2), product(3));
#pragma unroll
            for (int head = 0; head < 4; head++)
                add(head, __shfl_sync(0xffffffff, sums, 8 * head));
        } else {
#pragma unroll 2
            for (int head = 0; head < a.HI; head++)
                add(head, warp_sum(product(head)));
        }
        c.team.send(c.s.arrived + INDEX_SCORES, (float *)c.s.index_keys() + entry, __uint_as_float(top_k_file::key_of(score)),
                    lane);
    }
}

// ---- the choice of entries

// Keeps entries for a tap where all are read; -1 behind them.
template <class W> __device__ __forceinline__ void keep_all(const Context<W> &c, const Layer<W> &layer, int entries) {
    const Arguments<W> &a = c.a;
    if (!a.at_topk || c.team.rank != 0)
        return;
    int *const kept = c.kept(a.at_topk, layer.number, a.sparse, a.topk);
#pragma unroll 1
    for (int at = threadIdx.x; at < a.topk; at += c.WORKERS)
        kept[at] = at < entries ? at : -1;
}

// Chooses the first `topk` in the order of scores, in the order of their numbers. There are more entries than these.
template <class W> __device__ __forceinline__ void select(const Context<W> &c, const Layer<W> &layer, int entries) {
    const Arguments<W> &a = c.a;
    const u32 *const keys = c.s.index_keys();
    u8 *const taken = c.s.taken(a);
    const int lane = threadIdx.x % 4;
    // Four lanes for each entry count what comes before it: larger keys, and equal ones of smaller numbers. No key is 0. A warp keeps
    // a byte of those that are taken.
#pragma unroll 1
    for (int first = 0; first < entries; first += c.WORKERS / 4) {
        const int entry = first + threadIdx.x / 4;
        const u32 key = entry < entries ? keys[entry] : 0;
        int before = 0;
#pragma unroll 2
        for (int at = 4 * lane; at < entries; at += 16) {
            const uint4 four = *(const uint4 *)(keys + at);
            const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                before += at + i < entries && others[i] > (at + i < entry ? key - 1 : key);
        }
        before += __shfl_xor_sync(0xffffffff, before, 1);
        before += __shfl_xor_sync(0xffffffff, before, 2);
        // Every fourth bit is that of an entry.
        u32 all = __ballot_sync(0xffffffff, entry < entries && before < a.topk) & 0x11111111;
        all = (all | all >> 3) & 0x03030303, all = (all | all >> 6) & 0x000f000f, all = (all | all >> 12) & 0xff;
        if (threadIdx.x % 32 == 0 && entry / 32 * 32 < entries)
            taken[entry / 8] = all;
    }
    c.sync();
    const u32 *const words = (const u32 *)taken;
#pragma unroll 1
    for (int entry = threadIdx.x; entry < entries; entry += c.WORKERS) {
        const u32 word = words[entry / 32], bit = 1u << entry % 32;
        if (!(word & bit))
            continue;
        int at = __popc(word & (bit - 1));
#pragma unroll 1
        for (int word = 0; word < entry / 32; word++)
            at += __popc(words[word]);
        c.s.chosen[at] = entry;
    }
    c.sync();
    c.keep(a.at_topk, layer.number, a.sparse, c.s.chosen, a.topk);
}

// The same of few entries, by each warp that reads a chosen one, so that nobody waits. A lane has the keys of every 32nd entry. The key of
// the last that is chosen lies in an interval, which is cut into quarters until as many keys as are chosen lie in it or above, or it has
// one key; that is taken as often as there is room.
constexpr int MOST_FEW = 64;

template <int MOST, class W> __device__ __forceinline__ void select_few(const Context<W> &c, int entries) {
    constexpr int EACH = MOST / 32;
    static_assert(MOST < 256, "a count has a byte");
    const u32 *const keys = c.s.index_keys();
    const int lane = threadIdx.x % 32, topk = c.a.topk;
    const u32 before = (1u << lane) - 1;
    // No key is 0.
    u32 mine[EACH], above[EACH], least = ~0u, greatest = 0;
    int room = topk, taken = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine[i] = lane + 32 * i < entries ? keys[lane + 32 * i] : 0;
        least = min(least, mine[i] > 0 ? mine[i] : ~0u), greatest = max(greatest, mine[i]);
    }
    least = __reduce_min_sync(0xffffffff, least), greatest = __reduce_max_sync(0xffffffff, greatest);
    // Keys as they lie above the interval's beginning; 0 is also what lies below it.
#pragma unroll
    for (int i = 0; i < EACH; i++)
        above[i] = max(mine[i], least) - least;
    // A quarter has 2^shift keys.
    int shift = max(0, 30 - __clz(greatest - least));
#pragma unroll 1
    while (true) {
        // How many keys lie in the second quarter or above, in the third or above, and in the last or above: a byte for each.
        u32 counts = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            counts += 0x010101 >> 8 * (3 - min(above[i] >> shift, 3u));
        counts = __reduce_add_sync(0xffffffff, counts);
        const u32 in[3] = {counts & 255, counts >> 8 & 255, counts >> 16};
        const u32 quarter = (in[0] >= topk) + (in[1] >= topk) + (in[2] >= topk);
        least += quarter << shift;
        if (shift == 0 || in[0] == topk || in[1] == topk || in[2] == topk)
            break;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            above[i] = max(above[i], quarter << shift) - (quarter << shift);
        shift = max(0, shift - 2);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        room -= __popc(__ballot_sync(0xffffffff, mine[i] > least));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const u32 equal = __ballot_sync(0xffffffff, mine[i] == least);
        const bool takes = mine[i] > least || (mine[i] == least && __popc(equal & before) < room);
        const u32 all = __ballot_sync(0xffffffff, takes);
        if (takes)
            c.s.chosen[taken + __popc(all & before)] = lane + 32 * i;
        room -= __popc(equal), taken += __popc(all);
    }
    __syncwarp();
}

} // namespace persistent
