// 64 heads of a row for each thread block; those of a cluster share its keys, in tiles of 64, as evenly as whole tiles allow. What a
// thread block reads, and so the order of all sums, follows from the number of keys of the row alone.
//
// Two producer warpgroups decode a tile to bfloat16, as wgmma reads it: eight panels of 64 channels. It is operand B of both products:
// scores [64 heads, 64 keys], of which each consumer warpgroup has half of the keys, and results [64 heads, 512], of which each has
// half of the channels. Probabilities go through shared memory, because each warpgroup needs those of both.
//
// A tile costs tensor cores 2,048 cycles, and its operands shared memory some 2,600. A tile of `v4_fp8` is 37 KB, which a
// multiprocessor's share of memory bandwidth brings in 2,000.
#pragma once

#include "lib/cluster.cuh"
#include "lib/tma.cuh"
#include "wgmma/widths.cuh"

constexpr int TILE = 64, HEADS = 64, PANELS = 8, MOST_RANKS = 8;
constexpr int TILE_BYTES = PANELS * PANEL;
// The sums of a head, with space behind them so that eight heads lie in different banks.
constexpr int SUM_STRIDE = 520;
constexpr int CONSUMED = 1, ROUNDED = 2; // named barriers of the consumers
constexpr int PRODUCERS = 256, CONSUMERS = 256, WARP_KEYS = TILE / (PRODUCERS / 32);

struct Attention {
    u8 q[TILE_BYTES], keys[2][TILE_BYTES];
    u8 probabilities[TILE * HEADS * 2];
    u64 full[2], empty[2];
    u8 valid[2][TILE];
    float top[2][HEADS], sum[2][HEADS], maximum[HEADS];
    float weight[MOST_RANKS][HEADS], denominator[HEADS];

    // The results of the thread block, in place of keys and probabilities.
    __device__ __forceinline__ float *results() {
        return (float *)keys;
    }
};
static_assert(sizeof(Attention) <= 208896, "launch.shared in the header");
static_assert(HEADS * SUM_STRIDE * 4 <= 2 * TILE_BYTES + TILE * HEADS * 2, "results fit where keys and probabilities are");

__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ float4 ld_shared_cluster_v4(u32 from) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ float ld_shared_cluster(u32 from) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

// Nothing is less than it, so that -infinity minus the maximum is no NaN where there are no keys.
__device__ __forceinline__ float finite_maximum(float x) {
    return x == -__int_as_float(0x7f800000) ? 0.0f : x;
}

// ---- the producer warpgroups: eight keys of a tile for a warp

template <class R, int KEYS> struct Raw {
    static constexpr bool CODES = R::CODED > 0;
    static constexpr int RUNS = R::CODED / RUN, EIGHTS = (R::DIM - R::CODED) / 8;
    // A group of lanes loads the channels of a key that are stored as they are.
    static constexpr int LANES = EIGHTS < 32 ? EIGHTS : 32, OF_LOAD = EIGHTS ? 32 / LANES : 1;
    static constexpr int LOADS = EIGHTS ? KEYS / OF_LOAD * (EIGHTS / LANES) : 0;
    Run<R> runs[CODES ? KEYS : 1];
    uint4 plain[LOADS ? LOADS : 1];

    // The number of the key of a load, and its vector of eight channels.
    static __device__ __forceinline__ int2 of_load(int load, int lane) {
        constexpr int TIMES = EIGHTS ? EIGHTS / LANES : 1;
        return make_int2(load / TIMES * OF_LOAD + lane / (LANES ? LANES : 1), load % TIMES * LANES + lane % (LANES ? LANES : 1));
    }

    // Keys from `first` on; lane l knows the slot of key l.
    __device__ __forceinline__ void load(const Keys<R> &keys, int first, int slots, int from, int lane) {
        if constexpr (CODES) {
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                const int slot = __shfl_sync(0xffffffff, slots, from + key);
                if (slot >= 0 && lane < RUNS)
                    runs[key].load(keys.record(first + key, slot), lane);
            }
        }
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            const int2 of = of_load(load, lane);
            const int slot = __shfl_sync(0xffffffff, slots, from + of.x);
            plain[load] = make_uint4(0, 0, 0, 0);
            if (slot >= 0)
                plain[load] = plain_eight<R>(keys.record(first + of.x, slot), of.y);
        }
    }

    // Rows of the tile from `row` on.
    __device__ __forceinline__ void store(u8 *tile, int row, int slots, int from, int lane) const {
        if constexpr (CODES) {
#pragma unroll
            for (int key = 0; key < KEYS; key++) {
                const int slot = __shfl_sync(0xffffffff, slots, from + key);
                uint4 out[2] = {};
                if (lane >= RUNS)
                    continue;
                if (slot >= 0)
                    runs[key].decode(out);
                // Lanes that are four apart have the same banks, unless they exchange their halves.
                const int odd = lane / 4 % 2;
                *(uint4 *)(tile + swizzle_128b(row + key, 2 * lane + odd)) = odd ? out[1] : out[0];
                *(uint4 *)(tile + swizzle_128b(row + key, 2 * lane + 1 - odd)) = odd ? out[0] : out[1];
            }
        }
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            const int2 of = of_load(load, lane);
            *(uint4 *)(tile + swizzle_128b(row + of.x, R::CODED / 8 + of.y)) = plain[load];
        }
    }
};

