// `warpgroups`: four producer warps and two consumer warpgroups. Tokens are rows of the instruction and weights its columns, so a
// tile may have as few as 32 weights: every multiprocessor has as much to stream, whatever N is. Rows of a tile past the last token
// repeat others, and cost neither copies nor memory.
//
// The budget of a multiprocessor for 33.5 MB of weights on 132 multiprocessors, (N, K) = (32768, 1024) or (4096, 8192), of which 128
// have 256 KB or 64 units each; 7.8 us at 4.3 TB/s and 1.8 GHz are 14,000 cycles, 220 a unit:
//   tensor cores    4 instructions m64n32k32 of 16 cycles, 64 a unit
//   shared memory   8 KB of x by ldmatrix, 4 KB of weights by wgmma, 4 KB that arrive: 128 cycles at 128 bytes; 8 KB more, 192 cycles,
//                   where x is streamed for 64 tokens
//   instructions    a warp of each scheduler: 16 fused multiply-adds, 2 products of scales and some 40 others
//   memory          x is 64 KB for K = 1024, read once. For K = 8192 and 64 tokens it is 512 KB for each thread block, twice its
//                   weights. Pairs of thread blocks read it once and multicast it: 67 MB in all leave L2, in place of 101.
// So memory is the limit, and a unit of latency may be exposed here and there.
//
// Weights do not depend on the launch before, so the first stages are requested at once; what this launch reads of others, and what
// it writes, comes after the wait.
#pragma once

#include "fp8_gemm/shared.cuh"

// Stages of weights that are requested before x. Copies are served in order, and x must not be last.
constexpr int EARLY = 4;

// The first of the products of a unit: c [64, 32] = a · bᵀ.
__device__ __forceinline__ void first_product(float (&c)[16], const u32 (&a)[4], u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" NAMES_32 "}, {%16, %17, %18, %19}, %20, add, 1, 1; }"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]), "=f"(c[4]), "=f"(c[5]), "=f"(c[6]), "=f"(c[7]), "=f"(c[8]),
                   "=f"(c[9]), "=f"(c[10]), "=f"(c[11]), "=f"(c[12]), "=f"(c[13]), "=f"(c[14]), "=f"(c[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// One thread copies to the same place of both thread blocks of a pair; the barrier of each counts the bytes.
__device__ __forceinline__ void tma_load_1d_both(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((u16)3)
        : "memory");
}

// ---- producers

// The first warp: weights, a stage of each consumer warpgroup's tile in turn.
__device__ __forceinline__ void produce_weights(const Work &work, const u8 *packed) {
    const int lane = threadIdx.x % 32;
    const u64 policy = evict_first_policy();
    const auto bytes = [&](int chunk) { return (u32)min(BLOCKS, work.blocks - BLOCKS * chunk) * UNIT; };
    const auto copy = [&](int tile, int chunk, int slot) {
        const size_t unit = size_t(min(work.first + tile, work.all_tiles() - 1)) * work.blocks + BLOCKS * chunk;
        tma_load_1d(smem_address(work.stage(slot)), packed + unit * UNIT, bytes(chunk), smem_address(work.barriers->full + slot),
                    policy);
    };
    if (lane == 0)
        fence_proxy_async();
    Place place;
    int requested = 0;
    for (int pass = 0; pass < work.passes; pass++) {
        for (int chunk = 0; chunk < work.chunks; chunk++) {
            for (int group = 0; group < work.groups; group++) {
                const int tile = pass * work.groups + group, slot = group * work.stages + place.slot;
                if (tile >= work.tiles)
                    continue;
                if (requested++ == EARLY)
                    work.x_requested();
                if (lane == 0) {
                    mbarrier_wait_parity(work.barriers->empty + slot, place.parity ^ 1);
#ifdef MUTANT_STAGE_OVERWRITTEN
                    const int next = pass * work.chunks + chunk + work.stages, next_chunk = next % work.chunks;
                    const int next_tile = next / work.chunks * work.groups + group;
                    if (next_tile < work.tiles) {
                        mbarrier_arrive_expect_tx(work.barriers->full + slot, bytes(chunk) + bytes(next_chunk));
                        copy(tile, chunk, slot), copy(next_tile, next_chunk, slot);
                    } else
#endif
                    {
                        mbarrier_arrive_expect_tx(work.barriers->full + slot, bytes(chunk));
                        copy(tile, chunk, slot);
                    }
                }
                __syncwarp();
            }
            place.skip(1, work.stages);
        }
    }
    if (requested <= EARLY)
        work.x_requested();
}

// The other three: x, a thread for a row of a chunk. Each thread block of a pair copies half of the rows to both.
__device__ __forceinline__ void produce_x(const Work &work, const u8 *x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int count = work.resident ? work.chunks : work.passes * work.chunks;
    int first = 0, end = work.tokens;
    if (work.pair) {
        const int half = (work.tokens + 1) / 2;
        if (blockIdx.x % 2 == 0)
            end = half;
        else
            first = half;
    }
    const int row = first + 3 * lane + warp - 1;
    int from = row;
#ifdef MUTANT_TOKENS_OF_PEER
    from -= first;
#endif
    const u8 *const source = x + size_t(work.begin + from) * work.K;
    wait_on_dependent_grids();
    if (work.pair)
        cluster_wait();
    // A warp without rows could fall behind by a whole round of the ring, and parities do not tell rounds from the next but one.
    if (warp > 1 && first + warp - 1 >= end) {
        named_barrier_arrive(X_REQUESTED, PRODUCERS);
        return;
    }
    fence_proxy_async();
    Place place;
    for (int it = 0, chunk = 0; it < count; it++) {
        u64 *const full = work.barriers->x_full + place.slot, *const empty = work.barriers->x_empty + place.slot;
        const u32 bytes = min(CHUNK, work.K - CHUNK * chunk);
        mbarrier_wait_parity(empty, place.parity ^ 1);
        // Bytes may arrive before they are expected: the phase cannot end without this arrival.
        if (threadIdx.x == 32)
            mbarrier_arrive_expect_tx(full, work.tokens * bytes);
        if (row < end) {
            const u32 to = smem_address(work.chunk(place.slot)) + row * X_STRIDE;
            if (work.pair)
                tma_load_1d_both(to, source + CHUNK * chunk, bytes, smem_address(full));
            else
                tma_load_1d((void *)(work.chunk(place.slot) + row * X_STRIDE), source + CHUNK * chunk, bytes, full);
        }
        __syncwarp();
        if (it + 1 == min(work.slots, count))
            named_barrier_arrive(X_REQUESTED, PRODUCERS);
        place.skip(1, work.slots);
        if (++chunk == work.chunks)
            chunk = 0;
    }
}

// ---- consumers

__device__ __forceinline__ void cp_async_4(float *to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)), "l"(from) : "memory");
}

