// Attention of the variant `persistent`, in phases; an exchange, where all CTAs of the cluster wait for each other, is between two.
#pragma once

#include "decode_step/attend.cuh"
#include "decode_step/output.cuh"
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
    // What is added to the logits of the first numbers is on its way while products are.
    const u16 *const main_channels = c.s.channels[layer.sparse], *const index_channels = c.s.channels[2];
    const auto ape = [&](const Compressor &of, Share share, const u16 *channels) {
        return threadIdx.x < of.halves * share.count ? __ldg(of.ape + channels[threadIdx.x]) : 0.0f;
    };
    const float main_ape = ape(layer.main, kv, main_channels);
    const float index_ape = layer.sparse ? ape(layer.index, index, index_channels) : 0.0f;
    const int count = shares.count();
    const auto row = [&](int unit) {
        if constexpr (W::STAGED) {
            return c.s.staged.down.row(unit);
        } else {
            const u32 row = c.s.down_rows[layer.sparse][unit];
            return layer.matrices[row >> 24].row(row & 0xffffff, a.C);
        }
    };
    if constexpr (W::STAGED)
        c.s.staged.wait(ATTENTION, layer.layer);
    u64 *const arrived = c.s.arrived + DOWN;
    // The first units are given at once.
    const int behind_kv = low.count + kv.count, behind_heads = behind_kv + heads.count;
    const auto place = [&](int unit) {
        return unit < low.count   ? c.s.low + low.first + unit
               : unit < behind_kv ? c.s.kv + kv.first + unit - low.count
                                  : c.s.head_weights + heads.first + unit - behind_kv;
    };
    products<W::STAGED ? 1 : 2, W::STAGED>(count, a.C, c.s.normed, row, [&](int unit, float product) {
        if constexpr (W::STAGED)
            if (const int four = unit / 4 * 4; unit / 8 * 8 < behind_heads)
                c.team.give_four(arrived, four < behind_heads ? place(four) : nullptr, product);
        if (threadIdx.x % 4 == 0 && unit < count)
            c.s.own[unit] = product;
    });
    workers_sync();
    if constexpr (!W::STAGED) {
        c.team.give_all(arrived, c.s.low + low.first, c.s.own, low.count);
        c.team.give_all(arrived, c.s.kv + kv.first, own_kv, kv.count);
        c.team.give_all(arrived, c.s.head_weights + heads.first, own_heads, heads.count);
    }
#pragma unroll 1
    for (int which = 0; which <= layer.sparse; which++)
        pool(c, which == 0 ? layer.main : layer.index, which == 0 ? kv : index, which == 0 ? main_channels : index_channels,
             which == 0 ? own_main : own_index, which == 0 ? main_ape : index_ape, which == 0 ? c.s.pooled : c.s.index_pooled);
    if (!layer.main.entry)
        return;
    workers_sync();
    c.team.give_all(arrived, c.s.pooled + kv.first, c.s.pooled + kv.first, kv.count);
    c.team.give_all(arrived, c.s.index_pooled + index.first, c.s.index_pooled + index.first, index.count);
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

// A vector of a token, of which each thread has a pair; this CTA has a share of those that are stored.
struct Pair {
    int channel;
    bool there, own;
    float2 norm;

    __device__ __forceinline__ Pair(const float *weights, int dim, Share share) {
        channel = 2 * threadIdx.x, there = channel < dim, own = (u32)(channel - share.first) < (u32)share.count;
        norm = there ? *(const float2 *)(weights + channel) : make_float2(0, 0);
    }

    // Norms and turns it, in its place, where all keys of this token are read, and stores it at `to`, and where a tap keeps it.
    template <class W>
    __device__ __forceinline__ void store(const Context<W> &c, float *x, float inverse, int dim, int table, float *to,
                                          float *kept) const {
        if (!there)
            return;
        const int turned = channel - (dim - c.a.R);
        float2 y = make_float2(x[channel] * norm.x * inverse, x[channel + 1] * norm.y * inverse);
        if (turned >= 0)
            y = rope_file::turn<false>(y, c.s.cos[table][turned / 2], c.s.sin[table][turned / 2]);
        *(float2 *)(x + channel) = y;
        if (!own)
            return;
        *(float2 *)(to + channel) = y;
        if (kept)
            *(float2 *)(kept + channel) = y;
    }

    // The same of the entry that the token completes; a tap keeps zeros if there is none.
    template <class W>
    __device__ __forceinline__ void store_entry(const Context<W> &c, const Compressor &of, float *pooled, float inverse,
                                                int table, float *kept) const {
        if (of.entry)
            store(c, pooled, inverse, of.dim, table, of.entry, kept);
        else if (kept && own)
            *(float2 *)(kept + channel) = make_float2(0, 0);
    }
};

