// What heads read in the variant `persistent`: the scores of the keys of a row, and the sums of their vectors.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// The keys of a row: its window from the oldest vector on, then entries. Those of this token are in shared memory, so that nobody has
// to wait until they are seen elsewhere.
struct Keys {
    const float *window, *entries, *token_key, *token_entry;
    const int *chosen;
    int recent, oldest, slots, dim, newest, count;

    template <class W> __device__ __forceinline__ Keys(const Context<W> &c, const Layer<W> &layer, int available) {
        const int t = c.row.position, first = max(0, t - c.a.Wn + 1);
        window = layer.window, entries = layer.main.entries, chosen = chooses(c, layer.sparse) ? c.s.chosen : nullptr;
        token_key = c.s.kv, token_entry = c.s.pooled, newest = layer.main.newest;
        recent = t - first + 1, oldest = first % c.a.Wn, slots = c.a.Wn, dim = c.a.D;
        count = recent + (layer.sparse ? min(available, c.a.topk) : available);
    }

    // True if a key is known, and is in global memory, before the numbers of this token are.
    __device__ __forceinline__ bool early(int key) const {
        return key < recent - 1 || (!chosen && key >= recent && key < count && key - recent != newest);
    }

    // Where a key is. Nobody writes in this launch what is not in shared memory.
    __device__ __forceinline__ const float *row(int key) const {
        const bool recently = key < recent;
        const int slot = oldest + key, wrapped = slot < slots ? slot : slot - slots;
        const int entry = recently ? 0 : chosen ? chosen[key - recent] : key - recent;
        const float *const from = (recently ? window : entries) + (size_t)(recently ? wrapped : entry) * dim;
        return key == recent - 1 ? token_key : !recently && entry == newest ? token_entry : from;
    }
};