// The scales of all tokens and weights of the thread block, a row for a warp. All are under way at once.
__device__ __forceinline__ void load_scales(const Work &work, const float *x_scale, const float *w_scale) {
    const int warp = (threadIdx.x - PRODUCERS) / 32, lane = threadIdx.x % 32, blocks = work.blocks;
    const int all = (work.N + 127) / 128, first = work.first / 4;
    for (int row = warp; row < work.scale_rows() && first + row < all; row += CONSUMERS / 32) {
        for (int block = lane; block < blocks; block += 32) {
#ifdef MUTANT_NEIGHBOURS_SCALE
            const int from = min(block + 1, blocks - 1);
#else
            const int from = block;
#endif
            cp_async_4(work.w_scale + row * work.w_scale_stride + block, w_scale + size_t(first + row) * blocks + from);
        }
    }
    wait_on_dependent_grids();
    for (int row = warp; row < work.tokens; row += CONSUMERS / 32)
        for (int block = lane; block < blocks; block += 32)
            cp_async_4(work.x_scale + row * work.x_scale_stride + block, x_scale + size_t(work.begin + row) * blocks + block);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    named_barrier_sync(SCALES_READY, CONSUMERS);
}

// 128 columns of x as operand A of four instructions.
__device__ __forceinline__ void load_tokens(u32 (&a)[4][4], u32 at) {
#pragma unroll
    for (int step = 0; step < 4; step++)
        ldmatrix_x4(a[step], at + step * 32);
}

// Starts the products of a unit.
__device__ __forceinline__ void multiply(float (&sums)[16], const u32 (&a)[4][4], u32 unit) {
    const u64 b = wgmma_descriptor(unit);
    wgmma_fence();
    first_product(sums, a[0], b);
#pragma unroll
    for (int step = 1; step < 4; step++)
        Step<Fp8, 32>::registers(sums, a[step], b + step * 2);
    wgmma_commit_group();
}

// Adds scaled sums of a unit; a thread has two tokens.
__device__ __forceinline__ void promote(float (&acc)[16], const float (&sums)[16], float2 scale) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float by = i / 2 % 2 ? scale.y : scale.x;
#ifdef MUTANT_ROUNDED_TWICE
        acc[i] = acc[i] + sums[i] * by;
