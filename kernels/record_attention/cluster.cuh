// 64 heads of a row for each thread block; those of a cluster share its keys, in tiles of 32, as evenly as whole tiles allow.
// What a thread block reads, and so the order of all sums, follows from the number of keys of the row alone.
//
// Two producer warpgroups decode tiles. Two consumer warpgroups have half of the channels of the results each, [64 heads, 256],
// and take turns with scores: those of a tile, [64, 32], are one warpgroup's, which hands the exponentials to the other. So while
// one computes exponentials, tensor cores are at the products of the other.
//
// Where there are more heads, two thread blocks may be a pair, with 64 heads each and the same keys: each decodes half of a tile and
// sends it to the other. Its bits are the same.
//
// Two tiles cost tensor cores 2,560 cycles, as products of 32 keys wait for their operands, and shared memory some 2,600. Of `v4_fp8`
// they are 37 KB, which a multiprocessor's share of memory bandwidth brings in 2,000.
#pragma once

#include "record_attention/tiles.cuh"

// Named barriers of the consumers: their queries are there; the exponentials of each warpgroup are; what results are multiplied by is.
constexpr int QUERIES = 1, HANDED = 2, WEIGHTS = 4;

// The numbers of a slice of the results, which is eight channels of all heads: those of a head lie in other banks for each of eight
// slices.
constexpr int SLICE = HEADS * 8 + 4;

// The maximum that exponentials are relative to grows only if it has to by more than this, as a power of two: results are seldom
// multiplied by what that changes, and exponentials are no larger than 2^8.
constexpr float SLACK = 8.0f;

// c [64, 32] = a · bᵀ, the first of the steps that `Step` adds up.
__device__ __forceinline__ void first_step(float (&c)[16], u64 a, u64 b) {
    asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES_32 "}, %16, %17, add, 1, 1, 0, 0; }"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]), "=f"(c[4]), "=f"(c[5]), "=f"(c[6]), "=f"(c[7]), "=f"(c[8]),
                   "=f"(c[9]), "=f"(c[10]), "=f"(c[11]), "=f"(c[12]), "=f"(c[13]), "=f"(c[14]), "=f"(c[15])
                 : "l"(a), "l"(b));
}

// ---- the consumer warpgroups

// The queries of 64 heads, zeros behind the last.
__device__ __forceinline__ void request_queries(Attention &shared, const bf16 *q, int heads) {
    const u32 to = smem_address(shared.q);
#pragma unroll 4
    for (int i = threadIdx.x - PRODUCERS; i < HEADS * 64; i += CONSUMERS) {
        const int head = i / 64, chunk = i % 64;
        cp_async_16_zfill(to + swizzle_128b(head, chunk), q + (head < heads ? i * 8 : 0), head < heads);
    }
    cp_async_commit_group();
}

// Returns when all are there, and their sinks.
__device__ __forceinline__ void wait_for_queries(Attention &shared, const float *sinks, int heads) {
    const int head = threadIdx.x - PRODUCERS;
    if (head < HEADS)
        shared.sinks[head] = head < heads ? sinks[head] : -infinity();
    cp_async_wait_group<0>();
    fence_proxy_async_smem();
    named_barrier_sync(QUERIES, CONSUMERS);
}