template <class W> __device__ __forceinline__ void up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int warp = threadIdx.x / 32;
    const Share kv = c.team.template share<8>(a.D), index = c.team.template share<8>(a.DI).only_if(layer.sparse);
    const float *kv_norm = a.kv_norm + (size_t)layer.layer * a.D, *norm = layer.main.norm, *index_norm = layer.index.norm;
    if constexpr (W::STAGED)
        kv_norm = c.s.staged.kv_norm, norm = c.s.staged.norm, index_norm = c.s.staged.index_norm;
    const Pair of_window(kv_norm, a.D, kv), of_entry(norm, a.D, kv), of_index(index_norm, layer.sparse ? a.DI : 0, index);
    if (warp < (layer.main.entry ? layer.sparse ? 4 : 3 : 2)) {
        const float *const from = warp == 0 ? c.s.low : warp == 1 ? c.s.kv : warp == 2 ? c.s.pooled : c.s.index_pooled;
        const float inverse = inverse_rms_of(c, from, warp == 0 ? a.Rq : warp == 3 ? a.DI : a.D);
        if (threadIdx.x % 32 == 0)
            c.s.inverse[warp] = inverse;
    }
    workers_sync();
    if (threadIdx.x < a.Rq)
        c.s.low[threadIdx.x] *= layer.q_norm[threadIdx.x] * c.s.inverse[0];
    of_window.store(c, c.s.kv, c.s.inverse[1], a.D, 0, layer.own_vector,
                    a.at_kv_window ? c.kept(a.at_kv_window, layer.layer, a.layers, a.D) : nullptr);
    of_entry.store_entry(c, layer.main, c.s.pooled, c.s.inverse[2], layer.sparse ? 1 : 2,
                         a.at_kv_compressed ? c.kept(a.at_kv_compressed, layer.layer, a.layers, a.D) : nullptr);
    if (layer.sparse)
        of_index.store_entry(c, layer.index, c.s.index_pooled, c.s.inverse[3], 1,
                             a.at_index_key ? c.kept(a.at_index_key, layer.number, a.sparse, a.DI) : nullptr);
    workers_sync();

    const Share query = c.team.template share<4>(a.H * a.D),
                index_query = c.team.template share<4>(a.HI * a.DI).only_if(layer.sparse);
    const int count = query.count + index_query.count;
    const auto row = [&](int unit) {
        if constexpr (W::STAGED) {
            return c.s.staged.up.row(unit);
        } else {
            const auto q_b = Matrix<W>{a.q_b, a.q_b_scales}.from((size_t)layer.layer * a.H * a.D + query.first, a.Rq);
            const auto index_q =
                Matrix<W>{a.index_q, a.index_q_scales}.from((size_t)layer.number * a.HI * a.DI + index_query.first, a.Rq);
            return unit < query.count ? q_b.row(unit, a.Rq) : index_q.row(unit - query.count, a.Rq);
        }
    };
    u64 *const arrived = c.s.arrived + UP;
    products<1, W::STAGED>(count, a.Rq, c.s.low, row, [&](int unit, float product) {
        if constexpr (W::STAGED) {
            const int four = unit / 4 * 4;
            float *const to =
                four < query.count ? c.s.query + query.first + four : c.s.index_query + index_query.first + four - query.count;
            c.team.give_four(arrived, four < count ? to : nullptr, product);
        } else if (threadIdx.x % 4 == 0 && unit < count) {
            c.s.own[unit] = product;
        }
    });
    if constexpr (!W::STAGED) {
        workers_sync();
        c.team.give_all(arrived, c.s.query + query.first, c.s.own, query.count);
        c.team.give_all(arrived, c.s.index_query + index_query.first, c.s.own + query.count, index_query.count);
    }
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

// What an index query is compared with: four numbers of an entry for each lane.
template <class W> __device__ __forceinline__ float4 index_key(const Context<W> &c, const Layer<W> &layer, int entry) {
    const int at = 4 * (threadIdx.x % 32);
    if (at >= c.a.DI)
        return make_float4(0, 0, 0, 0);
    return load4((entry == layer.index.newest ? c.s.index_pooled : layer.index.entries + (size_t)entry * c.a.DI) + at);
}

