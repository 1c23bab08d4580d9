// Pooling in the variant `persistent`: the tokens of a window become an entry, channel by channel.
#pragma once

#include "decode_step/layer.cuh"

namespace persistent {

// What a CTA pools of a compressor: its share of the channels. The token's own numbers are in the rings.
struct Pooled {
    const Compressor *of;
    Share share;
    float *to;
};

// Pools channels where the token closes its window. Few tokens are one part, which a warp has; many are in parts, whose number does not
// depend on that of the warps, and all warps share them. All numbers of a part are asked for before the first is needed: nothing
// branches, what is not there is read from the place of the first, and counts nothing.
template <int WARPS> struct Pool {
    static constexpr int EACH = MOST_POOLED / POOLED_PARTS;
    // Channels of a turn, and those of a lane. If a warp has one part, it keeps the numbers while all wait for the largest logits.
    static constexpr int WIDE = PoolRoom<WARPS>::WIDE, VECTOR = WIDE / 32;
    static constexpr bool KEPT = WARPS == POOLED_PARTS;
    static_assert(POOLED_PARTS % WARPS == 0, "warps have as many parts");
    static_assert(VECTOR == 1 || VECTOR == 2, "loads are of one number or two");
    struct alignas(4 * VECTOR) Vector {
        float of[VECTOR];
    };
    PoolRoom<WARPS> &room;
    // The position of the token.
    const int t;
    Vector gates[EACH], values[EACH];

    __device__ __forceinline__ Pool(PoolRoom<WARPS> &room, int t) : room(room), t(t) {}

    static __device__ __forceinline__ int units(Share share) {
        return (share.count + WIDE - 1) / WIDE;
    }

    static __device__ __forceinline__ Vector ldcg(const float *from) {
        if constexpr (VECTOR == 2) {
            const float2 both = __ldcg((const float2 *)from);
            return {both.x, both.y};
        } else {
            return {__ldcg(from)};
        }
    }

    // Loads the logits of the channels from `channel` on, of the share, of a part, and the values.
    template <bool VALUES> __device__ __forceinline__ void load(const Pooled &what, int channel, int part, int stride) {
        const Compressor &of = *what.of;
        const int n = what.share.count, width = of.dim * of.halves, step = stride % of.slots * width, all = of.slots * width;
        int token = of.first + part, at = (of.first_slot + part) % of.slots * width + what.share.first + channel;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool second = of.halves == 2 && token >= of.window;
            const int from = (u32)token <= (u32)t && channel < n ? at + (second ? of.dim : 0) : 0;
            gates[i] = ldcg(of.ring_gate + from);
            if (VALUES)
                values[i] = ldcg(of.ring_kv + from);
            token += stride, at += step, at -= at < all ? 0 : all;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int token = of.first + part + i * stride;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
#ifdef MUTANT_ABSENT_POOLED_AS_ZEROS
                gates[i].of[j] = token < 0 ? 0.0f : gates[i].of[j], values[i].of[j] = token < 0 ? 0.0f : values[i].of[j];
#endif
                gates[i].of[j] = token > t ? -__int_as_float(0x7f800000) : gates[i].of[j];
                if (VALUES)
                    values[i].of[j] = token > t ? 0.0f : values[i].of[j];
            }
        }
    }

    // The largest logits.
    __device__ __forceinline__ Vector top() const {
        Vector top;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            top.of[j] = -__int_as_float(0x7f800000);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                top.of[j] = fmaxf(top.of[j], gates[i].of[j]);
        }
        return top;
    }

    // The shares of the tokens, and what they are worth.
    __device__ __forceinline__ void add(Vector top, Vector &sum, Vector &out) const {
        sum = out = {};
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const float share_of_token = expf(gates[i].of[j] - top.of[j]);
                sum.of[j] += share_of_token;
                out.of[j] = fmaf(share_of_token, values[i].of[j], out.of[j]);
            }
    }

    static __device__ __forceinline__ void store(const Pooled &what, int channel, Vector sum, Vector out) {
        if (channel >= what.share.count)
            return;
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            out.of[j] /= sum.of[j];
        *(Vector *)(what.to + what.share.first + channel) = out;
    }

    // Both compressors, of which the second may have no channels, in units of channels.
    __device__ __forceinline__ void run(const Pooled &main, const Pooled &index) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, of_main = units(main.share),
                  count = of_main + units(index.share);
        // Nobody needs the addresses of both: they stay in registers.
        const auto what = [&](int unit) {
            const bool first = unit < of_main;
            return Pooled{first ? main.of : index.of,
                          {first ? main.share.first : index.share.first, first ? main.share.count : index.share.count},
                          first ? main.to : index.to};
        };
        const auto channel = [&](int unit) { return (unit < of_main ? unit : unit - of_main) * WIDE + VECTOR * lane; };
        const auto at = [&](float (*of)[WIDE], int part) -> Vector & { return *(Vector *)(of[part] + VECTOR * lane); };
        Vector sum, out;
        if (main.of->slots <= EACH) {
            // A warp for each unit.
#pragma unroll 1
            for (int unit = warp; unit < count; unit += WARPS) {
                load<true>(what(unit), channel(unit), 0, 1);
                add(top(), sum, out);
                store(what(unit), channel(unit), sum, out);
            }
            return;
        }
#pragma unroll 1
        for (int unit = 0; unit < count; unit++) {
#pragma unroll 1
            for (int number = 0; number < POOLED_PARTS / WARPS; number++) {
                const int part = warp + number * WARPS;
                load<KEPT>(what(unit), channel(unit), part, POOLED_PARTS);
                at(room.tops, part) = top();
            }
            named_barrier_sync(WORK, 32 * WARPS);
            Vector most = at(room.tops, 0);
#pragma unroll
            for (int other = 1; other < POOLED_PARTS; other++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    most.of[j] = fmaxf(most.of[j], at(room.tops, other).of[j]);
#pragma unroll 1
            for (int number = 0; number < POOLED_PARTS / WARPS; number++) {
                const int part = warp + number * WARPS;
                if (!KEPT)
                    load<true>(what(unit), channel(unit), part, POOLED_PARTS);
                add(most, sum, out);
                at(room.sums, part) = sum, at(room.outs, part) = out;
            }
            named_barrier_sync(WORK, 32 * WARPS);
            if (warp != unit % WARPS)
                continue;
            sum = out = {};
#pragma unroll 4
            for (int other = 0; other < POOLED_PARTS; other++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    sum.of[j] += at(room.sums, other).of[j], out.of[j] += at(room.outs, other).of[j];
            store(what(unit), channel(unit), sum, out);
        }
    }
};

// What others keep in registers is in memory only while this is called, which is seldom.
template <int WARPS> __device__ __noinline__ void pool_apart(PoolRoom<WARPS> &room, int position, Pooled main, Pooled index) {
    Pool<WARPS>(room, position).run(main, index);
}

template <int WARPS> __device__ __forceinline__ void pool(PoolRoom<WARPS> &room, int position, Pooled main, Pooled index) {
    if constexpr (WARPS == FEW_WARPS)
        Pool<WARPS>(room, position).run(main, index);
    else
        pool_apart(room, position, main, index);
}

} // namespace persistent
