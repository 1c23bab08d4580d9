/*
[[variant]]
name = "simple"
doc = "one warp for each row, which it reads three times; one lane for each block"

[[variant.launch]]
entry = "rmsnorm_quantize_simple_{format}_{dtype}"
grid = ["ceil(T, 4)"]
block = [128]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "fast"
doc = "thread blocks that stay, four eights a thread, with the next three rows on their way to shared memory: fastest with NVFP4"
needs = ["C % 1024 == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_fast_{format}_{dtype}"
grid = ["min(T, sms * 4)"]
block = ["C / 32"]
shared = "C * S * 3"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "wide"
doc = "a thread block for each row, one eight a thread"
needs = ["C % W == 0", "C <= 8192", "T < 1024"]

[[variant.launch]]
entry = "rmsnorm_quantize_wide_{format}_{dtype}"
grid = ["T"]
block = ["ceil(C, 256) * 32"]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "rows"
doc = "a thread block for each row, four eights a thread: fastest with 8-bit codes"
needs = ["C % W == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_quantize_rows_{format}_{dtype}"
grid = ["T"]
block = ["ceil(C, 1024) * 32"]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "e0"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e0_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "e1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e1_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "e2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e2_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "e3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e3_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "e4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e4_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "r4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_r4_{format}_{dtype}"
grid = ["min(T, sms * 4)"]
block = [224]
shared = "C * S * 3"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "r5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_r5_{format}_{dtype}"
grid = ["min(T, sms * 5)"]
block = [224]
shared = "C * S * 3"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "r5h"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_r5h_{format}_{dtype}"
grid = ["min(T, sms * 5)"]
block = [224]
shared = "C * S * 3"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w4_{format}_{dtype}"
grid = ["min(T, sms * 2)"]
block = [448]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w4h"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w4h_{format}_{dtype}"
grid = ["min(T, sms * 2)"]
block = [448]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w3_{format}_{dtype}"
grid = ["min(T, sms * 3)"]
block = [224]
shared = "C * S * 5"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["fast", "wide", "rows"]

[[mutant]]
name = "row_index"
doc = "every row written where the first of its thread block goes, or the first of all"
variants = ["fast", "wide", "rows"]

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["fast", "wide", "rows"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "no_eps"
doc = "eps left out"
*/

#include "formats.cuh"
#include "rmsnorm.cuh"

template <class F, class T>
__device__ void simple(const T *x, const float *weight, const float *amax, u8 *data, typename F::Stored *scales, float eps,
                       int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows)
        return;
    x += (size_t)row * cols, data += (size_t)row * cols * F::Element::bits / 8;
    const float inverse = inverse_rms_of(x, cols, eps);
    const int across = (cols + F::width - 1) / F::width;
    for (int block = threadIdx.x % 32; block < across; block += 32)
        quantize_block<F>(block * F::width, min((block + 1) * F::width, cols), data, scales[(size_t)row * across + block],
                          typename F::Level(amax), [=](int i) { return to_f32(x[i]) * weight[i] * inverse; });
}

