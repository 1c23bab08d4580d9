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
grid = ["ceil(T * C * S, 16384)"]
block = [256]
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
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused"
doc = "the same in one launch with a barrier over the grid between; the first pieces stay in shared memory"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4", zero = true }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 5)"]
block = [256]
shared = "32768"
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "p0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_p0_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "p2"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_p2_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "h0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_h0_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "h1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_h1_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "h2"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_h2_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "g0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_g0_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "g1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_g1_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "k1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_k1_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "k0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_k0_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused4"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4", zero = true }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused4_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 4)"]
block = [256]
shared = "49152"
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused10"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4", zero = true }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused10_{dtype}"
grid = ["min(ceil(T * C * S, 8192), sms * 10)"]
block = [128]
shared = "16384"
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused2"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4", zero = true }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused2_{dtype}"
grid = ["min(ceil(T * C * S, 32768), sms * 2)"]
block = [512]
shared = "98304"
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_zero"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_zfind_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_found_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_plain"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "4" }]

[[variant.launch]]
entry = "quantize_clear_{dtype}"
grid = [1]
block = [1]
args = ["largest"]

[[variant.launch]]
entry = "quantize_pfind_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_found_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "f1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_f1_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "f0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_f0_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fh1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_fh1_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fh0"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_fh0_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

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
__device__ __forceinline__ void load_eights(Eight<T> (&into)[N], const T *x, int at, int count, Policy... policy) {
    if (at + (N - 1) * 32 < count) {
#pragma unroll
        for (int i = 0; i < N; i++)
            into[i].load(x, at + i * 32, policy...);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (at + i * 32 < count)
            into[i].load(x, at + i * 32, policy...);
        else
            into[i].zero();
    }
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
    const int count = rows * (cols / 8), at = blockIdx.x * N * blockDim.x + first_eight<N>();
    Eight<T> in[N];
    load_eights(in, x, at, count, policy...);
    quantize<F>(in, typename F::Level(amax), data, scales, at, Below{count});
}

// Bytes at the end of x that stay in the second-level cache, to be read again first.
constexpr int KEPT = 32 << 20;

// N eights of each thread: the largest magnitude, into one number for all thread blocks once `ready` has returned.
template <int N, bool KEEP = true, class T, class Ready> __device__ __forceinline__ void find(const T *x, u32 *largest, int count, Ready ready) {
    __shared__ u32 room[32];
    const int kept = count - KEPT / (8 * (int)sizeof(T)), at = blockIdx.x * N * blockDim.x + first_eight<N>();
    Eight<T> in[N];
    if (KEEP) load_eights(in, x, at, count, at < kept ? let_go() : keep());
    else load_eights(in, x, at, count, Plain());
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        found = larger(found, in[i].amax());
    found = block_max(found, room);
    ready();
    if (threadIdx.x == 0)
        atomicMax(largest, found);
}

// The number with these bits, or NaN.
__device__ __forceinline__ float finite(u32 bits) {
    return __uint_as_float(bits < INFINITY_BITS ? bits : NAN_BITS);
}

// N eights of each thread under that magnitude, which is stored too, from the last to the first.
template <int N, class T, class Ready>
__device__ __forceinline__ void found(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scales, int count, Ready ready) {
    const int at = (gridDim.x - 1 - blockIdx.x) * N * blockDim.x + first_eight<N>();
    Eight<T> in[N];
    load_eights(in, x, at, count, let_go());
    ready();
    const float stored = finite(__ldcg(largest));
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *amax = stored;
    quantize<nvfp4>(in, Te::Level(stored), data, scales, at, Below{count});
}

extern __shared__ __align__(16) u8 shared[];