// Records of the next keys are on their way while those before are decoded, and slots come a tile earlier still.
template <class R> __device__ __forceinline__ void produce(Attention &shared, const Keys<R> &keys, int first, int end) {
    // As many keys at a time as there are registers for, twice.
    constexpr int AT_ONCE = R::CODED == 0 ? 2 : 4, BATCHES = WARP_KEYS / AT_ONCE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = keys.count(), row = warp * WARP_KEYS;
    const auto slots_of = [&](int tile) {
        const int at = tile * TILE + row + lane % WARP_KEYS;
        return tile < end && at < all ? keys.slot(at) : -1;
    };
    Raw<R, AT_ONCE> even, odd;
    int slots = slots_of(first), later = slots_of(first + 1);
    even.load(keys, first * TILE + row, slots, 0, lane);
    for (int tile = first; tile < end; tile++) {
        const int stage = (tile - first) % 2, next = later, at = tile * TILE + row;
        const u32 parity = (tile - first) / 2 % 2;
        later = slots_of(tile + 2);
        u8 *const to = shared.keys[stage];
        odd.load(keys, at + AT_ONCE, slots, AT_ONCE, lane);
#ifndef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity ^ 1);
#endif
        even.store(to, row, slots, 0, lane);
        if constexpr (BATCHES == 4) {
            even.load(keys, at + 2 * AT_ONCE, slots, 2 * AT_ONCE, lane);
            odd.store(to, row + AT_ONCE, slots, AT_ONCE, lane);
            odd.load(keys, at + 3 * AT_ONCE, slots, 3 * AT_ONCE, lane);
            even.store(to, row + 2 * AT_ONCE, slots, 2 * AT_ONCE, lane);
        }
        even.load(keys, at + TILE, next, 0, lane);
        odd.store(to, row + (BATCHES - 1) * AT_ONCE, slots, (BATCHES - 1) * AT_ONCE, lane);
#ifdef MUTANT_TILE_OVERWRITTEN
        mbarrier_wait_parity(shared.empty + stage, parity ^ 1);
#endif
        if (lane < WARP_KEYS)
            shared.valid[stage][row + lane] = slots >= 0;
        fence_proxy_async_shared();
        mbarrier_arrive(shared.full + stage);
        slots = next;
    }
}

// ---- the consumer warpgroups

