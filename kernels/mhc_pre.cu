/*
[[variant]]
name = "simple"
doc = "a block for each token, which reads all of the projection"

[[variant.launch]]
entry = "mhc_pre_simple"
grid = ["T"]
block = [256]
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "C", "norm_eps", "eps"]

[[variant]]
name = "split"
doc = "few tokens: 112 blocks multiply 64 channels of all streams each; then 14 mix, for which one adds up what they have"
needs = ["C == 7168", "T <= 16"]
scratch = [{ name = "sums", bytes = "T * 34 * 112 * 4" }]

[[variant.launch]]
entry = "mhc_pre_split_sums"
grid = ["112", "T"]
block = [288]
args = ["x", "fn", "sums"]

[[variant.launch]]
entry = "mhc_pre_split_mix"
grid = ["15", "T"]
block = [512]
programmatic = true
args = ["x", "sums", "base", "scale", "weight", "y", "post", "comb", "norm_eps", "eps"]

[[variant]]
name = "tiles"
doc = "many tokens: tensor cores multiply 64 of them by exact bf16 thirds of the projection; then a block for each mixes"
needs = ["C == 7168", "T % 64 == 0"]
scratch = [{ name = "sums", bytes = "8 * T * 25 * 4" }]

[[variant.launch]]
entry = "mhc_pre_tiles_sums"
grid = ["T / 64", "max(2, min(8, 8192 / T))"]
block = [256]
shared = "3 * 8 * 8192"
args = ["x", "fn", "sums", "T"]

[[variant.launch]]
entry = "mhc_pre_tiles_mix"
grid = ["T + ceil(T, 448)"]
block = [448]
programmatic = true
args = ["x", "sums", "base", "scale", "weight", "y", "post", "comb", "T", "norm_eps", "eps"]

[[variant]]
name = "resident"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_resident"
grid = ["32 * min(4, ceil(T, 16))"]
block = [640]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "resident_a4"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_resident_a4"
grid = ["32 * min(4, ceil(T, 16))"]
block = [640]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "resident_s2"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_resident_s2"
grid = ["32 * min(4, ceil(T, 16))"]
block = [640]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "resident_s4"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_resident_s4"
grid = ["32 * min(4, ceil(T, 16))"]
block = [640]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_a2"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_a2"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_a4"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_a4"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_s3"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_s3"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_two_s3"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_two_s3"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_p13a0"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_p13a0"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_p13a3"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_p13a3"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_p13s3"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_p13s3"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_p2"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_p2"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[variant]]
name = "r4_p14"
doc = "many tokens: 32 blocks keep the projection in registers and tokens in shared memory until they are mixed; each has a part of the channels"
needs = ["C == 7168", "sms >= 128"]
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_r4_p14"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 7 * 16 * 40 * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[mutant]]
name = "comb_transposed"
doc = "rows and columns of the mixing matrix exchanged"

[[mutant]]
name = "one_iteration"
doc = "columns are normalised once, rows by the softmax only"

[[mutant]]
name = "share_lost"
doc = "the last of the sums over parts of the channels is left out"

[[mutant]]
name = "weights_of_first_token"
doc = "every token is mixed as the first one"
variants = ["split", "tiles", "resident"]
*/
#include "mhc_pre_resident.cuh"
#include "mhc_pre_r4.cuh"

// ---- simple

