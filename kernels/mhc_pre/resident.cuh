// The persistent mHC pre-block for many tokens. The projection stays in registers, and tokens stay in shared memory until they are
// mixed, so everything is read once. Warps are specialised: a producer, mma warps, and warps that reduce, exchange and mix.
#pragma once

#include "mhc_pre/weights.cuh"
#include "lib/mma.cuh"
#include "lib/tma.cuh"
#include "lib/vec.cuh"

// GROUP_CTAS CTAs share STEP tokens at a time; each has CTA_CHANNELS channels of all streams. For each token a CTA publishes RECORD
// sums over its channels: MUS products, and X_j·X_k, from which the norms of v and of the mixed vector follow.
constexpr int GROUP_CTAS = 32, GROUPS = 4, STEP = 16, CTA_CHANNELS = DIM / GROUP_CTAS, RECORD = MUS + STREAMS * STREAMS;
// Tokens lie ROW bytes apart, and streams STREAM, so that the eight rows of an `ldmatrix` have no bank conflicts.
constexpr int ROW = CTA_CHANNELS * 2 + 16, STREAM = STEP * ROW + 32, STAGE = STREAMS * STREAM, STAGES = 7;
// The roles of warps.
constexpr int MMA_WARPS = CTA_CHANNELS / 32, FIRST_MIX_WARP = 8, REDUCE_WARP = 12, COLLECT_WARP = 13, PRODUCER_WARP = 14,
              RECEIVE_WARP = 15;

// The projection is split into PARTS bf16 parts whose sum is exact. Tokens are prefetched to L2, by lines, PREFETCH_STEPS steps
// before they are copied.
constexpr int PARTS = 3, PREFETCH_STEPS = 2, LINE = 128;

// The exchange holds the sums of EXCHANGE_STEPS steps. A CTA mixes a step only after its sums have been read, and multiplies the
// STAGES-th step after it later still.
constexpr int EXCHANGE_STEPS = 8;
static_assert(EXCHANGE_STEPS >= STAGES, "sums are overwritten before they are read");

// The exchange between the CTAs of a group, zeros at first. Each number shows by itself whether it is there, so that nobody waits
// for a fence.
struct Exchange {
    float4 *weights; // of the streams of a token, times the norm; none is zero once it is there
    u32 *sums;       // the lowest bit of each is `tag_of` once it is there

    __device__ __forceinline__ u32 *sums_of(int it, int group, int token) const {
        return sums + (size_t)((it % EXCHANGE_STEPS * GROUPS + group) * STEP + token) * GROUP_CTAS * RECORD;
    }
};

__device__ __forceinline__ u32 tag_of(int it) {
    return ~(it / EXCHANGE_STEPS) & 1;
}

// Splits the bf16 part off two numbers and keeps the rest. After three parts nothing is left.
__device__ __forceinline__ u32 split_off_bf16(float2 &rest) {
    const u32 part = to_bf16x2(rest.x, rest.y);
    rest.x -= __uint_as_float(part << 16), rest.y -= __uint_as_float(part & 0xffff0000);
    return part;
}

struct Barriers {
    u64 full[STAGES], empty[STAGES], ready[STAGES], summed, read;
};

// An mma warp multiplies 32 channels of all streams.
__device__ __forceinline__ void mma_warps(const float *fn, u32 stages, float *partials, Barriers &barriers, int rank, int steps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 b[2 * STREAMS][PARTS][6];
    const float *from = fn + (size_t)(lane / 4) * K + rank * CTA_CHANNELS + warp * 32 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 2 * STREAMS; k++) {
#pragma unroll
        for (int i = 0; i < 6; i++) {
            float2 f = __ldg((const float2 *)(from + (size_t)(i / 2 * 8) * K + k % STREAMS * DIM + k / STREAMS * 16 + i % 2 * 8));
            f = make_float2(projection(f.x), projection(f.y));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                b[k][part][i] = split_off_bf16(f);
        }
    }
    const u32 from16 = stages + lane % 16 * ROW + warp * 64 + lane / 16 * 16;
    float *to = partials + (warp * STEP + lane / 4) * MUS + lane % 4 * 2;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        mbarrier_wait_parity(barriers.full + slot, parity);
        const u32 tokens = from16 + slot * STAGE;
        float d[3][4] = {};
        u32 a[2][4];
        ldmatrix_x4(a[0], tokens);