// The queries of 64 heads, zeros behind the last.
__device__ __forceinline__ void load_queries(Attention &shared, const bf16 *q, int heads) {
    const u32 to = smem_address(shared.q);
#pragma unroll 4
    for (int i = threadIdx.x - PRODUCERS; i < HEADS * 64; i += CONSUMERS) {
        const int head = i / 64, chunk = i % 64;
        cp_async_16_zfill(to + swizzle_128b(head, chunk), q + (head < heads ? i * 8 : 0), head < heads);
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    fence_proxy_async_shared();
    named_barrier_sync(CONSUMED, CONSUMERS);
}

__device__ __forceinline__ void consume(Attention &shared, int tiles, float scale) {
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128 - 2, 0);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int head = warp * 16 + lane / 4; // and the eighth behind it
    const float by = scale * 1.44269504f;
    float o[4][8][4] = {}, maximum[2], sum[2] = {};
    maximum[0] = maximum[1] = -__int_as_float(0x7f800000);
    const u64 q = wgmma_descriptor(smem_address(shared.q));
    const u32 probabilities = smem_address(shared.probabilities);
    const u32 operand = probabilities + (warp * 16 + lane % 16) * 128;
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % 2;
        mbarrier_wait_parity(shared.full + stage, tile / 2 % 2);
        const u64 keys = wgmma_descriptor(smem_address(shared.keys[stage]));
        float s[16] = {};
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 32; step++) {
            const int at = step / 4 * (PANEL / 16) + step % 4 * 2;
            Step<Bf16, 32>::shared(s, q + at, keys + at + group * (32 * 128 / 16));
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();

        // Accumulators i of a thread: key i / 4 * 8 + 2 (lane % 4) + i % 2 of the warpgroup, head i / 2 % 2.
        const u8 *const valid = shared.valid[stage] + group * 32 + lane % 4 * 2;
        float top[2] = {-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            s[i] = valid[i / 4 * 8 + i % 2] ? s[i] * by : -__int_as_float(0x7f800000);
#ifdef MUTANT_SCORES_ROUNDED
            s[i] = from_bf16x2(to_bf16x2(s[i], 0.0f)).x;
#endif
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffff, top[half], 1));
            top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffff, top[half], 2));
            if (lane % 4 == 0)
                shared.top[group][head + 8 * half] = top[half];
        }
        named_barrier_sync(CONSUMED, CONSUMERS);
        float before[2], subtracted[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            before[half] = maximum[half];
#ifdef MUTANT_MAXIMUM_OF_HALF
            maximum[half] = fmaxf(maximum[half], top[half]);
#else
            maximum[half] = fmaxf(maximum[half], shared.top[group ^ 1][head + 8 * half]);
            maximum[half] = fmaxf(maximum[half], top[half]);
#endif
            subtracted[half] = finite_maximum(maximum[half]);
            before[half] = ex2_approx_ftz(before[half] - subtracted[half]);
            sum[half] *= before[half];
        }
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            const int half = i / 2 % 2, row = head + 8 * half;
            const float low = ex2_approx_ftz(s[i] - subtracted[half]), high = ex2_approx_ftz(s[i + 1] - subtracted[half]);
            sum[half] += low + high;
            const u32 to = probabilities + row * 128 + (((group * 4 + i / 4) ^ row) & 7) * 16 + lane % 4 * 4;
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(to_bf16x2(low, high)) : "memory");
        }
#pragma unroll
        for (int i = 0; i < 4 * 8 * 4; i++)
            o[i / 32][i / 4 % 8][i % 4] *= before[i / 2 % 2];
        named_barrier_sync(ROUNDED, CONSUMERS);
        u32 p[4][4];
#pragma unroll
        for (int step = 0; step < 4; step++)
            ldmatrix_x4(p[step], operand + (((2 * step + lane / 16) ^ (warp * 16 + lane % 16)) & 7) * 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int panel = 0; panel < 4; panel++)
                wgmma_rs<true>(o[panel], p[step], keys + (group * 4 + panel) * (PANEL / 16) + step * (16 * 128 / 16));
        wgmma_commit_group();
        wgmma_wait_group<0>();
        if (lane == 0)
            mbarrier_arrive(shared.empty + stage);
        __syncwarp();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = lanes_sum<4>(sum[half]);
        if (lane % 4 == 0) {
            shared.sum[group][head + 8 * half] = sum[half];
            shared.maximum[head + 8 * half] = maximum[half];
        }
    }
    // The last keys and probabilities have been read.
    named_barrier_sync(CONSUMED, CONSUMERS);
    float *const results = shared.results() + group * 256 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4 * 8 * 4; i += 2)
        *(float2 *)(results + (head + 8 * (i / 2 % 2)) * SUM_STRIDE + i / 32 * 64 + i / 4 % 8 * 8) =
            make_float2(o[i / 32][i / 4 % 8][i % 4], o[i / 32][i / 4 % 8][i % 4 + 1]);
}

// ---- the sums of a cluster, in the order of its ranks

