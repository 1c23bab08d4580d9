// The first step of the chunked form of delta_prefill.cu: everything that does not depend on the states. The second step, in
// delta_prefill.cu, takes the states through the chunks.
//
// For a chunk of 64 tokens, with G the inclusive sums of its log decays and S the state before it:
//     A = β k·k exp(G_i − G_j), i > j        T = (1 + A)⁻¹ β        P = scale q·k exp(G_i − G_j), i ≥ j
//     N = T (V − exp(G) K S)     O = scale exp(G) Q S + P N     S ← exp(G_64) S + (exp(G_64 − G) K)ᵀ N
// Exponents are differences and at most 0. Tokens that a chunk lacks have k = q = v = β = g = 0 and change nothing.
#pragma once

#include "delta_prefill/inverse.cuh"
#include "lib/mma.cuh"
#include "lib/reduce.cuh"
#include "lib/tma.cuh"

constexpr int C = 64;        // tokens of a chunk
constexpr int D = 128;       // key and value channels
constexpr int G_PITCH = 136; // of decays [64, 128]

// The first tokens of sequences, [N + 1], integers of 4 or 8 bytes.
struct Sequences {
    const void *starts;
    int size, count;

    __device__ __forceinline__ long long start(int n) const {
        return size == 8 ? ((const long long *)starts)[n] : ((const int *)starts)[n];
    }

    // The number of chunks of sequence n, 0 if there is no such sequence.
    __device__ __forceinline__ int chunks(int n) const {
        return n < count ? (int)((start(n + 1) - start(n) + C - 1) / C) : 0;
    }

    // A warp counts the chunks of all sequences before n.
    __device__ __forceinline__ int chunks_before(int n) const {
        int sum = 0;
        for (int i = threadIdx.x % 32; i < n; i += 32)
            sum += chunks(i);
        return __reduce_add_sync(0xffffffff, sum);
    }
};

// The first token of a chunk and how many it has, at most 64; 0 if there is no such chunk.
struct Chunk {
    long long first;
    int tokens;

    // A warp looks for the chunk, in 32 sequences at a time.
    __device__ __forceinline__ Chunk(const Sequences &sequences, int chunk) : first(0), tokens(0) {
        const int lane = threadIdx.x % 32;
        for (int n = lane; n - lane < sequences.count; n += 32) {
            const int chunks = sequences.chunks(n);
            int sum = chunks;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(0xffffffff, sum, step);
                sum += lane >= step ? other : 0;
            }
            const u32 beyond = __ballot_sync(0xffffffff, chunk < sum);
            if (beyond) {
                const int its = __ffs(beyond) - 1;
                const int before = __shfl_sync(0xffffffff, sum - chunks, its);
#ifdef MUTANT_LANES_OF_SEQUENCES
                const int found = its;
#else
                const int found = n - lane + its;
#endif
                first = sequences.start(found) + (long long)(chunk - before) * C;
#ifdef MUTANT_SEQUENCE_CROSSED
                tokens = decaying(sequences);
#else
                tokens = (int)min((long long)C, sequences.start(found + 1) - first);
#endif
                return;
            }
            chunk -= __shfl_sync(0xffffffff, sum, 31);
        }
    }

    // The tokens whose decays count.
    __device__ __forceinline__ int decaying(const Sequences &sequences) const {
#if defined MUTANT_TAIL_DECAYED || defined MUTANT_SEQUENCE_CROSSED
        return (int)min((long long)C, sequences.start(sequences.count) - first);
#else
        return tokens;
#endif
    }
};

// Log decays are summed to base 2. Below LOG2_ZERO their power is 0 in f32, so they are clamped there.
constexpr float LOG2_E = 1.44269504f, LOG2_ZERO = -150.0f;

__device__ __forceinline__ float log2_decay(float g) {
    return max_nan(g * LOG2_E, LOG2_ZERO);
}

__device__ __forceinline__ u32 load_bf16x2(const unsigned char *tile, int row, int channel) {
    return *(const u32 *)(tile + swizzle_128b(row, channel / 8) + channel % 8 * 2);
}

// ---- first step, for each chunk and head: T, P, and for KDA the decayed keys and queries