// The state of a consumer thread: its heads are `head` and the eighth behind it, its channels those of accumulators of wgmma.
template <bool PAIR> struct Consumer {
    Attention &shared;
    const int group, warp, lane, head, thread, tiles;
    const float scale; // of scores whose exponentials are powers of two
    float results[4][8][4], scores[16], maximum[2], sum[2];

    __device__ __forceinline__ Consumer(Attention &shared, int tiles, float scale)
        : shared(shared), group(__shfl_sync(0xffffffff, threadIdx.x / 128 - PRODUCERS / 128, 0)), warp(threadIdx.x / 32 % 4),
          lane(threadIdx.x % 32), head(warp * 16 + lane / 4), thread(threadIdx.x % 128), tiles(tiles), scale(scale * 1.44269504f),
          results{}, maximum{-infinity(), -infinity()}, sum{} {}

    // A tile in its panels.
    __device__ __forceinline__ u32 keys(int tile) const {
        const int stage = tile % STAGES;
        return smem_address(shared.keys[stage / 2]) + stage % 2 * TILE * 128;
    }

    // The descriptor of what lies so many times 16 bytes behind. It seems to change from use to use, so that the compiler keeps
    // none in registers, of which there are too few.
    static __device__ __forceinline__ u64 descriptor(u32 at, int sixteens) {
        const u64 begin = wgmma_descriptor(at);
        u64 out;
        asm volatile("mov.b64 %0, {%1, %2};" : "=l"(out) : "r"((u32)begin + sixteens), "r"((u32)(begin >> 32)));
        return out;
    }

    // Sets out for the scores of a tile; behind the last, for scores that nobody reads.
    __device__ __forceinline__ void request_scores(int tile) {
        if (tile < tiles)
            mbarrier_wait_parity(shared.full + tile % STAGES, tile / STAGES % 2);
        const u32 q = smem_address(shared.q), k = keys(tile);
        wgmma_fence();
        first_step(scores, descriptor(q, 0), descriptor(k, 0));
#pragma unroll
        for (int step = 1; step < 32; step++) {
            const int at = step / 4 * (PANEL / 16) + step % 4 * 2;
            Step<Bf16, 32>::shared(scores, descriptor(q, at), descriptor(k, at));
        }
        wgmma_commit_group();
    }

    // Lets the producers have a tile whose products are done. Those of the peer are told only what they wait for, as it may have ended
    // otherwise.
    __device__ __forceinline__ void release(int tile) {
        if (lane == 0)
            mbarrier_arrive(shared.empty + tile % STAGES);
        if (PAIR && lane == 1 && tile + STAGES < tiles)
            mbarrier_arrive_cluster(map_shared_peer(shared.empty + tile % STAGES));
        __syncwarp();
    }

    // Adds a tile's values times exponentials to the results, which are multiplied by `before` first.
    __device__ __forceinline__ void add_values(int tile, const u32 (&exponentials)[2][4], const float (&before)[2]) {
#ifndef MUTANT_RESULTS_NOT_RESCALED
        if (__any_sync(0xffffffff, before[0] != 1.0f || before[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 4 * 8 * 4; i++)
                results[i / 32][i / 4 % 8][i % 4] *= before[i / 2 % 2];
        }
#endif
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int panel = 0; panel < 4; panel++)
                wgmma_rs<true>(results[panel], exponentials[step],
                               descriptor(keys(tile) + group * 4 * PANEL, panel * (PANEL / 16) + 16 * step * (128 / 16)));
        wgmma_commit_group();
    }

    // The turn of this warpgroup, whose scores are there.
    __device__ __forceinline__ void own_tile(int tile) {
        // Score i of a thread: key i / 4 * 8 + 2 (lane % 4) + i % 2, head i / 2 % 2.
        const uint4 words = ((const uint4 *)shared.valid[tile % STAGES])[lane % 4];
        const u32 valid[4] = {words.x, words.y, words.z, words.w};
        float top[2] = {-infinity(), -infinity()}, before[2], subtracted[2];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            scores[i] = valid[i / 4] >> i % 2 & 1 ? scores[i] * scale : -infinity();
#ifdef MUTANT_SCORES_ROUNDED
            scores[i] = from_bf16x2(to_bf16x2(scores[i], 0.0f)).x;
#endif
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = lanes_maximum<4>(top[half]);
            const bool grows = top[half] > maximum[half] + SLACK;
            before[half] = grows ? ex2_approx_ftz(maximum[half] - top[half]) : 1.0f;
            maximum[half] = grows ? top[half] : maximum[half];
            subtracted[half] = finite_maximum(maximum[half]);
            sum[half] *= before[half];
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            scores[i] = ex2_approx_ftz(scores[i] - subtracted[i / 2 % 2]);
            sum[i / 2 % 2] += scores[i];
        }
        u32 exponentials[2][4];
        Handed &handed = shared.handed[group];
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                exponentials[step][i] = to_bf16x2(scores[8 * step + 2 * i], scores[8 * step + 2 * i + 1]);
            handed.exponentials[step][thread] =
                make_uint4(exponentials[step][0], exponentials[step][1], exponentials[step][2], exponentials[step][3]);
        }
        handed.maxima[thread] = make_float4(before[0], before[1], maximum[0], maximum[1]);
        named_barrier_arrive(HANDED + group, CONSUMERS);
        add_values(tile, exponentials, before);
    }

    // The turn of the other warpgroup. Values of the tile before, which was this one's, are under way, and behind them the scores
    // of the tile after.
    __device__ __forceinline__ void others_tile(int tile) {
        wgmma_wait_group<1>();
        if (tile > 0)
            release(tile - 1);
        named_barrier_sync(HANDED + (group ^ 1), CONSUMERS);
#ifdef MUTANT_OWN_EXPONENTIALS
        const Handed &handed = shared.handed[group];
#else
        const Handed &handed = shared.handed[group ^ 1];
#endif
        u32 exponentials[2][4];
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const uint4 all = handed.exponentials[step][thread];
            exponentials[step][0] = all.x, exponentials[step][1] = all.y, exponentials[step][2] = all.z,
            exponentials[step][3] = all.w;
        }
        const float4 maxima = handed.maxima[thread];
        const float before[2] = {maxima.x, maxima.y};
