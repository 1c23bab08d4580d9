// The experts of `served`, and what they read: one launch has the mixture of a row's streams, the router's product, the choice and,
// of a single row, the order of its experts, where four launches would wait for each other.
//
// A thread block has the scores of a few experts, whose weights are copied while the launch before still runs; one more has how streams are
// mixed back. All others mix the whole row, and keep some of it. The one whose scores are last routes.
#pragma once

#include "decode_step/row_mix.cuh"

namespace routed {

using row_mix::WARPS, row_mix::EACH, row_mix::channel_of, row_mix::Mixing, row_mix::sums_over_warp;
// A thread block has the scores of SCORED experts, a lane of the one that routes EXPERTS / 32 of all.
constexpr int SCORED = 8, EXPERTS = 256;

struct Shared {
    row_mix::Shared mix;
    u64 weights_here;
    float parts[WARPS][SCORED], sigmas[EXPERTS];
};

struct Gate {
    const bf16 *matrix;
    const float *bias;
    const int *table, *token;
    float2 *scores; // [rows, count]: the square root of softplus, and by what experts are in order
    u32 *arrived;   // thread blocks of each row whose scores are there: 0 before the launch
    int *experts;
    float *weights;
    int count, selected;
    float scale;
};

// What `moe_fp4_sort` gives of a single row.
struct Sorted {
    u8 *packed;
    int4 *tiles;
    int2 *order;
};

// Four channels of a single row, as its experts read it: they have it in different groups, whichever they are. A table may name an expert
// more than once, which then has it in several rows of a group. Columns after the last are zeros.
__device__ __forceinline__ void pack(u8 *packed, int channel, uint2 four, int groups, int copies, int dim) {
    const int chunks = (dim + 63) / 64;
    if (channel >= chunks * 64)
        return;
#ifdef MUTANT_LAST_GROUP_NOT_PACKED
    groups--;
#endif
#pragma unroll 1
    for (int group = 0; group < groups; group++)
#pragma unroll 1
        for (int copy = 0; copy < copies; copy++)
            *(uint2 *)(packed + moe_fp4_file::packed_token(group, copy, channel / 8, chunks) + channel % 8 * 2) = four;
}

// By a warp, a lane has each slot of a single row: the order of its experts, the shared one last.
__device__ __forceinline__ void sort(const Sorted &to, int expert, float weight, int selected, int count) {
    constexpr int TOKENS = moe_fp4_file::TOKENS;
    const int lane = threadIdx.x % 32, own = lane < selected ? expert : -1;
    int before = 0, same_before = 0, size = 0;
#pragma unroll 1
    for (int slot = 0; slot < selected; slot++) {
        const int other = __shfl_sync(~0u, own, slot);
        before += other >= 0 && other < own;
        same_before += other == own && slot < lane;
        size += other == own;
    }
    const int leads = own >= 0 && same_before == 0 ? size : 0;
    int tiles = 0, groups = 0, all = 0, all_tiles = 0, all_groups = 0;
#pragma unroll 1
    for (int slot = 0; slot < selected; slot++) {
        const int entries = __shfl_sync(~0u, leads, slot), first = __shfl_sync(~0u, before, slot);
        const int its_tiles = (entries + TOKENS - 1) / TOKENS, its_groups = (entries + 7) / 8;
        all += entries, all_tiles += its_tiles, all_groups += its_groups;
        if (first < before)
            tiles += its_tiles, groups += its_groups;
    }
    if (own >= 0)
        to.order[before + same_before] = make_int2(lane, __float_as_int(weight));
#pragma unroll 1
    for (int at = 0; at < leads; at += TOKENS)
        to.tiles[1 + tiles + at / TOKENS] = make_int4(own, before + at, min(TOKENS, leads - at), groups + at / 8);
    if (lane == 0) {
        to.order[all] = make_int2(selected, __float_as_int(1.0f));
        to.tiles[1 + all_tiles] = make_int4(count, all, 1, all_groups);
        to.tiles[0].x = all_tiles + 1;
    }
}

// The scores of the experts of this thread block, by all threads.
__device__ __forceinline__ void score(Shared &s, const bf16 *weights, const uint2 (&x)[EACH], const Gate &g, float bias, int row,
                                      int dim) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    float sums[SCORED] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = channel_of(i);
        if (channel >= dim)
            continue;
        const float2 low = from_bf16x2(x[i].x), high = from_bf16x2(x[i].y);
#pragma unroll
        for (int expert = 0; expert < SCORED; expert++) {
            const uint2 w = *(const uint2 *)(weights + expert * dim + channel);
            const float2 w_low = from_bf16x2(w.x), w_high = from_bf16x2(w.y);
            sums[expert] = fmaf(w_low.x, low.x, fmaf(w_low.y, low.y, sums[expert]));
            sums[expert] = fmaf(w_high.x, high.x, fmaf(w_high.y, high.y, sums[expert]));
        }
    }
    const float of_lane = sums_over_warp(sums);
    if (lane % (32 / SCORED) == 0)
        s.parts[warp][lane / (32 / SCORED)] = of_lane;
    __syncthreads();
    const int expert = blockIdx.x * SCORED + lane;
    if (warp > 0 || lane >= SCORED || expert >= g.count)
        return;
    float logit = 0.0f;
