// Attention of the variant `persistent`, in phases; an exchange, where all CTAs of the cluster wait for each other, is between two.
#pragma once

#include "decode_step/layer.cuh"
#include "decode_step/streams.cuh"

namespace persistent {

// ---- down, and pool

// Stores the values and logits of a token in the rings, and pools the channels of the share, if the token closes its window, into
// `pooled`. `own` has values, then logits, [halves, channels of the share] each. A warp has 32 channels of few tokens; of many, all
// warps share the tokens.
template <class W>
__device__ __forceinline__ void pool(const Context<W> &c, const Compressor &of, Share share, const u16 *channels, float *own,
                                     float ape_of_first, float *pooled) {
    constexpr int EACH = (MOST_POOLED + WARPS - 1) / WARPS;
    const int t = c.row.position, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = share.count, width = of.dim * of.halves;
    float *own_gate = own + of.halves * n;
#pragma unroll 1
    for (int at = threadIdx.x; at < of.halves * n; at += WORKERS) {
        const int channel = channels[at];
        own_gate[at] += at < WORKERS ? ape_of_first : __ldg(of.ape + channel);
        of.own_kv[channel] = own[at], of.own_gate[channel] = own_gate[at];
    }
    if (!of.entry)
        return;
    workers_sync();
    const bool many = of.slots > EACH;
    const int before = many ? warp : 0, turn = many ? WARPS : 1, turn_of_slots = turn % of.slots;
    const int slot_of_warp = (of.first_slot + before) % of.slots;
#pragma unroll 1
    for (int block = many ? 0 : 32 * warp; block < n; block += many ? 32 : 32 * WARPS) {
        const int channel = block + lane;
        float gates[EACH], values[EACH], top = -__int_as_float(0x7f800000);
        int slot = slot_of_warp;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int token = of.first + before + i * turn;
            const int half = of.halves == 2 && token >= of.window;
            const size_t at = (size_t)slot * width + half * of.dim + share.first + channel;
            slot += turn_of_slots;
            slot -= slot < of.slots ? 0 : of.slots;
            gates[i] = -__int_as_float(0x7f800000), values[i] = 0.0f;
            if (token > t || channel >= n)
                continue;
            if (token < 0)
                gates[i] = 0.0f;
            else if (token == t)
                gates[i] = own_gate[half * n + channel], values[i] = own[half * n + channel];
            else
                gates[i] = __ldcg(of.ring_gate + at), values[i] = __ldcg(of.ring_kv + at);
            top = fmaxf(top, gates[i]);
        }
        if (many) {
            c.s.tops[warp][lane] = top;
            workers_sync();
#pragma unroll
            for (int other = 0; other < WARPS; other++)
                top = fmaxf(top, c.s.tops[other][lane]);
        }
        float sum = 0.0f, out = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float share_of_token = expf(gates[i] - top);
            sum += share_of_token;
            out = fmaf(share_of_token, values[i], out);
        }
        if (many) {
            c.s.sums[warp][lane] = sum, c.s.outs[warp][lane] = out;
            workers_sync();
            if (warp > 0)
                continue;
            sum = out = 0.0f;
#pragma unroll 4
            for (int other = 0; other < WARPS; other++)
                sum += c.s.sums[other][lane], out += c.s.outs[other][lane];
        }
        if (channel < n)
            pooled[share.first + channel] = out / sum;
    }
}

// The products of the block's input: queries' rank, the window's vector, weights of index heads, and both compressors.
template <class W> __device__ __forceinline__ void down(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const DownShares shares(c, layer.sparse);
    const Share low = shares.low, kv = shares.kv, heads = shares.heads, index = shares.index;
    float *const own_kv = c.s.own + low.count, *const own_heads = own_kv + kv.count, *const own_main = own_heads + heads.count;
    float *const own_index = own_main + shares.of_main();
    const u32 *const rows = c.s.down_rows[layer.sparse];
    // What is added to the logits of the first numbers is on its way while products are.
    const u16 *const main_channels = c.s.channels[layer.sparse], *const index_channels = c.s.channels[2];
    const auto ape = [&](const Compressor &of, Share share, const u16 *channels) {
        return threadIdx.x < of.halves * share.count ? __ldg(of.ape + channels[threadIdx.x]) : 0.0f;
    };
    const float main_ape = ape(layer.main, kv, main_channels);
    const float index_ape = layer.sparse ? ape(layer.index, index, index_channels) : 0.0f;
    products<16, 7>(
        shares.count(), a.C, [&](int unit) { return layer.matrices[rows[unit] >> 24].row(rows[unit] & 0xffffff, a.C); },
        [&](int) { return c.s.normed; },
        [&](int unit, float product) {
            if (threadIdx.x % 16 == 0)
                c.s.own[unit] = product;
        });
    workers_sync();
    c.team.give_all(c.s.low + low.first, c.s.own, low.count);
    c.team.give_all(c.s.kv + kv.first, own_kv, kv.count);
    c.team.give_all(c.s.head_weights + heads.first, own_heads, heads.count);
#pragma unroll 1
    for (int which = 0; which <= layer.sparse; which++)
        pool(c, which == 0 ? layer.main : layer.index, which == 0 ? kv : index, which == 0 ? main_channels : index_channels,
             which == 0 ? own_main : own_index, which == 0 ? main_ape : index_ape, which == 0 ? c.s.pooled : c.s.index_pooled);
    if (!layer.main.entry)
        return;
    workers_sync();
    c.team.give_all(c.s.pooled + kv.first, c.s.pooled + kv.first, kv.count);
    c.team.give_all(c.s.index_pooled + index.first, c.s.index_pooled + index.first, index.count);
}

