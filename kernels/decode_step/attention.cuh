// Attention of the variant `persistent`, in phases; an exchange, where all CTAs of the cluster wait for each other, is between two.
#pragma once

#include "decode_step/attend.cuh"
#include "decode_step/choice.cuh"
#include "decode_step/output.cuh"
#include "decode_step/pool.cuh"
#include "decode_step/streams.cuh"

namespace persistent {

// ---- down, and pool

// Stores the values and logits of a token in the rings, by `step` threads. `products` has values, then logits, [halves, channels of the share]
// each; ape(i, channel) is what is added to the logit of number i.
template <class Ape>
__device__ __forceinline__ void store_rings(const Compressor &of, Share share, const u16 *channels, const float *products,
                                            int thread, int step, Ape ape) {
    const int count = of.halves * share.count;
#pragma unroll 1
    for (int at = thread; at < count; at += step) {
        const int channel = channels[at];
        of.token_kv[channel] = products[at], of.token_gate[channel] = products[count + at] + ape(at, channel);
    }
}

// What a CTA has of both compressors.
template <class W> struct Rings {
    Share kv, index;
    const float *main_products, *index_products;
    float main_ape, index_ape;

    // If workers store them, what is added to the logits of the first numbers is on its way while products are.
    __device__ __forceinline__ Rings(const Context<W> &c, const Layer<W> &layer, const DownShares &shares, bool workers)
        : kv(shares.kv), index(shares.index) {
        main_products = c.s.down_products + shares.low.count + kv.count + shares.heads.count,
        index_products = main_products + shares.of_main();
        const auto ape = [&](const Compressor &of, Share share, const u16 *channels) {
            return threadIdx.x < of.halves * share.count ? __ldg(of.ape + channels[threadIdx.x]) : 0.0f;
        };
        main_ape = workers ? ape(layer.main, kv, c.s.channels[layer.sparse]) : 0.0f;
        index_ape = workers && layer.sparse ? ape(layer.index, index, c.s.channels[2]) : 0.0f;
    }

    __device__ __forceinline__ void store(const Context<W> &c, const Layer<W> &layer) const {
        const auto store = [&](const Compressor &of, Share share, const u16 *channels, const float *products, float of_first) {
            store_rings(of, share, channels, products, threadIdx.x, c.WORKERS,
                        [&](int at, int channel) { return at < c.WORKERS ? of_first : __ldg(of.ape + channel); });
        };
        store(layer.main, kv, c.s.channels[layer.sparse], main_products, main_ape);
        if (layer.sparse)
            store(layer.index, index, c.s.channels[2], index_products, index_ape);
    }

    // The same by a warp, if nobody waits for it.
    __device__ __forceinline__ void store_apart(const Context<W> &c, const Layer<W> &layer) const {
        const auto store = [&](const Compressor &of, Share share, const u16 *channels, const float *products) {
            store_rings(of, share, channels, products, threadIdx.x % 32, 32,
                        [&](int, int channel) { return __ldg(of.ape + channel); });
        };
        store(layer.main, kv, c.s.channels[layer.sparse], main_products);
        if (layer.sparse)
            store(layer.index, index, c.s.channels[2], index_products);
    }
};

// The products of the block's input: queries' rank, the window's vector, weights of index heads, and both compressors. Rings are
// stored here only if the token closes their windows.
template <class W>
__device__ __forceinline__ void down(const Context<W> &c, const Layer<W> &layer, const DownShares &shares,
                                     const Rings<W> &rings) {
    const Arguments<W> &a = c.a;
    const Share low = shares.low, kv = shares.kv, heads = shares.heads, index = shares.index;
    float *const kv_products = c.s.down_products + low.count, *const head_products = kv_products + kv.count;
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
        c.s.staged.wait(FIRST, layer.layer);
    u64 *const arrived = c.s.arrived + DOWN;
    // The first units are sent at once.
    const int after_kv = low.count + kv.count, after_heads = after_kv + heads.count;
    const auto place = [&](int unit) {
        return unit < low.count  ? c.s.low + low.first + unit
               : unit < after_kv ? c.s.kv + kv.first + unit - low.count
                                 : c.s.head_weights + heads.first + unit - after_kv;
    };
    products<typename W::Ranks, W::STAGED ? 1 : 2, W::STAGED>(count, a.C, c.s.normed, row, [&](int unit, float product) {
        if constexpr (W::STAGED)
            if (const int four = unit / 4 * 4; unit / 8 * 8 < after_heads)
                c.team.broadcast_four(arrived, four < after_heads ? place(four) : nullptr, product);
        if (threadIdx.x % 4 == 0 && unit < count)
            c.s.down_products[unit] = product;
    });
    // The copier waits for it, and the mixer.
    if constexpr (W::STAGED) {
        named_barrier_arrive(FIRST_READ, c.WORKERS + 32);
        named_barrier_arrive(DOWN_READY, c.WORKERS + 32);
    }
    // Nobody else reads these numbers before `store_rings`.
    if (!W::STAGED || layer.main.entry)
        c.sync();
    if constexpr (!W::STAGED) {
        c.team.broadcast(arrived, c.s.low + low.first, c.s.down_products, low.count);
        c.team.broadcast(arrived, c.s.kv + kv.first, kv_products, kv.count);
        // A share of them begins at any number.
        c.team.template broadcast<false>(arrived, c.s.head_weights + heads.first, head_products, heads.count);
    }
    if (!layer.main.entry)
        return;
    rings.store(c, layer);
    c.sync();
    pool<Context<W>::WARPS>(c.s.pool, c.row.position, {&layer.main, kv, c.s.pooled}, {&layer.index, index, c.s.index_pooled});
    c.sync();
    c.team.broadcast(arrived, c.s.pooled + kv.first, c.s.pooled + kv.first, kv.count);
    c.team.broadcast(arrived, c.s.index_pooled + index.first, c.s.index_pooled + index.first, index.count);
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
    bool in_range, stored;
    float2 norm;

    __device__ __forceinline__ Pair(const float *weights, int dim, Share share) {
        channel = 2 * threadIdx.x, in_range = channel < dim, stored = (u32)(channel - share.first) < (u32)share.count;
        norm = in_range ? *(const float2 *)(weights + channel) : make_float2(0, 0);
    }

    // Norms and rotates the pair in place, where all keys of this token are read. Stores it at `to`, and at `kept` for a tap.
    template <class W>
    __device__ __forceinline__ void store(const Context<W> &c, float *x, float inverse, int dim, int table, float *to,
                                          float *kept) const {
        if (!in_range)
            return;
        const int rotated = channel - (dim - c.a.R);
        float2 y = make_float2(x[channel] * norm.x * inverse, x[channel + 1] * norm.y * inverse);
        if (rotated >= 0)
            y = rope_file::turn<false>(y, c.s.cos[table][rotated / 2], c.s.sin[table][rotated / 2]);
        *(float2 *)(x + channel) = y;
        if (!stored)
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
        else if (kept && stored)
            *(float2 *)(kept + channel) = make_float2(0, 0);
    }
};

// Rotates two pairs of a head of `dim` channels, from `channel` on, if they are among the channels that RoPE rotates.
template <class W>
__device__ __forceinline__ float4 rotate_four(const Context<W> &c, float4 x, int channel, int dim, int table = 0) {
    const int rotated = channel - (dim - c.a.R);
    if (rotated < 0)
        return x;
    const float2 low = rope_file::turn<false>(make_float2(x.x, x.y), c.s.cos[table][rotated / 2], c.s.sin[table][rotated / 2]);
    const float2 high =
        rope_file::turn<false>(make_float2(x.z, x.w), c.s.cos[table][rotated / 2 + 1], c.s.sin[table][rotated / 2 + 1]);
    return make_float4(low.x, low.y, high.x, high.y);
}

// Queries of heads, and index queries, of the normed rank: rotated, but heads are not normed yet.
template <class W> __device__ __forceinline__ void up(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const Share query = c.team.template share<4>(a.H * a.D),
                index_query = c.team.template share<4>(a.HI * a.DI).only_if(index_queries(c, layer.sparse) > 0);
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
    // The same four lanes norm the rank as multiply by it.
    constexpr int PARTS = MOST_RQ / 16;
    const int lane = threadIdx.x % 4;
    float4 x[PARTS];
    float squares = 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        x[part] = make_float4(0, 0, 0, 0);
        if (const int column = 4 * (lane + 4 * part); column < a.Rq) {
            const float4 low = load4(c.s.low + column), norm = load4(layer.q_norm + column);
            squares = dot4(low, low, squares);
            x[part] = make_float4(low.x * norm.x, low.y * norm.y, low.z * norm.z, low.w * norm.w);
        }
    }
    const float inverse = rmsnorm_file::inverse_rms(lanes_sum<4>(squares), a.Rq, a.eps);
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        x[part] = make_float4(x[part].x * inverse, x[part].y * inverse, x[part].z * inverse, x[part].w * inverse);
    // Where weights are not staged, what two units have is asked for at once.
    constexpr int UNITS = W::STAGED ? 1 : 2, STEP = Context<W>::WORKERS / 4;
    const auto column = [&](int part) { return 4 * (lane + 4 * part); };
#pragma unroll 1
    for (int first = threadIdx.x / 4; first / 8 * 8 < count; first += UNITS * STEP) {
        float4 loaded[UNITS][PARTS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const auto weights = row(min(first + u * STEP, count - 1));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                loaded[u][part] = weights.four(min(column(part), a.Rq - 4));
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const int unit = first + u * STEP;
            float sums[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const float sum = dot4(loaded[u][part], x[part], 0.0f);
                sums[part] = column(part) < a.Rq ? sum : 0.0f;
            }
            const float product = lanes_sum<4>((sums[0] + sums[1]) + (sums[2] + sums[3]));
            const int four = unit / 4 * 4, of_head = query.first + four, of_index = index_query.first + four - query.count;
            const bool is_index = four >= query.count;
            float4 all = c.team.four(product);
            if (four >= count)
                continue;
            const int dim = is_index ? a.DI : a.D;
            all = rotate_four(c, all, (is_index ? of_index : of_head) % dim, dim);
            float *const to = is_index ? c.s.index_query + of_index : c.s.query + of_head;
            c.team.send(arrived, to, all, threadIdx.x % 16);
        }
    }
}

