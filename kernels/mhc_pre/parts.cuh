// The variant `parts`: thread blocks have some channels of the projection each, for all tokens; then a thread block for each token adds
// up their sums and mixes. The order of every sum follows from the number of channels alone.
#pragma once

#include "lib/reduce.cuh"
#include "mhc_pre/weights.cuh"

namespace mhc_pre_parts {

// A warp of the first launch has QUAD products; a lane has 4 channels of a stream, CHUNK channels of each stream make up the warp. Numbers
// of the projection stay in registers for all tokens, which come in passes of 8, or of 4 for two chunks.
constexpr int QUAD = 4, QUADS = MUS / QUAD, CHUNK = 32, MOST_PARTS = 128;
// Threads that mix have up to EACH times 4 channels, in at most MIX_WARPS warps. ADD_WARPS more add up ADDED times QUAD sums each.
constexpr int EACH = 3, MIX_WARPS = 22, ADD_WARPS = 2, ADDED = QUADS / ADD_WARPS;
static_assert(MOST_PARTS == 4 * 32, "a lane adds four parts");

// Loads four numbers that an earlier launch may have written; those that are read ONCE, past L1.
template <bool ONCE> __device__ __forceinline__ void load_four(const float *from, float (&x)[4]) {
    const float4 in = ONCE ? __ldcg((const float4 *)from) : *(const float4 *)from;
    x[0] = in.x, x[1] = in.y, x[2] = in.z, x[3] = in.w;
}

template <bool ONCE> __device__ __forceinline__ void load_four(const bf16 *from, float (&x)[4]) {
    const uint2 in = ONCE ? __ldcg((const uint2 *)from) : *(const uint2 *)from;
    const float2 low = from_bf16x2(in.x), high = from_bf16x2(in.y);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}

__device__ __forceinline__ void store_four(float *to, float4 x) {
    *(float4 *)to = x;
}

__device__ __forceinline__ void store_four(bf16 *to, float4 x) {
    *(uint2 *)to = to_bf16x4(x);
}

// Streams in memory, [tokens, STREAMS, dim]. Offsets fit into 32 bits, since the header limits both sizes.
template <class T> struct Streams {
    const T *x;
    int dim;

    // Four channels of a stream of a token.
    __device__ __forceinline__ void load(int token, int stream, int channel, float (&to)[4]) const {
        load_four<false>(x + (u32)((token * STREAMS + stream) * dim + channel), to);
    }

    // Four channels of all streams of a token, once and before the launch before this one has ended.
    __device__ __forceinline__ void load_all(int token, int channel, float (&to)[STREAMS][4]) const {
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            load_four<true>(x + ((size_t)token * STREAMS + stream) * dim + channel, to[stream]);
    }

    // Keeps what was loaded, when the launch before this one has ended: they are in memory already.
    __device__ __forceinline__ void keep(int, int, const float (&)[STREAMS][4]) const {}
};

// What is mixed goes to memory, [tokens, dim], four channels of a token. Lanes of a warp have four each that follow each other, some of
// which may lie behind the last.
template <class T> struct ToMemory {
    T *y;
    int dim;

    __device__ __forceinline__ void store(int token, int channel, float4 x) const {
        if (channel < dim)
            store_four(y + (size_t)token * dim + channel, x);
    }
};

// Sums of N numbers over the lanes: lane l gets that of number l / (32 / N). The order of each sum is that of `warp_sum`. Half of the
// LEFT numbers that a lane still has go to another lane, which gives as many.
template <int N, int LEFT = N> __device__ __forceinline__ float sums_over_warp(float (&x)[N]) {
    if constexpr (LEFT == 1) {
        return lanes_sum<32 / N>(x[0]);
    } else {
        constexpr int HALF = LEFT / 2, STEP = 32 * HALF / N;
        const bool upper = threadIdx.x & STEP;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float mine = upper ? x[i + HALF] : x[i], other = upper ? x[i] : x[i + HALF];
            x[i] = mine + __shfl_xor_sync(~0u, other, STEP);
        }
        return sums_over_warp<N, HALF>(x);
    }
}

// Where the sums of a token begin that are of four products: QUAD for each part.
__device__ __forceinline__ size_t place_of(int token, int quad, int parts) {
    return (size_t)(token * QUADS + quad) * parts * QUAD;
}