// ---- up, with what is kept of the token

// The inverse root mean square of `count` numbers, by a warp.
template <class W> __device__ __forceinline__ float inverse_rms_of(const Context<W> &c, const float *x, int count) {
    float squares = 0.0f;
#pragma unroll 4
    for (int at = threadIdx.x % 32 * 4; at < count; at += 128)
        squares = dot4(load4(x + at), load4(x + at), squares);
    return rmsnorm_file::inverse_rms(warp_sum(squares), count, c.a.eps);
}

// A share of a vector of a token, of which each thread has a pair.
struct Pair {
    int channel;
    bool there;
    float2 norm;

    __device__ __forceinline__ Pair(const float *weights, Share share) {
        channel = share.first + 2 * threadIdx.x, there = threadIdx.x < share.count / 2;
        norm = there ? __ldg((const float2 *)(weights + channel)) : make_float2(0, 0);
    }

    // Norms and turns it, and stores it at `to`, and where a tap keeps it.
    template <class W>
    __device__ __forceinline__ void store(const Context<W> &c, const float *x, float inverse, int dim, int table, float *to,
                                          float *kept) const {
        if (!there)
            return;
        const int turned = channel - (dim - c.a.R);
        float2 y = make_float2(x[channel] * norm.x * inverse, x[channel + 1] * norm.y * inverse);
        if (turned >= 0)
            y = rope_file::turn<false>(y, c.s.cos[table][turned / 2], c.s.sin[table][turned / 2]);
        *(float2 *)(to + channel) = y;
        if (kept)
            *(float2 *)(kept + channel) = y;
    }

    // The same of the entry that the token completes; a tap keeps zeros if there is none.
    template <class W>
    __device__ __forceinline__ void store_entry(const Context<W> &c, const Compressor &of, const float *pooled, float inverse,
                                                int table, float *kept) const {
        if (of.entry)
            store(c, pooled, inverse, of.dim, table, of.entry, kept);
        else if (kept && there)
            *(float2 *)(kept + channel) = make_float2(0, 0);
    }
};

