/*
[[variant]]
name = "simple"
doc = "a thread block for each row"

[[variant.launch]]
entry = "hyper_head_simple_{dtype}"
grid = ["B"]
block = [256]
args = ["x", "fn", "base", "scale", "weight", "y", "C", "norm_eps", "eps"]

[[variant]]
name = "cluster"
doc = "a cluster of 8 thread blocks for each row; a thread has four channels of all streams in registers: for few rows"
needs = ["C % 4 == 0", "C <= 8192", "B * 8 < 2147483648"]

[[variant.launch]]
entry = "hyper_head_cluster_{dtype}"
grid = ["8 * B"]
block = [256]
cluster = [8]
args = ["x", "fn", "base", "scale", "weight", "y", "C", "norm_eps", "eps"]

[[mutant]]
name = "no_eps"
doc = "the norms lack their epsilon"

[[mutant]]
name = "weights_without_eps"
doc = "the weights of streams lack their epsilon"

[[mutant]]
name = "eps_exchanged"
doc = "the epsilon of the norms is added to the weights"

[[mutant]]
name = "base_left_out"
doc = "logits lack their base"

[[mutant]]
name = "norm_of_streams"
doc = "the mixture is divided by the root mean square of the streams"

[[mutant]]
name = "warp_lost"
doc = "sums are those of the first warp"

[[mutant]]
name = "stream_twice"
doc = "the third stream is mixed in the place of the fourth"
*/

// reference: reference/ops/hyper_connection.rs, reference/ops/rmsnorm.rs
//
// x [B, 4, C], fn [4, 4 C], y [B, C].

#include "lib/cluster.cuh"
#include "lib/reduce.cuh"

constexpr int STREAMS = 4;

// The weight of a stream, from the sum of its products and the inverse root mean square of all streams.
__device__ __forceinline__ float weight_of(float sum, float inverse, const float *base, const float *scale, int stream,
                                           float norm_eps, float eps) {
    const float mu = sum * inverse;
#ifdef MUTANT_BASE_LEFT_OUT
    const float logit = mu * *scale;
#else
    const float logit = mu * *scale + base[stream];
#endif
    const float weight = 1.0f / (1.0f + expf(-logit));
#if defined(MUTANT_EPS_EXCHANGED)
    return weight + norm_eps;
#elif !defined(MUTANT_WEIGHTS_WITHOUT_EPS)
    return weight + eps;
#else
    return weight;
#endif
}

// The stream that is mixed as this one.
__device__ __forceinline__ int mixed_stream(int stream) {
#ifdef MUTANT_STREAM_TWICE
    return min(stream, 2);
#else
    return stream;
#endif
}

// ---- simple

template <class T>
__device__ __forceinline__ void simple(const T *x, const float *fn, const float *base, const float *scale, const float *weight,
                                       T *y, int channels, float norm_eps, float eps) {
    __shared__ float partials[STREAMS + 2][32];
    const int wide = STREAMS * channels;
#ifdef MUTANT_NO_EPS
    norm_eps = 0.0f;
#endif
    x += (size_t)blockIdx.x * wide, y += (size_t)blockIdx.x * channels;
    float squares = 0.0f, sums[STREAMS] = {};
    for (int at = threadIdx.x; at < wide; at += blockDim.x) {
        const float value = to_f32(x[at]);
        squares = fmaf(value, value, squares);
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            sums[stream] = fmaf(fn[(size_t)stream * wide + at], value, sums[stream]);
    }
    const float inverse = rsqrtf(block_sum(squares, partials[STREAMS]) / wide + norm_eps);
    float weights[STREAMS];
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++)
        weights[stream] = weight_of(block_sum(sums[stream], partials[stream]), inverse, base, scale, stream, norm_eps, eps);
    const auto mixed = [&](int channel) {
        float sum = 0.0f;
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            sum = fmaf(weights[stream], to_f32(x[mixed_stream(stream) * channels + channel]), sum);
        return sum;
    };
    squares = 0.0f;
    for (int channel = threadIdx.x; channel < channels; channel += blockDim.x)
        squares = fmaf(mixed(channel), mixed(channel), squares);
    float norm = rsqrtf(block_sum(squares, partials[STREAMS + 1]) / channels + norm_eps);
#ifdef MUTANT_NORM_OF_STREAMS
    norm = inverse;
#endif
    for (int channel = threadIdx.x; channel < channels; channel += blockDim.x)
        from_f32(y[channel], mixed(channel) * norm * weight[channel]);
}

// ---- cluster

constexpr int RANKS = 8, WARPS = 8;

__device__ __forceinline__ void load_four(const float *from, float (&x)[4]) {
    const float4 in = *(const float4 *)from;
    x[0] = in.x, x[1] = in.y, x[2] = in.z, x[3] = in.w;
}

__device__ __forceinline__ void load_four(const bf16 *from, float (&x)[4]) {
    const uint2 in = *(const uint2 *)from;
    const float2 low = from_bf16x2(in.x), high = from_bf16x2(in.y);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}

