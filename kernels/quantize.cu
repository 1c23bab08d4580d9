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
doc = "64 bytes a thread, whose lanes share the work on scales"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_pieces_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_launches"
doc = "the largest magnitude of all; then all blocks, last first: their end is still in the second-level cache"
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

[[variant]]
name = "fused"
doc = "the same in one launch with a barrier over the grid between; the first pieces stay in shared memory"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "8", zero = true }]

[[variant.launch]]
entry = "quantize_fused_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 5)"]
block = [256]
shared = "32768"
cooperative = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c1_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c2"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c2_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c3"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c3_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c5"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c5_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c6"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c6_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c7"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c7_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c8"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c8_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "c9"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c9_{format}_{dtype}"
grid = ["ceil(T * C * S, 2048)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "t0"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find0_{dtype}"
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

[[variant]]
name = "t16"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find16_{dtype}"
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

[[variant]]
name = "t24"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find24_{dtype}"
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

[[variant]]
name = "t40"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find40_{dtype}"
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

[[variant]]
name = "t32e"
doc = "probe"
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
entry = "quantize_founde_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "t24e"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_find24_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_founde_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fu16"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "8", zero = true }]

[[variant.launch]]
entry = "quantize_fu16_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 5)"]
block = [256]
shared = "32768"
cooperative = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fu24"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "8", zero = true }]

[[variant.launch]]
entry = "quantize_fu24_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 5)"]
block = [256]
shared = "32768"
cooperative = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fu2"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "8", zero = true }]

[[variant.launch]]
entry = "quantize_fu2_{dtype}"
grid = ["min(ceil(T * C * S, 32768), sms * 2)"]
block = [512]
shared = "98304"
cooperative = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["few", "pieces", "two_launches", "fused"]

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

// N eights of a thread; zeros from `count` on.
template <int N, class T, class... Policy>
__device__ __forceinline__ void load_eights(Eight<T> (&into)[N], const T *x, int at, Below there, Policy... policy) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (there(at + i * 32))
            into[i].load(x, at + i * 32, policy...);
        else
            into[i].zero();
    }
}

template <int N, class T, class... Policy>
__device__ __forceinline__ void load_eights(Eight<T> (&into)[N], const T *x, int at, All, Policy... policy) {
#pragma unroll
    for (int i = 0; i < N; i++)
        into[i].load(x, at + i * 32, policy...);
}