#ifdef MUTANT_SCORES_OF_FIRST_WARP
    constexpr int ADDED = 1;
#else
    constexpr int ADDED = WARPS;
#endif
#pragma unroll
    for (int other = 0; other < ADDED; other++)
        logit += s.parts[other][lane];
    const float sigma = router_file::sqrt_softplus(logit);
    const u32 order = router_file::order_of(sigma + bias);
    __stcg(g.scores + (size_t)row * g.count + expert, make_float2(sigma, __uint_as_float(order)));
}

// By a warp: whether all scores are there.
__device__ __forceinline__ bool is_last(u32 *arrived, u32 blocks) {
    u32 before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        before = atomicAdd(arrived, 1);
        __threadfence();
    }
#ifdef MUTANT_FIRST_ROUTES
    return __shfl_sync(~0u, before, 0) == 0;
#else
    return __shfl_sync(~0u, before, 0) == blocks - 1;
#endif
}

// By a warp: the expert of each of the first lanes, and its weight; −1 is none.
template <bool TABLE> __device__ __forceinline__ int choose(Shared &s, const Gate &g, int row, float &weight) {
    const int lane = threadIdx.x % 32, id = g.token[row];
    const float2 *const scores = g.scores + (size_t)row * g.count;
    int expert = -1;
    float sigma = 0.0f, sum = 0.0f;
    if (TABLE && id >= 0 && lane < g.selected) {
        expert = g.table[(size_t)id * g.selected + lane];
        sigma = expert < 0 ? 0.0f : __ldcg(&scores[expert].x);
    }
    if (!TABLE && id >= 0) {
        u32 orders[EXPERTS / 32]; // 0 is none, or one that has been found
#pragma unroll
        for (int i = 0; i < EXPERTS / 32; i++) {
            const int own = lane + 32 * i;
            const float2 score = own < g.count ? __ldcg(scores + own) : make_float2(0.0f, 0.0f);
            s.sigmas[own] = score.x, orders[i] = __float_as_uint(score.y);
#ifdef MUTANT_EXPERTS_OF_FIRST_LANES
            orders[i] = i == 0 ? orders[i] : 0;
#endif
        }
        __syncwarp();
#pragma unroll 1
        for (int slot = 0; slot < g.selected; slot++) {
            u32 most = 0;
#pragma unroll
            for (int i = 0; i < EXPERTS / 32; i++)
                most = max(most, orders[i]);
            most = __reduce_max_sync(~0u, most);
            // There is none if K is larger than E.
            if (most == 0)
                break;
            // The smallest index of those that have it.
            int found = EXPERTS;
#pragma unroll
            for (int i = EXPERTS / 32 - 1; i >= 0; i--)
                found = orders[i] == most ? lane + 32 * i : found;
            found = __reduce_min_sync(~0u, found);
#pragma unroll
            for (int i = 0; i < EXPERTS / 32; i++)
                orders[i] = found == lane + 32 * i ? 0 : orders[i];
            if (lane == slot)
                expert = found, sigma = s.sigmas[found];
        }
    }
    // All lanes have the same sum, in the order of slots.
#pragma unroll 1
    for (int slot = 0; slot < g.selected; slot++)
        sum += __shfl_sync(~0u, sigma, slot);
    weight = sigma / (sum + 1e-20f) * g.scale;
    return expert;
}

