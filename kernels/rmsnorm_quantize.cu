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
name = "x1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x1_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x2_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x3_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x4_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [896]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x5_{format}_{dtype}"
grid = ["ceil(T, 2)"]
block = [448]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x6"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x6_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x7"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x7_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x8"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x8_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x9"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x9_{format}_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "x10"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_x10_{format}_{dtype}"
grid = ["ceil(T, 2)"]
block = [448]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w1_{format}_{dtype}"
grid = ["min(T, sms * 3)"]
block = [224]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w2_{format}_{dtype}"
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
shared = "C * S * 4"
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
name = "w5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w5_{format}_{dtype}"
grid = ["min(T, sms * 3)"]
block = [224]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "w6"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_w6_{format}_{dtype}"
grid = ["min(T, sms * 1)"]
block = [896]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v1_{format}_{dtype}"
grid = ["min(ceil(T, 2), sms * 2)"]
block = [448]
shared = "C * S * 6"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v2_{format}_{dtype}"
grid = ["min(ceil(T, 2), sms * 2)"]
block = [448]
shared = "C * S * 6"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v3_{format}_{dtype}"
grid = ["min(ceil(T, 1), sms * 3)"]
block = [224]
shared = "C * S * 5"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v4_{format}_{dtype}"
grid = ["min(ceil(T, 1), sms * 2)"]
block = [448]
shared = "C * S * 6"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v5_{format}_{dtype}"
grid = ["min(ceil(T, 2), sms * 2)"]
block = [224]
shared = "C * S * 4"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v6"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v6_{format}_{dtype}"
grid = ["min(ceil(T, 2), sms * 1)"]
block = [896]
shared = "C * S * 6"
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "v7"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_v7_{format}_{dtype}"
grid = ["min(ceil(T, 1), sms * 3)"]
block = [448]
shared = "C * S * 4"
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

// What is done with a row's products: cast, each by the inverse root mean square.
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
        const auto get = [&](int v, float(&y)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = product[v][i] * inverse;
        };
        quantize_eights<F>(largest, get, level, data + (size_t)row * (cols / 8), scales + (size_t)row * (cols / F::width),
                           first_eight<V>(), there);
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
    extern "C" __global__ void __launch_bounds__(256, 4) rmsnorm_quantize_rows_##FORMAT##_##DTYPE(                      \
        const T *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int, \
        int cols) {                                                                                                    \
        norm_row<4>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<4, FORMAT>{data, scale, cols});              \
    }

#define ENTRIES(FORMAT) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)

// ==== probes
// inverse folded into the factor (unguarded).
template <int V, class F, bool SAT> struct CastX {
    typename F::Codes *data;
    typename F::Stored *scales;
    int cols;
    template <class There>
    __device__ __forceinline__ void operator()(typename F::Level level, int row, float (&product)[V][8], float inverse,
                                               There there) const {
        typedef Shared<F, V> Share;
        u32 largest[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            largest[v] = __float_as_uint(__uint_as_float(amax_of(product[v])) * inverse);
        float factor[V];
        typename F::Stored scale[Share::own];
        Share::scales(largest, level, scale, factor);
        const int at = first_eight<V>();
        typename F::Codes *to = data + (size_t)row * (cols / 8) + at;
        typename F::Stored *s = scales + (size_t)row * (cols / F::width) + at / F::lanes + Share::first() * (32 / F::lanes);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float f = factor[v] * inverse;
            if constexpr (SAT) {
                if (there(at + v * 32))
                    to[v * 32] = F::Element::encode8_sat(product[v], f);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    product[v][i] *= f;
                if (there(at + v * 32))
                    to[v * 32] = F::Element::encode8(product[v]);
            }
        }
#pragma unroll
        for (int i = 0; i < Share::own; i++)
            if (Share::stores() && there(at + (Share::first() + i) * 32))
                s[i * (32 / F::lanes)] = scale[i];
    }
};
#define ID(...) __VA_ARGS__
#define SIG(NAME, FORMAT, B, MIN) extern "C" __global__ void __launch_bounds__(B, MIN) rmsnorm_quantize_##NAME##_##FORMAT##_bf16( \
        const bf16 *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows, int cols)
#define X(NAME, FORMAT, V, R, B, MIN, CAST, POLICY) SIG(NAME, FORMAT, B, MIN) { \
        norm_x<V, R>(x, weight, eps, rows, cols, Prepare<FORMAT>{amax}, ID CAST{data, scale, cols}, POLICY); }
#define RING(NAME, FORMAT, V, SLOTS, B, MIN, CAST) extern "C" __global__ void __maxnreg__(V == 4 ? 96 : V == 2 ? 72 : 64) rmsnorm_quantize_##NAME##_##FORMAT##_bf16( \
        const bf16 *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows, int cols) { \
        norm_ring<V, SLOTS>(x, weight, eps, rows, cols, (bf16 *)ring, Prepare<FORMAT>{amax}, ID CAST{data, scale, cols}); }