extern "C" __global__ void __launch_bounds__(256) mhc_pre_simple(const bf16 *__restrict__ x, const float *__restrict__ fn,
                                                                  const float *base, const float *scale,
                                                                  const float *weight, bf16 *y, float *post, float *comb,
                                                                  int dim, float norm_eps, float eps) {
    __shared__ float parts[8][MUS + 1], sums[MUS + 1], room[32];
    const Constants constants = {base, scale, norm_eps, eps};
    const int token = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = STREAMS * dim;
    x += (size_t)token * k;
    float sum[MUS + 1] = {};
    for (int at = threadIdx.x; at < k; at += 256) {
        const float v = to_f32(x[at]);
        for (int i = 0; i < MUS; i++)
            sum[i] = fmaf(fn[(size_t)i * k + at], v, sum[i]);
        sum[MUS] = fmaf(v, v, sum[MUS]);
    }
    for (int i = 0; i <= MUS; i++) {
        const float total = warp_sum(sum[i]);
        if (lane == 0)
            parts[warp][i] = total;
    }
    __syncthreads();
    if (threadIdx.x <= MUS) {
        float total = 0;
#ifdef MUTANT_SHARE_LOST
        for (int part = 0; part < 7; part++)
#else
        for (int part = 0; part < 8; part++)
#endif
            total += parts[part][threadIdx.x];
        sums[threadIdx.x] = total;
    }
    __syncthreads();

    const float inverse = rsqrtf(sums[MUS] / k + norm_eps);
    const auto mu = [&](int i) { return sums[i] * inverse; };
    if (threadIdx.x == 0)
        make_comb(mu, constants, comb + token * STREAMS * STREAMS);
    if (threadIdx.x == 32)
        make_post(mu, constants, post + token * STREAMS);
    float pre[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        pre[i] = sigmoid(logit(mu(i), i, constants)) + eps;
    const auto mixed = [&](int channel) {
        float u = 0;
        for (int i = 0; i < STREAMS; i++)
            u = fmaf(pre[i], to_f32(x[i * dim + channel]), u);
        return u;
    };
    float squares = 0;
    for (int channel = threadIdx.x; channel < dim; channel += 256)
        squares = fmaf(mixed(channel), mixed(channel), squares);
    const float norm = rsqrtf(block_sum(squares, room) / dim + norm_eps);
    for (int channel = threadIdx.x; channel < dim; channel += 256)
        from_f32(y[(size_t)token * dim + channel], mixed(channel) * norm * weight[channel]);
}

// ---- split

// What is summed for a token: MUS products, and X_j·X_k for j ≤ k, from which come the norms of v and of what is mixed.
constexpr int GRAM = STREAMS * (STREAMS + 1) / 2, SUMS = MUS + GRAM, SHARES = 112, SHARE = DIM / SHARES;

// Four channels.
__device__ __forceinline__ void load4(const bf16 *from, float (&x)[4]) {
    const uint2 in = *(const uint2 *)from;
    x[0] = __uint_as_float(in.x << 16), x[1] = __uint_as_float(in.x & 0xffff0000);
    x[2] = __uint_as_float(in.y << 16), x[3] = __uint_as_float(in.y & 0xffff0000);
}

// Warps 0 … 7: threads that share 6 products have 4 channels of one stream each. Warp 8: the products of streams.
extern "C" __global__ void __launch_bounds__(288) mhc_pre_split_sums(const bf16 *__restrict__ x, const float *__restrict__ fn,
                                                                      float *sums) {
    asm volatile("griddepcontrol.launch_dependents;");
    __shared__ float halves[2][MUS];
    const int share = blockIdx.x, token = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x += (size_t)token * K + share * SHARE;
    sums += (size_t)token * SUMS * SHARES + share;
    if (warp < 8) {
        constexpr int EACH = MUS / 4;
        const int group = warp / 2, stream = threadIdx.x / 16 % STREAMS, channel = threadIdx.x % 16 * 4;
        const float *from = fn + (size_t)group * EACH * K + stream * DIM + share * SHARE + channel;
        float4 f[EACH];
        float v[4], sum[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            f[i] = __ldg((const float4 *)(from + (size_t)i * K));
        load4(x + stream * DIM + channel, v);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            sum[i] = warp_sum(fmaf(f[i].x, v[0], f[i].y * v[1]) + fmaf(f[i].z, v[2], f[i].w * v[3]));
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                halves[warp % 2][group * EACH + i] = sum[i];
    } else {
        float v[STREAMS][2];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const u32 in = *(const u32 *)(x + i * DIM + 2 * lane);
            v[i][0] = __uint_as_float(in << 16), v[i][1] = __uint_as_float(in & 0xffff0000);
        }
        int at = MUS;
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
#pragma unroll
            for (int k = j; k < STREAMS; k++, at++) {
                const float sum = warp_sum(fmaf(v[j][0], v[k][0], v[j][1] * v[k][1]));
                if (lane == 0)
                    sums[at * SHARES] = sum;
            }
    }
    __syncthreads();
    if (threadIdx.x < MUS)
        sums[threadIdx.x * SHARES] = halves[0][threadIdx.x] + halves[1][threadIdx.x];
}

// Blocks 0 … 13 mix a channel per thread; block 14 makes what the block's output is mixed back by.
extern "C" __global__ void __launch_bounds__(512)
    mhc_pre_split_mix(const bf16 *__restrict__ x, const float *sums, const float *__restrict__ base,
                      const float *__restrict__ scale, const float *__restrict__ weight, bf16 *y, float *post, float *comb,
                      float norm_eps, float eps) {
    __shared__ float total[SUMS], own_base[MUS], own_scale[3];
    const Constants constants = {own_base, own_scale, norm_eps, eps};
    const int token = blockIdx.y, channel = blockIdx.x * 512 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool mixes = channel < DIM;
    float v[STREAMS] = {}, w = 0;
    if (mixes) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            v[i] = to_f32(x[(size_t)token * K + i * DIM + channel]);
        w = weight[channel];
    }
    // What does not come of the launch before is loaded while that runs.
    if (threadIdx.x < MUS)
        own_base[threadIdx.x] = base[threadIdx.x];
    if (threadIdx.x < 3)
        own_scale[threadIdx.x] = scale[threadIdx.x];
    asm volatile("griddepcontrol.wait;" ::: "memory");
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
    const float *mine = sums;
#else
    const float *mine = sums + (size_t)token * SUMS * SHARES;
#endif
    // Warps 0 … 15 add up to three sums each; 112 shares are 3 and a half for each lane.
    float sum[3] = {};
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (const int at = warp + 16 * i; at < SUMS)
#pragma unroll
            for (int share = 0; share < SHARES; share += 32)
#ifdef MUTANT_SHARE_LOST
                if (share + lane < SHARES - 1)
#else
                if (share + lane < SHARES)
#endif
                    sum[i] += __ldcg(mine + at * SHARES + share + lane);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        sum[i] = warp_sum(sum[i]);
        if (lane == 0 && warp + 16 * i < SUMS)
            total[warp + 16 * i] = sum[i];
    }
    __syncthreads();

    const float *gram = total + MUS;
    const float inverse = rsqrtf((gram[0] + gram[4] + gram[7] + gram[9]) / K + norm_eps);
    const auto mu = [&](int i) { return total[i] * inverse; };
    if (!mixes) {
        if (threadIdx.x == 0)
            make_comb(mu, constants, comb + token * STREAMS * STREAMS);
        if (threadIdx.x == 32)
            make_post(mu, constants, post + token * STREAMS);
        return;
    }
    // A lane makes one weight, and all have it.
    const float own = sigmoid(logit(mu(lane % STREAMS), lane % STREAMS, constants)) + eps;
    float pre[STREAMS], squares = 0, u = 0;
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        pre[i] = __shfl_sync(~0u, own, i);
        u = fmaf(pre[i], v[i], u);
    }