// Both by thread blocks that stay, with a barrier between. The first HELD pieces of each wait in shared memory.
template <int N, int HELD, class T>
__device__ __forceinline__ void fused(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scales, int count) {
    __shared__ u32 room[32];
    const int kept = count - KEPT / (8 * (int)sizeof(T)), step = gridDim.x * N * blockDim.x;
    const int turns = (count - (int)blockIdx.x * N * (int)blockDim.x + step - 1) / step;
    const u64 keep_it = keep(), drop_it = let_go();
    Eight<T> *held = (Eight<T> *)shared + threadIdx.x, in[N];
    int at = blockIdx.x * N * blockDim.x + first_eight<N>();
    u32 found = 0;
    for (int turn = 0; turn < turns; turn++, at += step) {
        load_eights(in, x, at, count, at < kept ? drop_it : keep_it);
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
        at -= step;
        if (turn >= HELD)
            load_eights(in, x, at, count, drop_it);
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
    VARIANT(pieces, FORMAT, DTYPE, T, 256, 5, (once<N, FORMAT>), First())

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
        find<N>(x, largest, rows * (cols / 8), [] { wait_for_last(); });                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_found_##DTYPE(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        found<N>(x, largest, amax, data, scale, rows * (cols / 8), [] { wait_for_last(); });                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                                               \
        quantize_fused_##DTYPE(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows,    \
                               int cols) {                                                                             \
        fused<N, 2>(x, largest, arrived, amax, data, scale, rows * (cols / 8));                                        \
    }

FIND(bf16, bf16, 4)
FIND(f32, float, 2)

// ==== probes
template <int N, class F, class T, class... Policy>
__device__ __forceinline__ void whole(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols, Policy... policy) {
    const int count = rows * (cols / 8), first = blockIdx.x * N * blockDim.x, at = first + first_eight<N>();
    Eight<T> in[N];
    if (first + N * blockDim.x <= count) {
#pragma unroll
        for (int i = 0; i < N; i++)
            in[i].load(x, at + i * 32, policy...);
        quantize<F>(in, typename F::Level(amax), data, scales, at, All());
    } else {
        load_eights(in, x, at, count, policy...);
        quantize<F>(in, typename F::Level(amax), data, scales, at, Below{count});
    }
}
#define XW(NAME, N, B, BLOCKS, POLICY) VARIANT(NAME, fp8_b128_f32, bf16, bf16, B, BLOCKS, (whole<N, fp8_b128_f32>), POLICY) VARIANT(NAME, mxfp8, bf16, bf16, B, BLOCKS, (whole<N, mxfp8>), POLICY) VARIANT(NAME, nvfp4, bf16, bf16, B, BLOCKS, (whole<N, nvfp4>), POLICY)
XW(f1, 4, 256, 5, First())
XW(f0, 4, 256, 5, Plain())
XW(fh1, 4, 128, 10, First())
XW(fh0, 4, 128, 10, Plain())
#define X(NAME, N, B, BLOCKS, POLICY) VARIANT(NAME, fp8_b128_f32, bf16, bf16, B, BLOCKS, (once<N, fp8_b128_f32>), POLICY) VARIANT(NAME, mxfp8, bf16, bf16, B, BLOCKS, (once<N, mxfp8>), POLICY) VARIANT(NAME, nvfp4, bf16, bf16, B, BLOCKS, (once<N, nvfp4>), POLICY)
X(p0, 4, 256, 5, Plain())
X(p2, 4, 256, 5, FirstBoth())
X(h0, 4, 128, 10, Plain())
X(h1, 4, 128, 10, First())
X(h2, 4, 128, 10, FirstBoth())
X(g0, 2, 128, 16, Plain())
X(g1, 2, 128, 16, First())
X(k1, 4, 64, 20, First())
X(k0, 4, 64, 20, Plain())

    extern "C" __global__ void __launch_bounds__(256) quantize_zfind_bf16(const bf16 *x, u32 *largest, int rows, int cols) {
        start_next();
        find<4>(x, largest, rows * (cols / 8), [] { });
    }
    extern "C" __global__ void __launch_bounds__(256) quantize_pfind_bf16(const bf16 *x, u32 *largest, int rows, int cols) {
        start_next();
        find<4, false>(x, largest, rows * (cols / 8), [] { wait_for_last(); });
    }
    extern "C" __global__ void __launch_bounds__(256, 4)
        quantize_fused4_bf16(const bf16 *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows, int cols) {
        fused<4, 3>(x, largest, arrived, amax, data, scale, rows * (cols / 8));
    }
    extern "C" __global__ void __launch_bounds__(128, 10)
        quantize_fused10_bf16(const bf16 *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows, int cols) {
        fused<4, 2>(x, largest, arrived, amax, data, scale, rows * (cols / 8));
    }
    extern "C" __global__ void __launch_bounds__(512, 2)
        quantize_fused2_bf16(const bf16 *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows, int cols) {
        fused<4, 3>(x, largest, arrived, amax, data, scale, rows * (cols / 8));
    }