// The products of N tokens with the channels of this warp. The last one takes the place of those that do not exist, for which no sums are
// stored.
template <int N, int CHUNKS, class X>
__device__ __forceinline__ void multiply_tokens(const X &x, const float (&f)[CHUNKS][QUAD][4], const int (&channels)[CHUNKS],
                                                float *sums, int first, int tokens) {
    const int lane = threadIdx.x % 32, quad = threadIdx.x / 32;
    float sum[N * QUAD];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float v[N][4];
#pragma unroll
        for (int n = 0; n < N; n++)
            x.load(min(first + n, tokens - 1), lane / (CHUNK / 4), channels[chunk], v[n]);
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float before = chunk == 0 && c == 0 ? 0.0f : sum[n * QUAD + i];
                    sum[n * QUAD + i] = fmaf(f[chunk][i][c], v[n][c], before);
                }
            }
        }
    }
    constexpr int LANES = 32 / (N * QUAD);
    const float total = sums_over_warp(sum);
    const int which = lane / LANES;
    int token = first + which / QUAD;
    const bool exists = token < tokens;
#ifdef MUTANT_NEIGHBOURS_EXCHANGED
    if ((token ^ 1) < tokens)
        token ^= 1;
#endif
    if (exists && lane % LANES == 0)
        sums[place_of(token, quad, gridDim.x) + blockIdx.x * QUAD + which % QUAD] = total;
}

template <int CHUNKS, int AT_ONCE, class X>
__device__ __forceinline__ void multiply_part(const X &x, const float *fn, float *sums, int tokens, int dim) {
    constexpr int PASS = AT_ONCE / CHUNKS;
    const int lane = threadIdx.x % 32, quad = threadIdx.x / 32, row = STREAMS * dim;
    float f[CHUNKS][QUAD][4] = {};
    int channels[CHUNKS];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int channel = (blockIdx.x * CHUNKS + chunk) * CHUNK + lane % (CHUNK / 4) * 4;
#ifdef MUTANT_TAIL_LOST
        const bool exists = channel / CHUNK * CHUNK + CHUNK <= dim;
#else
        const bool exists = channel < dim;
#endif
        channels[chunk] = exists ? channel : 0;
        // Zeros are multiplied by channels that are in the sums anyway, so that no NaN comes in that is not there.
        if (!exists)
            continue;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            float in[4];
            load_four<false>(fn + (size_t)(quad * QUAD + i) * row + lane / (CHUNK / 4) * dim + channel, in);
#pragma unroll
            for (int c = 0; c < 4; c++)
                f[chunk][i][c] = projection(in[c]);
        }
    }
    // The projection is loaded while the last launch still runs. The next one loads streams before this one has ended, so it may start
    // only when they are complete.
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (tokens == 1) {
        multiply_tokens<1>(x, f, channels, sums, 0, tokens);
        return;
    }
#ifdef MUTANT_FIRST_PASS_ONLY
    tokens = min(tokens, (int)gridDim.y * PASS);
#endif
#pragma unroll 1
    for (int first = blockIdx.y * PASS; first < tokens; first += gridDim.y * PASS)
        multiply_tokens<PASS>(x, f, channels, sums, first, tokens);
}

// Up to MOST_PARTS CTAs have one chunk, if that is enough, or two. AT_ONCE chunks of tokens are in registers.
template <int AT_ONCE, class X>
__device__ __forceinline__ void parts_sums(const X &x, const float *fn, float *sums, int tokens, int dim) {
    if (dim <= MOST_PARTS * CHUNK)
        multiply_part<1, AT_ONCE>(x, fn, sums, tokens, dim);
    else
        multiply_part<2, AT_ONCE>(x, fn, sums, tokens, dim);
}

