// The mixture of experts of the variant `persistent`: the router, and both products of the experts of the token.
#pragma once

#include "decode_step/copies.cuh"
#include "decode_step/streams.cuh"

namespace persistent {

// The experts of the token, and their weights; by the first warp, a lane for each expert.
template <class W> __device__ __forceinline__ void route(const Context<W> &c, int layer, float bias) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32;
    const float sigma = lane < a.E ? router_file::sqrt_softplus(c.s.expert_logits[lane]) : 0.0f;
    const u64 place = lane < a.E ? router_file::place_of(sigma + bias, lane) : 0;
    int before = 0;
#pragma unroll 4
    for (int other = 0; other < a.E; other++)
        before += __shfl_sync(0xffffffff, place, other) > place;
    float sum = 0.0f, own = 0.0f;
    int own_expert = 0;
#pragma unroll 1
    for (int slot = 0; slot < a.K; slot++) {
        int expert = __ffs(__ballot_sync(0xffffffff, lane < a.E && before == slot)) - 1;
        if (layer < a.hashes)
            expert = __ldg(a.table + ((size_t)layer * a.V + c.row.token) * a.K + slot);
        const float of_slot = __shfl_sync(0xffffffff, sigma, expert);
        sum += of_slot;
        if (lane == slot)
            own = of_slot, own_expert = expert, c.s.experts[slot] = expert;
    }
    if (lane < a.K)
        c.s.expert_weights[lane] = own / (sum + 1e-20f) * a.router_scale;
}