#pragma unroll
        for (int k = 0; k < 2 * STREAMS; k++) {
            if (k + 1 < 2 * STREAMS)
                ldmatrix_x4(a[(k + 1) % 2], tokens + (k + 1) % STREAMS * STREAM + (k + 1) / STREAMS * 32);
#pragma unroll
            for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
                for (int n = 0; n < 3; n++)
                    mma_m16n8k16_bf16(d[n], a[k % 2], b[k][part][2 * n], b[k][part][2 * n + 1]);
            }
        }
        // The sums of the step before have been read.
        mbarrier_wait_parity(&barriers.read, (it & 1) ^ 1);
#pragma unroll
        for (int n = 0; n < 3; n++) {
            *(float2 *)(to + n * 8) = make_float2(d[n][0], d[n][1]);
            *(float2 *)(to + n * 8 + 8 * MUS) = make_float2(d[n][2], d[n][3]);
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(&barriers.summed);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// The gram warp multiplies streams by each other: of four tokens at a time, the first two by themselves, and the other two.
__device__ __forceinline__ void gram_warp(u32 stages, float *partials, Barriers &barriers, int steps) {
    const int lane = threadIdx.x % 32;
    const u32 from = stages + lane % 4 * STREAM + lane / 4 % 4 * ROW + lane / 16 * 16;
    float *to = partials + MMA_WARPS * STEP * MUS + lane / 16 * 16 + lane / 4 % 4 * 4 + lane % 2 * 2;
    // The other accumulators are products of different tokens.
    const bool same_token = lane / 16 == lane % 4 / 2;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        mbarrier_wait_parity(barriers.full + slot, parity);
        float d[STEP / 4][2][4] = {};
        u32 a[2][STEP / 4][4];
        const auto load = [&](int k) {
#pragma unroll
            for (int quad = 0; quad < STEP / 4; quad++)
                ldmatrix_x4(a[k % 2][quad], from + slot * STAGE + quad * 4 * ROW + k * 32);
        };
        load(0);
#pragma unroll
        for (int k = 0; k < CTA_CHANNELS / 16; k++) {
            if (k + 1 < CTA_CHANNELS / 16)
                load(k + 1);
#pragma unroll
            for (int quad = 0; quad < STEP / 4; quad++) {
                const u32(&rows)[4] = a[k % 2][quad];
                mma_m16n8k16_bf16(d[quad][0], rows, rows[0], rows[2]);
                mma_m16n8k16_bf16(d[quad][1], rows, rows[1], rows[3]);
            }
        }
        mbarrier_wait_parity(&barriers.read, (it & 1) ^ 1);
        if (same_token) {
#pragma unroll
            for (int quad = 0; quad < STEP / 4; quad++) {
                *(float2 *)(to + quad * 4 * 16) = make_float2(d[quad][0][0], d[quad][0][1]);
                *(float2 *)(to + (quad * 4 + 2) * 16) = make_float2(d[quad][1][2], d[quad][1][3]);
            }
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(&barriers.summed);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// The collect warp adds the sums of the mma warps, and publishes them.
__device__ __forceinline__ void collect_warp(const float4 *partials, Exchange exchange, Barriers &barriers, int rank, int group,
                                             int steps) {
    const int lane = threadIdx.x % 32;
    constexpr int VECTORS = MUS / 4, PARTIAL_VECTORS = STEP * VECTORS;
    const auto sum_of = [&](int at) {
        float4 total = partials[at];
#pragma unroll
        for (int part = 1; part < MMA_WARPS; part++) {
            const float4 more = partials[part * PARTIAL_VECTORS + at];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        return total;
    };
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        mbarrier_wait_parity(&barriers.summed, it & 1);
        float4 sum[3], product[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            product[i] = partials[MMA_WARPS * PARTIAL_VECTORS + i * 32 + lane];
#pragma unroll
        for (int i = 0; i < 3; i++)
            sum[i] = sum_of(i * 32 + lane);
        mbarrier_arrive(&barriers.read);
        const u32 tag = tag_of(it);
        const auto tagged = [&](float sum) { return (__float_as_uint(sum) & ~1) | tag; };
        const auto publish = [&](int token, int quad, float4 sum) {
            u32 *to = exchange.sums_of(it, group, token) + rank * RECORD + quad * 4;
            st_relaxed(to, make_uint4(tagged(sum.x), tagged(sum.y), tagged(sum.z), tagged(sum.w)));
        };
#pragma unroll
        for (int i = 0; i < 2; i++)
            publish(i * 8 + lane / 4, VECTORS + lane % 4, product[i]);
#pragma unroll
        for (int i = 0; i < 3; i++)
            publish((i * 32 + lane) / VECTORS, (i * 32 + lane) % VECTORS, sum[i]);
    }
}

// The reduce warp adds all sums of one token in every second step, and publishes the token's mixing weights. `post` and `comb` are
// made for many tokens at a time, one for each lane.
__device__ __forceinline__ void reduce_warp(Exchange exchange, float (*queue)[MUS + 1], Parameters parameters, float *post,
                                            float *comb, int rank, int group, int steps, int tokens) {
    const int lane = threadIdx.x % 32;
    const auto token_of = [&](int it) { return (group + it * GROUPS) * STEP + rank / 2; };
    const float lane_base = parameters.base[lane % STREAMS], lane_scale = parameters.scale[0];
    int queued = 0;
#pragma unroll 1
    for (int it = rank % 2; it < steps; it += 2) {
        const int token = token_of(it);
        const u32 *from = exchange.sums_of(it, group, rank / 2), tag = tag_of(it);
        float each[GROUP_CTAS], rest[GROUP_CTAS / 4];
        u32 stale;
        do {
            stale = 0;
#pragma unroll
            for (int i = 0; i < GROUP_CTAS; i++) {
                const u32 sum = ld_relaxed(from + i * RECORD + lane);
                each[i] = __uint_as_float(sum), stale |= sum ^ tag;
            }
#pragma unroll
            for (int i = 0; i < GROUP_CTAS / 4; i++) {
                const u32 sum = ld_relaxed(from + (i * 4 + lane / 8) * RECORD + 32 + lane % 8);
                rest[i] = __uint_as_float(sum), stale |= sum ^ tag;
            }
        } while (__any_sync(~0u, stale & 1));
#ifdef MUTANT_SHARE_LOST
        each[GROUP_CTAS - 1] = 0;
#endif
#pragma unroll
        for (int i = 4; i < GROUP_CTAS; i++)
            each[i % 4] += each[i];
        each[0] = (each[0] + each[1]) + (each[2] + each[3]);
#pragma unroll
        for (int i = 1; i < GROUP_CTAS / 4; i++)
            rest[0] += rest[i];
        rest[0] += __shfl_xor_sync(~0u, rest[0], 8);
        rest[0] += __shfl_xor_sync(~0u, rest[0], 16);

        // Lanes 0 … 23 have the products for the weights, lanes 24 … 31 X_0·X_k and X_1·X_k, lanes 0 … 7 also X_2·X_k and X_3·X_k.
        const float squares_of_v = (__shfl_sync(~0u, each[0], MUS) + __shfl_sync(~0u, each[0], MUS + 5)) +
                                   (__shfl_sync(~0u, rest[0], 2) + __shfl_sync(~0u, rest[0], 7));
        const float mu = each[0] * rsqrtf(squares_of_v / K + parameters.norm_eps);
        const float weight = sigmoid(mu * lane_scale + lane_base) + eps_of_pre(parameters);
        float pre[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            pre[i] = __shfl_sync(~0u, weight, i);
        const bool upper = lane >= MUS;
        const float row = upper ? (lane < MUS + 4 ? pre[0] : pre[1]) : (lane < 4 ? pre[2] : pre[3]);
        const float column = lane % 4 < 2 ? (lane % 4 == 0 ? pre[0] : pre[1]) : (lane % 4 == 2 ? pre[2] : pre[3]);
        const float product = row * column * (upper ? each[0] : rest[0]);
        const float squares = warp_sum(upper || lane < 8 ? product : 0.0f);
        const float norm = rsqrtf((squares < 0 ? 0 : squares) / DIM + parameters.norm_eps);
        if (lane < STREAMS && token < tokens) {
            const float out = weight * norm;
            const u32 bits = __float_as_uint(out) == 0 ? 0x80000000 : __float_as_uint(out);
            st_relaxed((u32 *)(exchange.weights + token) + lane, bits);
        }
        if (lane < MUS)
            queue[queued][lane] = mu;
        queued++;
        if (queued == 32 || it + 2 >= steps) {
            __syncwarp();
#ifdef MUTANT_FULL_QUEUE_LATE
            const int index = token_of(it - 2 * (min(queued, 31) - 1 - lane));
#else
            const int index = token_of(it - 2 * (queued - 1 - lane));
#endif
            if (lane < queued && index < tokens) {
                const auto of = [&](int i) { return queue[lane][i]; };
                make_post(of, parameters, post + (size_t)index * STREAMS);
                make_comb(of, parameters, comb + (size_t)index * STREAMS * STREAMS);
            }
            __syncwarp();
            queued = 0;
        }
    }
}

// The receive warp waits for the mixing weights of tokens.
__device__ __forceinline__ void receive_warp(Exchange exchange, float4 *weights, Barriers &barriers, int group, int steps,
                                             int tokens) {
    const int lane = threadIdx.x % 32;
    if (lane >= STEP)
        return;
    const auto weights_of = [&](int token) {
        uint4 w;
        do
            w = ld_relaxed((const uint4 *)exchange.weights + token);
        while (w.x == 0 || w.y == 0 || w.z == 0 || w.w == 0);
        return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w));
    };
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        const int token = (group + it * GROUPS) * STEP + lane;
        if (token < tokens)
            weights[slot * STEP + lane] = weights_of(token);
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
        weights[slot * STEP + lane] = weights_of(0);
#endif
        mbarrier_arrive(barriers.ready + slot);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// The producer warp copies the CTA's channels to shared memory as soon as a stage is empty.
__device__ __forceinline__ void producer_warp(const bf16 *x, u32 stages, Barriers &barriers, int rank, int group, int steps,
                                              int tokens) {
    const u64 policy = evict_first_policy();
    const int lane = threadIdx.x % 32;
    int slot = 0, parity = 1;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        mbarrier_wait_parity(barriers.empty + slot, parity);
        const int first = (group + it * GROUPS) * STEP, count = min(STEP, tokens - first);
        if (elect_one_sync()) {
            const bf16 *from = x + (size_t)first * K + rank * CTA_CHANNELS;
            const u32 to = stages + slot * STAGE;
            mbarrier_arrive_expect_tx(barriers.full + slot, STREAMS * count * CTA_CHANNELS * 2);
#pragma unroll 4
            for (int token = 0; token < count; token++) {
#pragma unroll
                for (int stream = 0; stream < STREAMS; stream++)
                    tma_load_1d(to + stream * STREAM + token * ROW, from + (size_t)token * K + stream * DIM, CTA_CHANNELS * 2,
                                smem_address(barriers.full + slot), policy);
            }
        }
        __syncwarp();
        // Prefetches half a token of a later step; the CTAs of the group together prefetch the whole step.
        if (const int token = first + PREFETCH_STEPS * GROUPS * STEP + rank / 2; token < tokens) {
            const u8 *from = (const u8 *)(x + (size_t)token * K + rank % 2 * (K / 2)) + lane * LINE;
#pragma unroll
            for (int i = 0; i < K; i += 32 * LINE)
                prefetch_l2(from + i);
        }
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// Four warps mix four tokens each, two at a time with half a warp each, and release the stage.
__device__ __forceinline__ void mix_warps(const u8 *stages, const float4 *weights, const float *weight, bf16 *y,
                                          Barriers &barriers, int rank, int group, int steps, int tokens) {
    const int lane = threadIdx.x % 32, index = lane % 16, first = (threadIdx.x / 32 - FIRST_MIX_WARP) * 4 + lane / 16;
    constexpr int HALF = CTA_CHANNELS / 16; // distance of the vec8 of a lane
    const bool active = index < HALF;
    float w[2][8] = {};
    if (active) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[c][i] = weight[rank * CTA_CHANNELS + (c * HALF + index) * 8 + i];
        }
    }
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        mbarrier_wait_parity(barriers.full + slot, parity);
        mbarrier_wait_parity(barriers.ready + slot, parity);
        if (active) {
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const int token = first + pair * 2;
                const float4 pre4 = weights[slot * STEP + token];
                const float pre[STREAMS] = {pre4.x, pre4.y, pre4.z, pre4.w};
                const int row = (group + it * GROUPS) * STEP + token;
                bf16 *to = y + (size_t)row * DIM + rank * CTA_CHANNELS;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float u[8] = {};
#pragma unroll
                    for (int i = 0; i < STREAMS; i++) {
                        Vec8<bf16> in;
                        in.load_smem((const bf16 *)(stages + slot * STAGE + i * STREAM + token * ROW), c * HALF + index);
                        float v[8];
                        in.unpack(v);
#pragma unroll
                        for (int j = 0; j < 8; j++)
                            u[j] = i == 0 ? pre[0] * v[j] : fmaf(pre[i], v[j], u[j]);
                    }
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        u[j] *= w[c][j];
                    if (row < tokens)
                        Vec8<bf16>::store(to, c * HALF + index, u);
                }
            }
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(barriers.empty + slot);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

__device__ __forceinline__ void resident(const bf16 *x, const float *fn, Parameters parameters, const float *weight, bf16 *y,
                                         float *post, float *comb, Exchange exchange, int tokens) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ Barriers barriers;
    float *partials = (float *)(smem + STAGES * STAGE);
    float4 *weights = (float4 *)(partials + STEP * (MMA_WARPS * MUS + STREAMS * STREAMS));
    float (*queue)[MUS + 1] = (float (*)[MUS + 1])(weights + STAGES * STEP);
    const int rank = blockIdx.x % GROUP_CTAS, group = blockIdx.x / GROUP_CTAS, warp = threadIdx.x / 32;
    const int steps = ((tokens + STEP - 1) / STEP - group + GROUPS - 1) / GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers.full + i, 1);
            mbarrier_init(barriers.empty + i, 4);
            mbarrier_init(barriers.ready + i, STEP);
        }
        mbarrier_init(&barriers.summed, MMA_WARPS + 1);
        mbarrier_init(&barriers.read, 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 256) {
        warpgroup_reg_alloc<184>();
        if (warp < MMA_WARPS)
            mma_warps(fn, smem_address(smem), partials, barriers, rank, steps);
        else
            gram_warp(smem_address(smem), partials, barriers, steps);
    } else if (threadIdx.x < 384) {
        warpgroup_reg_dealloc<72>();
        mix_warps(smem, weights, weight, y, barriers, rank, group, steps, tokens);
    } else {
        warpgroup_reg_dealloc<72>();
        if (warp == REDUCE_WARP)
            reduce_warp(exchange, queue, parameters, post, comb, rank, group, steps, tokens);
        else if (warp == RECEIVE_WARP)
            receive_warp(exchange, weights, barriers, group, steps, tokens);
        else if (warp == COLLECT_WARP)
            collect_warp((const float4 *)partials, exchange, barriers, rank, group, steps);
        else if (warp == PRODUCER_WARP)
            producer_warp(x, smem_address(smem), barriers, rank, group, steps, tokens);
    }
}
