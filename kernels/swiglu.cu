/*
[[variant]]
name = "simple"
doc = "one thread for each element"

[[variant.launch]]
entry = "swiglu_simple_{dtype}"
grid = ["ceil(T * C, 256)"]
block = [256]
args = ["gate_up", "y", "limit", "T", "C"]

[[variant]]
name = "fast"
doc = "eight elements a thread, the next loaded while these are worked on"
needs = ["C % 8 == 0"]

[[variant.launch]]
entry = "swiglu_fast_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
args = ["gate_up", "y", "limit", "T", "C"]

[[mutant]]
name = "clamp_below"
doc = "the gate clamped from below too"

[[mutant]]
name = "nan_dropped"
doc = "clamped by minima and maxima that ignore NaN"

[[mutant]]
name = "gate_up_swapped"
doc = "gate taken for up"
variants = ["fast"]

[[mutant]]
name = "wrap_lost"
doc = "a thread that goes over the end of a row with its next vector reads gates in place of ups"
variants = ["fast"]
*/

// reference: reference/ops/experts.rs

#include "swiglu/swiglu.cuh"

template <class T> __device__ void simple(const T *gate_up, T *y, float limit, int rows, int cols) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)rows * cols)
        return;
    const size_t gate = at + at / cols * cols;
    from_f32(y[at], swiglu(to_f32(gate_up[gate]), to_f32(gate_up[gate + cols]), limit));
}

template <class T> __device__ __forceinline__ void fast(const T *gate_up, T *y, float limit, int rows, int cols) {
    const auto nothing = [] { return 0; };
    swiglu_vec8(
        gate_up, limit, rows, cols, nothing,
        [=](int, int at, const float (&out)[8]) {
            if (at < rows * (cols / 8))
                Vec8<T>::store(y, at, out);
        },
        NoHint());
}

#define ENTRIES(DTYPE, T)                                                                                                      \
    KERNEL(swiglu_simple_##DTYPE, __launch_bounds__(256))(const T *gate_up, T *y, float limit, int rows, int cols) {           \
        simple(gate_up, y, limit, rows, cols);                                                                                 \
    }                                                                                                                          \
    KERNEL(swiglu_fast_##DTYPE, __launch_bounds__(256, sizeof(T) == 2 ? 5 : 3))(const T *gate_up, T *y, float limit, int rows, \
                                                                                int cols) {                                    \
        fast(gate_up, y, limit, rows, cols);                                                                                   \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