#ifndef MUTANT_MAXIMUM_OF_HALF
        maximum[0] = maxima.z, maximum[1] = maxima.w;
#endif
        sum[0] *= before[0], sum[1] *= before[1];
        add_values(tile, exponentials, before);
    }

    // Of at least one tile. The first turn of the second warpgroup is the other's.
    __device__ __forceinline__ void consume() {
        if (group == 0) {
            request_scores(0);
            wgmma_wait_group<0>();
        } else {
            request_scores(1);
            others_tile(0);
            wgmma_wait_group<0>();
            release(0);
        }
        if (group >= tiles)
            return;
        int tile = group;
        for (; tile + 2 < tiles; tile += 2) {
            own_tile(tile);
            request_scores(tile + 2);
            others_tile(tile + 1);
            wgmma_wait_group<0>();
            release(tile + 1);
        }
        own_tile(tile);
        wgmma_wait_group<0>();
        if (tile + 1 < tiles)
            others_tile(tile + 1);
        wgmma_wait_group<0>();
    }

    // Sends the maxima and the sums of this rank to all. Four lanes have a head: each sends to every fourth rank.
    __device__ __forceinline__ void publish(int rank, int ranks) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int of = head + 8 * half;
            sum[half] = lanes_sum<4>(sum[half]);
            for (int to = lane % 4; to < ranks; to += 4) {
                const u32 received = map_rank<PAIR>(&shared.received, to);
                st_async(map_rank<PAIR>(shared.sums[rank][group] + of, to), sum[half], received);
                if (group == 0)
                    st_async(map_rank<PAIR>(shared.maxima[rank] + of, to), maximum[half], received);
            }
        }
    }

    // Hands the results, in slices, to the ranks that add them up: `each` slices to a rank, which has room for those of each rank.
    // Those of this rank are stored, since what is sent takes as long to get here as anywhere else.
    __device__ __forceinline__ void hand_out(int rank, int each, int heads) const {
        float *const room = shared.slices() + rank * each * SLICE + head * 8 + lane % 4 * 2;
        int owner = group * 32 / each, slice = group * 32 % each;
        u32 to = map_rank<PAIR>(room + slice * SLICE, owner), received = map_rank<PAIR>(&shared.received, owner);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float (&x)[4] = results[i / 8][i % 8];
            if (owner == rank) {
                float2 *const at = (float2 *)(room + slice * SLICE);
                if (head < heads)
                    at[0] = make_float2(x[0], x[1]);
                if (head + 8 < heads)
                    at[8 * 8 / 2] = make_float2(x[2], x[3]);
            } else {
                if (head < heads)
                    st_async(to, make_float2(x[0], x[1]), received);
                if (head + 8 < heads)
                    st_async(to + 8 * 8 * sizeof(float), make_float2(x[2], x[3]), received);
            }
            to += SLICE * sizeof(float);
            if (++slice == each && i < 31) {
                owner++, slice = 0;
                to = map_rank<PAIR>(room, owner), received = map_rank<PAIR>(&shared.received, owner);
            }
        }
    }

    // Writes the results of the only rank, by way of what were queries, so that a warp writes half of the channels of a head at once.
    __device__ __forceinline__ void write(bf16 *out, int heads) const {
        const float weights[2] = {shared.weights[0][head], shared.weights[0][head + 8]};
        u8 *const rows = shared.q + (group * 4 + warp) * 16 * 512;
        const int row = lane % 16, first = warp * 16;
        const auto chunk_of = [&](int row, int chunk) { return rows + row * 512 + (chunk ^ row % 8) * 16; };
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const float (&x)[4] = results[i / 8][i % 8], (&y)[4] = results[i / 8][i % 8 + 1];
            stmatrix_x4(smem_address(chunk_of(row, i + lane / 16)), to_bf16x2(x[0] * weights[0], x[1] * weights[0]),
                        to_bf16x2(x[2] * weights[1], x[3] * weights[1]), to_bf16x2(y[0] * weights[0], y[1] * weights[0]),
                        to_bf16x2(y[2] * weights[1], y[3] * weights[1]));
        }
        __syncwarp();
