// The mHC pre-block of many tokens by thread blocks that stay: the projection is in their registers, tokens are in their
// shared memory until they are mixed, and so everything is read once.
#pragma once
#include "mhc_pre.cuh"

// GROUP blocks share STEP tokens at a time: each has OWN channels of all streams. Of a token a block sends RECORD sums over
// its channels: MUS products, and X_j·X_k, from which come the norms of v and of what is mixed.
constexpr int GROUP = 32, GROUPS = 4, STEP = 16, OWN = DIM / GROUP, RECORD = MUS + STREAMS * STREAMS;
// Channels of a token lie ROW bytes apart, and streams STREAM, so that no eight that `ldmatrix` reads meet in a bank.
constexpr int ROW = OWN * 2 + 16, STREAM = STEP * ROW + 32, STAGE = STREAMS * STREAM, STAGES = 7;
// Warps by what they do.
constexpr int MULTIPLIERS = OWN / 32, MIXERS = 8, REDUCES = 12, COLLECTS = 13, FETCHES = 14, RECEIVES = 15;

// Parts of the projection in bf16, exact together. Tokens are called to the second-level cache, by lines, AHEAD steps before
// they are copied.
constexpr int PARTS = 3, AHEAD = 2, LINE = 128;

// Sums of KEPT steps of a group have room. A block mixes a step after its sums have been read, and multiplies the
// STAGES-th step after it later still.
constexpr int KEPT = 8;
static_assert(KEPT >= STAGES, "sums are overwritten before they are read");

