/*
[[variant]]
name = "simple"
doc = "a block for a token at a time, which reads all of the projection"

[[variant.launch]]
entry = "mhc_pre_simple_{dtype}"
grid = ["min(T, 8 * sms)"]
block = [256]
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "T", "C", "norm_eps", "eps"]

[[variant]]
name = "split"
doc = """
few tokens: 112 thread blocks each multiply 64 channels of all streams; then 14 add up the sums and mix, and one computes \
the other weights"""
needs = ["size == 2", "C == 7168", "T <= 16"]
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
name = "parts"
doc = """
few tokens of any width: up to 128 thread blocks have some channels of the projection each, and multiply four or eight tokens at a time; \
then a thread block for each token adds up their sums and mixes"""
needs = ["C % 4 == 0", "C <= 8192", "T <= 4096"]
scratch = [{ name = "sums", bytes = "T * 24 * ceil(C, 32 * ceil(C, 4096)) * 4" }]

[[variant.launch]]
entry = "mhc_pre_parts_sums_{dtype}"
grid = ["ceil(C, 32 * ceil(C, 4096))", "min(4, ceil(T, 8 / ceil(C, 4096)))"]
block = [192]
programmatic = true
args = ["x", "fn", "sums", "T", "C"]

[[variant.launch]]
entry = "mhc_pre_parts_mix_{dtype}"
grid = ["T"]
block = ["32 * ceil(C, 384) + 64"]
programmatic = true
args = ["x", "sums", "base", "scale", "weight", "y", "post", "comb", "ceil(C, 32 * ceil(C, 4096))", "C", "norm_eps", "eps"]

[[variant]]
name = "resident"
doc = """
many tokens: 32 thread blocks share them; each holds its channels of the projection in registers, as exact bf16 thirds; \
tokens stay on the chip until they are mixed"""
needs = ["size == 2", "C == 7168", "sms >= 128"]
varies_with_batch = "the lowest bit of each sum that thread blocks exchange tells the step, which follows from a token's place"
scratch = [{ name = "mail", bytes = "T * 16 + min(8, ceil(T, 64)) * 4 * 16 * 32 * 40 * 4", zero = true }]

[[variant.launch]]
entry = "mhc_pre_resident"
grid = ["32 * min(4, ceil(T, 16))"]
block = [512]
shared = "7 * 29824 + 16 * (7 * 24 + 16) * 4 + 7 * 16 * 16 + 32 * 25 * 4"
cooperative = true
args = ["x", "fn", "base", "scale", "weight", "y", "post", "comb", "mail", "T", "norm_eps", "eps"]

[[mutant]]
name = "comb_transposed"
doc = "rows and columns of the mixing matrix exchanged"

[[mutant]]
name = "one_iteration"
doc = "columns are normalised once, rows by the softmax only"

[[mutant]]
name = "nineteen_iterations"
doc = "the last of the 20 iterations is left out"

[[mutant]]
name = "projection_bf16"
doc = "the projection is rounded to bf16, where exact thirds are meant"

[[mutant]]
name = "norm_eps_of_pre"
doc = "the weights of streams have the norms' epsilon added"

[[mutant]]
name = "full_queue_late"
doc = "when the queue of 32 tokens is full, they are written one place late"
variants = ["resident"]

[[mutant]]
name = "share_lost"
doc = "the last of the sums over parts of the channels is left out"

[[mutant]]
name = "weights_of_first_token"
doc = "every token is mixed as the first one"
variants = ["split", "parts", "resident"]

[[mutant]]
name = "tokens_of_the_grid"
doc = "tokens after one for each thread block are left as they are"
variants = ["simple"]

[[mutant]]
name = "sinkhorn_eps_once"
doc = "epsilon is added to the softmax only, and to no sum of a row or column"
variants = ["split", "parts", "resident"]

[[mutant]]
name = "neighbours_exchanged"
doc = "the products of two neighbouring tokens are exchanged"
variants = ["parts"]

[[mutant]]
name = "tail_lost"
doc = "channels after the last whole 32 are left out of the products"
variants = ["parts"]

[[mutant]]
name = "first_pass_only"
doc = "thread blocks multiply their first four or eight tokens only"
variants = ["parts"]

[[mutant]]
name = "sinkhorn_without_top"
doc = "the softmax of rows does not subtract the largest logit"
*/

// reference: reference/ops/hyper_connection.rs, reference/ops/rmsnorm.rs

#include "mhc_pre/parts.cuh"
#include "mhc_pre/resident.cuh"
#include "mhc_pre/simple.cuh"

// ---- split

// The sums of a token: MUS products, and X_j·X_k for j ≤ k, from which the norms of v and of the mixed vector follow.
constexpr int GRAM = STREAMS * (STREAMS + 1) / 2, SUMS = MUS + GRAM, SPLITS = 112, SPLIT_CHANNELS = DIM / SPLITS;

// Loads four channels.
__device__ __forceinline__ void load_vec4(const bf16 *from, float (&x)[4]) {
    const uint2 in = *(const uint2 *)from;
    x[0] = __uint_as_float(in.x << 16), x[1] = __uint_as_float(in.x & 0xffff0000);
    x[2] = __uint_as_float(in.y << 16), x[3] = __uint_as_float(in.y & 0xffff0000);
}

