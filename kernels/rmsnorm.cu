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
name = "wide"
doc = "a thread block for each row, one eight a thread"
needs = ["C % 8 == 0", "C <= 8192", "T < 1024"]

[[variant.launch]]
entry = "rmsnorm_wide_{dtype}"
grid = ["T"]
block = ["ceil(C, 256) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "rows"
doc = "a thread block for each row, four eights a thread"
needs = ["C % 8 == 0", "C <= 8192"]

[[variant.launch]]
entry = "rmsnorm_rows_{dtype}"
grid = ["T"]
block = ["ceil(C, 1024) * 32"]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x1_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x2_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x3_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x4_{dtype}"
grid = ["ceil(T, 1)"]
block = [896]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x5"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x5_{dtype}"
grid = ["ceil(T, 2)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x8"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x8_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x10"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x10_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "x11"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_x11_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "y6"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_y6_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "y7"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_y7_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "y8"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_y8_{dtype}"
grid = ["ceil(T, 1)"]
block = [448]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "y9"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_y9_{dtype}"
grid = ["ceil(T, 1)"]
block = [224]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "y10"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_y10_{dtype}"
grid = ["ceil(T, 1)"]
block = [896]
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "z1"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_z1_{dtype}"
grid = ["min(ceil(T, 2), sms * 2)"]
block = [448]
shared = "C * S * 6"
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "z2"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_z2_{dtype}"
grid = ["min(ceil(T, 1), sms * 3)"]
block = [224]
shared = "C * S * 5"
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "z3"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_z3_{dtype}"
grid = ["min(ceil(T, 1), sms * 3)"]
block = [448]
shared = "C * S * 4"
args = ["x", "weight", "y", "eps", "T", "C"]

[[variant]]
name = "z4"
doc = "probe"
needs = ["C == 7168"]

[[variant.launch]]
entry = "rmsnorm_z4_{dtype}"
grid = ["min(ceil(T, 1), sms * 3)"]
block = [448]
shared = "C * S * 4"
args = ["x", "weight", "y", "eps", "T", "C"]

[[mutant]]
name = "warp_lost"
doc = "the sum of a row is that of its first warp"
variants = ["wide", "rows"]

[[mutant]]
name = "row_index"
doc = "every row written where the first of its thread block goes, or the first of all"
variants = ["wide", "rows"]

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
    int cols;

    template <class There>
    __device__ __forceinline__ void operator()(int, int row, float (&product)[V][8], float inverse, There there) const {
        T *to = y + (size_t)row * cols;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = first_eight<V>() + v * 32;
#pragma unroll
            for (int i = 0; i < 8; i++)
                product[v][i] *= inverse;
            if (there(at))
                Eight<T>::store(to, at, product[v]);
        }
    }
};

__device__ __forceinline__ int nothing() {
    return 0;
}

#define ENTRIES(DTYPE, T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        rmsnorm_simple_##DTYPE(const T *x, const float *weight, T *y, float eps, int rows, int cols) {                 \
        simple(x, weight, y, eps, rows, cols);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        rmsnorm_wide_##DTYPE(const T *x, const float *weight, T *y, float eps, int, int cols) {                        \
        norm_row<1>(x, weight, eps, cols, nothing, Store<1, T>{y, cols});                                          \
    } \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        rmsnorm_rows_##DTYPE(const T *x, const float *weight, T *y, float eps, int, int cols) {                         \
        norm_row<4>(x, weight, eps, cols, nothing, Store<4, T>{y, cols});                                          \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)