// Norms and stores the vector of the window, and the entries that the token completes.
template <class W> __device__ __forceinline__ void store_keys(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    const int warp = threadIdx.x / 32;
    const Share kv = c.team.template share<8>(a.D), index = c.team.template share<8>(a.DI).only_if(layer.sparse);
    const float *kv_norm = a.kv_norm + (size_t)layer.layer * a.D;
    const Pair of_window(kv_norm, a.D, kv);
    if (warp < (layer.main.entry ? layer.sparse ? 3 : 2 : 1)) {
        const float *const from = warp == 0 ? c.s.kv : warp == 1 ? c.s.pooled : c.s.index_pooled;
        const float inverse = inverse_rms_of(c, from, warp == 2 ? a.DI : a.D);
        if (threadIdx.x % 32 == 0)
            c.s.inverse[warp] = inverse;
    }
    c.sync();
    of_window.store(c, c.s.kv, c.s.inverse[0], a.D, 0, layer.token_vector,
                    a.at_kv_window ? c.kept(a.at_kv_window, layer.layer, a.layers, a.D) : nullptr);
    // Where there are no taps, most tokens are done.
    if (layer.main.entry || a.at_kv_compressed || a.at_index_key) {
        Pair(layer.main.norm, a.D, kv)
            .store_entry(c, layer.main, c.s.pooled, c.s.inverse[1], layer.sparse ? 1 : 2,
                         a.at_kv_compressed ? c.kept(a.at_kv_compressed, layer.layer, a.layers, a.D) : nullptr);
        if (layer.sparse)
            Pair(layer.index.norm, a.DI, index)
                .store_entry(c, layer.index, c.s.index_pooled, c.s.inverse[2], 1,
                             a.at_index_key ? c.kept(a.at_index_key, layer.number, a.sparse, a.DI) : nullptr);
    }
    c.sync();
}