// A CTA for a token: two warps add up the sums, and one of them then makes the weights that mix the block's output back; the others mix.
template <class X, class Y>
__device__ __forceinline__ void parts_mix(const X &x, const float *sums, const float *base, const float *scale,
                                          const float *__restrict__ weight, const Y &y, float *post, float *comb, int parts,
                                          int dim, float norm_eps, float eps) {
    __shared__ float total[MUS], smem_base[MUS], smem_scale[3], of_v[MIX_WARPS], of_u[MIX_WARPS];
    const Parameters parameters = {smem_base, smem_scale, norm_eps, eps};
    const int token = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, mixers = blockDim.x - 32 * ADD_WARPS;
    const int mix_warps = mixers / 32, adder = warp - mix_warps;
    const auto inverse_of_v = [&] { return rsqrtf(warp_sum(lane < mix_warps ? of_v[lane] : 0.0f) / (STREAMS * dim) + norm_eps); };
    if (adder >= 0) {
        if (adder == 0 && lane < MUS)
            smem_base[lane] = base[lane];
        if (adder == 1 && lane < 3)
            smem_scale[lane] = scale[lane];
        wait_on_dependent_grids();
        launch_dependent_grids();
#ifdef MUTANT_WEIGHTS_OF_FIRST_TOKEN
        const float *from = sums + place_of(0, adder * ADDED, parts);
#else
        const float *from = sums + place_of(token, adder * ADDED, parts);
#endif
#ifdef MUTANT_SHARE_LOST
        const int added = parts - 1;
#else
        const int added = parts;
#endif
        float in[MOST_PARTS / 32][ADDED][QUAD] = {};
#pragma unroll
        for (int i = 0; i < MOST_PARTS / 32; i++) {
#pragma unroll
            for (int quad = 0; quad < ADDED; quad++) {
                if (i * 32 + lane < added)
                    load_four<true>(from + (quad * parts + i * 32 + lane) * QUAD, in[i][quad]);
            }
        }
        // While these sums come, the squares of all streams are there.
        __syncthreads();
        const float inverse = inverse_of_v();
#pragma unroll
        for (int quad = 0; quad < ADDED; quad++) {
            float sum[QUAD];
#pragma unroll
            for (int j = 0; j < QUAD; j++)
                sum[j] = (in[0][quad][j] + in[1][quad][j]) + (in[2][quad][j] + in[3][quad][j]);
            const float of_lane = sums_over_warp(sum);
            if (lane % (32 / QUAD) == 0)
                total[(adder * ADDED + quad) * QUAD + lane / (32 / QUAD)] = of_lane;
        }
        __syncthreads();
        if (adder == 0)
            make_post_and_comb([&](int i) { return total[i] * inverse; }, parameters, post + (size_t)token * STREAMS,
                               comb + (size_t)token * STREAMS * STREAMS);
        return;
    }

    // Streams and weights do not come from the last launch, and are loaded while that runs.
    float v[EACH][STREAMS][4] = {}, w[EACH][4] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = (i * mixers + threadIdx.x) * 4;
        if (channel >= dim)
            continue;
        x.load_all(token, channel, v[i]);
        load_four<true>(weight + channel, w[i]);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int j = 0; j < STREAMS * 4; j++)
            squares = fmaf(v[i][j / 4][j % 4], v[i][j / 4][j % 4], squares);
    }
    squares = warp_sum(squares);
    if (lane == 0)
        of_v[warp] = squares;
    __syncthreads();
    const float inverse = inverse_of_v();
    __syncthreads();
    // Those who add have waited for the launch before.
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = (i * mixers + threadIdx.x) * 4;
        if (channel < dim)
            x.keep(token, channel, v[i]);
    }

    // Each lane makes one weight; shuffles give it to all.
    const int own = lane % STREAMS;
    const float weight_of_lane = sigmoid(logit(total[own] * inverse, own, parameters)) + eps_of_pre(parameters);
    float u[EACH][4] = {};
    squares = 0;
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        const float pre = __shfl_sync(~0u, weight_of_lane, stream);
#pragma unroll
        for (int i = 0; i < EACH * 4; i++)
            u[i / 4][i % 4] = fmaf(pre, v[i / 4][stream][i % 4], u[i / 4][i % 4]);
    }
#pragma unroll
    for (int i = 0; i < EACH * 4; i++)
        squares = fmaf(u[i / 4][i % 4], u[i / 4][i % 4], squares);
    squares = warp_sum(squares);
    if (lane == 0)
        of_u[warp] = squares;
    named_barrier_sync(1, mixers);
    const float norm = rsqrtf(warp_sum(lane < mix_warps ? of_u[lane] : 0.0f) / dim + norm_eps);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if ((i * mixers + warp * 32) * 4 >= dim)
            break;
        y.store(
            token, (i * mixers + threadIdx.x) * 4,
            make_float4(u[i][0] * norm * w[i][0], u[i][1] * norm * w[i][1], u[i][2] * norm * w[i][2], u[i][3] * norm * w[i][3]));
    }
}

#define ENTRIES(DTYPE, T)                                                                                                      \
    KERNEL(mhc_pre_parts_sums_##DTYPE, __launch_bounds__(32 * QUADS, 4))(const T *x, const float *fn, float *sums, int tokens, \
                                                                         int dim) {                                            \
        parts_sums<8>(Streams<T>{x, dim}, fn, sums, tokens, dim);                                                              \
    }                                                                                                                          \
    KERNEL(mhc_pre_parts_mix_##DTYPE, __launch_bounds__(32 * (MIX_WARPS + ADD_WARPS)))(                                        \
        const T *x, const float *sums, const float *base, const float *scale, const float *__restrict__ weight, T *y,          \
        float *post, float *comb, int parts, int dim, float norm_eps, float eps) {                                             \
        parts_mix(Streams<T>{x, dim}, sums, base, scale, weight, ToMemory<T>{y, dim}, post, comb, parts, dim, norm_eps, eps);  \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)

#undef ENTRIES

} // namespace mhc_pre_parts
