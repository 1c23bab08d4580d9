/*
[[variant]]
name = "simple"
doc = "one warp for each row, which it reads three times; one lane for each block"

[[variant.launch]]
entry = "rmsnorm_quantize_simple_{format}_{dtype}"
grid = ["ceil(T, 4)"]
block = [128]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

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
doc = "a thread block for each row, four eights a thread"
needs = ["C % W == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_rows_{format}_{dtype}"
grid = ["T"]
block = ["ceil(C, 1024) * 32"]
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
name = "e5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_e5_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "g"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_g_{format}_{dtype}"
grid = ["T"]
block = [224]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["wide", "rows"]

[[mutant]]
name = "row_index"
doc = "every row written where the first of its thread block goes, or the first of all"
variants = ["wide", "rows"]

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["wide", "rows"]

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

// A hint costs time where as many bytes are written, and saves some where few are.
template <class F, class... Args> __device__ __forceinline__ void rows(Args... args) {
    if constexpr (F::Element::bits == 8)
        norm_row<4, 8>(args..., NoHint());
    else
        norm_row<4, 8>(args..., let_go());
}

#define ENTRY(NAME, FORMAT, DTYPE, T, CODES)                                                                           \
    rmsnorm_quantize_##NAME##_##FORMAT##_##DTYPE(const T *x, const float *weight, const float *amax, CODES *data,      \
                                                 FORMAT::Stored *scale, float eps, int count, int cols)

#define BOTH(FORMAT, DTYPE, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128) ENTRY(simple, FORMAT, DTYPE, T, u8) {                            \
        simple<FORMAT>(x, weight, amax, data, scale, eps, count, cols);                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024) ENTRY(wide, FORMAT, DTYPE, T, FORMAT::Codes) {                  \
        norm_row<1, 32>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<1, FORMAT>{data, scale, cols});              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(224, FORMAT::Element::bits == 8 && sizeof(T) == 2 ? 5 : 4)                              \
        ENTRY(rows, FORMAT, DTYPE, T, FORMAT::Codes) {                                                                 \
        rows<FORMAT>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<4, FORMAT>{data, scale, cols});                 \
    }

#define ENTRIES(FORMAT) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
// ==== probes
#define X1(NAME, FORMAT, V, W, B, MIN, ...) extern "C" __global__ void __launch_bounds__(B, MIN) ENTRY(NAME, FORMAT, bf16, bf16, FORMAT::Codes) { \
        norm_row<V, W>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<V, FORMAT>{data, scale, cols}, ##__VA_ARGS__); }
#define X(NAME, V, W, B, MIN, ...) X1(NAME, fp8_b128_f32, V, W, B, MIN, ##__VA_ARGS__) X1(NAME, fp8_b128, V, W, B, MIN, ##__VA_ARGS__) X1(NAME, mxfp8, V, W, B, MIN, ##__VA_ARGS__) X1(NAME, nvfp4, V, W, B, MIN, ##__VA_ARGS__)
X(e1, 4, 8, 224, 5, let_go())
X(e2, 4, 8, 224, 5, let_half_go())
X(e3, 4, 8, 224, 4, NoHint())
X(e5, 4, 8, 224, 4, let_half_go())
__device__ __forceinline__ void load_weights_now(const float *weight, int at, float (&out)[8]) {
    const float *from = weight + 8 * at;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3]) : "l"(from));
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(out[4]), "=f"(out[5]), "=f"(out[6]), "=f"(out[7]) : "l"(from + 4));
}
template <int V, int WARPS, class T, class Prepare, class Emit, class... Hint>
__device__ __forceinline__ void norm_base(const T *x, const float *weight, float eps, int cols, Prepare prepare, Emit emit,
                                         Hint... hint) {
    typedef decltype(prepare()) State;
    __shared__ State state;
    __shared__ float room[WARPS];
    const int first = first_eight<V>();
    const Below there = {cols / 8};
    x += ((size_t)blockIdx.x * (cols / 8) + first) * 8, weight += first * 8;
    Eight<T> in[V];
    float w[V][8] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (there(first + v * 32))
            in[v].load(x, v * 32, hint...);
        else
            in[v].zero();
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (there(first + v * 32))
            load_weights_now(weight, v * 32, w[v]);
    }
    // The products x·w and, in two chains of which neither waits for the other, the sum of squares.
    float product[V][8], sum[2] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        in[v].unpack(product[v]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i % 2] = __fmaf_rn(product[v][i], product[v][i], sum[i % 2]);
            product[v][i] *= w[v][i];
        }
    }
    if (threadIdx.x < 32)
        state = prepare();
#ifdef MUTANT_ROW_INDEX
    const int row = 0;
#else
    const int row = blockIdx.x;
#endif
    const float inverse = inverse_rms(block_sum<WARPS>(sum[0] + sum[1], room), cols, eps);
    // With no bounds where a row has exactly as many eights.
    if (cols == V * 8 * (int)blockDim.x)
        emit(State(state), row, product, inverse, All());
    else
        emit(State(state), row, product, inverse, there);
}

#define Z1(NAME, FORMAT, V, W, B, MIN, ...) extern "C" __global__ void __launch_bounds__(B, MIN) ENTRY(NAME, FORMAT, bf16, bf16, FORMAT::Codes) { \
        norm_base<V, W>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<V, FORMAT>{data, scale, cols}, ##__VA_ARGS__); }
Z1(g, fp8_b128_f32, 4, 8, 224, 5, NoHint()) Z1(g, fp8_b128, 4, 8, 224, 5, NoHint()) Z1(g, mxfp8, 4, 8, 224, 5, NoHint()) Z1(g, nvfp4, 4, 8, 224, 4, let_go())