__device__ __forceinline__ void merge(Attention &shared, int rank, int ranks, int active, const float *sinks, bf16 *out,
                                      int heads) {
#ifdef MUTANT_LAST_RANK_LOST
    active = active > 1 ? active - 1 : active;
#endif
    if (threadIdx.x < HEADS) {
        const int head = threadIdx.x;
        // All that other thread blocks have is asked for at once.
        float maxima[MOST_RANKS], sums[MOST_RANKS][2];
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            const bool there = from < active;
            maxima[from] = there ? ld_shared_cluster(map_shared_rank(shared.maximum + head, from)) : -__int_as_float(0x7f800000);
            sums[from][0] = there ? ld_shared_cluster(map_shared_rank(shared.sum[0] + head, from)) : 0.0f;
            sums[from][1] = there ? ld_shared_cluster(map_shared_rank(shared.sum[1] + head, from)) : 0.0f;
        }
        float maximum = maxima[0], denominator = 0.0f;
#pragma unroll
        for (int from = 1; from < MOST_RANKS; from++)
            maximum = fmaxf(maximum, maxima[from]);
        maximum = finite_maximum(maximum);
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            const float weight = ex2_approx_ftz(maxima[from] - maximum);
            shared.weight[from][head] = weight;
            if (from < active)
                denominator = fmaf(weight, sums[from][0] + sums[from][1], denominator);
        }
#ifndef MUTANT_SINK_LEFT_OUT
        if (head < heads) {
            const float sink = ex2_approx_ftz(sinks[head] * 1.44269504f - maximum);
#ifdef MUTANT_SINK_OF_EACH_RANK
            denominator += active * sink;
#else
            denominator += sink;
#endif
        }
#endif
        shared.denominator[head] = denominator;
    }
    __syncthreads();
    const float *const results = shared.results();
    for (int i = rank * (PRODUCERS + CONSUMERS) + threadIdx.x; i < HEADS * 128; i += ranks * (PRODUCERS + CONSUMERS)) {
        const int head = i / 128, four = i % 128;
        if (head >= heads)
            continue;
        float4 x[MOST_RANKS], o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            if (from < active)
                x[from] = ld_shared_cluster_v4(map_shared_rank(results + head * SUM_STRIDE + four * 4, from));
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            if (from >= active)
                break;
            const float weight = shared.weight[from][head];
            o.x = fmaf(weight, x[from].x, o.x), o.y = fmaf(weight, x[from].y, o.y);
            o.z = fmaf(weight, x[from].z, o.z), o.w = fmaf(weight, x[from].w, o.w);
        }
        const float denominator = shared.denominator[head];
        if (denominator != 0.0f)
            o.x /= denominator, o.y /= denominator, o.z /= denominator, o.w /= denominator;
        ((uint2 *)out)[i] = to_bf16x4(o);
    }
}

template <class R>
__device__ __forceinline__ void attend(const bf16 *q, const Part window, const Part entries, const float *sinks, bf16 *out,
                                       int heads, float scale) {
    extern __shared__ __align__(1024) u8 bytes[];
    Attention &shared = *(Attention *)bytes;
    u32 ranks, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int row = blockIdx.x / ranks, first_head = blockIdx.y * HEADS;
    const size_t at = ((size_t)row * heads + first_head) * R::DIM;
    const Keys<R> keys(window, entries, row);
    const int tiles = (keys.count() + TILE - 1) / TILE, each = (tiles + ranks - 1) / ranks;
    const int first = rank * each, end = min(first + each, tiles), active = each ? (tiles + each - 1) / each : 0;
    if (threadIdx.x < 2) {
        mbarrier_init(shared.full + threadIdx.x, PRODUCERS), mbarrier_init(shared.empty + threadIdx.x, CONSUMERS / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    const bool producer = threadIdx.x < PRODUCERS;
    if (first < end) {
        if (producer) {
            warpgroup_reg_dealloc<80>();
            produce<R>(shared, keys, first, end);
        } else {
            warpgroup_reg_alloc<176>();
            load_queries(shared, q + at, heads - first_head);
            consume(shared, end - first, scale);
        }
        // Registers that go back to producers too early would be missing where consumers still wait for theirs.
        __syncthreads();
        if (producer)
            warpgroup_reg_alloc<128>();
        else
            warpgroup_reg_dealloc<128>();
    }
    cluster_sync();
    merge(shared, rank, ranks, active, sinks + first_head, out + at, heads - first_head);
    // Nobody leaves while others read its memory.
    cluster_sync();
}