template <class W> __device__ __forceinline__ void up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int warp = threadIdx.x / 32;
    const Share kv = c.team.share<8>(a.D), index = c.team.share<8>(layer.sparse ? a.DI : 0);
    const float low_norm = threadIdx.x < a.Rq ? __ldg(a.q_norm + (size_t)layer.layer * a.Rq + threadIdx.x) : 0.0f;
    const Pair of_window(a.kv_norm + (size_t)layer.layer * a.D, kv), of_entry(layer.main.norm, kv),
        of_index(layer.index.norm, index);
    if (warp < (layer.main.entry ? layer.sparse ? 4 : 3 : 2)) {
        const float *const from = warp == 0 ? c.s.low : warp == 1 ? c.s.kv : warp == 2 ? c.s.pooled : c.s.index_pooled;
        const float inverse = inverse_rms_of(c, from, warp == 0 ? a.Rq : warp == 3 ? a.DI : a.D);
        if (threadIdx.x % 32 == 0)
            c.s.inverse[warp] = inverse;
    }
    workers_sync();
    if (threadIdx.x < a.Rq)
        c.s.low[threadIdx.x] *= low_norm * c.s.inverse[0];
    of_window.store(c, c.s.kv, c.s.inverse[1], a.D, 0, layer.own_vector,
                    a.at_kv_window ? c.kept(a.at_kv_window, layer.layer, a.layers, a.D) : nullptr);
    of_entry.store_entry(c, layer.main, c.s.pooled, c.s.inverse[2], layer.sparse ? 1 : 2,
                         a.at_kv_compressed ? c.kept(a.at_kv_compressed, layer.layer, a.layers, a.D) : nullptr);
    if (layer.sparse)
        of_index.store_entry(c, layer.index, c.s.index_pooled, c.s.inverse[3], 1,
                             a.at_index_key ? c.kept(a.at_index_key, layer.number, a.sparse, a.DI) : nullptr);
    workers_sync();

    const Share query = c.team.share<4>(a.H * a.D), index_query = c.team.share<4>(layer.sparse ? a.HI * a.DI : 0);
    const auto q_b = Matrix<W>{a.q_b, a.q_b_scales}.from((size_t)layer.layer * a.H * a.D + query.first, a.Rq);
    const auto index_q =
        Matrix<W>{a.index_q, a.index_q_scales}.from((size_t)layer.number * a.HI * a.DI + index_query.first, a.Rq);
    products<16, 3>(
        query.count + index_query.count, a.Rq,
        [&](int unit) { return unit < query.count ? q_b.row(unit, a.Rq) : index_q.row(unit - query.count, a.Rq); },
        [&](int) { return c.s.low; },
        [&](int unit, float product) {
            if (threadIdx.x % 16 == 0)
                c.s.own[unit] = product;
        });
    workers_sync();
    c.team.give_all(c.s.query + query.first, c.s.own, query.count);
    c.team.give_all(c.s.index_query + index_query.first, c.s.own + query.count, index_query.count);
}

// ---- queries and index scores

// Norms the heads of queries, and turns them and those of index queries.
template <class W> __device__ __forceinline__ void queries(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < a.H) {
        const float inverse = inverse_rms_of(c, c.s.query + warp * a.D, a.D);
        if (lane == 0)
            c.s.inverse[warp] = inverse;
    } else if (layer.sparse && warp - a.H < a.HI && lane < a.R / 2) {
        float2 &x = ((float2 *)(c.s.index_query + (warp - a.H + 1) * a.DI - a.R))[lane];
        x = rope_file::turn<false>(x, c.s.cos[0][lane], c.s.sin[0][lane]);
    }
    workers_sync();
#pragma unroll 2
    for (int head = 0; head < a.H; head++)
        if (threadIdx.x < a.D / 2) {
            float2 &x = ((float2 *)(c.s.query + head * a.D))[threadIdx.x];
            const int turned = (int)threadIdx.x - (a.D - a.R) / 2;
            const float inverse = c.s.inverse[head];
            float2 y = make_float2(x.x * inverse, x.y * inverse);
            if (turned >= 0)
                y = rope_file::turn<false>(y, c.s.cos[0][turned], c.s.sin[0][turned]);
            x = y;
        }
    workers_sync();
    c.keep(a.at_query, layer.layer, a.layers, c.s.query, a.H * a.D);
    if (layer.sparse)
        c.keep(a.at_index_query, layer.number, a.sparse, c.s.index_query, a.HI * a.DI);
}

// A warp for each entry.
template <class W> __device__ __forceinline__ void index_scores(const Context<W> &c, const Layer<W> &layer, int entries) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, at = 4 * lane;
#pragma unroll 1
    for (int entry = c.team.rank * WARPS + threadIdx.x / 32; entry < entries; entry += c.team.ranks() * WARPS) {
        const float4 key = at < a.DI ? ldcg4(layer.index.entries + (size_t)entry * a.DI + at) : make_float4(0, 0, 0, 0);
        float score = 0.0f;
#pragma unroll 1
        for (int head = 0; head < a.HI; head++) {
            const float4 query = at < a.DI ? load4(c.s.index_query + head * a.DI + at) : make_float4(0, 0, 0, 0);
            const float product = warp_sum(dot4(key, query, 0.0f));
            score = fmaf(c.s.head_weights[head] * a.index_scale, product < 0.0f ? 0.0f : product, score);
        }
        c.team.give(c.s.index_scores() + entry, score, lane);
    }
}

// ---- the choice of entries