// Norms and rotates a vector of this token, puts it at `here`, and stores it at `to`, if this is a place, and where a tap keeps it; by a
// warp.
template <class W>
__device__ __forceinline__ void store_vector(const Context<W> &c, const float *x, float *here, const float *norm, int dim,
                                             int table, float *to, float *kept) {
    Key<W> vector;
    vector.load(c, x, dim);
    float squares = 0.0f;
#pragma unroll
    for (int part = 0; part < vector.PARTS; part++)
        squares = dot4(vector.parts[part], vector.parts[part], squares);
    const float inverse = rmsnorm_file::inverse_rms(warp_sum(squares), dim, c.a.eps);
#pragma unroll
    for (int part = 0; part < vector.PARTS; part++) {
        const int at = 128 * part + 4 * (threadIdx.x % 32);
        if (at >= dim)
            continue;
        const float4 four = vector.parts[part], by = load4(norm + at);
        const float4 normed =
            make_float4(four.x * by.x * inverse, four.y * by.y * inverse, four.z * by.z * inverse, four.w * by.w * inverse);
        const float4 y = rotate_four(c, normed, at, dim, table);
        *(float4 *)(here + at) = y;
        if (to)
            *(float4 *)(to + at) = y;
        if (to && kept)
            *(float4 *)(kept + at) = y;
    }
}

