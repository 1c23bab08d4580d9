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
name = "rows"
doc = "a thread block for each row, two vectors of eight for each thread"
needs = ["C % 8 == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_rows_{dtype}"
grid = ["T"]
block = ["ceil(C, 512) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["rows"]

[[mutant]]
name = "row_index"
doc = "every row written where the first of its thread block goes, or the first of all"
variants = ["rows"]

[[mutant]]
name = "no_eps"
doc = "eps left out"
*/

// reference: reference/ops/rmsnorm.rs

#include "rmsnorm/rmsnorm.cuh"

template <class T> __device__ void simple(const T *x, const float *weight, T *y, float eps, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows)
        return;
    x += (size_t)row * cols, y += (size_t)row * cols;
    const float scale = inverse_rms_of(x, cols, eps);
    for (int i = threadIdx.x % 32; i < cols; i += 32)
        from_f32(y[i], to_f32(x[i]) * weight[i] * scale);
}

struct Nothing {};

__device__ __forceinline__ Nothing nothing() {
    return {};
}

// The epilogue: stores the products of a row, each times the inverse root mean square.
template <int V, class T> struct Store {
    T *y;
    int cols;

    template <class InBounds>
    __device__ __forceinline__ void operator()(Nothing, int row, float (&product)[V][8], float inverse,
                                               InBounds in_bounds) const {
        T *to = y + (size_t)row * cols;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = first_vec8<V>() + v * 32;
#pragma unroll
            for (int i = 0; i < 8; i++)
                product[v][i] *= inverse;
            if (in_bounds(at))
                Vec8<T>::store(to, at, product[v]);
        }
    }
};

#define ENTRIES(DTYPE, T)                                                                                               \
    KERNEL(rmsnorm_simple_##DTYPE, __launch_bounds__(128))(const T *x, const float *weight, T *y, float eps, int rows,  \
                                                           int cols) {                                                  \
        simple(x, weight, y, eps, rows, cols);                                                                          \
    }                                                                                                                   \
    KERNEL(rmsnorm_rows_##DTYPE, __launch_bounds__(512, sizeof(T) == 2 ? 4 : 3))(const T *x, const float *weight, T *y, \
                                                                                 float eps, int, int cols) {            \
        norm_row<2, 16>(x, weight, eps, cols, nothing, Store<2, T>{y, cols}, NoHint());                                 \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
