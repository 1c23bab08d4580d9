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
name = "few"
doc = "eight elements a thread; blocks are neighbouring lanes"
needs = ["FIND == 0", "C % W == 0", "T * C < 4194304"]

[[variant.launch]]
entry = "quantize_few_{format}_{dtype}"
grid = ["ceil(T * C, 2048)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "pieces"
doc = "64 bytes a thread, in small thread blocks; lanes share the work on scales"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_pieces_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_passes"
doc = "the largest magnitude of all, found first; then all blocks, last first, as their end is still in the cache"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_found_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["few", "pieces", "two_passes"]

[[mutant]]
name = "nibble_order"
doc = "of two 4-bit codes the first in the high nibble"

[[mutant]]
name = "ties_up"
doc = "ties of 4-bit codes away from zero"

[[mutant]]
name = "subnormal_scale_flushed"
doc = "scales below 2^-126 taken for zero"
variants = ["simple", "few", "pieces"]

[[mutant]]
name = "tail_skipped"
doc = "the last, short block of a row left out of the largest magnitude"
variants = ["simple"]

[[mutant]]
name = "no_barrier"
doc = "blocks begin before all magnitudes are in"
variants = ["two_passes"]

[[mutant]]
name = "warp_lost"
doc = "the largest magnitude of a thread block is that of its first warp"
variants = ["two_passes"]

[[mutant]]
name = "infinity_stored"
doc = "an infinite largest magnitude is stored as it is, and not as NaN"
variants = ["two_passes"]
*/

// reference: crates/core/formats/quantize.rs

#include "lib/formats.cuh"

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

// Loads N vectors of a thread; those out of bounds are zeros.
template <int N, class T, class InBounds, class Hint>
__device__ __forceinline__ void load_vec8(Vec8<T> (&into)[N], const T *x, int at, InBounds in_bounds, Hint hint) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (in_bounds(at + i * 32))
            into[i].load(x, at + i * 32, hint);
        else
            into[i].zero();
    }
}

// Quantizes and stores them.
template <class F, int N, class T, class InBounds>
__device__ __forceinline__ void quantize(const Vec8<T> (&in)[N], typename F::Level level, typename F::Codes *data,
                                         typename F::Stored *scales, int at, InBounds in_bounds) {
    u32 amax[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        amax[i] = in[i].amax();
    const auto get = [&](int i, float (&x)[8]) { in[i].unpack(x); };
    quantize_vec8<F>(amax, get, level, data, scales, at, in_bounds);
}

// N vectors of each thread, contiguous for CTA `block`; without bounds checks if all exist. `prepare` makes the level above the
// scales while the loads are on their way.
template <int N, class F, class T, class Prepare, class Hint>
__device__ __forceinline__ void piece(int block, const T *x, typename F::Codes *data, typename F::Stored *scales, int count,
                                      Prepare prepare, Hint hint) {
    const int first = block * N * blockDim.x, at = first + first_vec8<N>();
    Vec8<T> in[N];
    if (first + N * (int)blockDim.x <= count) {
        load_vec8(in, x, at, NoBounds(), hint);
        quantize<F>(in, prepare(), data, scales, at, NoBounds());
    } else {
        load_vec8(in, x, at, BelowCount{count}, hint);
        quantize<F>(in, prepare(), data, scales, at, BelowCount{count});
    }
}

template <int N, class F, class T>
__device__ __forceinline__ void once(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales, int rows,
                                     int cols) {
    const auto level = [=] { return typename F::Level(amax); };
    piece<N, F>(blockIdx.x, x, data, scales, rows * (cols / 8), level, NoHint());
}

// The bytes at the end of x that stay in L2; they are read again first.
constexpr int L2_RESIDENT = 24 << 20;

// Finds the largest magnitude of N vectors of each thread, and joins it with that of all others, which the last launch cleared.
template <int N, class T> __device__ __forceinline__ void find(const T *x, u32 *largest, int count) {
    __shared__ u32 partials[32];
    const int first = blockIdx.x * N * blockDim.x, kept = count - L2_RESIDENT / (8 * (int)sizeof(T));
    Vec8<T> in[N];
    load_vec8(in, x, first + first_vec8<N>(), BelowCount{count}, first < kept ? evict_first_policy() : evict_last_policy());
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        found = max_magnitude(found, in[i].amax());
    found = block_max(found, partials);
#ifdef MUTANT_NO_BARRIER
    // By themselves, few CTAs finish before the next launch begins.
    __nanosleep(100000);
#endif
    wait_on_dependent_grids();
    if (threadIdx.x == 0)
        atomicMax(largest, found);
}

// Quantizes N vectors of each thread under that magnitude, which is stored too; the last vectors come first.
template <int N, class T>
__device__ __forceinline__ void found(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scales, int count) {
    const auto level = [=] {
#ifndef MUTANT_NO_BARRIER
        wait_on_dependent_grids();
#endif
        const u32 bits = __ldcg(largest);
#ifdef MUTANT_INFINITY_STORED
        const float stored = __uint_as_float(bits);
#else
        const float stored = __uint_as_float(bits < INFINITY_BITS ? bits : NAN_BITS);
#endif
        if (blockIdx.x == 0 && threadIdx.x == 0)
            *amax = stored;
        return Te::Level(stored);
    };
    piece<N, nvfp4>(gridDim.x - 1 - blockIdx.x, x, data, scales, count, level, evict_first_policy());
}

#define VARIANT(NAME, FORMAT, DTYPE, T, BLOCK, BLOCKS, N)                                                \
    KERNEL(quantize_##NAME##_##FORMAT##_##DTYPE, __launch_bounds__(BLOCK, BLOCKS))(                      \
        const T *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, int rows, int cols) { \
        once<N, FORMAT>(x, amax, data, scale, rows, cols);                                               \
    }

#define ALL(FORMAT, DTYPE, T, N)                                                                                    \
    KERNEL(quantize_simple_##FORMAT##_##DTYPE, __launch_bounds__(128))(const T *x, const float *amax, u8 *data,     \
                                                                       FORMAT::Stored *scale, int rows, int cols) { \
        simple<FORMAT>(x, amax, data, scale, rows, cols);                                                           \
    }                                                                                                               \
    VARIANT(few, FORMAT, DTYPE, T, 256, 4, 1)                                                                       \
    VARIANT(pieces, FORMAT, DTYPE, T, 128, 10, N)

#define ENTRIES(FORMAT, ...) ALL(FORMAT, bf16, bf16, 4) ALL(FORMAT, f32, float, 2)

FOR_ALL_FORMATS(ENTRIES)

#define FIND(DTYPE, T, N)                                                                                              \
    KERNEL(quantize_clear_##DTYPE)(u32 * largest) {                                                                    \
        launch_dependent_grids();                                                                                      \
        *largest = 0;                                                                                                  \
    }                                                                                                                  \
    KERNEL(quantize_find_##DTYPE, __launch_bounds__(256))(const T *x, u32 *largest, int rows, int cols) {              \
        launch_dependent_grids();                                                                                      \
        find<N>(x, largest, rows * (cols / 8));                                                                        \
    }                                                                                                                  \
    KERNEL(quantize_found_##DTYPE, __launch_bounds__(128, 10))(const T *x, const u32 *largest, float *amax, u32 *data, \
                                                               u8 *scale, int rows, int cols) {                        \
        found<N>(x, largest, amax, data, scale, rows * (cols / 8));                                                    \
    }

FIND(bf16, bf16, 4)
FIND(f32, float, 2)
