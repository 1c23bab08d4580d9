// What heads read in the variant `persistent`: the scores of the keys of a row, and the sums of their vectors.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// The keys of a row: its window from the oldest vector on, then entries. Those of this token are in shared memory, so that nobody has
// to wait until they are seen elsewhere.
struct Keys {
    const float *window, *entries, *own, *own_entry;
    const int *chosen;
    int recent, oldest, slots, dim, newest, count;

    template <class W> __device__ __forceinline__ Keys(const Context<W> &c, const Layer<W> &layer, int available) {
        const int t = c.row.position, first = max(0, t - c.a.Wn + 1);
        window = layer.window, entries = layer.main.entries, chosen = layer.sparse ? c.s.chosen : nullptr;
        own = c.s.kv, own_entry = c.s.pooled, newest = layer.main.newest;
        recent = t - first + 1, oldest = first % c.a.Wn, slots = c.a.Wn, dim = c.a.D;
        count = recent + (layer.sparse ? min(available, c.a.topk) : available);
    }

    // Whether a key is known, and in global memory, before the token's own numbers are there.
    __device__ __forceinline__ bool early(int key) const {
        return key < recent - 1 || (!chosen && key >= recent && key < count && key - recent != newest);
    }

    // Where a key is. Nobody writes in this launch what is not in shared memory.
    __device__ __forceinline__ const float *row(int key) const {
        const bool recently = key < recent;
        const int slot = oldest + key, wrapped = slot < slots ? slot : slot - slots;
        const int entry = recently ? 0 : chosen ? chosen[key - recent] : key - recent;
        const float *const from = (recently ? window : entries) + (size_t)(recently ? wrapped : entry) * dim;
        return key == recent - 1 ? own : !recently && entry == newest ? own_entry : from;
    }
};

// A key of a warp, four numbers of each part for each lane.
template <class W> struct Key {
    static constexpr int PARTS = MOST_D / 128;
    float4 parts[PARTS];

    __device__ __forceinline__ void load(const Context<W> &c, const float *row) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = 128 * part + 4 * (threadIdx.x % 32);
            parts[part] = at < c.a.D ? load4(row + at) : make_float4(0, 0, 0, 0);
        }
    }

    // The first key of a warp: neighbours are in different CTAs.
    static __device__ __forceinline__ int first(const Context<W> &c) {
        return (threadIdx.x / 32 << c.team.bits) + c.team.rank;
    }

    // The sums of the products of a head's query with the key, and with itself.
    __device__ __forceinline__ float2 sums(const Context<W> &c, int head) const {
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = 128 * part + 4 * (threadIdx.x % 32);
            if (at >= c.a.D)
                continue;
            const float4 query = load4(c.s.query + head * c.a.D + at);
            sum.x = dot4(parts[part], query, sum.x), sum.y = dot4(query, query, sum.y);
        }
        return sum;
    }
};

// The score of a key: its product with a query that is normed by the sum of its squares.
template <class W> __device__ __forceinline__ float score_of(const Context<W> &c, float product, float squares) {
    return product * rmsnorm_file::inverse_rms(squares, c.a.D, c.a.eps) * c.a.attention_scale;
}

// A warp for each key from `first` to `last`, of which the first is loaded if it was there early.
template <class W>
__device__ __forceinline__ void scores(const Context<W> &c, const Keys &keys, Key<W> own, int first, int last) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, step = c.WARPS << c.team.bits, mine = Key<W>::first(c);
#pragma unroll 1
    for (int key = mine; key < last; key += step) {
        if (key < first)
            continue;
        if (key != mine || !keys.early(key))
            own.load(c, keys.row(key));
        if constexpr (W::STAGED) {
            // Half of the lanes give the score of each head.
            static_assert(W::Sizes::H == 2 && W::Ranks::COUNTED, "each lane has a CTA and a head");
            const float2 low = own.sums(c, 0), high = own.sums(c, 1);
            const float sums = warp_sums(low.x, high.x, low.y, high.y);
            const int head = lane / 16;
            const float product = __shfl_sync(0xffffffff, sums, 8 * head), squares = __shfl_sync(0xffffffff, sums, 16 + 8 * head);
            c.team.give(c.s.arrived + SCORES, c.s.scores(a, head) + key, score_of(c, product, squares), lane % 16);
        } else {
#pragma unroll 1
            for (int head = 0; head < a.H; head++) {
                const float2 sums = own.sums(c, head);
                c.team.give(c.s.arrived + SCORES, c.s.scores(a, head) + key, score_of(c, warp_sum(sums.x), warp_sum(sums.y)),
                            lane);
            }
        }
    }
}