#pragma unroll 4
        for (int i = 0; i < min(heads - first, 16); i++)
            ((uint4 *)out)[(first + i) * 64 + group * 32 + lane] = *(const uint4 *)chunk_of(i, lane);
    }
};

// What the results of each rank are multiplied by.
__device__ __forceinline__ void find_weights(Attention &shared, int active) {
    const int of = threadIdx.x - PRODUCERS;
    if (of < HEADS) {
        const auto sum = [&](int from) { return shared.sums[from][0][of] + shared.sums[from][1][of]; };
        const auto maximum = [&](int from) { return shared.maxima[from][of]; };
        const AllRanks all = AllRanks::of<MOST_RANKS>(active, shared.sinks[of], maximum, sum);
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++)
            shared.weights[from][of] = from < active ? all.weight(maximum(from)) : 0.0f;
    }
    named_barrier_sync(WEIGHTS, CONSUMERS);
}

// Adds up the slices of this rank, in the order of the ranks that sent them: a slice of a head for each thread, those of a head next
// to each other, as they are written.
__device__ __forceinline__ void add_slices(Attention &shared, int rank, int each, int active, bf16 *out, int heads) {
    const int slices = min(each, 64 - rank * each);
    for (int i = threadIdx.x - PRODUCERS; i < slices * heads; i += CONSUMERS) {
        const int head = i / slices, slice = i % slices;
        const float *at = shared.slices() + slice * SLICE + head * 8;
        float4 sums[2] = {};
#pragma unroll
        for (int from = 0; from < MOST_RANKS; from++) {
            if (from >= active)
                break;
#ifdef MUTANT_WEIGHTS_OF_NEXT_RANK
            const float weight = shared.weights[(from + 1) % active][head];
#else
            const float weight = shared.weights[from][head];
#endif
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float4 x = ((const float4 *)at)[half];
                sums[half].x += x.x * weight, sums[half].y += x.y * weight;
                sums[half].z += x.z * weight, sums[half].w += x.w * weight;
            }
            at += each * SLICE;
        }
        const uint2 low = to_bf16x4(sums[0]), high = to_bf16x4(sums[1]);
        ((uint4 *)out)[head * 64 + rank * each + slice] = make_uint4(low.x, low.y, high.x, high.y);
    }
}