#pragma unroll
    for (int j = 0, at = 0; j < STREAMS; j++)
#pragma unroll
        for (int k = j; k < STREAMS; k++, at++)
            squares = fmaf(pre[j] * pre[k] * (j == k ? 1 : 2), gram[at], squares);
    const float norm = rsqrtf((squares < 0 ? 0 : squares) / DIM + norm_eps);
    from_f32(y[(size_t)token * DIM + channel], u * norm * w);
}

// ---- tiles

// A warp multiplies 64 tokens by its part of the columns, 64 columns at a time; PIECES such pieces are on their way.
constexpr int TOKENS = 64, COLUMNS = 64, PIECES = 3, WARPS = 8, PIECE = TOKENS * COLUMNS * 2, WIDTH = MUS + 1;

// Blocks that share the columns of a tile, as many as keep the machine busy.
__device__ __forceinline__ int splits_of(int tokens) {
    return max(2, min(8, 8192 / tokens));
}

// Where 8 columns of a token lie in a piece: rotated, so that neither writes nor `ldmatrix` meet in a bank.
__device__ __forceinline__ u32 piece_at(int row, int eight) {
    return row * (COLUMNS * 2) + ((eight ^ row % 8) * 16);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    mhc_pre_tiles_sums(const bf16 *__restrict__ x, const float *__restrict__ fn, float *sums, int tokens) {
    extern __shared__ __align__(128) u8 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * TOKENS;
    const u32 pieces = (u32)__cvta_generic_to_shared(shared) + warp * PIECES * PIECE;
    // The warp's columns begin here; neighbouring warps are at neighbouring columns.
    constexpr int ROUNDS = K / (WARPS * COLUMNS);
    const int begin = blockIdx.y * ROUNDS / gridDim.y, rounds = (blockIdx.y + 1) * ROUNDS / gridDim.y - begin;
    const auto column = [&](int round) { return (begin + round) * (WARPS * COLUMNS) + warp * COLUMNS; };
    const auto fetch = [&](int round) {
        if (round < rounds) {
            const u32 to = pieces + round % PIECES * PIECE;
            const bf16 *from = x + (size_t)first * K + column(round) + lane % 8 * 8;
#pragma unroll
            for (int i = 0; i < TOKENS / 4; i++) {
                const int row = i * 4 + lane / 8;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + piece_at(row, lane % 8)),
                             "l"(from + (size_t)row * K));
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    // Columns of the projection as `mma` wants them: for each 16 columns two pairs of each of three eights of rows.
    float2 f[COLUMNS / 16][6];
    const auto fetch_f = [&](int round, int step, float2 (&f)[6]) {
        const float *from = fn + (size_t)(lane / 4) * K + column(round) + step * 16 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 6; i++)
            f[i] = __ldg((const float2 *)(from + (size_t)(i / 2 * 8) * K + i % 2 * 8));
    };

#pragma unroll
    for (int round = 0; round < PIECES - 1; round++)
        fetch(round);
#pragma unroll
    for (int step = 0; step < COLUMNS / 16; step++)
        fetch_f(0, step, f[step]);
    float d[TOKENS / 16][3][4] = {}, squares[TOKENS / 16][2] = {};
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(PIECES - 2));
        __syncwarp();
        fetch(round + PIECES - 1);
        const u32 piece = pieces + round % PIECES * PIECE;
#pragma unroll
        for (int step = 0; step < COLUMNS / 16; step++) {
            u32 b[3][6];
#pragma unroll
            for (int i = 0; i < 6; i++)
#pragma unroll
                for (int part = 0; part < 3; part++)
                    b[part][i] = take(f[step][i]);
            if (round + 1 < rounds)
                fetch_f(round + 1, step, f[step]);
#pragma unroll
            for (int m = 0; m < TOKENS / 16; m++) {
                u32 a[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                             : "r"(piece + piece_at(m * 16 + lane % 16, step * 2 + lane / 16))
                             : "memory");
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float low = __uint_as_float(a[i] << 16), high = __uint_as_float(a[i] & 0xffff0000);
                    squares[m][i % 2] = fmaf(low, low, fmaf(high, high, squares[m][i % 2]));
                }
#pragma unroll
                for (int n = 0; n < 3; n++)
#pragma unroll
                    for (int third = 2; third >= 0; third--)
                        multiply(d[m][n], a, b[third][2 * n], b[third][2 * n + 1]);
            }
        }
    }

    // Not earlier: the blocks that mix would take the way to memory for what these still have to read.
    start_next();
    // Warps leave what they have where their pieces were, and one thread adds up one sum of them.
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    float *room = (float *)shared;
#pragma unroll
    for (int m = 0; m < TOKENS / 16; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *row = room + (warp * TOKENS + m * 16 + half * 8 + lane / 4) * WIDTH;
#pragma unroll
            for (int n = 0; n < 3; n++) {
                row[n * 8 + lane % 4 * 2] = d[m][n][2 * half];
                row[n * 8 + lane % 4 * 2 + 1] = d[m][n][2 * half + 1];
            }
            float square = squares[m][half];
            square += __shfl_xor_sync(~0u, square, 1);
            square += __shfl_xor_sync(~0u, square, 2);
            if (lane % 4 == 0)
                row[MUS] = square;
        }
    __syncthreads();
    for (int at = threadIdx.x; at < TOKENS * WIDTH; at += 256) {
        float total = 0;
#ifdef MUTANT_SHARE_LOST
        for (int part = 0; part < WARPS - 1; part++)
#else
        for (int part = 0; part < WARPS; part++)
#endif
            total += room[part * TOKENS * WIDTH + at];
        sums[((size_t)blockIdx.y * tokens + first) * WIDTH + at] = total;
    }
}