// The output of the first step. For GDN the factors are those of K S, of Q S and of N for each row, and in the last 64 the decay of
// S. For KDA they are the decays of S, and exp(G) k, exp(G) scale q and exp(G_64 − G) k are stored besides.
template <bool CHANNELS> struct ChunkOutput {
    unsigned char t[PANEL], p[PANEL];
    float factors[4 * C];
};

template <> struct ChunkOutput<true> : ChunkOutput<false> {
    unsigned char k[2 * PANEL], q[2 * PANEL], until[2 * PANEL];
};

constexpr int THREADS = 256;

struct SharedStorage {
    unsigned char k[2 * PANEL], q[2 * PANEL], p[PANEL];
    float a[C * PITCH];
    float key_norm[C], query_norm[C], beta[C], sums[C];
    float g[1]; // [C, G_PITCH] where decays are of channels
};

// The sums of the log decays of a chunk up to each token.
__device__ __forceinline__ void sum_decays(float *sums, const float *g, size_t stride, int tokens) {
    const int lane = threadIdx.x;
    const auto decay = [&](int i) { return i < tokens ? log2_decay(g[i * stride]) : 0.0f; };
    if (lane >= 32)
        return;
    const float first = decay(2 * lane), second = decay(2 * lane + 1);
    float before = first + second;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffff, before, step);
        before += lane >= step ? other : 0.0f;
    }
    before = __shfl_up_sync(0xffffffff, before, 1);
    sums[2 * lane] = (lane > 0 ? before : 0.0f) + first;
    sums[2 * lane + 1] = sums[2 * lane] + second;
}

// The same for each channel, in place of the decays, which are 0 behind the last token; two threads share a channel.
__device__ __forceinline__ void sum_channel_decays(float *sums) {
    constexpr int PART = C * D / THREADS;
    const int channel = threadIdx.x % D, first = threadIdx.x / D * PART;
    float part[PART];
#pragma unroll
    for (int i = 0; i < PART; i++)
        part[i] = log2_decay(sums[(first + i) * G_PITCH + channel]);
#pragma unroll
    for (int i = 1; i < PART; i++)
        part[i] += part[i - 1];
    // The second half of the tokens begins with the sum of the first.
    const auto store_sums = [&](float before) {
#pragma unroll
        for (int i = 0; i < PART; i++)
            sums[(first + i) * G_PITCH + channel] = before + part[i];
    };
    if (first == 0)
        store_sums(0.0f);
    __syncthreads();
    if (first > 0)
        store_sums(sums[(first - 1) * G_PITCH + channel]);
}

// exp(G_to − G_from) of two neighbouring channels.
__device__ __forceinline__ float2 decay_of(const float *g, int to, int from, int channel) {
    const float2 a = *(const float2 *)(g + to * G_PITCH + channel), b = *(const float2 *)(g + from * G_PITCH + channel);
    return make_float2(ex2_approx_ftz(a.x - b.x), ex2_approx_ftz(a.y - b.y));
}

__device__ __forceinline__ u32 decayed(const unsigned char *tile, int row, int channel, float2 decay) {
    const float2 x = from_bf16x2(load_bf16x2(tile, row, channel));
    return to_bf16x2(x.x * decay.x, x.y * decay.y);
}

// Sums sixteen numbers over the lanes of a warp and scatters them: s[0] of lane l becomes the sum of number l / 2 over half of the
// lanes; the neighbouring lane has the other half.
template <int STEP> __device__ __forceinline__ void reduce_scatter(float (&s)[16]) {
    const bool upper = threadIdx.x & STEP;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        const float given = upper ? s[i] : s[i + STEP / 2];
        s[i] = (upper ? s[i + STEP / 2] : s[i]) + __shfl_xor_sync(0xffffffff, given, STEP);
    }
    if constexpr (STEP > 2)
        reduce_scatter<STEP / 2>(s);
}