// A key of a warp, four numbers of each part for each lane.
template <class W> struct Key {
    static constexpr int PARTS = MOST_D / 128;
    float4 parts[PARTS];

    __device__ __forceinline__ void load(const Context<W> &c, const float *row) {
        load(c, row, c.a.D);
    }

    __device__ __forceinline__ void load(const Context<W> &c, const float *row, int dim) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = 128 * part + 4 * (threadIdx.x % 32);
            parts[part] = at < dim ? load4(row + at) : make_float4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void store(float *to) const {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (const int at = 128 * part + 4 * (threadIdx.x % 32); at < W::Sizes::D)
                *(float4 *)(to + at) = parts[part];
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

// A warp for each key, of which the first is loaded if it was there early.
template <class W>
__device__ __forceinline__ void scores(const Context<W> &c, const Keys &keys, Key<W> loaded, int first, int last) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, step = c.WARPS << c.team.bits, mine = Key<W>::first(c);
#pragma unroll 1
    for (int key = mine; key < last; key += step) {
        if (key < first)
            continue;
        if (key != mine || !keys.early(key))
            loaded.load(c, keys.row(key));
#pragma unroll 1
        for (int head = 0; head < a.H; head++) {
            const float2 sums = loaded.sums(c, head);
            c.team.send(c.s.arrived + SCORES, c.s.scores(a, head) + key, score_of(c, warp_sum(sums.x), warp_sum(sums.y)), lane);
        }
    }
}

// Keys are added up in groups, whose number does not depend on that of the CTAs: key k is in group k % GROUPS. A group has a largest
// score, and its weights are e to the score above that. Groups are added up by four lanes, each of which has every fourth, times e to
// the group's largest score above that of all, one of which is the sink's. Any score is above LOWEST, which is that of no keys. A NaN
// makes all weights of its group NaN, and so the sum of all.
constexpr float LOWEST = -3.4e38f;

// Whether a CTA needs no more heads than it has read: it has whole groups of the output's rows.
template <class W> __device__ __forceinline__ bool heads_apart(const Context<W> &c) {
    const int others = c.team.ranks() - 1;
    return !W::STAGED && (c.a.G & others) == 0 && (c.a.H * c.a.D / 8 & others) == 0;
}

// The sums of vectors for all heads, with RoPE undone, if all CTAs have all scores. A quarter of the threads has every fourth group, and a thread four
// channels, so that it adds up its groups in registers: a quarter hands over one number for each channel. The keys of a group are
// loaded while the last group's are added up, those of the first before all scores are there.
template <class W> struct Attend {
    static constexpr int WORKERS = Context<W>::WORKERS, LANES = WORKERS / QUARTERS, EACH = GROUPS / QUARTERS, BATCH = 6;
    static_assert(LANES % 32 == 0 && BATCH * EACH <= 32, "a lane of a warp finds each of its keys");
    static_assert(BATCH % 2 == 0 && sizeof(TwoRows[32]) == 32 * sizeof(float4),
                  "a warp has its rows where it stores what it has read");
    struct Vectors {
        float4 of[BATCH];
    };
    const Context<W> &c;
    const Keys &keys;
    const float *sinks;
    Share share;
    // The first channel of this lane among those of all heads, and its quarter.
    int at, quarter;
    // Where one of the warp's keys is: the first BATCH of a group, then those of the next.
    const float *row;
    Vectors vectors;

    __device__ __forceinline__ Attend(const Context<W> &c, const Keys &keys, const float *sinks)
        : c(c), keys(keys), sinks(sinks), share(c.team.template share<8>(c.a.H * c.a.D)) {
        at = share.first + 4 * (threadIdx.x % LANES), quarter = threadIdx.x / LANES;
    }

    // Whether the warp has channels.
    __device__ __forceinline__ bool any() const {
        return at - 4 * (int)(threadIdx.x % 32) < share.first + share.count;
    }

    // The first channel of this lane, or a channel of others if it has none.
    __device__ __forceinline__ int channel() const {
        return min(at, c.a.H * c.a.D - 4) % c.a.D;
    }

    // Where the keys of this warp are, in the order of its lanes. All lanes load the same, which is cheaper than a shuffle of a pointer.
    __device__ __forceinline__ TwoRows *rows() const {
        return c.s.rows[threadIdx.x / 32];
    }

    __device__ __forceinline__ void store_row() const {
        rows()[threadIdx.x % 32 / 2].of[threadIdx.x % 2] = row;
        __syncwarp();
    }

    // Loads the first BATCH keys of a group. After the last key, that key is loaded again.
    __device__ __forceinline__ Vectors load(int group, int channel) const {
        Vectors vectors;
#pragma unroll
        for (int i = 0; i < BATCH; i += 2) {
            const TwoRows two = rows()[(group * BATCH + i) / 2];
            vectors.of[i] = load4(two.of[0] + channel), vectors.of[i + 1] = load4(two.of[1] + channel);
        }
        return vectors;
    }

    // Finds the keys, and loads those of the first group; entries are chosen.
    __device__ __forceinline__ void load() {
        if (!any())
            return;
        const int lane = threadIdx.x % 32, group = lane / BATCH * QUARTERS + quarter;
        row = keys.row(min(group + GROUPS * (lane % BATCH), keys.count - 1));
        store_row();
        vectors = load(0, channel());
    }

    __device__ __forceinline__ void run() {
        const Arguments<W> &a = c.a;
#ifdef MUTANT_LAST_KEY_LOST
        const int last = keys.count - 1;
#else
        const int last = keys.count;
#endif
#pragma unroll 1
        for (int head = threadIdx.x / 32; head < a.H; head += c.WARPS)
            weigh(head);
        c.sync();
#pragma unroll 1
        for (int chunk = 0; chunk < share.count; chunk += WORKERS, at += WORKERS) {
            if (any()) {
                const int channel = this->channel(), head = min(at / a.D, a.H - 1);
                const float *const scores = c.s.scores(a, head);
                float4 part = make_float4(0, 0, 0, 0);
                if (chunk > 0) {
                    store_row();
                    vectors = load(0, channel);
                }
#pragma unroll 1
                for (int number = 0; number < EACH; number++) {
                    const int group = number * QUARTERS + quarter;
                    const Vectors next = load(min(number + 1, EACH - 1), channel);
                    float4 sum = make_float4(0, 0, 0, 0);
                    const auto add = [&](float weight, float4 vector) {
                        sum.x = fmaf(weight, vector.x, sum.x), sum.y = fmaf(weight, vector.y, sum.y);
                        sum.z = fmaf(weight, vector.z, sum.z), sum.w = fmaf(weight, vector.w, sum.w);
                    };
#pragma unroll
                    for (int i = 0; i < BATCH; i++)
                        if (const int key = group + GROUPS * i; key < last)
                            add(scores[key], vectors.of[i]);
#pragma unroll 1
                    for (int key = group + GROUPS * BATCH; key < last; key += GROUPS)
                        add(scores[key], load4(keys.row(key) + channel));
                    const float factor = c.s.factors[head][group];
                    part.x = fmaf(factor, sum.x, part.x), part.y = fmaf(factor, sum.y, part.y);
                    part.z = fmaf(factor, sum.z, part.z), part.w = fmaf(factor, sum.w, part.w);
                    vectors = next;
                }
                // In the place of the rows.
                __syncwarp();
                *(float4 *)(c.s.read[quarter] + 4 * (threadIdx.x % LANES)) = part;
            }
            c.sync();
            rotate_back(chunk);
            if (chunk + WORKERS < share.count)
                c.sync();
        }
    }

    // Replaces the scores of a head by weights in their groups, and finds what groups are worth; by a warp, two lanes for each group.
    __device__ __forceinline__ void weigh(int head) const {
        const int lane = threadIdx.x % 32;
        const float sink = sinks[head];
        float *const scores = c.s.scores(c.a, head), top = LOWEST;
#pragma unroll 1
        for (int key = lane; key < keys.count; key += 32)
            top = fmaxf(top, scores[key]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, GROUPS));
#pragma unroll 1
        for (int key = lane; key < keys.count; key += 32)
            scores[key] = expf(scores[key] - top);
        __syncwarp();
        float sum = 0.0f, most = fmaxf(top, sink), total = 0.0f;
#pragma unroll 4
        for (int key = lane % GROUPS; key < keys.count; key += GROUPS)
            sum += scores[key];
#pragma unroll
        for (int step = GROUPS / 2; step > 0; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
        const float factor = expf(top - most);
#pragma unroll
        for (int other = lane % 4; other < lane % 4 + GROUPS; other += 4)
            total = fmaf(__shfl_sync(0xffffffff, factor, other), __shfl_sync(0xffffffff, sum, other), total);
        const float inverse = 1.0f / (lanes_sum<4>(total) + expf(sink - most));
        if (lane < GROUPS)
            c.s.factors[head][lane] = factor;
        if (lane == 0)
            c.s.inverse[head] = inverse;
    }

    // Adds up the sums of the quarters over the channels from `chunk` on, undoes RoPE, and sends them to all CTAs that need them; a thread
    // has four channels for one CTA.
    __device__ __forceinline__ void rotate_back(int chunk) const {
        const Arguments<W> &a = c.a;
        const bool apart = heads_apart(c);
        const int bits = apart ? 0 : c.team.bits, other = apart ? c.team.rank : threadIdx.x & (c.team.ranks() - 1),
                  count = min(WORKERS, share.count - chunk);
#pragma unroll 1
        for (int in_chunk = 4 * (threadIdx.x >> bits); in_chunk < count; in_chunk += 4 * (WORKERS >> bits)) {
            const int to = share.first + chunk + in_chunk, head = to / a.D, rotated = to % a.D - (a.D - a.R);
            const float4 parts[QUARTERS] = {load4(c.s.read[0] + in_chunk), load4(c.s.read[1] + in_chunk),
                                            load4(c.s.read[2] + in_chunk), load4(c.s.read[3] + in_chunk)};
            const float inverse = c.s.inverse[head];
            // As `lanes_sum` has it.
            const auto sum = [&](float a, float b, float c, float d) { return ((a + c) + (b + d)) * inverse; };
            float2 low = make_float2(sum(parts[0].x, parts[1].x, parts[2].x, parts[3].x),
                                     sum(parts[0].y, parts[1].y, parts[2].y, parts[3].y)),
                   high = make_float2(sum(parts[0].z, parts[1].z, parts[2].z, parts[3].z),
                                      sum(parts[0].w, parts[1].w, parts[2].w, parts[3].w));
            if (rotated >= 0) {
                low = rope_file::turn<true>(low, c.s.cos[0][rotated / 2], c.s.sin[0][rotated / 2]);
                high = rope_file::turn<true>(high, c.s.cos[0][rotated / 2 + 1], c.s.sin[0][rotated / 2 + 1]);
            }
            c.team.store(c.s.arrived + HEADS, c.s.heads + to, make_float4(low.x, low.y, high.x, high.y), other);
        }
    }
};

// The same where each CTA has a group of keys, in shared memory, a warp for each; later keys are few, and are read again. Each CTA sends
// every other the sums of its group over the channels of that one.
template <class W> struct Group {
    typedef typename W::Sizes S;
    static constexpr int HERE = Staged<W>::KEYS;
    static_assert(S::H == 2 && S::D == 2 * Context<W>::WORKERS && S::D / CHUNK == HERE && Context<W>::WARPS == HERE &&
                      1 << W::Ranks::bits == GROUPS,
                  "a thread has two channels of both heads, and a warp those of a CTA for each head");
    const Context<W> &c;
    const Keys &keys;
    int count;

    __device__ __forceinline__ Group(const Context<W> &c, const Keys &keys)
        : c(c), keys(keys), count((keys.count - c.team.rank + GROUPS - 1) >> 4) {}

    __device__ __forceinline__ int number(int at) const {
        return at * GROUPS + c.team.rank;
    }

    // By the copier: the first key of each warp is on its way before the numbers of this token are there. The mixer brings the window's
    // vector of the token.
    __device__ __forceinline__ void copy() const {
        const int at = threadIdx.x % 32, key = number(at);
        if (at >= HERE || key == keys.recent - 1)
            return;
        const bool early = keys.early(key);
        u64 *const here = c.s.staged.keys_here + at;
        mbarrier_arrive_expect_tx(here, early ? S::D * (int)sizeof(float) : 0);
        if (early)
            tma_load_1d(c.s.staged.key(at), keys.row(key), S::D * sizeof(float), here);
    }

    // The scores of keys from `first` to `last`, for this CTA alone.
    __device__ __forceinline__ void score(int layer, int first, int last) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
        for (int at = warp; number(at) < last; at += HERE) {
            const int key = number(at);
            if (key < first)
                continue;
            Key<W> loaded;
            if (at == warp && (keys.early(key) || key == keys.recent - 1)) {
                mbarrier_wait_parity(c.s.staged.keys_here + warp, layer & 1);
                loaded.load(c, c.s.staged.key(warp));
            } else {
                loaded.load(c, keys.row(key));
                if (at == warp) {
                    loaded.store(c.s.staged.key(warp));
                    // A bulk copy comes to the same place later.
                    fence_proxy_async_smem();
                }
            }
            const float2 low = loaded.sums(c, 0), high = loaded.sums(c, 1);
            const float sums = warp_sums(low.x, high.x, low.y, high.y);
            const float squares = __shfl_sync(0xffffffff, sums, 16 + lane % 16);
            if (lane < 16 && lane % 8 == 0)
                c.s.scores(c.a, lane / 8)[at] = score_of(c, sums, squares);
        }
    }

    // Sends the sums of the group to the CTAs that add them up.
    __device__ __forceinline__ void send() const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = 2 * threadIdx.x;
#ifdef MUTANT_LAST_KEY_LOST
        const int last = keys.count - 1;
#else
        const int last = keys.count;
#endif
        c.sync();
        // Eight lanes for each head, twice.
        const float *const scores = c.s.scores(c.a, lane / 8 % 2);
        float top = LOWEST;
#pragma unroll 1
        for (int at = lane % 8; at < count; at += 8)
            top = fmaxf(top, scores[at]);
#pragma unroll
        for (int step = 4; step > 0; step /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
        float2 low = make_float2(0, 0), high = make_float2(0, 0);
        float low_sum = 0.0f, high_sum = 0.0f;
        float *const weights = c.s.read[warp];
        const auto add = [&](bool counts, float of_low, float of_high, float2 x) {
            low_sum += of_low, high_sum += of_high;
            of_low = counts ? of_low : 0.0f, of_high = counts ? of_high : 0.0f;
            low.x = fmaf(of_low, x.x, low.x), low.y = fmaf(of_low, x.y, low.y);
            high.x = fmaf(of_high, x.x, high.x), high.y = fmaf(of_high, x.y, high.y);
        };
        const auto pair = [&](const float *vector) { return *(const float2 *)(vector + channel); };
#pragma unroll 1
        for (int first = 0; first < count; first += HERE) {
            const int mine = first + lane % 8;
            // Behind the last key, nothing.
            const float score = scores[min(mine, count - 1)], weight = mine < count ? expf(score - top) : 0.0f;
            if (lane < 16)
                weights[lane] = weight;
            __syncwarp();
            if (first == 0) {
                // All is asked for at once, and nothing branches: what is behind the last key is that key again, and has no weight.
                const float4 all[4] = {load4(weights), load4(weights + 4), load4(weights + 8), load4(weights + 12)};
                const float *const each = (const float *)all;
                float2 vectors[HERE];
#pragma unroll
                for (int at = 0; at < HERE; at++)
                    vectors[at] = pair(c.s.staged.key(min(at, count - 1)));
#pragma unroll
                for (int at = 0; at < HERE; at++)
                    add(number(min(at, count - 1)) < last, each[at], each[HERE + at], vectors[at]);
            } else {
#pragma unroll 1
                for (int at = 0; at < HERE && first + at < count; at++)
                    add(number(first + at) < last, weights[at], weights[HERE + at], pair(keys.row(number(first + at))));
            }
            __syncwarp();
        }
        // Even lanes have four channels of the first head, odd ones of the second.
        const bool second = lane % 2;
        const float2 sent = second ? low : high, kept = second ? high : low;
        float2 got;
        got.x = __shfl_xor_sync(0xffffffff, sent.x, 1), got.y = __shfl_xor_sync(0xffffffff, sent.y, 1);
        const float2 before = second ? got : kept, behind = second ? kept : got;
        top = __shfl_sync(0xffffffff, top, 8 * second);
        u64 *const arrived = c.s.arrived + SCORES;
        const int other = second * HERE + warp;
        c.team.store(arrived, c.s.groups[c.team.rank] + 4 * (lane / 2), make_float4(before.x, before.y, behind.x, behind.y),
                     other);
        if (lane < 2)
            c.team.store(arrived, c.s.group_sums[c.team.rank], make_float4(top, second ? high_sum : low_sum, 0, 0), other);
    }

    // Adds up the sums of all groups, and undoes RoPE; four lanes have a channel.
    __device__ __forceinline__ void merge(const float *sinks) const {
        const int lane = threadIdx.x % 4, channel = threadIdx.x / 4, of_all = c.team.rank * CHUNK + channel;
        const int head = of_all / S::D, rotated = of_all % S::D - (S::D - S::R);
        const float sink = sinks[head];
        float tops[GROUPS / 4], sums[GROUPS / 4], most = sink, total = 0.0f, out = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUPS / 4; i++) {
            const float2 of = *(const float2 *)c.s.group_sums[lane + 4 * i];
            tops[i] = of.x, sums[i] = of.y, most = fmaxf(most, of.x);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
#pragma unroll
        for (int i = 0; i < GROUPS / 4; i++) {
            const float factor = expf(tops[i] - most);
            total = fmaf(factor, sums[i], total), out = fmaf(factor, c.s.groups[lane + 4 * i][channel], out);
        }
        out = lanes_sum<4>(out) * (1.0f / (lanes_sum<4>(total) + expf(sink - most)));
        const float other = __shfl_xor_sync(0xffffffff, out, 4);
        const bool odd = channel % 2;
        if (rotated >= 0) {
            const float2 pair = rope_file::turn<true>(make_float2(odd ? other : out, odd ? out : other), c.s.cos[0][rotated / 2],
                                                      c.s.sin[0][rotated / 2]);
            out = odd ? pair.y : pair.x;
        }
        if (lane == 0)
            c.s.heads[channel] = out;
        c.sync();
    }
};

} // namespace persistent