// Chooses the first `topk` in the order of scores, in the order of their numbers; -1 behind them if there are fewer.
template <class W> __device__ __forceinline__ void select(const Context<W> &c, const Layer<W> &layer, int entries) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32;
    if (entries <= a.topk) {
#pragma unroll 1
        for (int at = threadIdx.x; at < a.topk; at += WORKERS)
            c.s.chosen[at] = at < entries ? at : -1;
    } else {
        // Sixteen lanes count what comes before an entry.
        u32 *const keys = (u32 *)c.s.index_scores();
        int *const taken = c.s.taken(a);
#pragma unroll 1
        for (int entry = threadIdx.x; entry < entries; entry += WORKERS)
            keys[entry] = top_k_file::key_of(__uint_as_float(keys[entry]));
        workers_sync();
#pragma unroll 1
        for (int first = 0; first < entries; first += WORKERS / 16) {
            const int entry = first + threadIdx.x / 16;
            const u32 key = entry < entries ? keys[entry] : 0;
            int before = 0;
#pragma unroll 1
            for (int other = threadIdx.x % 16; other < entries && entry < entries; other += 16)
                before += keys[other] > key || (keys[other] == key && other < entry);
#pragma unroll
            for (int step = 8; step > 0; step /= 2)
                before += __shfl_xor_sync(0xffffffff, before, step);
            if (threadIdx.x % 16 == 0 && entry < entries)
                taken[entry] = before < a.topk;
        }
        workers_sync();
#pragma unroll 1
        for (int first = 0, count = 0; first < entries && threadIdx.x < 32; first += 32) {
            const bool own = first + lane < entries && taken[first + lane];
            const u32 all = __ballot_sync(0xffffffff, own);
            if (own)
                c.s.chosen[count + __popc(all & ((1u << lane) - 1))] = first + lane;
            count += __popc(all);
        }
    }
    workers_sync();
    c.keep(a.at_topk, layer.number, a.sparse, c.s.chosen, a.topk);
}

// ---- attention

// The keys of a row: its window from the oldest vector on, then entries.
struct Keys {
    const float *window, *entries;
    const int *chosen;
    int recent, oldest, slots, dim, count;

    template <class W> __device__ __forceinline__ Keys(const Context<W> &c, const Layer<W> &layer, int available) {
        const int t = c.row.position, first = max(0, t - c.a.Wn + 1);
        window = layer.window, entries = layer.main.entries, chosen = layer.sparse ? c.s.chosen : nullptr;
        recent = t - first + 1, oldest = first % c.a.Wn, slots = c.a.Wn, dim = c.a.D;
        count = recent + (layer.sparse ? min(available, c.a.topk) : available);
    }

    __device__ __forceinline__ const float *operator()(int key) const {
        if (key < recent) {
            const int slot = oldest + key;
            return window + (size_t)(slot < slots ? slot : slot - slots) * dim;
        }
        return entries + (size_t)(chosen ? chosen[key - recent] : key - recent) * dim;
    }
};

// A warp for each key.
template <class W> __device__ __forceinline__ void scores(const Context<W> &c, const Keys &keys) {
    constexpr int PARTS = MOST_D / 128;
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int key = c.team.rank * WARPS + threadIdx.x / 32; key < keys.count; key += c.team.ranks() * WARPS) {
        const float *const from = keys(key);
        float4 vector[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = 128 * part + 4 * lane;
            vector[part] = at < a.D ? ldcg4(from + at) : make_float4(0, 0, 0, 0);
        }
#pragma unroll 2
        for (int head = 0; head < a.H; head++) {
            float product = 0.0f;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int at = 128 * part + 4 * lane;
                if (at < a.D)
                    product = dot4(vector[part], load4(c.s.query + head * a.D + at), product);
            }
            c.team.give(c.s.scores(a, head) + key, warp_sum(product) * a.attention_scale, lane);
        }
    }
}

// Scores become shares, not yet divided by their total; a warp for each head, which has its sink.
template <class W> __device__ __forceinline__ void softmax(const Context<W> &c, float sink, int keys) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, head = threadIdx.x / 32;
    if (head < a.H) {
        float *const own = c.s.scores(a, head);
        float top = sink;
#pragma unroll 1
        for (int key = lane; key < keys; key += 32)
            top = max_nan(top, own[key]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            top = max_nan(top, __shfl_xor_sync(0xffffffff, top, step));
        float sum = 0.0f;
#pragma unroll 1
        for (int key = lane; key < keys; key += 32) {
            own[key] = expf(own[key] - top);
            sum += own[key];
        }
        sum = warp_sum(sum) + expf(sink - top);
        if (lane == 0)
            c.s.inverse_totals[head] = 1.0f / sum;
    }
    workers_sync();
}