// A warp for each entry, of which the first is loaded. What is given are scores as keys of the choice.
template <class W>
__device__ __forceinline__ void index_scores(const Context<W> &c, const Layer<W> &layer, int entries, float4 key) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32, at = 4 * lane, first = c.team.rank * WARPS + threadIdx.x / 32;
#pragma unroll 1
    for (int entry = first; entry < entries; entry += c.team.ranks() * WARPS) {
        if (entry != first)
            key = index_key(c, layer, entry);
        float score = 0.0f;
#pragma unroll 4
        for (int head = 0; head < a.HI; head++) {
            const float4 query = at < a.DI ? load4(c.s.index_query + head * a.DI + at) : make_float4(0, 0, 0, 0);
            const float product = warp_sum(dot4(key, query, 0.0f));
            score = fmaf(c.s.head_weights[head] * a.index_scale, product < 0.0f ? 0.0f : product, score);
        }
        c.team.give(c.s.arrived + INDEX_SCORES, (float *)c.s.index_keys() + entry, __uint_as_float(top_k_file::key_of(score)),
                    lane);
    }
}

// ---- the choice of entries

// Chooses the first `topk` in the order of scores, in the order of their numbers; -1 behind them if there are fewer.
template <class W> __device__ __forceinline__ void select(const Context<W> &c, const Layer<W> &layer, int entries) {
    const Arguments<W> &a = c.a;
    if (entries <= a.topk) {
#pragma unroll 1
        for (int at = threadIdx.x; at < a.topk; at += WORKERS)
            c.s.chosen[at] = at < entries ? at : -1;
    } else {
        const u32 *const keys = c.s.index_keys();
        u32 *const taken = c.s.taken(a);
        // A thread for each entry counts what comes before it; a warp keeps a word of those that are taken.
#pragma unroll 1
        for (int entry = threadIdx.x; entry / 32 * 32 < entries; entry += WORKERS) {
            const u32 key = entry < entries ? keys[entry] : 0;
            int before = 0;
#pragma unroll 1
            for (int at = 0; at < entries; at += 4) {
                const uint4 four = *(const uint4 *)(keys + at);
                const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    before += at + i < entries && (others[i] > key || (others[i] == key && at + i < entry));
            }
            const u32 all = __ballot_sync(0xffffffff, entry < entries && before < a.topk);
            if (entry % 32 == 0)
                taken[entry / 32] = all;
        }
        workers_sync();
#pragma unroll 1
        for (int entry = threadIdx.x; entry < entries; entry += WORKERS) {
            const u32 own = taken[entry / 32], bit = 1u << entry % 32;
            if (!(own & bit))
                continue;
            int at = __popc(own & (bit - 1));
#pragma unroll 1
            for (int word = 0; word < entry / 32; word++)
                at += __popc(taken[word]);
            c.s.chosen[at] = entry;
        }
    }
    workers_sync();
    c.keep(a.at_topk, layer.number, a.sparse, c.s.chosen, a.topk);
}

// ---- all phases

template <class W> __device__ __forceinline__ void attention(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    c.keep(a.at_attention_input, layer.layer, a.layers, c.s.normed, a.C);
    down(c, layer);
    const int of_heads = layer.sparse ? a.HI : 0, of_index = layer.sparse ? a.DI : 0;
    c.exchange(DOWN, layer.layer, a.Rq + a.D + of_heads + (layer.main.entry ? a.D + of_index : 0));
    up(c, layer);
    // What is known before queries are there is loaded while they come.
    const int seen = entries_seen(c.row.position);
    const int entries = seen / (layer.sparse ? a.ms : heavy_rate(a.ms, a.mh));
    const Keys keys(c, layer, entries);
    const int first = Key<W>::first(c);
    Attend<W> attend(c, keys, layer.sinks);
    Key<W> key = {};
    float4 of_first = make_float4(0, 0, 0, 0);
    if (keys.known(first))
        key.load(c, keys, first);
    if (layer.sparse && first < entries)
        of_first = index_key(c, layer, first);
    c.exchange(UP, layer.layer, a.H * a.D + a.HI * of_index);
    queries(c, layer);
    if (layer.sparse) {
        index_scores(c, layer, entries, of_first);
        c.exchange(INDEX_SCORES, layer.number, entries);
        select(c, layer, entries);
    }
    scores(c, keys, key);
    attend.begin();
    c.exchange(SCORES, layer.layer, a.H * keys.count);
    attend.run();
    c.exchange(HEADS, layer.layer, a.H * a.D);
    c.keep(a.at_heads, layer.layer, a.layers, c.s.heads, a.H * a.D);
    output_down(c, layer);
    c.exchange(LOW_HEADS, layer.layer, a.G * a.Ro);
    output_up(c, layer);
}

// How often attention of a layer exchanges.
__device__ __forceinline__ int exchanges(bool sparse) {
    return sparse ? 6 : 5;
}

} // namespace persistent