// What they are quantized to.
template <class F, int N, class T, class There>
__device__ __forceinline__ void quantize(const Eight<T> (&in)[N], typename F::Level level, typename F::Codes *data,
                                         typename F::Stored *scales, int at, There there) {
    u32 amax[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        amax[i] = in[i].amax();
    const auto get = [&](int i, float(&x)[8]) { in[i].unpack(x); };
    quantize_eights<F>(amax, get, level, data, scales, at, there);
}

// N eights of each thread once, all of a thread block in one piece.
template <int N, class F, class T, class... Policy>
__device__ __forceinline__ void once(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols, Policy... policy) {
    const int count = rows * (cols / 8), first = blockIdx.x * N * blockDim.x, at = first + first_eight<N>();
    Eight<T> in[N];
    if (first + N * (int)blockDim.x <= count) {
        load_eights(in, x, at, All(), policy...);
        quantize<F>(in, typename F::Level(amax), data, scales, at, All());
    } else {
        load_eights(in, x, at, Below{count}, policy...);
        quantize<F>(in, typename F::Level(amax), data, scales, at, Below{count});
    }
}

// The number with these bits, or NaN.
__device__ __forceinline__ float finite(u32 bits) {
    return __uint_as_float(bits < INFINITY_BITS ? bits : NAN_BITS);
}

// N eights of each thread: the largest magnitude, into one number for all thread blocks once `ready` has returned. The last
// KEPT megabytes stay in the second-level cache, to be read again first.
template <int N, int KEPT, class T, class Ready> __device__ __forceinline__ void find(const T *x, u32 *largest, int count, Ready ready) {
    __shared__ u32 room[32];
    const int first = blockIdx.x * N * blockDim.x, at = first + first_eight<N>();
    const int kept = count - (KEPT << 20) / (8 * (int)sizeof(T));
    Eight<T> in[N];
    if (KEPT == 0)
        load_eights(in, x, at, Below{count});
    else
        load_eights(in, x, at, Below{count}, first < kept ? let_go() : keep());
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        found = larger(found, in[i].amax());
    found = block_max(found, room);
    ready();
    if (threadIdx.x == 0)
        atomicMax(largest, found);
}

// N eights of each thread under that magnitude, which is stored too, from the last to the first.
template <int N, class T, class Ready, class... Policy>
__device__ __forceinline__ void found(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scales, int count, Ready ready, Policy... policy) {
    const int first = (gridDim.x - 1 - blockIdx.x) * N * blockDim.x, at = first + first_eight<N>();
    const auto level = [=] {
        ready();
        const float stored = finite(__ldcg(largest));
        if (blockIdx.x == 0 && threadIdx.x == 0)
            *amax = stored;
        return Te::Level(stored);
    };
    Eight<T> in[N];
    if (first + N * (int)blockDim.x <= count) {
        load_eights(in, x, at, All(), policy...);
        quantize<nvfp4>(in, level(), data, scales, at, All());
    } else {
        load_eights(in, x, at, Below{count}, policy...);
        quantize<nvfp4>(in, level(), data, scales, at, Below{count});
    }
}

extern __shared__ __align__(16) u8 shared[];

// Both by thread blocks that stay, with a barrier between. The first HELD pieces of each wait in shared memory.
template <int N, int HELD, int KEPT, class T>
__device__ __forceinline__ void fused(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scales, int count) {
    __shared__ u32 room[32];
    const int kept = count - (KEPT << 20) / (8 * (int)sizeof(T)), piece = N * blockDim.x, step = gridDim.x * piece;
    const int turns = (count - (int)blockIdx.x * piece + step - 1) / step;
    const u64 keep_it = keep(), drop_it = let_go();
    Eight<T> *held = (Eight<T> *)shared + threadIdx.x, in[N];
    int first = blockIdx.x * piece;
    u32 found = 0;
    for (int turn = 0; turn < turns; turn++, first += step) {
        load_eights(in, x, first + first_eight<N>(), Below{count}, first < kept ? drop_it : keep_it);
#pragma unroll
        for (int i = 0; i < N; i++) {
            found = larger(found, in[i].amax());
            if (turn < HELD)
                held[(turn * N + i) * blockDim.x] = in[i];
        }
    }
    found = block_max(found, room);
    if (threadIdx.x == 0)
        atomicMax(largest, found);
    Te::Level level;
    for (int turn = turns - 1; turn >= 0; turn--) {
        first -= step;
        const int at = first + first_eight<N>();
        if (turn >= HELD)
            load_eights(in, x, at, Below{count});
        else {
#pragma unroll
            for (int i = 0; i < N; i++)
                in[i] = held[(turn * N + i) * blockDim.x];
        }
        if (turn == turns - 1) {
#ifndef MUTANT_NO_BARRIER
            grid_barrier(arrived);
#endif
            const float stored = finite(__ldcg(largest));
            if (blockIdx.x == 0 && threadIdx.x == 0)
                *amax = stored;
            level = Te::Level(stored);
        }
        if (first + piece <= count)
            quantize<nvfp4>(in, level, data, scales, at, All());
        else
            quantize<nvfp4>(in, level, data, scales, at, Below{count});
    }
}

#define VARIANT(NAME, FORMAT, DTYPE, T, B, BLOCKS, CALL, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(B, BLOCKS)                                                            \
        quantize_##NAME##_##FORMAT##_##DTYPE(const T *x, const float *amax, FORMAT::Codes *data,                       \
                                             FORMAT::Stored *scale, int rows, int cols) {                              \
        CALL(x, amax, data, scale, rows, cols, ##__VA_ARGS__);                                                         \
    }

#define ALL(FORMAT, DTYPE, T, N)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        quantize_simple_##FORMAT##_##DTYPE(const T *x, const float *amax, u8 *data, FORMAT::Stored *scale, int rows,   \
                                           int cols) {                                                                 \
        simple<FORMAT>(x, amax, data, scale, rows, cols);                                                              \
    }                                                                                                                  \
    VARIANT(few, FORMAT, DTYPE, T, 256, 4, (once<1, FORMAT>))                                                          \
    VARIANT(pieces, FORMAT, DTYPE, T, 128, 10, (once<N, FORMAT>))