template <bool TABLE>
__device__ __forceinline__ void route(const mixed::Streams &x, const mixed::ToHalf &y, const Mixing &m, const Gate &g,
                                      const Sorted &to, int rows) {
    extern __shared__ __align__(16) u8 weights_of_block[];
    __shared__ Shared s;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, dim = x.dim;
    const int scorers = gridDim.x - 1;
    const bool scores = blockIdx.x < scorers, keeps = warp % scorers == blockIdx.x;
    if (thread == 0 && scores) {
        const u32 bytes = min(SCORED, g.count - (int)blockIdx.x * SCORED) * dim * 2;
        mbarrier_init(&s.weights_here, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&s.weights_here, bytes);
        tma_load_1d(weights_of_block, g.matrix + (size_t)blockIdx.x * SCORED * dim, bytes, &s.weights_here);
    }
    m.load(s.mix, dim);
    // Of the expert that the thread adds up the score of.
    const int expert = blockIdx.x * SCORED + lane;
    const float bias = warp == 0 && lane < SCORED && expert < g.count ? g.bias[expert] : 0.0f;

#pragma unroll 1
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const row_mix::Row streams(s.mix, x, row, m.eps);
        wait_on_dependent_grids();
        if (!scores) {
            __syncthreads();
            launch_dependent_grids();
            if (warp == 0)
                streams.mix_back(s.mix, m, row);
            continue;
        }
        float4 normed[EACH];
        streams.mix(s.mix, m, row, dim, normed);
        uint2 halves[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int channel = channel_of(i);
            halves[i] = channel < dim ? to_halves(normed[i]) : make_uint2(0, 0);
            if (!keeps)
                continue;
            y.store(row, channel, normed[i]);
            if (channel < dim)
                x.keep(row, channel, streams.v[i]);
            if (rows == 1)
                pack(to.packed, channel, halves[i], g.selected + 1, TABLE ? min(8, g.selected) : 1, dim);
        }
        mbarrier_wait_parity(&s.weights_here, 0);
        // Thread blocks of the next launch that wait from the beginning cost more time than they save.
        launch_dependent_grids();
        score(s, (const bf16 *)weights_of_block, halves, g, bias, row, dim);
        if (warp > 0 || !is_last(g.arrived + row, scorers))
            continue;
        float share;
        const int chosen = choose<TABLE>(s, g, row, share);
        if (lane < g.selected) {
            g.experts[(size_t)row * g.selected + lane] = chosen;
            g.weights[(size_t)row * g.selected + lane] = share;
        }
        if (rows == 1)
            sort(to, chosen, share, g.selected, g.count);
    }
}

} // namespace routed

// With more registers, a multiprocessor would have no room for a thread block of the launch before beside one.
#define ROUTE_ENTRIES(SELECT, TABLE)                                                                                             \
    KERNEL(decode_step_route_##SELECT, __maxnreg__(88))(                                                                         \
        const float *x, float *next, const float *y, const float *post, const float *comb, const float *sums, const float *base, \
        const float *scale, const float *weight, float *kept, bf16 *half, float *next_post, float *next_comb, const bf16 *gate,  \
        const float *bias, const int *table, const int *token, float2 *scores, u32 *arrived, int *experts, float *weights,       \
        u8 *packed, int4 *tiles, int2 *order, int rows, int parts, int dim, int count, int selected, float eps,                  \
        float router_scale) {                                                                                                    \
        routed::route<TABLE>(                                                                                                    \
            mixed::Streams{x, next, y, post, comb, dim}, mixed::ToHalf{kept, half, dim},                                         \
            row_mix::Mixing{sums, base, scale, weight, next_post, next_comb, parts, eps},                                        \
            routed::Gate{gate, bias, table, token, scores, arrived, experts, weights, count, selected, router_scale},            \
            routed::Sorted{packed, tiles, order}, rows);                                                                         \
    }
ROUTE_ENTRIES(bias, false)
ROUTE_ENTRIES(table, true)
#undef ROUTE_ENTRIES