X(x1, fp8_b128_f32, 4, 1, 224, 4, (Cast<4, fp8_b128_f32>), Hinted{})
X(x1, nvfp4, 4, 1, 224, 4, (Cast<4, nvfp4>), Hinted{})
X(x2, fp8_b128_f32, 4, 1, 224, 4, (Cast<4, fp8_b128_f32>), Cached{})
X(x3, fp8_b128_f32, 2, 1, 448, 3, (Cast<2, fp8_b128_f32>), Hinted{})
X(x3, nvfp4, 2, 1, 448, 3, (Cast<2, nvfp4>), Hinted{})
X(x4, fp8_b128_f32, 1, 1, 896, 2, (Cast<1, fp8_b128_f32>), Hinted{})
X(x5, fp8_b128_f32, 2, 2, 448, 2, (Cast<2, fp8_b128_f32>), Hinted{})
X(x5, nvfp4, 2, 2, 448, 2, (Cast<2, nvfp4>), Hinted{})
X(x6, fp8_b128_f32, 4, 1, 224, 5, (Cast<4, fp8_b128_f32>), Hinted{})
X(x6, nvfp4, 4, 1, 224, 5, (Cast<4, nvfp4>), Hinted{})
X(x7, fp8_b128_f32, 4, 1, 224, 4, (CastX<4, fp8_b128_f32, false>), Hinted{})
X(x7, nvfp4, 4, 1, 224, 4, (CastX<4, nvfp4, false>), Hinted{})
X(x8, nvfp4, 4, 1, 224, 4, (CastX<4, nvfp4, true>), Hinted{})
X(x9, nvfp4, 2, 1, 448, 3, (CastX<2, nvfp4, true>), Hinted{})
X(x10, nvfp4, 2, 2, 448, 2, (CastX<2, nvfp4, true>), Hinted{})
RING(w1, fp8_b128_f32, 4, 4, 224, 3, (Cast<4, fp8_b128_f32>))
RING(w1, nvfp4, 4, 4, 224, 3, (Cast<4, nvfp4>))
RING(w2, fp8_b128_f32, 2, 4, 448, 2, (Cast<2, fp8_b128_f32>))
RING(w2, nvfp4, 2, 4, 448, 2, (Cast<2, nvfp4>))
RING(w3, nvfp4, 4, 4, 224, 3, (CastX<4, nvfp4, true>))
RING(w4, nvfp4, 2, 4, 448, 2, (CastX<2, nvfp4, true>))
RING(w5, fp8_b128_f32, 4, 4, 224, 3, (CastX<4, fp8_b128_f32, false>))
RING(w6, fp8_b128_f32, 1, 4, 896, 1, (CastX<1, fp8_b128_f32, false>))

// Rows together, the reciprocal root in the factor where that loses nothing.
template <int V, int R, class F, bool SAT, bool FOLD> struct CastRows {
    typename F::Codes *data;
    typename F::Stored *scales;
    int rows, cols;
    __device__ __forceinline__ void operator()(typename F::Level level, int row, float (&product)[R][V][8], const float (&inverse)[R]) const {
        constexpr int N = R * V;
        typedef Shared<F, N> Share;
        u32 largest[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            largest[i] = __float_as_uint(__uint_as_float(amax_of(product[i / V][i % V])) * inverse[i / V]);
        float factor[N];
        typename F::Stored scale[Share::own];
        Share::scales(largest, level, scale, factor);
        const int at = first_eight<V>(), across = cols / 8;
        bool fold = FOLD;
        if (FOLD) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                const u32 bits = __float_as_uint(factor[i] * inverse[i / V]);
                fold &= bits - 0x00800000 < 0x7f000000;
            }
            fold = __all_sync(0xffffffff, fold);
        }
        if (fold) {
#pragma unroll
            for (int i = 0; i < N; i++)
                factor[i] *= inverse[i / V];
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    product[i / V][i % V][k] *= inverse[i / V];
        }
        typename F::Codes *to = data + (size_t)row * across + at;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (row + i / V < rows) {
                typename F::Codes codes;
                if constexpr (SAT)
                    codes = F::Element::encode8_sat(product[i / V][i % V], factor[i]);
                else {
#pragma unroll
                    for (int k = 0; k < 8; k++)
                        product[i / V][i % V][k] *= factor[i];
                    codes = F::Element::encode8(product[i / V][i % V]);
                }
                to[i / V * across + i % V * 32] = codes;
            }
        }
        typename F::Stored *s = scales + (size_t)row * (across / F::lanes);
#pragma unroll
        for (int j = 0; j < Share::own; j++) {
            const int i = Share::first() + j;
            if (Share::stores() && row + i / V < rows)
                s[i / V * (across / F::lanes) + (at + i % V * 32) / F::lanes] = scale[j];
        }
    }
};
#define GROUPS(NAME, FORMAT, V, R, SLOTS, WARPS, REGS, SAT, FOLD) extern "C" __global__ void __maxnreg__(REGS) rmsnorm_quantize_##NAME##_##FORMAT##_bf16( \
        const bf16 *x, const float *weight, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows, int cols) { \
        norm_groups<V, R, SLOTS, WARPS>(x, weight, eps, rows, cols, (bf16 *)ring, Prepare<FORMAT>{amax}, CastRows<V, R, FORMAT, SAT, FOLD>{data, scale, rows, cols}); }
GROUPS(v1, fp8_b128_f32, 2, 2, 3, 14, 72, false, true)
GROUPS(v1, nvfp4, 2, 2, 3, 14, 72, true, true)
GROUPS(v2, fp8_b128_f32, 2, 2, 3, 14, 72, false, false)
GROUPS(v2, nvfp4, 2, 2, 3, 14, 72, true, false)
GROUPS(v3, fp8_b128_f32, 4, 1, 5, 7, 96, false, true)
GROUPS(v3, nvfp4, 4, 1, 5, 7, 96, true, true)
GROUPS(v4, fp8_b128_f32, 2, 1, 6, 14, 72, false, true)
GROUPS(v4, nvfp4, 2, 1, 6, 14, 72, true, true)
GROUPS(v5, nvfp4, 4, 2, 2, 7, 144, true, true)
GROUPS(v6, fp8_b128_f32, 1, 2, 3, 28, 72, false, true)
GROUPS(v6, nvfp4, 1, 2, 3, 28, 72, true, true)
GROUPS(v7, fp8_b128_f32, 2, 1, 4, 14, 48, false, true)
GROUPS(v7, nvfp4, 2, 1, 4, 14, 48, true, true)