// The same as `store_keys`, in two parts. By the warps that have these keys, so that no others wait for them: entries that the token
// completes. A warp has that of a layer that does not choose in its group, or the index entry. Any CTA may choose the entry of a layer
// that does, which a warp without keys makes.
template <class W> __device__ __forceinline__ void store_entries(const Context<W> &c, const Layer<W> &layer, const Keys &keys) {
    typedef typename W::Sizes S;
    static_assert(S::Wn + S::topk <= GROUPS * (Context<W>::WARPS - 2), "the last warps have no keys of layers that choose");
    const Arguments<W> &a = c.a;
    const int warp = threadIdx.x / 32;
    const auto has = [&](int key, int of_warp) { return key / GROUPS % c.WARPS == of_warp && key % GROUPS == c.team.rank; };
    float *const kept = a.at_kv_compressed ? c.kept(a.at_kv_compressed, layer.layer, a.layers, S::D) : nullptr;
    float *const kept_index = a.at_index_key && layer.sparse ? c.kept(a.at_index_key, layer.number, a.sparse, S::DI) : nullptr;
    const int made = layer.main.entry ? layer.sparse ? 2 : 1 : 0;
#pragma unroll 1
    for (int which = 0; which < made; which++) {
        const bool of_index = which == 1, everywhere = !of_index && keys.chosen;
        const int key = of_index ? layer.index.newest : keys.recent + layer.main.newest;
        if (everywhere ? warp < c.WARPS - 1 : !has(key, of_index ? c.WARPS - 1 - warp : warp))
            continue;
        float *const x = of_index ? c.s.index_pooled : c.s.pooled;
        float *const to = of_index ? layer.index.entry : !everywhere || c.team.rank == 0 ? layer.main.entry : nullptr;
        store_vector(c, x, x, of_index ? c.s.staged.index_norm : c.s.staged.norm, of_index ? S::DI : S::D, layer.sparse ? 1 : 2,
                     to, of_index ? kept_index : kept);
    }
    if (made == 0 && (kept || kept_index) && c.team.rank == 0) {
        // A tap keeps zeros.
#pragma unroll 1
        for (int at = threadIdx.x; at < S::D; at += c.WORKERS) {
            if (kept)
                kept[at] = 0.0f;
            if (kept_index && at < S::DI)
                kept_index[at] = 0.0f;
        }
    }
}

// By the mixer, while the others make queries: puts the window's vector in the place of the key that it is, if this CTA has it, and
// stores what only later tokens read.
template <class W> __device__ __forceinline__ void store_window_key(const Context<W> &c, const Layer<W> &layer) {
    typedef typename W::Sizes S;
    typedef Staged<W> Staged;
    static_assert(S::Wn <= GROUPS * Staged::KEYS, "the window's keys are the first of a warp");
    const Arguments<W> &a = c.a;
    Staged &staged = c.s.staged;
    const int key = min(c.row.position, S::Wn - 1), at = key / GROUPS;
    if (key % GROUPS == c.team.rank) {
        mbarrier_wait_parity(c.s.arrived + DOWN, layer.layer & 1);
        staged.wait(ATTENTION, layer.layer);
        store_vector(c, c.s.kv, staged.key(at), staged.kv_norm, S::D, 0, layer.token_vector,
                     a.at_kv_window ? c.kept(a.at_kv_window, layer.layer, a.layers, S::D) : nullptr);
        // A bulk copy comes to the same place later.
        fence_proxy_async_smem();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(staged.keys_here + at);
    }
    named_barrier_sync(DOWN_READY, c.WORKERS + 32);
    if (!layer.main.entry)
        Rings<W>(c, layer, DownShares(c, layer.sparse), false).store_apart(c, layer);
}

// By the copier: keys that are known.
template <class W> __device__ __forceinline__ void copy_keys(const Context<W> &c, const Layer<W> &layer) {
    const Keys keys(c, layer, available(c, layer));
    Group<W>(c, keys).copy();
}

// ---- all phases