#else
        acc[i] = __fmaf_rn(by, sums[i], acc[i]);
#endif
    }
}

// Stores the sums of a thread: eight neighbours of each of two tokens.
template <class Y> __device__ __forceinline__ void store(const Work &work, Y *y, const float (&acc)[16], int tile) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, col = tile * TILE_WEIGHTS + lane % 4 * 8;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int token = warp * 16 + lane / 4 + 8 * h;
        float out[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = acc[i / 2 * 4 + 2 * h + i % 2];
        if (token >= work.tokens)
            continue;
        const size_t at = size_t(work.begin + token) * work.N + col;
        if (work.N % 8 == 0) {
            if (col < work.N)
                Vec8<Y>::store(y, at / 8, out);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (col + i < work.N)
                    from_f32(y[at + i], out[i]);
        }
    }
}

// A warpgroup has a tile of each pass. The sums of a unit are scaled and added while tensor cores are at the next.
template <class Y> __device__ __forceinline__ void consume(const Work &work, Y *y) {
    // The compiler must see that all threads of a warp go the same way, or it waits for each product.
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128 - 1, 0);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int whole = work.K / 128 / BLOCKS / 2 * 2; // stages, in pairs, of whole blocks only
    Barriers *const barriers = work.barriers;

    // The row and half of 32 columns that this lane names to ldmatrix, and its tokens.
    const int named = (warp * 16 + lane % 16) & (work.rows - 1);
    const u32 operand = smem_address(work.x) + named * X_STRIDE + lane / 16 * 16;
    const int token = warp * 16 + lane / 4;
    const float *const scale_0 = work.x_scale + (token & (work.rows - 1)) * work.x_scale_stride;
    const float *const scale_1 = work.x_scale + ((token + 8) & (work.rows - 1)) * work.x_scale_stride;
    const u32 peer_empty = map_shared_rank(barriers->x_empty, work.pair ? 1 - blockIdx.x % 2 : 0);

    u64 *const full = barriers->full + group * work.stages, *const empty = barriers->empty + group * work.stages;
    const u32 ring = smem_address(work.stage(group * work.stages));

    Place w, x;
    const auto wait_x = [&] { mbarrier_wait_parity(barriers->x_full + x.slot, x.parity); };
    const auto wait_w = [&] { mbarrier_wait_parity(full + w.slot, w.parity); };
    // By warps whose products of the stage are done.
    const auto release_x = [&](Place x) {
        if (lane == 0 && !work.resident) {
            mbarrier_arrive(barriers->x_empty + x.slot);
            if (work.pair)
                mbarrier_arrive_cluster(peer_empty + x.slot * 8);
        }
        __syncwarp();
    };
    const auto release_w = [&](Place w) {
        if (lane == 0)
            mbarrier_arrive(empty + w.slot);
    };
    const auto tokens_at = [&] { return operand + x.slot * work.rows * X_STRIDE; };
    const auto unit_at = [&] { return ring + w.slot * STAGE; };
    const auto next = [&] { w.skip(1, work.stages), x.skip(1, work.slots); };

    u32 a[2][4][4];
    float acc[16], sums[2][16];
    for (int pass = 0; pass < work.passes; pass++) {
        const int tile = pass * work.groups + group;
        if (work.resident)
            x = Place();
        if (tile >= work.tiles) {
            // The other warpgroup has a tile, and x is released by both.
            for (int chunk = 0; chunk < work.chunks && !work.resident; chunk++) {
                wait_x();
                release_x(x);
                x.skip(1, work.slots);
            }
            break;
        }
#ifdef MUTANT_SCALES_FROM_FIRST
        const float *const scale_w = work.w_scale + tile / 4 * work.w_scale_stride;
#else
        const float *const scale_w = work.w_scale + ((work.first + tile) / 4 - work.first / 4) * work.w_scale_stride;
#endif
        // Those of the thread's tokens for the blocks of a stage.
        const auto scales_at = [&](float2(&scale)[BLOCKS], int stage) {
            const float4 by_0 = ((const float4 *)scale_0)[stage], by_1 = ((const float4 *)scale_1)[stage];
            const float4 by_w = ((const float4 *)scale_w)[stage];
            scale[0] = make_float2(by_0.x * by_w.x, by_1.x * by_w.x), scale[1] = make_float2(by_0.y * by_w.y, by_1.y * by_w.y);
            scale[2] = make_float2(by_0.z * by_w.z, by_1.z * by_w.z), scale[3] = make_float2(by_0.w * by_w.w, by_1.w * by_w.w);
        };
#pragma unroll
        for (int i = 0; i < 16; i++)
            acc[i] = 0.0f;

        // Two stages at a time. The compiler can tell which products are done only within a pass of the loop, so they all are at
        // its end.
        for (int stage = 0; stage < whole; stage += 2) {
            float2 scale[BLOCKS];
            scales_at(scale, stage);
            const Place first_w = w, first_x = x;
            u32 tokens = tokens_at(), unit = unit_at();
            wait_x(), wait_w();
            load_tokens(a[0], tokens);
#pragma unroll
            for (int i = 0; i < 2 * BLOCKS; i++) {
                multiply(sums[i % 2], a[i % 2], unit + i % BLOCKS * UNIT);
                if (i > 0)
                    wgmma_wait_group<1>();
                if (i == BLOCKS)
                    release_w(first_w), release_x(first_x);
                if (i % BLOCKS < BLOCKS - 1)
                    load_tokens(a[(i + 1) % 2], tokens + (i + 1) % BLOCKS * 128);
                if (i > 0)
                    promote(acc, sums[(i - 1) % 2], scale[(i - 1) % BLOCKS]);
                if (i == BLOCKS)
                    scales_at(scale, stage + 1);
                if (i == BLOCKS - 1) {
                    next();
                    tokens = tokens_at(), unit = unit_at();
                    wait_x(), wait_w();
                    load_tokens(a[0], tokens);
                }
            }
            wgmma_wait_group<0>();
            promote(acc, sums[1], scale[BLOCKS - 1]);
            release_w(w), release_x(x);
            next();
        }

        // The last stages, if one of them is without a partner or has fewer blocks or a last block that is not whole: one block
        // after the other.
        for (int stage = whole; stage < work.chunks; stage++) {
            wait_x(), wait_w();
            for (int block = BLOCKS * stage; block < min(BLOCKS * (stage + 1), work.blocks); block++) {
                const int in_stage = block - BLOCKS * stage;
                load_tokens(a[0], tokens_at() + in_stage * 128);
                // What lies behind the last column of x is anything, and weights there are zeros; zero times NaN is not zero.
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    const int left = work.K - block * 128 - step * 32;
                    a[0][step][0] = left > 0 ? a[0][step][0] : 0, a[0][step][1] = left > 0 ? a[0][step][1] : 0;
                    a[0][step][2] = left > 16 ? a[0][step][2] : 0, a[0][step][3] = left > 16 ? a[0][step][3] : 0;
                }
                multiply(sums[0], a[0], unit_at() + in_stage * UNIT);
                wgmma_wait_group<0>();
#ifdef MUTANT_TAIL_SKIPPED
                if (block * 128 + 128 > work.K)
                    break;
#endif
                promote(acc, sums[0], make_float2(scale_0[block] * scale_w[block], scale_1[block] * scale_w[block]));
            }
            release_w(w), release_x(x);
            next();
        }