// ==== probes
template <int V, class T> struct StoreCs {
    T *y;
    int cols;
    template <class There>
    __device__ __forceinline__ void operator()(int, int row, float (&product)[V][8], float inverse, There there) const {
        T *to = y + (size_t)row * cols;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = first_eight<V>() + v * 32;
#pragma unroll
            for (int i = 0; i < 8; i++)
                product[v][i] *= inverse;
            if (there(at))
                Eight<T>::store_cs(to, at, product[v]);
        }
    }
};
template <int V, class T, int HOW> struct Again {
    T *y;
    int cols;
    template <class There>
    __device__ __forceinline__ void operator()(int, int row, Eight<T> (&in)[V], const float *weight, float inverse, There there) const {
        T *to = y + (size_t)row * cols;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int at = first_eight<V>() + v * 32;
            if (!there(at)) break;
            float w[8], p[8];
            load_weights(weight, at, w);
            in[v].unpack(p);
#pragma unroll
            for (int i = 0; i < 8; i++)
                p[i] = p[i] * w[i] * inverse;
            if (HOW) Eight<T>::store_cs(to, at, p); else Eight<T>::store(to, at, p);
        }
    }
};
#define X(NAME, V, R, B, MIN, STORE, POLICY) extern "C" __global__ void __launch_bounds__(B, MIN) \
        rmsnorm_##NAME##_bf16(const bf16 *x, const float *weight, bf16 *y, float eps, int rows, int cols) { \
        norm_x<V, R>(x, weight, eps, rows, cols, nothing, STORE<V, bf16>{y, cols}, POLICY); }
#define Y(NAME, V, B, MIN, HOW, POLICY) extern "C" __global__ void __launch_bounds__(B, MIN) \
        rmsnorm_##NAME##_bf16(const bf16 *x, const float *weight, bf16 *y, float eps, int rows, int cols) { \
        norm_again<V>(x, weight, eps, cols, nothing, Again<V, bf16, HOW>{y, cols}, POLICY); }
X(x1, 4, 1, 224, 5, Store, Hinted{})
X(x2, 4, 1, 224, 5, Store, Cached{})
X(x3, 2, 1, 448, 3, Store, Hinted{})
X(x4, 1, 1, 896, 2, Store, Hinted{})
X(x5, 2, 2, 448, 2, Store, Hinted{})
X(x8, 4, 1, 224, 5, StoreCs, Hinted{})
X(x10, 2, 1, 448, 3, StoreCs, Cached{})
X(x11, 2, 1, 448, 4, Store, Cached{})
Y(y6, 4, 224, 6, 0, Hinted{})
Y(y7, 2, 448, 4, 0, Hinted{})
Y(y8, 2, 448, 4, 0, Cached{})
Y(y9, 4, 224, 6, 1, Hinted{})
Y(y10, 1, 896, 2, 0, Hinted{})

template <int V, int R, class T, int HOW> struct StoreRows {
    T *y;
    int rows, cols;
    __device__ __forceinline__ void operator()(int, int row, float (&product)[R][V][8], const float (&inverse)[R]) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            T *to = y + (size_t)(row + r) * cols;
            if (row + r < rows) {
#pragma unroll
            for (int v = 0; v < V; v++) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    product[r][v][i] *= inverse[r];
                if (HOW) Eight<T>::store_cs(to, first_eight<V>() + v * 32, product[r][v]);
                else Eight<T>::store(to, first_eight<V>() + v * 32, product[r][v]);
            }
            }
        }
    }
};
extern __shared__ __align__(16) u8 ring[];
#define GROUPS(NAME, V, R, SLOTS, WARPS, REGS, HOW) extern "C" __global__ void __maxnreg__(REGS) rmsnorm_##NAME##_bf16( \
        const bf16 *x, const float *weight, bf16 *y, float eps, int rows, int cols) { \
        norm_groups<V, R, SLOTS, WARPS>(x, weight, eps, rows, cols, (bf16 *)ring, nothing, StoreRows<V, R, bf16, HOW>{y, rows, cols}); }
GROUPS(z1, 2, 2, 3, 14, 72, 0)
GROUPS(z2, 4, 1, 5, 7, 96, 0)
GROUPS(z3, 2, 1, 4, 14, 48, 0)
GROUPS(z4, 2, 1, 4, 14, 48, 1)