// The first blocks make what the outputs are mixed back by, a token for each thread; the others mix a token each.
extern "C" __global__ void __launch_bounds__(448)
    mhc_pre_tiles_mix(const bf16 *__restrict__ x, const float *sums, const float *__restrict__ base,
                      const float *__restrict__ scale, const float *__restrict__ weight, bf16 *y, float *post, float *comb,
                      int tokens, float norm_eps, float eps) {
    __shared__ float room[32];
    const Constants constants = {base, scale, norm_eps, eps};
    const int others = (tokens + 447) / 448;
    const auto sum = [&](int token, int i) {
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
        token = 0;
#endif
        float total = 0;
        for (int part = 0; part < splits_of(tokens); part++)
            total += __ldcg(sums + ((size_t)part * tokens + token) * WIDTH + i);
        return total;
    };
    const auto inverse = [&](int token) { return rsqrtf(sum(token, MUS) / K + norm_eps); };
    if (blockIdx.x < others) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        const int token = blockIdx.x * 448 + threadIdx.x;
        if (token < tokens) {
            const float scale = inverse(token);
            const auto mu = [&](int i) { return sum(token, i) * scale; };
            make_comb(mu, constants, comb + token * STREAMS * STREAMS);
            make_post(mu, constants, post + token * STREAMS);
        }
        return;
    }
    const int token = blockIdx.x - others, lane = threadIdx.x % 32;
    Eight<bf16> in[2][STREAMS];
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            in[c][i].load(x + (size_t)token * K + i * DIM, c * 448 + threadIdx.x);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const float own = sigmoid(logit(sum(token, lane % STREAMS) * inverse(token), lane % STREAMS, constants)) + eps;
    float u[2][8] = {}, squares = 0;
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        const float pre = __shfl_sync(~0u, own, i);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float v[8];
            in[c][i].unpack(v);