#ifdef MUTANT_WARPGROUPS_EXCHANGED
        store(work, y, acc, work.first + ((tile ^ 1) < work.tiles ? tile ^ 1 : tile));
#else
        store(work, y, acc, work.first + tile);
#endif
    }
}

template <class Y>
__device__ __forceinline__ void warpgroups(const u8 *x, const float *x_scale, const u8 *packed, const float *w_scale, Y *y, int B,
                                           int N, int K) {
    extern __shared__ __align__(1024) u8 shared[];
    launch_dependent_grids();
    const Work work(shared, B, N, K);
    if (threadIdx.x < MOST_SLOTS) {
        // Four warps release a stage; those of all consumer warpgroups that read it release x.
        if (threadIdx.x < MOST_STAGES)
            mbarrier_init(work.barriers->full + threadIdx.x, 1), mbarrier_init(work.barriers->empty + threadIdx.x, 4);
        mbarrier_init(work.barriers->x_full + threadIdx.x, 1);
        mbarrier_init(work.barriers->x_empty + threadIdx.x, 4 * work.groups * (work.pair ? 2 : 1));
        fence_mbarrier_init();
    }
    __syncthreads();
    if (work.pair)
        cluster_arrive_relaxed();
    if (threadIdx.x < 32) {
        produce_weights(work, packed);
    } else if (threadIdx.x < PRODUCERS) {
        produce_x(work, x);
    } else {
        load_scales(work, x_scale, w_scale);
        if (work.pair)
            cluster_wait();
        // With one tile there is work for one warpgroup, and only it releases x.
        if (threadIdx.x / 128 <= work.groups)
            consume(work, y);
    }
    // Nobody leaves while the other may still copy to its memory or arrive at its barriers.
    if (work.pair)
        cluster_sync();
}