template <class W> __device__ __forceinline__ void attention(const Context<W> &c, const Layer<W> &layer) {
    const Arguments<W> &a = c.a;
    c.keep(a.at_attention_input, layer.layer, a.layers, c.s.normed, a.C);
    const DownShares shares(c, layer.sparse);
    const Rings<W> rings(c, layer, shares, !W::STAGED || layer.main.entry);
    down(c, layer, shares, rings);
    // What is known before this token is there is loaded while others are waited for.
    const int entries = available(c, layer);
    const Keys keys(c, layer, entries);
    const bool choosing = chooses(c, layer.sparse);
    const int first = first_entry(c);
    float4 of_first = make_float4(0, 0, 0, 0);
    if (choosing && first < entries && first != layer.index.newest)
        of_first = index_key(c, layer, first);
    const int of_heads = layer.sparse ? a.HI : 0, of_index = layer.sparse ? a.DI : 0;
    // Those of the window do not wait for the choice.
    const int known = choosing ? keys.recent : keys.count;
    const auto until_up = [&] {
        c.exchange(DOWN, layer.layer, a.Rq + a.D + of_heads + (layer.main.entry ? a.D + of_index : 0));
        if constexpr (W::STAGED)
            c.s.staged.wait(ATTENTION, layer.layer);
        up(c, layer);
        if constexpr (W::STAGED) {
            store_entries(c, layer, keys);
            // Who reads the entry waits for it.
            if (layer.main.entry && choosing)
                c.sync();
        } else {
            store_keys(c, layer);
            // Nobody waits for what later tokens read.
            if (!layer.main.entry)
                rings.store(c, layer);
        }
        if (choosing && first < entries && first == layer.index.newest)
            of_first = index_key(c, layer, first);
        c.exchange(UP, layer.layer, a.H * a.D + index_queries(c, layer.sparse));
        keep_queries(c, layer);
        if (choosing)
            index_scores(c, layer, entries, of_first);
        else if (layer.sparse)
            keep_all(c, layer, entries);
    };
    const auto choose = [&] {
        c.exchange(INDEX_SCORES, layer.number, entries);
        if (!W::STAGED || entries > 2 * MOST_FEW || a.at_topk) {
            select(c, layer, entries);
        } else if (const int mine = Key<W>::first(c); mine >= known && mine < keys.count) {
            if (entries <= MOST_FEW)
                select_few<MOST_FEW>(c, entries);
            else
                select_few<2 * MOST_FEW>(c, entries);
        }
    };
    if constexpr (W::STAGED) {
        const Group<W> group(c, keys);
        until_up();
#pragma unroll 1
        for (int from = 0, to = known;; from = to, to = keys.count) {
            group.score(layer.layer, from, to);
            if (!choosing || from > 0)
                break;
            choose();
        }
        group.send();
        c.exchange(SCORES, layer.layer, GROUPS * (CHUNK + 4));
        group.merge(layer.sinks);
        // Each CTA has what it read.
        if (a.at_heads && threadIdx.x < CHUNK)
            c.kept(a.at_heads, layer.layer, a.layers, a.H * a.D)[c.team.rank * CHUNK + threadIdx.x] = c.s.heads[threadIdx.x];
        output_part(c, c.s.heads);
        c.exchange(LOW_HEADS, layer.layer, a.H * a.D / CHUNK * a.Ro);
    } else {
        Attend<W> attend(c, keys, layer.sinks);
        Key<W> key = {};
        if (const int mine = Key<W>::first(c); keys.early(mine))
            key.load(c, keys.row(mine));
        until_up();
        scores(c, keys, key, 0, known);
        if (choosing) {
            choose();
            scores(c, keys, key, known, keys.count);
        }
        attend.load();
        c.exchange(SCORES, layer.layer, a.H * keys.count);
        attend.run();
        if (heads_apart(c))
            c.sync();
        else
            c.exchange(HEADS, layer.layer, a.H * a.D);
        if (a.at_heads) {
            float *const kept = c.kept(a.at_heads, layer.layer, a.layers, a.H * a.D) + attend.share.first;
#pragma unroll 1
            for (int at = threadIdx.x; at < attend.share.count; at += c.WORKERS)
                kept[at] = c.s.heads[attend.share.first + at];
        }
        output_down(c, layer);
        c.exchange(LOW_HEADS, layer.layer, a.G * a.Ro);
    }
    output_up(c, layer);
}

} // namespace persistent
