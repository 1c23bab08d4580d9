/*
[[variant]]
name = "simple"
doc = "a thread block for each row"

[[variant.launch]]
entry = "hyper_head_simple_{dtype}"
grid = ["B"]
block = [256]
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

#include "lib/reduce.cuh"

constexpr int STREAMS = 4;

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
    for (int stream = 0; stream < STREAMS; stream++) {
        const float mu = block_sum(sums[stream], partials[stream]) * inverse;
#ifdef MUTANT_BASE_LEFT_OUT
        const float logit = mu * *scale;
#else
        const float logit = mu * *scale + base[stream];
#endif
        weights[stream] = 1.0f / (1.0f + expf(-logit));
#if defined(MUTANT_EPS_EXCHANGED)
        weights[stream] += norm_eps;
#elif !defined(MUTANT_WEIGHTS_WITHOUT_EPS)
        weights[stream] += eps;
#endif
    }
    const auto mixed = [&](int channel) {
        float sum = 0.0f;
#pragma unroll
        for (int stream = 0; stream < STREAMS; stream++)
#ifdef MUTANT_STREAM_TWICE
            sum = fmaf(weights[stream], to_f32(x[min(stream, 2) * channels + channel]), sum);
#else
            sum = fmaf(weights[stream], to_f32(x[stream * channels + channel]), sum);
#endif
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

#define ENTRIES(DTYPE, T)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                                            \
        hyper_head_simple_##DTYPE(const T *x, const float *fn, const float *base, const float *scale, const float *weight, T *y, \
                                  int channels, float norm_eps, float eps) {                                                     \
        simple(x, fn, base, scale, weight, y, channels, norm_eps, eps);                                                          \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