#define ENTRIES(FORMAT) ALL(FORMAT, bf16, bf16, 4) ALL(FORMAT, f32, float, 2)

FOR_ALL_FORMATS(ENTRIES)

#define FIND(DTYPE, T, N)                                                                                              \
    extern "C" __global__ void quantize_clear_##DTYPE(u32 *largest) {                                                  \
        start_next();                                                                                                  \
        *largest = 0;                                                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        quantize_find_##DTYPE(const T *x, u32 *largest, int rows, int cols) {                                          \
        start_next();                                                                                                  \
        find<N, 32>(x, largest, rows * (cols / 8), [] { wait_for_last(); });                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 10)                                                              \
        quantize_found_##DTYPE(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        found<N>(x, largest, amax, data, scale, rows * (cols / 8), [] { wait_for_last(); });                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_fused_##DTYPE(const T *x, u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) {      \
        fused<N, 2, 32>(x, largest, largest + 1, amax, data, scale, rows * (cols / 8));                                \
    }

FIND(bf16, bf16, 4)
FIND(f32, float, 2)

// ==== probes
#define X(NAME, N, B, BLOCKS, ...) VARIANT(NAME, fp8_b128_f32, bf16, bf16, B, BLOCKS, (once<N, fp8_b128_f32>), ##__VA_ARGS__) VARIANT(NAME, mxfp8, bf16, bf16, B, BLOCKS, (once<N, mxfp8>), ##__VA_ARGS__) VARIANT(NAME, nvfp4, bf16, bf16, B, BLOCKS, (once<N, nvfp4>), ##__VA_ARGS__)
X(c1, 4, 128, 10, let_go())
X(c2, 4, 128, 10, let_half_go())
X(c3, 4, 128, 10, let_quarter_go())
X(c5, 4, 64, 20)
X(c6, 4, 64, 20, let_go())
X(c7, 4, 128, 12)
X(c8, 2, 128, 16)
X(c9, 2, 64, 32)
#define A(NAME, KEPT) extern "C" __global__ void __launch_bounds__(256) quantize_##NAME##_bf16(const bf16 *x, u32 *largest, int rows, int cols) { \
        start_next(); find<4, KEPT>(x, largest, rows * (cols / 8), [] { wait_for_last(); }); }
A(find0, 0) A(find16, 16) A(find24, 24) A(find40, 40)
extern "C" __global__ void __launch_bounds__(128, 10) quantize_founde_bf16(const bf16 *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) {
        found<4>(x, largest, amax, data, scale, rows * (cols / 8), [] { wait_for_last(); }, let_go()); }
#define FU(NAME, HELD, KEPT, B, BLOCKS) extern "C" __global__ void __launch_bounds__(B, BLOCKS) \
        quantize_##NAME##_bf16(const bf16 *x, u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        fused<4, HELD, KEPT>(x, largest, largest + 1, amax, data, scale, rows * (cols / 8)); }
FU(fu16, 2, 16, 256, 5)
FU(fu24, 2, 24, 256, 5)
FU(fu2, 3, 24, 512, 2)