// The second products, added up over experts; by each CTA, all of it. Four lanes have a channel, and load what a slot has of it.
template <class W> __device__ __forceinline__ void mix(const Context<W> &c, int layer) {
    // What three slots have is asked for at once.
    constexpr int PARTS = 4, BATCH = 3;
    const Arguments<W> &a = c.a;
    const auto column = [](int part) { return 4 * (int)(threadIdx.x % 4 + 4 * part); };
#ifdef MUTANT_SHARED_EXPERT_LOST
    const int slots = a.K;
#else
    const int slots = a.K + 1;
#endif
    const auto row = [&](int slot, int channel) {
        if constexpr (W::STAGED) {
            return c.s.staged.mixed.row(slot * a.C + channel);
        } else {
            const auto down = Matrix<W>{a.down, a.down_scales}.from((size_t)layer * a.E * a.C, a.I);
            const auto shared = Matrix<W>{a.shared_down, a.shared_down_scales}.from((size_t)layer * a.C, a.I);
            return slot < a.K ? down.row(c.s.experts[slot] * a.C + channel, a.I) : shared.row(channel, a.I);
        }
    };
    if constexpr (W::STAGED)
        c.s.staged.wait(ROUTED, layer);
    const int channel = threadIdx.x / 4;
    float out = 0.0f;
    if (channel / 8 * 8 < a.C) {
        float sums[PARTS] = {};
        const int own_channel = min(channel, a.C - 1);
#pragma unroll 1
        for (int first = 0; first < slots; first += BATCH) {
            float4 weights[BATCH][PARTS];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const auto row_of_slot = row(min(first + i, slots - 1), own_channel);
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    weights[i][part] = row_of_slot.four(min(column(part), a.I - 4));
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    if (first + i < slots && column(part) < a.I)
                        sums[part] = dot4(weights[i][part], load4(c.s.hidden + (first + i) * a.I + column(part)), sums[part]);
        }
        out = lanes_sum<4>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    leave(c, c.s.x[1], c.s.x[0], channel, out, a.at_moe_output ? c.kept(a.at_moe_output, layer, a.layers, a.C) : nullptr);
}

// The experts of the token where weights are staged, by a warp that no other waits for until it has multiplied, and that asks for the
// second matrices. Four lanes have an expert.
template <class W> __device__ __forceinline__ void route_staged(const Context<W> &c, const Layer<W> &of) {
    typedef typename W::Sizes S;
    const Arguments<W> &a = c.a;
    const int layer = of.layer, lane = threadIdx.x % 32, of_lane = min(lane / 4, S::E - 1);
    int chosen[S::K];
    const float sigma = router_file::sqrt_softplus(product_of<true>(c.s.staged.gate.row(of_lane), c.s.normed, S::C));
    if (layer < a.hashes) {
#pragma unroll
        for (int slot = 0; slot < S::K; slot++)
            chosen[slot] = __ldg(a.table + ((size_t)layer * S::V + c.row.token) * S::K + slot);
    } else {
        const u64 place = router_file::place_of(sigma + of.bias[of_lane], of_lane);
        int before = 0;
#pragma unroll
        for (int expert = 0; expert < S::E; expert++) {
            // What is behind the score is known.
            const u32 score = __shfl_sync(0xffffffff, (u32)(place >> 32), 4 * expert);
            before += ((u64)score << 32 | (u32)router_file::place_of(0.0f, expert)) > place;
        }
#pragma unroll
        for (int slot = 0; slot < S::K; slot++)
            chosen[slot] = (u32)(__ffs(__ballot_sync(0xffffffff, lane < 4 * S::E && before == slot)) - 1) / 4;
    }
    float sum = 0.0f, own = 0.0f;
    int expert = chosen[0];
#pragma unroll
    for (int slot = 0; slot < S::K; slot++) {
        const float of_slot = __shfl_sync(0xffffffff, sigma, 4 * chosen[slot]);
        sum += of_slot;
        own = lane == slot ? of_slot : own, expert = lane == slot ? chosen[slot] : expert;
    }
    if (lane < S::K)
        c.s.experts[lane] = expert, c.s.expert_weights[lane] = own / (sum + 1e-20f) * a.router_scale;
    named_barrier_arrive(ROUTED_READY, 32 * (S::E + 1));
    copy_routed(c, layer, expert);
    if (layer >= a.hashes && a.at_router && c.team.rank == 0 && lane < S::K)
        c.kept(a.at_router, layer - a.hashes, a.layers - a.hashes, S::K)[lane] = expert;
}

// Rows of gate and of up in turn, so that neighbours, of four lanes each, have both of one number. The row of a number in the matrix of
// all experts, each of which has `rows` of gate and as many of up.
__device__ __forceinline__ int gate_up_row(int expert, bool is_up, int rows, int number) {
    return (2 * expert + is_up) * rows + number;
}

// The number that comes of both products.
__device__ __forceinline__ float gate_up(float product, float limit) {
    const bool is_up = threadIdx.x / 4 % 2;
    const float other = __shfl_xor_sync(0xffffffff, product, 4);
    return swiglu(is_up ? other : product, is_up ? product : other, limit);
}

// The first products where weights are staged: a warp for each expert, which multiplies while another finds out whether the token has it.
template <class W> __device__ __forceinline__ void hidden(const Context<W> &c, const Layer<W> &of) {
    typedef typename W::Sizes S;
    static_assert(S::E + 1 < W::Ranks::WARPS && S::E <= 8 && 8 * Staged<W>::HIDDEN <= 32, "a warp has all numbers of an expert");
    const int own = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (own == S::E + 1)
        route_staged(c, of);
    if (own > S::E)
        return;
    const int number = min(lane / 8, Staged<W>::HIDDEN - 1), first = c.team.rank * Staged<W>::HIDDEN;
    const bool is_up = lane / 4 % 2;
    const StagedRow<W> row = {c.s.staged.hidden.row(gate_up_row(own, is_up, Staged<W>::HIDDEN, number)).codes,
                              c.s.staged.hidden_scales.row(gate_up_row(own, is_up, S::I, first + number)).scales};
    float value = gate_up(product_of<true>(row, c.s.normed, S::C), c.a.limit);
    int own_slot = own == S::E ? S::K : -1;
    if (own < S::E) {
        named_barrier_sync(ROUTED_READY, 32 * (S::E + 1));
#pragma unroll
        for (int slot = 0; slot < S::K; slot++)
            own_slot = c.s.experts[slot] == own ? slot : own_slot;
        value *= c.s.expert_weights[max(own_slot, 0)];
    }
    if (own_slot >= 0 && lane / 8 < Staged<W>::HIDDEN)
        c.team.template broadcast_by<8>(c.s.arrived + HIDDEN, c.s.hidden + own_slot * S::I + first + number, value, lane % 8);
}

// The same of any sizes.
template <class W> __device__ __forceinline__ void routed_hidden(const Context<W> &c, const Layer<W> &of) {
    const Arguments<W> &a = c.a;
    const int layer = of.layer;
    const auto gate = [&](int unit) { return Matrix<W>{a.gate, a.gate_scales}.from((size_t)layer * a.E, a.C).row(unit, a.C); };
    products<typename W::Ranks, 1>(a.E, a.C, c.s.normed, gate, [&](int unit, float product) {
        if (threadIdx.x % 4 == 0 && unit < a.E)
            c.s.expert_logits[unit] = product;
    });
    c.sync();
    if (threadIdx.x < 32)
        route(c, layer, of.bias[min((int)threadIdx.x, a.E - 1)]);
    c.sync();
    if (layer >= a.hashes)
        c.keep(a.at_router, layer - a.hashes, a.layers - a.hashes, c.s.experts, a.K);

    const Share share = c.team.template share<1>(a.I);
    const int count = 2 * (a.K + 1) * share.count;
    const auto row = [&](int unit) {
        const int of = c.s.hidden_rows[unit / 2], slot = of >> 8, number = of & 255;
        const bool is_up = unit % 2;
        const auto routed = Matrix<W>{a.gate_up, a.gate_up_scales}.from((size_t)layer * a.E * 2 * a.I, a.C);
        const auto shared = Matrix<W>{a.shared_gate_up, a.shared_gate_up_scales}.from((size_t)layer * 2 * a.I, a.C);
        return slot < a.K ? routed.row(gate_up_row(c.s.experts[slot], is_up, a.I, number), a.C)
                          : shared.row(gate_up_row(0, is_up, a.I, number), a.C);
    };
    products<typename W::Ranks, 1>(count, a.C, c.s.normed, row, [&](int unit, float product) {
        const float value = gate_up(product, a.limit);
        if (unit >= count)
            return;
        const int of = c.s.hidden_rows[unit / 2], slot = of >> 8;
        const float weight = slot < a.K ? c.s.expert_weights[slot] : 1.0f;
        c.team.template broadcast_by<8>(c.s.arrived + HIDDEN, c.s.hidden + slot * a.I + (of & 255), value * weight,
                                        threadIdx.x % 8);
    });
}

template <class W> __device__ __forceinline__ void experts(const Context<W> &c, const Layer<W> &of) {
    const Arguments<W> &a = c.a;
    const int layer = of.layer;
    c.keep(a.at_moe_input, layer, a.layers, c.s.normed, a.C);
    if constexpr (W::STAGED) {
        c.s.staged.wait(EXPERTS, layer);
        hidden(c, of);
    } else {
        routed_hidden(c, of);
    }
    c.exchange(HIDDEN, layer, (a.K + 1) * a.I);
    mix(c, layer);
}

} // namespace persistent