__device__ __forceinline__ void barrier_init(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Returns once the barrier has been passed for the time that has this parity, the first having 0.
__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 parity) {
    asm volatile("{ .reg .pred come;\n"
                 "again_%=: mbarrier.try_wait.parity.shared.b64 come, [%0], %1;\n"
                 "@!come bra again_%=; }" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

// What blocks of a group send each other, zeros at first. Each number shows by itself whether it is there, so that nobody
// waits for a fence.
struct Mail {
    float4 *weights; // of streams of a token, the norm in them: none is zero once it is there
    u32 *sums;       // the lowest bit, an ulp of each, is that of `tag_of` once they are there

    __device__ __forceinline__ u32 *sums_of(int it, int group, int token) const {
        return sums + (size_t)((it % KEPT * GROUPS + group) * STEP + token) * GROUP * RECORD;
    }
};

__device__ __forceinline__ u32 tag_of(int it) {
    return ~(it / KEPT) & 1;
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(u32 (&a)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ u32 load_relaxed(const u32 *from) {
    u32 out;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(from) : "memory");
    return out;
}

// Takes from two numbers as much as bf16 holds of them. Three times that is all there is.
__device__ __forceinline__ u32 take(float2 &rest) {
    const u32 part = to_bf16x2(rest.x, rest.y);
    rest.x -= __uint_as_float(part << 16), rest.y -= __uint_as_float(part & 0xffff0000);
    return part;
}

struct Barriers {
    u64 full[STAGES], empty[STAGES], ready[STAGES], summed, read;
};

// A warp multiplies 32 channels of all streams.
__device__ __forceinline__ void multiply_steps(const float *fn, u32 stages, float *room, Barriers &barriers, int rank,
                                               int steps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 b[2 * STREAMS][PARTS][6];
    const float *from = fn + (size_t)(lane / 4) * K + rank * OWN + warp * 32 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 2 * STREAMS; k++)
#pragma unroll
        for (int i = 0; i < 6; i++) {
            float2 f = __ldg((const float2 *)(from + (size_t)(i / 2 * 8) * K + k % STREAMS * DIM + k / STREAMS * 16 + i % 2 * 8));
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                b[k][part][i] = take(f);
        }
    const u32 from16 = stages + lane % 16 * ROW + warp * 64 + lane / 16 * 16;
    float *to = room + (warp * STEP + lane / 4) * MUS + lane % 4 * 2;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        barrier_wait(barriers.full + slot, parity);
        const u32 tokens = from16 + slot * STAGE;
        float d[3][4] = {};
        u32 a[2][4];
        load_matrices(a[0], tokens);
#pragma unroll
        for (int k = 0; k < 2 * STREAMS; k++) {
            if (k + 1 < 2 * STREAMS)
                load_matrices(a[(k + 1) % 2], tokens + (k + 1) % STREAMS * STREAM + (k + 1) / STREAMS * 32);
#pragma unroll
            for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll
                for (int n = 0; n < 3; n++)
                    multiply(d[n], a[k % 2], b[k][part][2 * n], b[k][part][2 * n + 1]);
        }
        // The sums of the step before have been read.
        barrier_wait(&barriers.read, (it & 1) ^ 1);
#pragma unroll
        for (int n = 0; n < 3; n++) {
            *(float2 *)(to + n * 8) = make_float2(d[n][0], d[n][1]);
            *(float2 *)(to + n * 8 + 8 * MUS) = make_float2(d[n][2], d[n][3]);
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&barriers.summed);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// A warp multiplies streams by each other: of four tokens at a time the first two by themselves, and the others.
__device__ __forceinline__ void square_steps(u32 stages, float *room, Barriers &barriers, int steps) {
    const int lane = threadIdx.x % 32;
    const u32 from = stages + lane % 4 * STREAM + lane / 4 % 4 * ROW + lane / 16 * 16;
    float *to = room + MULTIPLIERS * STEP * MUS + lane / 16 * 16 + lane / 4 % 4 * 4 + lane % 2 * 2;
    // Elsewhere are products of one token by another.
    const bool own_token = lane / 16 == lane % 4 / 2;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        barrier_wait(barriers.full + slot, parity);
        float d[STEP / 4][2][4] = {};
        u32 a[2][STEP / 4][4];
        const auto load = [&](int k) {
#pragma unroll
            for (int four = 0; four < STEP / 4; four++)
                load_matrices(a[k % 2][four], from + slot * STAGE + four * 4 * ROW + k * 32);
        };
        load(0);
#pragma unroll
        for (int k = 0; k < OWN / 16; k++) {
            if (k + 1 < OWN / 16)
                load(k + 1);
#pragma unroll
            for (int four = 0; four < STEP / 4; four++) {
                const u32(&rows)[4] = a[k % 2][four];
                multiply(d[four][0], rows, rows[0], rows[2]);
                multiply(d[four][1], rows, rows[1], rows[3]);
            }
        }
        barrier_wait(&barriers.read, (it & 1) ^ 1);
        if (own_token)
#pragma unroll
            for (int four = 0; four < STEP / 4; four++) {
                *(float2 *)(to + four * 4 * 16) = make_float2(d[four][0][0], d[four][0][1]);
                *(float2 *)(to + (four * 4 + 2) * 16) = make_float2(d[four][1][2], d[four][1][3]);
            }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&barriers.summed);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// A warp adds up what the warps that multiply have, and sends it.
__device__ __forceinline__ void collect_steps(const float4 *room, Mail mail, Barriers &barriers, int rank, int group, int steps) {
    const int lane = threadIdx.x % 32;
    constexpr int FOURS = MUS / 4, PART = STEP * FOURS;
    const auto sum_of = [&](int at) {
        float4 total = room[at];
#pragma unroll
        for (int part = 1; part < MULTIPLIERS; part++) {
            const float4 more = room[part * PART + at];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        return total;
    };
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        barrier_wait(&barriers.summed, it & 1);
        float4 sum[3], product[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            product[i] = room[MULTIPLIERS * PART + i * 32 + lane];
#pragma unroll
        for (int i = 0; i < 3; i++)
            sum[i] = sum_of(i * 32 + lane);
        barrier_arrive(&barriers.read);
        const u32 tag = tag_of(it);
        const auto tagged = [&](float sum) { return (__float_as_uint(sum) & ~1) | tag; };
        const auto send = [&](int token, int four, float4 sum) {
            u32 *to = mail.sums_of(it, group, token) + rank * RECORD + four * 4;
            asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(tagged(sum.x)),
                         "r"(tagged(sum.y)), "r"(tagged(sum.z)), "r"(tagged(sum.w))
                         : "memory");
        };
#pragma unroll
        for (int i = 0; i < 2; i++)
            send(i * 8 + lane / 4, FOURS + lane % 4, product[i]);
#pragma unroll
        for (int i = 0; i < 3; i++)
            send((i * 32 + lane) / FOURS, (i * 32 + lane) % FOURS, sum[i]);
    }
}

// A warp adds up all sums of one token in every second step, and sends what it is mixed by. What it is mixed back by is made
// of many tokens at a time, one for each lane.
__device__ __forceinline__ void reduce_steps(Mail mail, float (*queue)[MUS + 1], Constants constants,
                                             float *post, float *comb, int rank, int group, int steps, int tokens) {
    const int lane = threadIdx.x % 32;
    const auto token_of = [&](int it) { return (group + it * GROUPS) * STEP + rank / 2; };
    const float own_base = constants.base[lane % STREAMS], own_scale = constants.scale[0];
    int queued = 0;
#pragma unroll 1
    for (int it = rank % 2; it < steps; it += 2) {
        const int token = token_of(it);
        const u32 *from = mail.sums_of(it, group, rank / 2), tag = tag_of(it);
        float each[GROUP], rest[GROUP / 4];
        u32 stale;
        do {
            stale = 0;
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                const u32 sum = load_relaxed(from + i * RECORD + lane);
                each[i] = __uint_as_float(sum), stale |= sum ^ tag;
            }
#pragma unroll
            for (int i = 0; i < GROUP / 4; i++) {
                const u32 sum = load_relaxed(from + (i * 4 + lane / 8) * RECORD + 32 + lane % 8);
                rest[i] = __uint_as_float(sum), stale |= sum ^ tag;
            }
        } while (__any_sync(~0u, stale & 1));
#ifdef MUTANT_SHARE_LOST
        each[GROUP - 1] = 0;
#endif
#pragma unroll
        for (int i = 4; i < GROUP; i++)
            each[i % 4] += each[i];
        each[0] = (each[0] + each[1]) + (each[2] + each[3]);
#pragma unroll
        for (int i = 1; i < GROUP / 4; i++)
            rest[0] += rest[i];
        rest[0] += __shfl_xor_sync(~0u, rest[0], 8);
        rest[0] += __shfl_xor_sync(~0u, rest[0], 16);

        // Lanes 0 … 23 have the products for weights, lanes 24 … 31 X_0·X_k and X_1·X_k, lanes 0 … 7 X_2·X_k and X_3·X_k too.
        const float squares_of_v = (__shfl_sync(~0u, each[0], MUS) + __shfl_sync(~0u, each[0], MUS + 5)) +
                                   (__shfl_sync(~0u, rest[0], 2) + __shfl_sync(~0u, rest[0], 7));
        const float mu = each[0] * rsqrtf(squares_of_v / K + constants.norm_eps);
        const float weight = sigmoid(mu * own_scale + own_base) + constants.eps;
        float pre[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            pre[i] = __shfl_sync(~0u, weight, i);
        const bool upper = lane >= MUS;
        const float row = upper ? (lane < MUS + 4 ? pre[0] : pre[1]) : (lane < 4 ? pre[2] : pre[3]);
        const float column = lane % 4 < 2 ? (lane % 4 == 0 ? pre[0] : pre[1]) : (lane % 4 == 2 ? pre[2] : pre[3]);
        const float product = row * column * (upper ? each[0] : rest[0]);
        const float squares = warp_sum(upper || lane < 8 ? product : 0.0f);
        const float norm = rsqrtf((squares < 0 ? 0 : squares) / DIM + constants.norm_eps);
        if (lane < STREAMS && token < tokens) {
            const float out = weight * norm;
            const u32 bits = __float_as_uint(out) == 0 ? 0x80000000 : __float_as_uint(out);
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"((u32 *)(mail.weights + token) + lane), "r"(bits) : "memory");
        }
        if (lane < MUS)
            queue[queued][lane] = mu;
        queued++;
        if (queued == 32 || it + 2 >= steps) {
            __syncwarp();
            const int own = token_of(it - 2 * (queued - 1 - lane));
            if (lane < queued && own < tokens) {
                const auto of = [&](int i) { return queue[lane][i]; };
                make_post(of, constants, post + (size_t)own * STREAMS);
                make_comb(of, constants, comb + (size_t)own * STREAMS * STREAMS);
            }
            __syncwarp();
            queued = 0;
        }
    }
}

// A warp waits for what tokens are mixed by.
__device__ __forceinline__ void receive_steps(Mail mail, float4 *weights, Barriers &barriers, int group, int steps, int tokens) {
    const int lane = threadIdx.x % 32;
    if (lane >= STEP)
        return;
    const auto weights_of = [&](int token) {
        uint4 w;
        do
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                         : "l"(mail.weights + token)
                         : "memory");
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
        barrier_arrive(barriers.ready + slot);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// Whether it is this lane that does what one does for the warp, as the compiler can tell.
__device__ __forceinline__ bool one_of_warp() {
    u32 one;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(one));
    return one;
}

// A warp copies the block's channels to shared memory as soon as there is room.
__device__ __forceinline__ void fetch_steps(const bf16 *x, u32 stages, Barriers &barriers, int rank, int group, int steps,
                                            int tokens) {
    const u64 policy = let_go();
    const int lane = threadIdx.x % 32;
    int slot = 0, parity = 1;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        barrier_wait(barriers.empty + slot, parity);
        const int first = (group + it * GROUPS) * STEP, count = min(STEP, tokens - first);
        if (one_of_warp()) {
            const bf16 *from = x + (size_t)first * K + rank * OWN;
            const u32 to = stages + slot * STAGE, full = shared_address(barriers.full + slot);
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(STREAMS * count * OWN * 2) : "memory");
#pragma unroll 4
            for (int token = 0; token < count; token++)
#pragma unroll
                for (int stream = 0; stream < STREAMS; stream++)
                    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                                 "[%3], %4;" ::"r"(to + stream * STREAM + token * ROW),
                                 "l"(from + (size_t)token * K + stream * DIM), "r"(OWN * 2), "r"(full), "l"(policy)
                                 : "memory");
        }
        __syncwarp();
        // Half a token of a later step, all of which the group's blocks call so.
        if (const int token = first + AHEAD * GROUPS * STEP + rank / 2; token < tokens) {
            const u8 *from = (const u8 *)(x + (size_t)token * K + rank % 2 * (K / 2)) + lane * LINE;
#pragma unroll
            for (int i = 0; i < K; i += 32 * LINE)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
        }
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

// Four warps mix four tokens each, two at a time, half a warp one of them, and give back the room.
__device__ __forceinline__ void mix_steps(const u8 *stages, const float4 *weights, const float *weight, bf16 *y,
                                          Barriers &barriers, int rank, int group, int steps, int tokens) {
    const int lane = threadIdx.x % 32, own = lane % 16, first = (threadIdx.x / 32 - MIXERS) * 4 + lane / 16;
    constexpr int HALF = OWN / 16; // eights of a lane lie so far apart
    const bool there = own < HALF;
    float w[2][8] = {};
    if (there)
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[c][i] = weight[rank * OWN + (c * HALF + own) * 8 + i];
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int it = 0; it < steps; it++) {
        barrier_wait(barriers.full + slot, parity);
        barrier_wait(barriers.ready + slot, parity);
        if (there)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const int token = first + pair * 2;
                const float4 pre4 = weights[slot * STEP + token];
                const float pre[STREAMS] = {pre4.x, pre4.y, pre4.z, pre4.w};
                const int row = (group + it * GROUPS) * STEP + token;
                bf16 *to = y + (size_t)row * DIM + rank * OWN;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float u[8] = {};
#pragma unroll
                    for (int i = 0; i < STREAMS; i++) {
                        Eight<bf16> in;
                        in.load_shared((const bf16 *)(stages + slot * STAGE + i * STREAM + token * ROW), c * HALF + own);
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
                        Eight<bf16>::store(to, c * HALF + own, u);
                }
            }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(barriers.empty + slot);
        if (++slot == STAGES)
            slot = 0, parity ^= 1;
    }
}