#pragma unroll
            for (int j = 0; j < 8; j++)
                u[c][j] = fmaf(pre, v[j], u[c][j]);
        }
    }
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            squares = fmaf(u[c][j], u[c][j], squares);
    const float norm = rsqrtf(block_sum(squares, room) / DIM + norm_eps);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float4 *w = (const float4 *)weight + 2 * (c * 448 + threadIdx.x);
        const float4 low = __ldg(w), high = __ldg(w + 1);
        const float ws[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; j++)
            u[c][j] *= norm * ws[j];
        Eight<bf16>::store(y + (size_t)token * DIM, c * 448 + threadIdx.x, u[c]);
    }
}

// ---- resident

#define RESIDENT(NAME, BLOCK, MAIL, ...)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1)                                                             \
        NAME(const bf16 *__restrict__ x, const float *__restrict__ fn, const float *__restrict__ base,                 \
             const float *__restrict__ scale, const float *__restrict__ weight, bf16 *y, float *post, float *comb,     \
             float4 *mail, int tokens, float norm_eps, float eps) {                                                    \
        __VA_ARGS__(x, fn, {base, scale, norm_eps, eps}, weight, y, post, comb, MAIL{mail, (u32 *)(mail + tokens)}, tokens); \
    }
RESIDENT(mhc_pre_resident, 640, Mail, resident<2, 2, 128>)
RESIDENT(mhc_pre_resident_a4, 640, Mail, resident<2, 4, 128>)
RESIDENT(mhc_pre_resident_s2, 640, Mail, resident<2, 2, 32>)
RESIDENT(mhc_pre_resident_s4, 640, Mail, resident<2, 4, 32>)
RESIDENT(mhc_pre_r4_a2, 512, r4::Mail, r4::resident<3, 0, 2, 128>)
RESIDENT(mhc_pre_r4_a4, 512, r4::Mail, r4::resident<3, 0, 4, 128>)
RESIDENT(mhc_pre_r4_s3, 512, r4::Mail, r4::resident<3, 0, 3, 32>)
RESIDENT(mhc_pre_r4_two_s3, 512, r4::Mail, r4::resident<2, 0, 3, 32>)
RESIDENT(mhc_pre_r4_p13a0, 512, r4::Mail, r4::resident<3, 13, 0, 128>)
RESIDENT(mhc_pre_r4_p13a3, 512, r4::Mail, r4::resident<3, 13, 3, 128>)
RESIDENT(mhc_pre_r4_p13s3, 512, r4::Mail, r4::resident<3, 13, 3, 32>)
RESIDENT(mhc_pre_r4_p2, 512, r4::Mail, r4::resident<2, 2, 0, 128>)
RESIDENT(mhc_pre_r4_p14, 512, r4::Mail, r4::resident<2, 14, 0, 128>)