// Warps 0 … 7: each thread has 4 channels of one stream for 6 products. Warp 8: the products of streams.
KERNEL(mhc_pre_split_sums, __launch_bounds__(288))(const bf16 *__restrict__ x, const float *__restrict__ fn, float *sums) {
    launch_dependent_grids();
    __shared__ float halves[2][MUS];
    const int split = blockIdx.x, token = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x += (size_t)token * K + split * SPLIT_CHANNELS;
    sums += (size_t)token * SUMS * SPLITS + split;
    if (warp < 8) {
        constexpr int EACH = MUS / 4;
        const int group = warp / 2, stream = threadIdx.x / 16 % STREAMS, channel = threadIdx.x % 16 * 4;
        const float *from = fn + (size_t)group * EACH * K + stream * DIM + split * SPLIT_CHANNELS + channel;
        float4 f[EACH];
        float v[4], sum[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            f[i] = __ldg((const float4 *)(from + (size_t)i * K));
        load_vec4(x + stream * DIM + channel, v);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            sum[i] = warp_sum(fmaf(projection(f[i].x), v[0], projection(f[i].y) * v[1]) +
                              fmaf(projection(f[i].z), v[2], projection(f[i].w) * v[3]));
        if (lane == 0) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                halves[warp % 2][group * EACH + i] = sum[i];
        }
    } else {
        float v[STREAMS][2];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const u32 in = *(const u32 *)(x + i * DIM + 2 * lane);
            v[i][0] = __uint_as_float(in << 16), v[i][1] = __uint_as_float(in & 0xffff0000);
        }
        int at = MUS;
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
#pragma unroll
            for (int k = j; k < STREAMS; k++, at++) {
                const float sum = warp_sum(fmaf(v[j][0], v[k][0], v[j][1] * v[k][1]));
                if (lane == 0)
                    sums[at * SPLITS] = sum;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < MUS)
        sums[threadIdx.x * SPLITS] = halves[0][threadIdx.x] + halves[1][threadIdx.x];
}

// CTAs 0 … 13 mix a channel for each thread; CTA 14 makes the weights that mix the block's output back.
KERNEL(mhc_pre_split_mix, __launch_bounds__(512))(const bf16 *__restrict__ x, const float *sums, const float *__restrict__ base,
                                                  const float *__restrict__ scale, const float *__restrict__ weight, bf16 *y,
                                                  float *post, float *comb, float norm_eps, float eps) {
    __shared__ float total[SUMS], smem_base[MUS], smem_scale[3];
    const Parameters parameters = {smem_base, smem_scale, norm_eps, eps};
    const int token = blockIdx.y, channel = blockIdx.x * 512 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool mixes = channel < DIM;
    float v[STREAMS] = {}, w = 0;
    if (mixes) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
            v[i] = to_f32(x[(size_t)token * K + i * DIM + channel]);
        w = weight[channel];
    }
    // Inputs that do not come from the last launch are loaded while that runs.
    if (threadIdx.x < MUS)
        smem_base[threadIdx.x] = base[threadIdx.x];
    if (threadIdx.x < 3)
        smem_scale[threadIdx.x] = scale[threadIdx.x];
    wait_on_dependent_grids();
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
    const float *token_sums = sums;
#else
    const float *token_sums = sums + (size_t)token * SUMS * SPLITS;
#endif
    // Warps 0 … 15 add up to three sums each; each lane has 3 or 4 of the 112 splits.
    float sum[3] = {};
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (const int at = warp + 16 * i; at < SUMS) {
#pragma unroll
            for (int split = 0; split < SPLITS; split += 32) {
#ifdef MUTANT_SHARE_LOST
                if (split + lane < SPLITS - 1)
#else
                if (split + lane < SPLITS)
#endif
                    sum[i] += __ldcg(token_sums + at * SPLITS + split + lane);
            }
        }
    }
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
            make_comb(mu, parameters, comb + token * STREAMS * STREAMS);
        if (threadIdx.x == 32)
            make_post(mu, parameters, post + token * STREAMS);
        return;
    }
    // Each lane makes one weight; shuffles give it to all.
    const float weight_of_lane = sigmoid(logit(mu(lane % STREAMS), lane % STREAMS, parameters)) + eps_of_pre(parameters);
    float pre[STREAMS], squares = 0, u = 0;
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        pre[i] = __shfl_sync(~0u, weight_of_lane, i);
        u = fmaf(pre[i], v[i], u);
    }
#pragma unroll
    for (int j = 0, at = 0; j < STREAMS; j++) {
#pragma unroll
        for (int k = j; k < STREAMS; k++, at++)
            squares = fmaf(pre[j] * pre[k] * (j == k ? 1 : 2), gram[at], squares);
    }
    const float norm = rsqrtf((squares < 0 ? 0 : squares) / DIM + norm_eps);
    from_f32(y[(size_t)token * DIM + channel], u * norm * w);
}

// ---- resident

KERNEL(mhc_pre_resident, __launch_bounds__(512, 1))(const bf16 *__restrict__ x, const float *__restrict__ fn,
                                                    const float *__restrict__ base, const float *__restrict__ scale,
                                                    const float *__restrict__ weight, bf16 *y, float *post, float *comb,
                                                    float4 *mail, int tokens, float norm_eps, float eps) {
    resident(x, fn, {base, scale, norm_eps, eps}, weight, y, post, comb, {mail, (u32 *)(mail + tokens)}, tokens);
}