// The diagonal blocks of A and P if decays belong to channels: products of eight tokens with themselves. Every thread has four
// channels and multiplies the decays of single steps, so that no exponent is positive.
__device__ __forceinline__ void diagonal_products(SharedStorage &smem, int block, float scale) {
    const int lane = threadIdx.x % 32;
    float k[8][4], q[8][4], e[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = 8 * block + i, at = swizzle_128b(row, lane / 2) + lane % 2 * 8;
        const uint2 key = *(const uint2 *)(smem.k + at), query = *(const uint2 *)(smem.q + at);
        const float2 words[4] = {from_bf16x2(key.x), from_bf16x2(key.y), from_bf16x2(query.x), from_bf16x2(query.y)};
        k[i][0] = words[0].x, k[i][1] = words[0].y, k[i][2] = words[1].x, k[i][3] = words[1].y;
        q[i][0] = words[2].x, q[i][1] = words[2].y, q[i][2] = words[3].x, q[i][3] = words[3].y;
        if (i > 0) {
#pragma unroll
            for (int c = 0; c < 4; c += 2) {
                const float2 decay = decay_of(smem.g, row, row - 1, 4 * lane + c);
                e[i][c] = decay.x, e[i][c + 1] = decay.y;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float s[16], t[4] = {k[j][0], k[j][1], k[j][2], k[j][3]};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            s[i] = s[8 + i] = 0.0f;
            if (i < j)
                continue;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (i > j) {
                    t[c] *= e[i][c];
                    s[i] = fmaf(t[c], k[i][c], s[i]);
                }
                s[8 + i] = fmaf(t[c], q[i][c], s[8 + i]);
            }
        }
        reduce_scatter<16>(s);
        s[0] += __shfl_xor_sync(0xffffffff, s[0], 1);
        const int i = 8 * block + lane / 2 % 8, column = 8 * block + j;
        const float product = smem.key_norm[column] * s[0];
        if (lane % 2 == 0 && lane < 16)
            smem.a[i * PITCH + column] = i > column ? smem.beta[i] * smem.key_norm[i] * product : 0.0f;
        if (lane % 2 == 0 && lane >= 16) {
            bf16 entry;
            from_f32(entry, i >= column ? scale * smem.query_norm[i] * product : 0.0f);
            *(bf16 *)(smem.p + swizzle_128b(i, column / 8) + column % 8 * 2) = entry;
        }
    }
}

// A and P of eight tokens, for every other column block of eight. k is in the upper eight rows of operand A of the mma, q in the
// lower.
template <bool CHANNELS> __device__ __forceinline__ void chunk_products(SharedStorage &smem, int block, int odd, float scale) {
    const int lane = threadIdx.x % 32, row = lane / 4, pair = lane % 4 * 2;
    const int i = 8 * block + row;
    if (CHANNELS && block % 2 == odd)
        diagonal_products(smem, block, scale);
    u32 left[8][4];
#pragma unroll
    for (int step = 0; step < 8; step++) {
        if (CHANNELS) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int channel = 16 * step + 8 * half + pair;
                const float2 decay = decay_of(smem.g, i, 8 * block, channel);
                left[step][2 * half] = decayed(smem.k, i, channel, decay);
                left[step][2 * half + 1] = decayed(smem.q, i, channel, decay);
            }
        } else {
            const unsigned char *tile = lane / 8 % 2 ? smem.q : smem.k;
            ldmatrix_x4(left[step], smem_address(tile + swizzle_128b(8 * block + lane % 8, 2 * step + lane / 16)));
        }
    }
    const float key = smem.beta[i] * smem.key_norm[i], query = scale * smem.query_norm[i], sum = smem.sums[i];
    for (int column = odd; column < 8; column += 2) {
        u32 *const entries = (u32 *)(smem.p + swizzle_128b(i, column) + pair * 2);
        if (CHANNELS && column == block)
            continue;
        float c[2][4] = {};
        if (column > block) {
            *entries = 0;
            continue;
        }
#pragma unroll
        for (int steps = 0; steps < 8; steps += 2) {
            u32 right[4];
            if (CHANNELS) {
#pragma unroll
                for (int half = 0; half < 4; half++) {
                    const int channel = 16 * steps + 8 * half + pair, j = 8 * column + row;
                    right[half] = decayed(smem.k, j, channel, decay_of(smem.g, 8 * block, j, channel));
                }
            } else {
                ldmatrix_x4(right, smem_address(smem.k + swizzle_128b(8 * column + lane % 8, 2 * steps + lane / 8)));
            }
            mma_m16n8k16_bf16(c[0], left[steps], right[0], right[1]);
            mma_m16n8k16_bf16(c[1], left[steps + 1], right[2], right[3]);
        }
        const int j = 8 * column + pair;
        const float2 norms = *(const float2 *)(smem.key_norm + j), sums = *(const float2 *)(smem.sums + j);
        // Above the diagonal the exponent is positive; the result is not used.
        const float first = norms.x * (CHANNELS ? 1.0f : ex2_approx_ftz(sum - sums.x));
        const float second = norms.y * (CHANNELS ? 1.0f : ex2_approx_ftz(sum - sums.y));
        float2 keys = make_float2(key * first * (c[0][0] + c[1][0]), key * second * (c[0][1] + c[1][1]));
        float2 queries = make_float2(query * first * (c[0][2] + c[1][2]), query * second * (c[0][3] + c[1][3]));
        if (column == block) {
            keys = make_float2(row > pair ? keys.x : 0.0f, row > pair + 1 ? keys.y : 0.0f);
#ifndef MUTANT_FUTURE_SEEN
            queries = make_float2(row >= pair ? queries.x : 0.0f, row >= pair + 1 ? queries.y : 0.0f);
#endif
        }
        *(float2 *)(smem.a + i * PITCH + j) = keys;
        *entries = to_bf16x2(queries.x, queries.y);
    }
}

