/*
[[variant]]
name = "simple"
doc = "one thread for each block, element by element"

[[variant.launch]]
entry = "swiglu_quantize_simple_{format}_{dtype}"
grid = ["ceil(T * ceil(C, W), 128)"]
block = [128]
args = ["gate_up", "amax", "data", "scale", "limit", "T", "C"]

[[variant]]
name = "fast"
doc = "eight elements a thread, the next loaded while these are worked on; blocks are neighbouring lanes"
needs = ["C % W == 0"]

[[variant.launch]]
entry = "swiglu_quantize_fast_{format}_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
args = ["gate_up", "amax", "data", "scale", "limit", "T", "C"]

[[mutant]]
name = "clamp_below"
doc = "the gate clamped from below too"

[[mutant]]
name = "nan_dropped"
doc = "clamped, and the largest magnitude found, by minima and maxima that ignore NaN"

[[mutant]]
name = "gate_up_swapped"
doc = "gate taken for up"
variants = ["fast"]

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["fast"]

[[mutant]]
name = "nibble_order"
doc = "of two 4-bit codes the first in the high nibble"
*/

// reference: reference/ops/experts.rs, crates/core/formats/quantize.rs

#include "lib/formats.cuh"
#include "swiglu/swiglu.cuh"

template <class F, class T>
__device__ void simple(const T *gate_up, const float *amax, u8 *data, typename F::Stored *scales, float limit, int rows,
                       int cols) {
    const int across = (cols + F::width - 1) / F::width;
    const int block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= rows * across)
        return;
    const int row = block / across, first = block % across * F::width;
    gate_up += (size_t)row * 2 * cols, data += (size_t)row * cols * F::Element::bits / 8;
    quantize_block<F>(first, min(first + F::width, cols), data, scales[block], typename F::Level(amax),
                      [=](int i) { return swiglu(to_f32(gate_up[i]), to_f32(gate_up[cols + i]), limit); });
}

template <class F, class T>
__device__ __forceinline__ void fast(const T *gate_up, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     float limit, int rows, int cols) {
    typedef typename F::Level Level;
    const auto level = [=] { return Level(amax); };
    const BelowCount in_bounds = {rows * (cols / 8)};
    swiglu_vec8(gate_up, limit, rows, cols, level, [=](Level level, int at, const float (&y)[8]) {
        u32 largest[1] = {amax_of(y)};
        const auto get = [&](int, float (&x)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = y[i];
        };
        quantize_vec8<F>(largest, get, level, data, scales, at, in_bounds);
    });
}

#define BOTH(FORMAT, DTYPE, T)                                                                                              \
    KERNEL(swiglu_quantize_simple_##FORMAT##_##DTYPE, __launch_bounds__(128))(                                              \
        const T *gate_up, const float *amax, u8 *data, FORMAT::Stored *scale, float limit, int rows, int cols) {            \
        simple<FORMAT>(gate_up, amax, data, scale, limit, rows, cols);                                                      \
    }                                                                                                                       \
    KERNEL(swiglu_quantize_fast_##FORMAT##_##DTYPE, __launch_bounds__(256, sizeof(T) == 2 ? 5 : 3))(                        \
        const T *gate_up, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, float limit, int rows, int cols) { \
        fast<FORMAT>(gate_up, amax, data, scale, limit, rows, cols);                                                        \
    }

#define ENTRIES(FORMAT, ...) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)
