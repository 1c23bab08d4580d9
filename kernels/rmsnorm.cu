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
doc = "thread blocks that stay, four eights a thread, with the next three rows on their way to shared memory"
needs = ["C % 8 == 0", "C <= 7168"]

[[variant.launch]]
entry = "rmsnorm_fast_{dtype}"
grid = ["min(T, sms * 4)"]
block = ["ceil(C, 1024) * 32"]
shared = "C * S * 3"
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "wide"
doc = "a thread block for each row, one eight a thread"
needs = ["C % 8 == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_wide_{dtype}"
grid = ["T"]
block = ["ceil(C, 256) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["fast", "wide"]

[[mutant]]
name = "row_index"
doc = "all rows of a thread block written to its first"
variants = ["fast"]

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
        from_f32(y[i], to_f32(x[i]) * weight[i] * scale);
}

// What is done with a row's products: stored, each by the inverse root mean square.
template <int V, class T> struct Store {
    T *y;
    int count;

    __device__ __forceinline__ void operator()(int, int row, float (&product)[V][8], float inverse) const {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = v * blockDim.x + threadIdx.x;
#pragma unroll
            for (int i = 0; i < 8; i++)
                product[v][i] *= inverse;
            if (at < count)
                Eight<T>::store(y, (size_t)row * count + at, product[v]);
        }
    }
};

__device__ __forceinline__ int nothing() {
    return 0;
}

extern __shared__ __align__(16) u8 ring[];

#define ENTRIES(DTYPE, T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        rmsnorm_simple_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                 \
        simple(x, weight, y, eps, rows, cols);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(224, 4)                                                               \
        rmsnorm_fast_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                   \
        norm_rows<4>(x, weight, eps, rows, cols, (T *)ring, nothing, Store<4, T>{y, cols / 8});                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        rmsnorm_wide_##DTYPE(const T *x, const float *weight, T *y, float eps, int, int cols) {                        \
        norm_row<1>(x, weight, eps, cols, nothing, Store<1, T>{y, cols / 8});                                          \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