__device__ __forceinline__ void stage_sync() {
#ifdef MUTANT_BARRIER_MISSING
    // Half of the warps are made late for the next stage; by themselves they seldom are.
    if (threadIdx.x / 32 % 2 == 0)
        __nanosleep(100000);
#else
    __syncthreads();
#endif
}

// 256 threads for the chunk and head blockIdx.x.
template <bool CHANNELS>
__device__ __forceinline__ void chunk_outputs(const bf16 *q, const bf16 *k, const float *g, const float *beta,
                                              Sequences sequences, ChunkOutput<CHANNELS> *outputs, int H, float scale) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    SharedStorage &smem = *(SharedStorage *)smem_bytes;
    const int head = blockIdx.x % H, thread = threadIdx.x, warp = thread / 32;
    const Chunk chunk(sequences, blockIdx.x / H);
    if (chunk.tokens == 0)
        return;
    launch_dependent_grids();
    // ---- load keys, queries and decays
    ChunkOutput<CHANNELS> &output = outputs[blockIdx.x];
    const size_t first = (size_t)chunk.first * H + head;
    for (int at = thread; at < C * 16; at += THREADS) {
        const int row = at / 16, to = swizzle_128b(row, at % 16);
        const bool valid = row < chunk.tokens;
        const size_t from = (first + (valid ? (size_t)row * H : 0)) * D + at % 16 * 8;
        cp_async_16_zfill(smem_address(smem.k + to), k + from, valid);
        cp_async_16_zfill(smem_address(smem.q + to), q + from, valid);
    }
    const int decaying = chunk.decaying(sequences);
    for (int at = thread; CHANNELS && at < C * 32; at += THREADS) {
        const int row = at / 32, channel = at % 32 * 4;
        const bool valid = row < decaying;
        cp_async_16_zfill(smem_address(smem.g + row * G_PITCH + channel),
                          g + (first + (valid ? (size_t)row * H : 0)) * D + channel, valid);
    }
    cp_async_commit_group();
    if (!CHANNELS)
        sum_decays(smem.sums, g + first, H, decaying);
    if (thread < C)
        smem.beta[thread] = thread < chunk.tokens ? beta[first + (size_t)thread * H] : 0.0f;
    cp_async_wait_group<0>();
    stage_sync();
    if (CHANNELS)
        sum_channel_decays(smem.g);
    {
        // ---- norms of keys and queries
        constexpr int LANES = THREADS / C;
        const int row = thread / LANES;
        float squares[2] = {};
#pragma unroll
        for (int chunk = 0; chunk < 16 / LANES; chunk++) {
            const int at = swizzle_128b(row, thread % LANES * (16 / LANES) + chunk);
            const uint4 words[2] = {*(const uint4 *)(smem.k + at), *(const uint4 *)(smem.q + at)};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float2 x[4] = {from_bf16x2(words[n].x), from_bf16x2(words[n].y), from_bf16x2(words[n].z),
                                     from_bf16x2(words[n].w)};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    squares[n] = fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, squares[n]));
            }
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            squares[0] += __shfl_xor_sync(0xffffffff, squares[0], step);
            squares[1] += __shfl_xor_sync(0xffffffff, squares[1], step);
        }
        smem.key_norm[row] = 1.0f / sqrtf(squares[0] + 1e-6f);
        smem.query_norm[row] = 1.0f / sqrtf(squares[1] + 1e-6f);
    }
    stage_sync();
    // Each warp has two row blocks, which together cost the same for all warps.
    chunk_products<CHANNELS>(smem, warp % 4, warp / 4, scale);
    chunk_products<CHANNELS>(smem, 7 - warp % 4, warp / 4, scale);
    // ---- epilogue: factors, or decayed keys and queries
    float *factors = output.factors;
    if constexpr (CHANNELS) {
        if (thread < D)
            factors[thread] = ex2_approx_ftz(smem.g[(C - 1) * G_PITCH + thread]);
        for (int at = thread; at < C * 16; at += THREADS) {
            const int row = at / 16, to = swizzle_128b(row, at % 16);
            u32 out[3][4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int channel = at % 16 * 8 + 2 * n;
                const float2 sum = *(const float2 *)(smem.g + row * G_PITCH + channel);
                const float2 since = make_float2(ex2_approx_ftz(sum.x), ex2_approx_ftz(sum.y)),
                             until = decay_of(smem.g, C - 1, row, channel);
                const float key = smem.key_norm[row], query = scale * smem.query_norm[row];
                out[0][n] = decayed(smem.k, row, channel, make_float2(key * since.x, key * since.y));
                out[1][n] = decayed(smem.q, row, channel, make_float2(query * since.x, query * since.y));
                out[2][n] = decayed(smem.k, row, channel, make_float2(key * until.x, key * until.y));
            }
            unsigned char *const tiles[3] = {output.k, output.q, output.until};
#pragma unroll
            for (int n = 0; n < 3; n++)
                *(uint4 *)(tiles[n] + to) = make_uint4(out[n][0], out[n][1], out[n][2], out[n][3]);
        }
    } else if (thread < C) {
        const float since = ex2_approx_ftz(smem.sums[thread]), until = ex2_approx_ftz(smem.sums[C - 1] - smem.sums[thread]);
#ifdef MUTANT_DECAY_TURNED
        factors[thread] = smem.key_norm[thread] * until, factors[2 * C + thread] = smem.key_norm[thread] * since;
#else
        factors[thread] = smem.key_norm[thread] * since, factors[2 * C + thread] = smem.key_norm[thread] * until;
#endif
        factors[C + thread] = scale * smem.query_norm[thread] * since;
        factors[3 * C + thread] = ex2_approx_ftz(smem.sums[C - 1]);
    }
    stage_sync();
    for (int at = thread; at < PANEL / 16; at += THREADS)
        ((uint4 *)output.p)[at] = ((const uint4 *)smem.p)[at];
    // ---- epilogue: T = (1 + A)⁻¹ β
    float *inverse = (float *)smem.k;
    invert(smem.a, inverse);
    for (int at = thread; at < C * 8; at += THREADS) {
        const int row = at / 8, column = at % 8 * 8;
        u32 out[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float *x = inverse + row * PITCH + column + 2 * n;
            if (column > row) {
                out[n] = 0;
                continue;
            }
#ifdef MUTANT_BETA_DROPPED
            out[n] = to_bf16x2(x[0], x[1]);
#else
            out[n] = to_bf16x2(x[0] * smem.beta[column + 2 * n], x[1] * smem.beta[column + 2 * n + 1]);
#endif
        }
        *(uint4 *)(output.t + swizzle_128b(row, at % 8)) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}
