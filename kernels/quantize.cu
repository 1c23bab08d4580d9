/*
[[variant]]
name = "simple"
doc = "one thread for each block, element by element"
needs = ["FIND == 0"]

[[variant.launch]]
entry = "quantize_simple_{format}_{dtype}"
grid = ["ceil(T * ceil(C, W), 128)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fast"
doc = "eight elements a thread, the next loaded while these are cast; blocks are neighbouring lanes"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_fast_{format}_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_launches"
doc = "the largest magnitude of each thread block, then all blocks, last first: their end is still in the second-level cache"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "sms * 5 * 4" }]

[[variant.launch]]
entry = "quantize_amax_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_found_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused"
doc = "the same in one launch with a barrier over the grid between"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "sms * 5 * 4" }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused_{dtype}"
grid = ["min(ceil(T * C, 2048), sms * 5)"]
block = [256]
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["fast", "two_launches", "fused"]

[[mutant]]
name = "nibble_order"
doc = "of two 4-bit codes the first in the high nibble"

[[mutant]]
name = "ties_up"
doc = "ties of 4-bit codes away from zero"

[[mutant]]
name = "subnormal_scale_flushed"
doc = "scales below 2^-126 taken for zero"

[[mutant]]
name = "tail_skipped"
doc = "the last, short block of a row left out of the largest magnitude"
variants = ["simple"]

[[mutant]]
name = "no_barrier"
doc = "blocks begin before all magnitudes are in"
variants = ["fused"]

[[mutant]]
name = "warp_lost"
doc = "the largest magnitude of a thread block is that of its first warp"
variants = ["two_launches", "fused"]
*/

#include "formats.cuh"

template <class F, class T>
__device__ void simple(const T *x, const float *amax, u8 *data, typename F::Stored *scales, int rows, int cols) {
    const int across = (cols + F::width - 1) / F::width;
    const int block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= rows * across)
        return;
    const int row = block / across, first = block % across * F::width;
    x += (size_t)row * cols, data += (size_t)row * cols * F::Element::bits / 8;
    quantize_block<F>(first, min(first + F::width, cols), data, scales[block], typename F::Level(amax),
                      [=](int i) { return to_f32(x[i]); });
}

// What a thread loads at a time: 32 bytes.
template <class T> struct Loaded {
    static constexpr int eights = 4 / sizeof(T);
    Eight<T> eight[eights];

    // Those at `at` and every `stride`; zeros where there are none.
    __device__ __forceinline__ void load(const T *x, int at, int stride, int count) {
#pragma unroll
        for (int i = 0; i < eights; i++) {
            const int here = at + i * stride;
            if (0 <= here && here < count)
                eight[i].load(x, here);
            else
                eight[i].zero();
        }
    }
};

// The codes and scales of the eights at `at` and every `stride`. Whole warps come here, with groups of lanes that hold a
// block all within `count` or all beyond.
template <class F, class T>
__device__ __forceinline__ void quantize(const Loaded<T> &in, typename F::Level level, typename F::Codes *data,
                                         typename F::Stored *scales, int at, int stride, int count) {
#pragma unroll
    for (int i = 0; i < in.eights; i++) {
        const int here = at + i * stride;
        if (here - (int)(threadIdx.x % 32) >= count)
            break;
        float x[8];
        in.eight[i].unpack(x);
        quantize_eight<F>(x, lanes_max<F::lanes>(in.eight[i].amax()), level, data, scales, here, here < count);
    }
}

template <class F, class T>
__device__ void fast(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales, int rows, int cols) {
    const int count = rows * (cols / 8), stride = gridDim.x * blockDim.x, step = Loaded<T>::eights * stride;
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    Loaded<T> now, next;
    now.load(x, at, stride, count);
    const typename F::Level level(amax);
    for (; at - (int)(threadIdx.x % 32) < count; at += step) {
        next.load(x, at + step, stride, count);
        quantize<F>(now, level, data, scales, at, stride, count);
        now = next;
    }
}

// The largest magnitude of all that this thread block has of x, stored by its first thread.
template <class T> __device__ __forceinline__ void largest_of(const T *x, u32 *largest, int count) {
    __shared__ u32 room[32];
    const int stride = gridDim.x * blockDim.x, step = Loaded<T>::eights * stride;
    u32 found = 0;
    Loaded<T> now, next;
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    now.load(x, at, stride, count);
    for (; at < count; at += step) {
        next.load(x, at + step, stride, count);
#pragma unroll
        for (int i = 0; i < now.eights; i++)
            found = larger(found, now.eight[i].amax());
        now = next;
    }
    found = block_max(found, room);
    if (threadIdx.x == 0)
        largest[blockIdx.x] = found;
}

// All of x under the largest magnitude of all thread blocks, which is stored too, from the last piece to the first.
// `ready` returns once those magnitudes are there.
template <class T, class Ready>
__device__ __forceinline__ void from_the_end(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scales, int count,
                                             Ready ready) {
    __shared__ u32 room[32];
    const int stride = gridDim.x * blockDim.x, step = Loaded<T>::eights * stride;
    int at = (count - 1) / step * step + blockIdx.x * blockDim.x + threadIdx.x;
    Loaded<T> now, next;
    now.load(x, at, stride, count);
    ready();
    u32 all = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
        all = larger(all, __ldcg(largest + i));
    all = block_max(all, room);
    const float stored = __uint_as_float(all < INFINITY_BITS ? all : NAN_BITS);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *amax = stored;
    const Te::Level level(stored);
    for (; at >= 0; at -= step) {
        next.load(x, at - step, stride, count);
        quantize<nvfp4>(now, level, data, scales, at, stride, count);
        now = next;
    }
}

template <class T> __device__ void fused(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scales, int count) {
    largest_of(x, largest, count);
    from_the_end(x, largest, amax, data, scales, count, [=] {
#ifndef MUTANT_NO_BARRIER
        grid_barrier(arrived);
#endif
    });
}

#define BOTH(FORMAT, DTYPE, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        quantize_simple_##FORMAT##_##DTYPE(const T *x, const float *amax, u8 *data, FORMAT::Stored *scale, int rows,  \
                                           int cols) {                                                                 \
        simple<FORMAT>(x, amax, data, scale, rows, cols);                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_fast_##FORMAT##_##DTYPE(const T *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale,    \
                                         int rows, int cols) {                                                         \
        fast<FORMAT>(x, amax, data, scale, rows, cols);                                                                \
    }

#define ENTRIES(FORMAT) BOTH(FORMAT, bf16, bf16) BOTH(FORMAT, f32, float)

FOR_ALL_FORMATS(ENTRIES)

#define FINDING(DTYPE, T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_amax_##DTYPE(const T *x, u32 *largest, int rows, int cols) {                                          \
        start_next();                                                                                                  \
        largest_of(x, largest, rows * (cols / 8));                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_found_##DTYPE(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        from_the_end(x, largest, amax, data, scale, rows * (cols / 8), [] { wait_for_last(); });                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_fused_##DTYPE(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows,    \
                               int cols) {                                                                             \
        fused(x, largest, arrived, amax, data, scale, rows * (cols / 8));                                              \
    }

FINDING(bf16, bf16)
FINDING(f32, float)
