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

    // Whether a key is known before entries are chosen.
    __device__ __forceinline__ bool known(int key) const {
        return key < (chosen ? recent : count);
    }

    // Four numbers of a key. Nobody writes in this launch what is not in shared memory.
    __device__ __forceinline__ float4 four(int key, int channel) const {
        const bool recently = key < recent;
        const int slot = oldest + key, wrapped = slot < slots ? slot : slot - slots;
        const int entry = recently ? 0 : chosen ? chosen[key - recent] : key - recent;
        const float *from = (recently ? window : entries) + (size_t)(recently ? wrapped : entry) * dim;
        from = key == recent - 1 ? own : !recently && entry == newest ? own_entry : from;
        return load4(from + channel);
    }
};

// A key of a warp, four numbers of each part for each lane.
template <class W> struct Key {
    static constexpr int PARTS = MOST_D / 128;
    float4 parts[PARTS];

    __device__ __forceinline__ void load(const Context<W> &c, const Keys &keys, int key) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = 128 * part + 4 * (threadIdx.x % 32);
            parts[part] = at < c.a.D ? keys.four(key, at) : make_float4(0, 0, 0, 0);
        }
    }

    static __device__ __forceinline__ int first(const Context<W> &c) {
        return c.team.rank * WARPS + threadIdx.x / 32;
    }
};

// A warp for each key, of which the first is loaded if it was known early.
template <class W> __device__ __forceinline__ void scores(const Context<W> &c, const Keys &keys, Key<W> own) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, first = Key<W>::first(c);
#pragma unroll 1
    for (int key = first; key < keys.count; key += c.team.ranks() * WARPS) {
        if (key != first || !keys.known(first))
            own.load(c, keys, key);
#pragma unroll 2
        for (int head = 0; head < a.H; head++) {
            float product = 0.0f;
#pragma unroll
            for (int part = 0; part < Key<W>::PARTS; part++) {
                const int at = 128 * part + 4 * lane;
                if (at < a.D)
                    product = dot4(own.parts[part], load4(c.s.query + head * a.D + at), product);
            }
            c.team.give(c.s.arrived + SCORES, c.s.scores(a, head) + key, warp_sum(product) * a.attention_scale, lane);
        }
    }
}

// What heads read, turned back: a warp for four channels, the lanes of which take turns with the keys. A lane has some keys at a time:
// those of the first turn are loaded before the scores are there. Each warp computes the softmax, with the sink of its head.
template <class W> struct Attend {
    static constexpr int EACH = 4;
    const Context<W> &c;
    const Keys &keys;
    const float *sinks;
    Share share;
    int at, head, channel;
    float sink;
    float4 vectors[EACH];

    __device__ __forceinline__ Attend(const Context<W> &c, const Keys &keys, const float *sinks)
        : c(c), keys(keys), sinks(sinks), share(c.team.template share<8>(c.a.H * c.a.D)) {
        at = share.first + threadIdx.x / 32 * 4, head = at / c.a.D, channel = at % c.a.D;
        sink = sinks[min(head, c.a.H - 1)];
    }

    __device__ __forceinline__ void load(int first) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (const int key = first + 32 * i; key < keys.count)
                vectors[i] = keys.four(key, channel);
    }

    // Before the scores are there; entries are chosen.
    __device__ __forceinline__ void begin() {
        if (at < share.first + share.count)
            load(threadIdx.x % 32);
    }

    __device__ __forceinline__ void run() {
        const Arguments<W> &a = c.a;
        const int lane = threadIdx.x % 32;
#ifdef MUTANT_LAST_KEY_LOST
        const int last = keys.count - 1;
#else
        const int last = keys.count;
#endif
        bool loaded = true;
#pragma unroll 1
        for (; at < share.first + share.count; at += 4 * WARPS, loaded = false) {
            const float *const scores = c.s.scores(a, head);
            float top = sink;
#pragma unroll 1
            for (int key = lane; key < keys.count; key += 32)
                top = max_nan(top, scores[key]);
#pragma unroll
            for (int step = 16; step > 0; step /= 2)
                top = max_nan(top, __shfl_xor_sync(0xffffffff, top, step));
            float4 sum = make_float4(0, 0, 0, 0);
            float total = 0.0f;
#pragma unroll 1
            for (int first = lane; first < keys.count; first += EACH * 32, loaded = false) {
                if (!loaded)
                    load(first);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const int key = first + 32 * i;
                    if (key >= keys.count)
                        continue;
                    const float weight = expf(scores[key] - top);
                    total += weight;
                    if (key >= last)
                        continue;
                    sum.x = fmaf(weight, vectors[i].x, sum.x), sum.y = fmaf(weight, vectors[i].y, sum.y);
                    sum.z = fmaf(weight, vectors[i].z, sum.z), sum.w = fmaf(weight, vectors[i].w, sum.w);
                }
            }
            const float inverse = 1.0f / (warp_sum(total) + expf(sink - top));
            float2 low = make_float2(warp_sum(sum.x) * inverse, warp_sum(sum.y) * inverse);
            float2 high = make_float2(warp_sum(sum.z) * inverse, warp_sum(sum.w) * inverse);
            if (const int turned = channel - (a.D - a.R); turned >= 0) {
                low = rope_file::turn<true>(low, c.s.cos[0][turned / 2], c.s.sin[0][turned / 2]);
                high = rope_file::turn<true>(high, c.s.cos[0][turned / 2 + 1], c.s.sin[0][turned / 2 + 1]);
            }
            c.team.give(c.s.arrived + HEADS, c.s.heads + at, make_float4(low.x, low.y, high.x, high.y), lane);
            if (channel += 4 *WARPS; channel >= a.D) {
                for (; channel >= a.D; channel -= a.D)
                    head++;
                sink = sinks[min(head, a.H - 1)];
            }
        }
    }
};

} // namespace persistent