// Numbers of the same order, and back; NaN is none of them.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float from_ordered(u32 order) {
    return __uint_as_float(order >> 31 ? order & 0x7fffffff : ~order);
}

// The softmax of a head with its sink, by a warp, a lane for each key of 32: weights are e to the score above the largest, and then
// multiplied by `inverse`. A NaN makes all of them NaN, whatever the largest is.
struct Softmax {
    const float *scores;
    float top, sink, total;

    __device__ __forceinline__ Softmax(const float *scores, float sink, int count) : scores(scores), sink(sink), total(0.0f) {
        u32 most = ordered(sink);
#pragma unroll 1
        for (int key = threadIdx.x % 32; key < count; key += 32)
            most = max(most, ordered(scores[key]));
        top = from_ordered(__reduce_max_sync(0xffffffff, most));
    }

    __device__ __forceinline__ float weight(int key, int count) {
        const float own = key < count ? expf(scores[key] - top) : 0.0f;
        total += own;
        return own;
    }

    __device__ __forceinline__ float inverse() const {
        return 1.0f / (warp_sum(total) + expf(sink - top));
    }
};

// What heads read, turned back: eight warps for a chunk of channels, sixteen lanes of which have four channels each of a key. So they
// have sixteen keys at a time; those of the first turns are loaded before all scores are there.
template <class W> struct Attend {
    static constexpr int LANES = CHUNK / 4, EACH = 32 / LANES, KEYS = 8 * EACH, TURNS = 8;
    const Context<W> &c;
    const Keys &keys;
    const float *sinks;
    Share share;
    // The first channel of this lane among those of all heads, and its first key.
    int at, first;
    float4 vectors[TURNS];

    __device__ __forceinline__ Attend(const Context<W> &c, const Keys &keys, const float *sinks)
        : c(c), keys(keys), sinks(sinks), share(c.team.template share<8>(c.a.H * c.a.D)) {
        at = share.first + threadIdx.x / 256 * CHUNK + 4 * (threadIdx.x % LANES);
        first = threadIdx.x % 256 / LANES;
    }

    __device__ __forceinline__ bool there() const {
        return at < share.first + share.count;
    }

    // Loads the keys of the first turns; entries are chosen. Behind the last key is the last one again.
    __device__ __forceinline__ void load() {
        if (!there())
            return;
        const int channel = at % c.a.D;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (KEYS * turn < keys.count)
                vectors[turn] = load4(keys.row(min(first + KEYS * turn, keys.count - 1)) + channel);
    }

    __device__ __forceinline__ void run() {
        const Arguments<W> &a = c.a;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#ifdef MUTANT_LAST_KEY_LOST
        const int last = keys.count - 1;
#else
        const int last = keys.count;
#endif
        if constexpr (!W::STAGED) {
#pragma unroll 1
            for (int head = warp; head < a.H; head += c.WARPS) {
                float *const scores = c.s.scores(a, head);
                Softmax softmax(scores, sinks[head], keys.count);
#pragma unroll 1
                for (int key = lane; key < keys.count; key += 32)
                    scores[key] = softmax.weight(key, keys.count);
                const float inverse = softmax.inverse();
                if (lane == 0)
                    c.s.inverse[head] = inverse;
            }
            c.sync();
        }
        float inverse = 0.0f;
        bool loaded = true;
#pragma unroll 1
        for (int chunk = 0; chunk < share.count; chunk += c.WARPS / 8 * CHUNK, at += c.WARPS / 8 * CHUNK, loaded = false) {
            const int head = min(at / a.D, a.H - 1), channel = at % a.D;
            const float *const scores = c.s.scores(a, head);
            float4 sum = make_float4(0, 0, 0, 0);
            const auto add = [&](int key, float weight, float4 vector) {
                if (key >= last)
                    return;
                sum.x = fmaf(weight, vector.x, sum.x), sum.y = fmaf(weight, vector.y, sum.y);
                sum.z = fmaf(weight, vector.z, sum.z), sum.w = fmaf(weight, vector.w, sum.w);
            };
            if constexpr (W::STAGED) {
                // All lanes have channels of one head. The weights of two turns are those of 32 keys.
                Softmax softmax(scores, sinks[head], keys.count);
#pragma unroll
                for (int turn = 0; turn < TURNS; turn += 2) {
                    if (turn * KEYS >= keys.count)
                        continue;
                    const float own = softmax.weight(turn * KEYS + lane, keys.count);
#pragma unroll
                    for (int odd = 0; odd < 2; odd++)
                        add(first + KEYS * (turn + odd), __shfl_sync(0xffffffff, own, first + KEYS * odd), vectors[turn + odd]);
                }
#pragma unroll 1
                for (int from = TURNS * KEYS; from < keys.count; from += 2 * KEYS) {
                    const float own = softmax.weight(from + lane, keys.count);
#pragma unroll 1
                    for (int odd = 0; odd < 2; odd++) {
                        const float weight = __shfl_sync(0xffffffff, own, first + KEYS * odd);
                        if (const int key = from + first + KEYS * odd; key < last)
                            add(key, weight, load4(keys.row(key) + channel));
                    }
                }
                inverse = softmax.inverse();
            } else if (there()) {
                if (!loaded)
                    load();
#pragma unroll
                for (int turn = 0; turn < TURNS; turn++)
                    if (const int key = first + KEYS * turn; key < last)
                        add(key, scores[key], vectors[turn]);
#pragma unroll 1
                for (int key = first + KEYS * TURNS; key < last; key += KEYS)
                    add(key, scores[key], load4(keys.row(key) + channel));
            }
            __syncwarp();
            // Keys of even numbers and of odd ones, then those of each warp.
            sum.x += __shfl_xor_sync(0xffffffff, sum.x, LANES), sum.y += __shfl_xor_sync(0xffffffff, sum.y, LANES);
            sum.z += __shfl_xor_sync(0xffffffff, sum.z, LANES), sum.w += __shfl_xor_sync(0xffffffff, sum.w, LANES);
            if (lane < LANES)
                *(float4 *)(c.s.read[warp] + 4 * lane) = sum;
            c.sync();
            turn_back(chunk, inverse);
            c.sync();
        }
    }

    // Adds up what warps have read of a chunk for each eight of them; a thread has two channels.
    __device__ __forceinline__ void turn_back(int chunk, float inverse) const {
        const Arguments<W> &a = c.a;
        const int in_chunk = 2 * (threadIdx.x % 32), of = threadIdx.x / 32, pair = chunk + of * CHUNK + in_chunk;
        if (of >= c.WARPS / 8 || pair >= share.count)
            return;
        const int to = share.first + pair, head = to / a.D, turned = to % a.D - (a.D - a.R);
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int other = 0; other < 8; other++) {
            const float2 part = *(const float2 *)(c.s.read[8 * of + other] + in_chunk);
            sum.x += part.x, sum.y += part.y;
        }
        const float by = W::STAGED ? inverse : c.s.inverse[head];
        sum.x *= by, sum.y *= by;
        if (turned >= 0)
            sum = rope_file::turn<true>(sum, c.s.cos[0][turned / 2], c.s.sin[0][turned / 2]);
        *(float2 *)(c.s.heads + to) = sum;
    }
};

} // namespace persistent
