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
name = "rows"
doc = "a thread block for each row, four vectors of eight for each thread"
needs = ["C % W == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_rows_{format}_{dtype}"
grid = ["T"]
block = ["ceil(C, 1024) * 32"]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["rows"]

[[mutant]]
name = "row_index"
doc = "every row written where the first of its thread block goes, or the first of all"
variants = ["rows"]

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["rows"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "no_eps"
doc = "eps left out"
*/

// reference: reference/ops/rmsnorm.rs, crates/core/formats/quantize.rs

#include "lib/formats.cuh"
#include "rmsnorm/rmsnorm.cuh"

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

// The epilogue: casts the products of a row, each times the inverse root mean square. The factors include it if the product of both
// is a normal number: that is one more rounding, but the sum has many fewer than its bound allows.
template <int V, class F> struct Cast {
    typename F::Codes *data;
    typename F::Stored *scales;
    int cols;

    template <class InBounds>
    __device__ __forceinline__ void operator()(typename F::Level level, int row, float (&product)[V][8], float inverse,
                                               InBounds in_bounds) const {
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
            for (int v = 0; v < V; v++) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    product[v][i] *= inverse;
            }
            return false;
        };
        const auto get = [&](int v, float (&y)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = product[v][i];
        };
        quantize_vec8<F>(largest, get, level, data + (size_t)row * (cols / 8), scales + (size_t)row * (cols / F::width),
                         first_vec8<V>(), in_bounds, adjust);
    }
};

template <class F> struct Prepare {
    const float *amax;

    __device__ __forceinline__ typename F::Level operator()() const {
        return typename F::Level(amax);
    }
};

// The hint costs time if as many bytes are written as read, and saves some if few are.
template <class F, class... Args> __device__ __forceinline__ void rows(Args... args) {
    if constexpr (F::Element::bits == 8)
        norm_row<4, 8>(args..., NoHint());
    else
        norm_row<4, 8>(args..., evict_first_policy());
}

#define PARAMETERS(FORMAT, T, CODES) \
    (const T *x, const float *weight, const float *amax, CODES *data, FORMAT::Stored *scale, float eps, int count, int cols)

#define BOTH(FORMAT, DTYPE, T)                                                                         \
    KERNEL(rmsnorm_quantize_simple_##FORMAT##_##DTYPE, __launch_bounds__(128))                         \
    PARAMETERS(FORMAT, T, u8) {                                                                        \
        simple<FORMAT>(x, weight, amax, data, scale, eps, count, cols);                                \
    }                                                                                                  \
    KERNEL(rmsnorm_quantize_rows_##FORMAT##_##DTYPE,                                                   \
           __launch_bounds__(224, FORMAT::Element::bits == 8 && sizeof(T) == 2 ? 5 : 4))               \
    PARAMETERS(FORMAT, T, FORMAT::Codes) {                                                             \
        rows<FORMAT>(x, weight, eps, cols, Prepare<FORMAT>{amax}, Cast<4, FORMAT>{data, scale, cols}); \
    }

#define ENTRIES(FORMAT, ...) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