__device__ __forceinline__ void resident(const bf16 *x, const float *fn, Constants constants, const float *weight, bf16 *y,
                                         float *post, float *comb, Mail mail, int tokens) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Barriers barriers;
    float *room = (float *)(shared + STAGES * STAGE);
    float4 *weights = (float4 *)(room + STEP * (MULTIPLIERS * MUS + STREAMS * STREAMS));
    float(*queue)[MUS + 1] = (float(*)[MUS + 1])(weights + STAGES * STEP);
    const int rank = blockIdx.x % GROUP, group = blockIdx.x / GROUP, warp = threadIdx.x / 32;
    const int steps = ((tokens + STEP - 1) / STEP - group + GROUPS - 1) / GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barriers.full + i, 1);
            barrier_init(barriers.empty + i, 4);
            barrier_init(barriers.ready + i, STEP);
        }
        barrier_init(&barriers.summed, MULTIPLIERS + 1);
        barrier_init(&barriers.read, 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 256) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        if (warp < MULTIPLIERS)
            multiply_steps(fn, shared_address(shared), room, barriers, rank, steps);
        else
            square_steps(shared_address(shared), room, barriers, steps);
    } else if (threadIdx.x < 384) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        mix_steps(shared, weights, weight, y, barriers, rank, group, steps, tokens);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        if (warp == REDUCES)
            reduce_steps(mail, queue, constants, post, comb, rank, group, steps, tokens);
        else if (warp == RECEIVES)
            receive_steps(mail, weights, barriers, group, steps, tokens);
        else if (warp == COLLECTS)
            collect_steps((const float4 *)room, mail, barriers, rank, group, steps);
        else if (warp == FETCHES)
            fetch_steps(x, shared_address(shared), barriers, rank, group, steps, tokens);
    }
}