__device__ __forceinline__ void store_four(float *to, float4 x) {
    *(float4 *)to = x;
}

__device__ __forceinline__ void store_four(bf16 *to, float4 x) {
    *(uint2 *)to = to_bf16x4(x);
}

// Sums over the threads of a cluster, N at a time, in shared memory that serves once.
template <int N> struct ClusterSums {
    float of_warps[N][WARPS], of_ranks[N][RANKS];

    // By all threads of the cluster, which have all begun; each gets the sums.
    __device__ __forceinline__ void add(float (&sums)[N], int rank) {
        const int thread = threadIdx.x;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float of_warp = warp_sum(sums[i]);
            if (thread % 32 == 0)
                of_warps[i][thread / 32] = of_warp;
        }
        __syncthreads();
        if (thread < N * RANKS) {
            const int i = thread / RANKS;
#ifdef MUTANT_WARP_LOST
            const float sum = rank == 0 ? of_warps[i][0] : 0.0f;
#else
            float sum = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++)
                sum += of_warps[i][warp];
#endif
            st_shared_cluster(map_shared_rank(&of_ranks[i][rank], thread % RANKS), sum);
        }
        cluster_sync();
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[i] = 0.0f;
#pragma unroll
            for (int other = 0; other < RANKS; other++)
                sums[i] += of_ranks[i][other];
        }
    }
};

template <class T>
__device__ __forceinline__ void cluster(const T *x, const float *fn, const float *base, const float *scale, const float *weight,
                                        T *y, int channels, float norm_eps, float eps) {
    __shared__ ClusterSums<STREAMS + 1> of_streams;
    __shared__ ClusterSums<1> of_mixture;
    // Nobody sends to a CTA that has not begun.
    cluster_arrive_relaxed();
    launch_dependent_grids();
    const int row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, wide = STREAMS * channels;
    const int fours = channels / 4, each = (fours + RANKS - 1) / RANKS, four = rank * each + threadIdx.x, channel = 4 * four;
    const bool has = threadIdx.x < each && four < fours;
#ifdef MUTANT_NO_EPS
    norm_eps = 0.0f;
#endif
    float f[STREAMS][STREAMS][4] = {}, v[STREAMS][4] = {}, w[4] = {};
    if (has) {
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++)
            load_four(fn + (size_t)(i / STREAMS) * wide + i % STREAMS * channels + channel, f[i / STREAMS][i % STREAMS]);
        load_four(weight + channel, w);
    }
    // Streams come from the launches before, and weights do not.
    wait_on_dependent_grids();
    if (has) {
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            load_four(x + (size_t)row * wide + stream * channels + channel, v[stream]);
    }
    cluster_wait();

    float sums[STREAMS + 1] = {}; // the last one of squares
#pragma unroll
    for (int i = 0; i < STREAMS * 4; i++) {
        const float value = v[i / 4][i % 4];
        sums[STREAMS] = fmaf(value, value, sums[STREAMS]);
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
            sums[stream] = fmaf(f[stream][i / 4][i % 4], value, sums[stream]);
    }
    of_streams.add(sums, rank);
    const float inverse = rsqrtf(sums[STREAMS] / wide + norm_eps);
    float mixed[4] = {}, squares[1] = {};
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++) {
        const float of_stream = weight_of(sums[stream], inverse, base, scale, stream, norm_eps, eps);
#pragma unroll
        for (int c = 0; c < 4; c++)
            mixed[c] = fmaf(of_stream, v[mixed_stream(stream)][c], mixed[c]);
    }
    // Zeros of threads without channels may have become NaN.
#pragma unroll
    for (int c = 0; c < 4; c++)
        squares[0] = has ? fmaf(mixed[c], mixed[c], squares[0]) : 0.0f;
    of_mixture.add(squares, rank);
    // Nobody writes the shared memory of another CTA from here on.
    float norm = rsqrtf(squares[0] / channels + norm_eps);
#ifdef MUTANT_NORM_OF_STREAMS
    norm = inverse;
#endif
    if (has)
        store_four(y + (size_t)row * channels + channel,
                   make_float4(mixed[0] * norm * w[0], mixed[1] * norm * w[1], mixed[2] * norm * w[2], mixed[3] * norm * w[3]));
}

#define ENTRIES(DTYPE, T)                                                                                                   \
    KERNEL(hyper_head_simple_##DTYPE, __launch_bounds__(256))(const T *x, const float *fn, const float *base,               \
                                                              const float *scale, const float *weight, T *y, int channels,  \
                                                              float norm_eps, float eps) {                                  \
        simple(x, fn, base, scale, weight, y, channels, norm_eps, eps);                                                     \
    }                                                                                                                       \
    KERNEL(hyper_head_cluster_##DTYPE, __launch_bounds__(256))(const T *x, const float *fn, const float *base,              \
                                                               const float *scale, const float *weight, T *y, int channels, \
                                                               float norm_eps, float eps) {                                 \
        cluster(x, fn, base, scale, weight, y, channels, norm_eps, eps);                                                    \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