template <class R, bool PAIR>
__device__ __forceinline__ void attend(const bf16 *q, const Part window, const Part entries, const float *sinks, bf16 *out,
                                       int heads, float scale) {
    extern __shared__ __align__(1024) u8 bytes[];
    Attention &shared = *(Attention *)bytes;
    u32 ranks, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int row = blockIdx.x / ranks, first_head = (blockIdx.y * (PAIR ? 2 : 1) + half_of_pair<PAIR>()) * HEADS;
    if (PAIR)
        ranks /= 2, rank /= 2;
    const size_t at = ((size_t)row * heads + first_head) * R::DIM;
    heads = max(min(heads - first_head, HEADS), 0);
    const bool producer = threadIdx.x < PRODUCERS;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (!producer)
        request_queries(shared, q + at, heads);
    // Slots are asked for before the counts are there, as if both parts were full.
    const auto share = [&](int all) { return ((all + TILE - 1) / TILE + (int)ranks - 1) / (int)ranks; };
    const int first_if_full = rank * share(window.places + entries.places);
    int slot = producer ? slot_if_full(window, entries, row, key_of_lane<PAIR>(first_if_full)) : -1;
    const Keys<R> keys(window, entries, row);
    if (threadIdx.x < STAGES) {
        mbarrier_init(shared.full + threadIdx.x, PRODUCERS / 32);
        mbarrier_init(shared.empty + threadIdx.x, CONSUMERS / 32 * (PAIR ? 2 : 1));
        if (threadIdx.x == 0)
            mbarrier_init(&shared.received, 1);
        fence_mbarrier_init();
    }
    // The peer sends tiles without being asked.
    if (PAIR) {
        cluster_arrive_relaxed();
        cluster_wait();
    } else {
        __syncthreads();
    }
    const int all = keys.count(), tiles = (all + TILE - 1) / TILE, each = share(all), first = rank * each;
    const int end = min(first + each, tiles);
    int active = each ? (tiles + each - 1) / each : 0;
    if (producer) {
        warpgroup_reg_dealloc<72>();
        const int key = key_of_lane<PAIR>(first);
        if (first != first_if_full || keys.window.count != window.places)
            slot = key < all ? keys.slot(key) : -1;
        Found<PAIR> found;
        found.find(keys, key, key < min(end * TILE, all) ? slot : -1);
        if (first < end)
            produce<R, PAIR>(shared, keys, first, end, found);
        cluster_arrive_relaxed();
        cluster_wait();
        return;
    }
    warpgroup_reg_alloc<184>();
    const int slices = (64 + ranks - 1) / ranks, own_slices = ranks == 1 ? 0 : max(min(slices, 64 - (int)rank * slices), 0);
    const int senders = active - (int(rank) < active);
    if (threadIdx.x == PRODUCERS)
        mbarrier_arrive_expect_tx(&shared.received, (active * HEADS * 3 + senders * own_slices * heads * 8) * sizeof(float));
    wait_for_queries(shared, sinks + first_head, heads);
    Consumer<PAIR> consumer(shared, end - first, scale);
    if (first < end)
        consumer.consume();
    // Slices of the results lie where queries and keys were, of which all ranks must have made use.
    cluster_arrive_relaxed();
    cluster_wait();
    if (rank < active) {
        consumer.publish(rank, ranks);
        if (ranks > 1)
            consumer.hand_out(rank, slices, heads);
    }
    mbarrier_wait_parity(&shared.received, 0);
#ifdef MUTANT_LAST_RANK_LOST
    active = active > 1 ? active - 1 : active;
#endif
    find_weights(shared, active);
    if (ranks == 1)
        consumer.write(out + at, heads);
    else
        add_slices(shared, rank, slices, active, out + at, heads);
}
