/*
[[variant]]
name = "simple"
doc = "one warp for each row, which it reads twice"

[[variant.launch]]
entry = "rmsnorm_simple_{dtype}"
grid = ["ceil(T, 4)"]
block = [128]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "fast"
doc = "rows by thread blocks in registers, four eights a thread, the next row loaded meanwhile"
needs = ["C % 8 == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_fast_{dtype}"
grid = ["min(T, sms * 4)"]
block = ["ceil(C, 1024) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "wide"
doc = "the same with one eight a thread, for few rows"
needs = ["C % 8 == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_wide_{dtype}"
grid = ["min(T, sms)"]
block = ["ceil(C, 256) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["fast", "wide"]

[[mutant]]
name = "row_index"
doc = "all rows of a thread block written to its first"
variants = ["fast", "wide"]

[[mutant]]
name = "no_eps"
doc = "eps left out"
*/

#include "rmsnorm.cuh"

template <class T> __device__ void simple(const T *x, const float *weight, T *y, float eps, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows)
        return;
    x += (size_t)row * cols, y += (size_t)row * cols;
    const float scale = inverse_rms_of(x, cols, eps);
    for (int i = threadIdx.x % 32; i < cols; i += 32)
        from_f32(y[i], to_f32(x[i]) * scale * weight[i]);
}

template <int V, class T>
__device__ __forceinline__ void in_registers(const T *x, const float *weight, T *y, float eps, int rows, int cols) {
    const auto nothing = [] { return 0; };
    norm_rows<V>(x, weight, eps, rows, cols, nothing, [=](int, int row, int at, bool valid, const float(&out)[8]) {
        if (valid)
            Eight<T>::store(y, (size_t)row * (cols / 8) + at, out);
    });
}

#define ENTRIES(DTYPE, T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        rmsnorm_simple_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                 \
        simple(x, weight, y, eps, rows, cols);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(224, sizeof(T) == 2 ? 4 : 2)                                          \
        rmsnorm_fast_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                   \
        in_registers<4>(x, weight, y, eps, rows, cols);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        rmsnorm_wide_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                   \
        in_registers<1>(x, weight, y, eps, rows, cols);                                                                \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
