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
doc = "rows by thread blocks in registers, four eights a thread, the next row loaded meanwhile"
needs = ["C % W == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_quantize_fast_{format}_{dtype}"
grid = ["min(T, sms * 4)"]
block = ["ceil(C, 1024) * 32"]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[variant]]
name = "wide"
doc = "the same with one eight a thread, for few rows"
needs = ["C % W == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_quantize_wide_{format}_{dtype}"
grid = ["min(T, sms)"]
block = ["ceil(C, 256) * 32"]
args = ["x", "weight", "amax", "data", "scale", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["fast", "wide"]

[[mutant]]
name = "row_index"
doc = "all rows of a thread block written to its first"
variants = ["fast", "wide"]

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["fast", "wide"]

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
                          typename F::Level(amax), [=](int i) { return to_f32(x[i]) * inverse * weight[i]; });
}

template <int V, class F, class T>
__device__ __forceinline__ void in_registers(const T *x, const float *weight, const float *amax, typename F::Codes *data,
                                             typename F::Stored *scales, float eps, int rows, int cols) {
    typedef typename F::Level Level;
    const auto level = [=] { return Level(amax); };
    norm_rows<V>(x, weight, eps, rows, cols, level, [=](Level level, int row, int at, bool valid, float(&y)[8]) {
        quantize_eight<F>(y, lanes_max<F::lanes>(amax_of(y)), level, data, scales, row * (cols / 8) + at, valid);
    });
}

#define BOTH(FORMAT, DTYPE, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128) rmsnorm_quantize_simple_##FORMAT##_##DTYPE(                      \
        const T *x, const float *weight, const float *amax, u8 *data, FORMAT::Stored *scale, float eps, int rows,     \
        int cols) {                                                                                                    \
        simple<FORMAT>(x, weight, amax, data, scale, eps, rows, cols);                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(224, sizeof(T) == 2 ? 4 : 2)                                          \
        rmsnorm_quantize_fast_##FORMAT##_##DTYPE(const T *x, const float *weight, const float *amax,                   \
                                                 FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows,     \
                                                 int cols) {                                                           \
        in_registers<4, FORMAT>(x, weight, amax, data, scale, eps, rows, cols);                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        rmsnorm_quantize_wide_##FORMAT##_##DTYPE(const T *x, const float *weight, const float *amax,                   \
                                                 FORMAT::Codes *data, FORMAT::Stored *scale, float eps, int rows,     \
                                                 int cols) {                                                           \
        in_registers<1, FORMAT>(x, weight, amax, data, scale, eps, rows, cols);                                        \
    }

#define ENTRIES(FORMAT) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