// What is done with a row's products: cast, each by the inverse root mean square. That goes into the factors where both
// together are a normal number: one rounding more than the bound counts, of the many that the sum has less.
template <int V, class F> struct Cast {
    typename F::Codes *data;
    typename F::Stored *scales;
    int cols;

    template <class There>
    __device__ __forceinline__ void operator()(typename F::Level level, int row, float (&product)[V][8], float inverse,
                                               There there) const {
        // Rounding keeps the order: the largest of products is the product of the largest.
        u32 largest[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            largest[v] = __float_as_uint(__uint_as_float(amax_of(product[v])) * inverse);
        const auto adjust = [&](float (&factor)[V], int n) {
            bool normal = true;
            float both[V];
#pragma unroll
            for (int i = 0; i < n; i++) {
                both[i] = factor[i] * inverse;
                normal &= __float_as_uint(both[i]) - 0x00800000 < INFINITY_BITS - 0x00800000;
            }
            if (__all_sync(0xffffffff, normal)) {
#pragma unroll
                for (int i = 0; i < n; i++)
                    factor[i] = both[i];
                return true;
            }
#pragma unroll
            for (int v = 0; v < V; v++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    product[v][i] *= inverse;
            return false;
        };
        const auto get = [&](int v, float(&y)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = product[v][i];
        };
        quantize_eights<F>(largest, get, level, data + (size_t)row * (cols / 8), scales + (size_t)row * (cols / F::width),
                           first_eight<V>(), there, adjust);
    }
};

template <class F> struct Prepare {
    const float *amax;

    __device__ __forceinline__ typename F::Level operator()() const {
        return typename F::Level(amax);
    }
};

extern __shared__ __align__(16) u8 ring[];

#define BOTH(FORMAT, DTYPE, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128) rmsnorm_quantize_simple_##FORMAT##_##DTYPE(                      \
        const T *x, const float *weight, const float *amax, u8 *data, FORMAT::Stored *scale, float eps, int rows,     \
        int cols) {                                                                                                    \
        simple<FORMAT>(x, weight, amax, data, scale, eps, rows, cols);                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(224, 4) rmsnorm_quantize_fast_##FORMAT##_##DTYPE(                     \
        const T *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps,    \
        int rows, int cols) {                                                                                          \
        norm_rows<4>(x, weight, eps, rows, cols, (T *)ring, Prepare<FORMAT>{amax},                                     \
                     Cast<4, FORMAT>{data, scale, cols});                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024) rmsnorm_quantize_wide_##FORMAT##_##DTYPE(                       \
        const T *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int, \
        int cols) {                                                                                                    \
        norm_row<1>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<1, FORMAT>{data, scale, cols});              \
    } \
    extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 2 ? 4 : 4) rmsnorm_quantize_rows_##FORMAT##_##DTYPE(                      \
        const T *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int, \
        int cols) {                                                                                                    \
        norm_row<4>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<4, FORMAT>{data, scale, cols});              \
    }

#define ENTRIES(FORMAT) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)

// ==== probes
#define SIG(NAME, FORMAT, B, MIN) extern "C" __global__ void __launch_bounds__(B, MIN) rmsnorm_quantize_##NAME##_##FORMAT##_bf16( \
        const bf16 *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows, int cols)
#define X1(NAME, FORMAT, V, B, MIN, ...) SIG(NAME, FORMAT, B, MIN) { \
        norm_row<V>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<V, FORMAT>{data, scale, cols}, ##__VA_ARGS__); }
#define X(NAME, V, B, MIN, ...) X1(NAME, fp8_b128_f32, V, B, MIN, ##__VA_ARGS__) X1(NAME, mxfp8, V, B, MIN, ##__VA_ARGS__) X1(NAME, nvfp4, V, B, MIN, ##__VA_ARGS__)
#define R1(NAME, FORMAT, V, B, MIN, HINT) SIG(NAME, FORMAT, B, MIN) { \
        norm_rows<V, HINT>(x, weight, eps, rows, cols, (bf16 *)ring, Prepare<FORMAT>{amax}, Cast<V, FORMAT>{data, scale, cols}); }
#define R(NAME, V, B, MIN, HINT) R1(NAME, fp8_b128_f32, V, B, MIN, HINT) R1(NAME, mxfp8, V, B, MIN, HINT) R1(NAME, nvfp4, V, B, MIN, HINT)
#define W1(NAME, FORMAT, V, S, REGS, HINT) extern "C" __global__ void __maxnreg__(REGS) rmsnorm_quantize_##NAME##_##FORMAT##_bf16( \
        const bf16 *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows, int cols) { \
        norm_ring<V, S, HINT>(x, weight, eps, rows, cols, (bf16 *)ring, Prepare<FORMAT>{amax}, Cast<V, FORMAT>{data, scale, cols}); }
#define W(NAME, V, S, REGS, HINT) W1(NAME, fp8_b128_f32, V, S, REGS, HINT) W1(NAME, mxfp8, V, S, REGS, HINT) W1(NAME, nvfp4, V, S, REGS, HINT)
X(e0, 4, 224, 5)
X(e1, 4, 224, 5, let_go())
X(e2, 4, 224, 5, let_half_go())
X(e3, 4, 224, 4)
X(e4, 4, 224, 4, let_go())
R(r4, 4, 224, 4, false)
R(r5, 4, 224, 5, false)
R(r5h, 4, 224, 5, true)
W(w4, 2, 4, 72, false)
W(w4h, 2, 4, 72, true)
W(w3, 4, 5, 96, false)