// What heads read, turned back: a warp for eight channels, of which two lanes have four each; sixteen pairs of lanes take turns with
// the keys, and load some at a time.
template <class W> __device__ __forceinline__ void attend(const Context<W> &c, const Keys &keys) {
    constexpr int TURNS = 16, EACH = 6;
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, turn = lane / 2;
    const Share share = c.team.share<8>(a.H * a.D);
    int at = share.first + threadIdx.x / 32 * 8 + lane % 2 * 4, head = at / a.D, channel = at % a.D;
#ifdef MUTANT_LAST_KEY_LOST
    const int last = keys.count - 1;
#else
    const int last = keys.count;
#endif
#pragma unroll 1
    for (; at < share.first + share.count; at += 8 * WARPS) {
        const float *const weights = c.s.scores(a, head);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int first = turn; first < last; first += EACH * TURNS) {
            float4 vectors[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (const int key = first + i * TURNS; key < last)
                    vectors[i] = ldcg4(keys(key) + channel);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (const int key = first + i * TURNS; key < last) {
                    const float weight = weights[key];
                    sum.x = fmaf(weight, vectors[i].x, sum.x), sum.y = fmaf(weight, vectors[i].y, sum.y);
                    sum.z = fmaf(weight, vectors[i].z, sum.z), sum.w = fmaf(weight, vectors[i].w, sum.w);
                }
        }
#pragma unroll
        for (int step = 2; step < 32; step *= 2) {
            sum.x += __shfl_xor_sync(0xffffffff, sum.x, step), sum.y += __shfl_xor_sync(0xffffffff, sum.y, step);
            sum.z += __shfl_xor_sync(0xffffffff, sum.z, step), sum.w += __shfl_xor_sync(0xffffffff, sum.w, step);
        }
        const float inverse = c.s.inverse_totals[head];
        float2 low = make_float2(sum.x * inverse, sum.y * inverse), high = make_float2(sum.z * inverse, sum.w * inverse);
        if (const int turned = channel - (a.D - a.R); turned >= 0) {
            low = rope_file::turn<true>(low, c.s.cos[0][turned / 2], c.s.sin[0][turned / 2]);
            high = rope_file::turn<true>(high, c.s.cos[0][turned / 2 + 1], c.s.sin[0][turned / 2 + 1]);
        }
        c.team.give4(c.s.heads + at, make_float4(low.x, low.y, high.x, high.y), turn);
        for (channel += 8 * WARPS; channel >= a.D; channel -= a.D)
            head++;
    }
}

// ---- the output

template <class W> __device__ __forceinline__ void output_down(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int of_group = a.H * a.D / a.G;
    const Share share = c.team.share<1>(a.G * a.Ro);
    const auto o_a = Matrix<W>{a.o_a, a.o_a_scales}.from((size_t)layer.layer * a.G * a.Ro + share.first, of_group);
    products<32, 1>(
        share.count, of_group, [&](int unit) { return o_a.row(unit, of_group); },
        [&](int unit) { return c.s.heads + (share.first + unit) / a.Ro * of_group; },
        [&](int unit, float product) { c.team.give(c.s.low_heads + share.first + unit, product, threadIdx.x % 32); });
}

// By each CTA, all of it.
template <class W> __device__ __forceinline__ void output_up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int rank = a.G * a.Ro;
    const auto o_b = Matrix<W>{a.o_b, a.o_b_scales}.from((size_t)layer.layer * a.C, rank);
    products<16, 2>(
        a.C, rank, [&](int unit) { return o_b.row(unit, rank); }, [&](int) { return c.s.low_heads; },
        [&](int unit, float product) {
            if (threadIdx.x % 16 == 0)
                c.s.out[unit] = product;
        });
    workers_sync();
    c.keep(a.at_attention_output, layer.layer, a.layers, c.s.out, a.C);
}

template <class W> __device__ __forceinline__ void attention(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const float sink = __ldg(a.sinks + layer.layer * a.H + min((int)threadIdx.x / 32, a.H - 1));
    c.keep(a.at_attention_input, layer.layer, a.layers, c.s.normed, a.C);
    down(c, layer);
    cluster_sync();
    up(c, layer);
    cluster_sync();
    queries(c, layer);
    const int seen = entries_seen(c.row.position);
    const int entries = seen / (layer.sparse ? a.ms : heavy_rate(a.ms, a.mh));
    if (layer.sparse) {
        index_scores(c, layer, entries);
        cluster_sync();
        select(c, layer, entries);
    }
    const Keys keys(c, layer, entries);
    scores(c, keys);
    cluster_sync();
    softmax(c, sink, keys.count);
    attend(c, keys);
    cluster_sync();
    c.keep(a.at_heads, layer.layer, a.layers, c.s.heads, a.H * a.D);
    output_down(c, layer);
    cluster_sync();
    output_up(c, layer);
}

// How often attention of a layer exchanges.
__device__ __forceinline__ int exchanges(bool sparse) {
    return sparse ? 6 : 5;
}

} // namespace persistent
