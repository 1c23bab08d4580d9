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
name = "stream"
doc = "the same by thread blocks that stay, the next 64 bytes loaded while these are cast"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_stream_{format}_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 3)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "copied"
doc = "the same, with the next three pieces on their way to shared memory"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_copied_{format}_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 4)"]
block = [256]
shared = "49152"
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "two_launches"
doc = "the largest magnitude of each thread block, then all blocks, last first: their end is still in the second-level cache"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "sms * 3 * 4" }]

[[variant.launch]]
entry = "quantize_amax_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 3)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_found_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 3)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "fused"
doc = "the same in one launch with a barrier over the grid between; the first pieces stay in shared memory"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "sms * 3 * 4" }, { name = "arrived", bytes = "4", zero = true }]

[[variant.launch]]
entry = "quantize_fused_{dtype}"
grid = ["min(ceil(T * C * S, 16384), sms * 3)"]
block = [256]
shared = "65536"
cooperative = true
args = ["x", "largest", "arrived", "amax", "data", "scale", "T", "C"]

[[mutant]]
name = "nan_dropped"
doc = "the largest magnitude by a maximum that ignores NaN"

[[mutant]]
name = "lane_lost"
doc = "half of the lanes of a block missing from its largest magnitude"
variants = ["few", "pieces", "stream", "copied", "two_launches", "fused"]

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

// N eights of a thread, `stride` apart; zeros where there are none.
template <int N, class T, class... Policy>
__device__ __forceinline__ void load_eights(Eight<T> (&into)[N], const T *x, int at, int stride, int count,
                                            Policy... policy) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (at + i * stride < count)
            into[i].load(x, at + i * stride, policy...);
        else
            into[i].zero();
    }
}

// N eights of each thread once, all of a thread block in one piece.
template <int N, class F, class T>
__device__ __forceinline__ void once(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols) {
    const int count = rows * (cols / 8), at = blockIdx.x * N * blockDim.x + threadIdx.x;
    Eight<T> in[N];
    load_eights(in, x, at, blockDim.x, count);
    quantize_eights<F>(in, typename F::Level(amax), data, scales, at, blockDim.x, count);
}

// Pieces of N eights of each thread, the next one loaded while one is worked on.
template <int N, class F, class T>
__device__ __forceinline__ void stream(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                       int rows, int cols) {
    const int count = rows * (cols / 8), piece = N * blockDim.x, step = gridDim.x * piece;
    Eight<T> now[N], next[N];
    int at = blockIdx.x * piece + threadIdx.x;
    load_eights(now, x, at, blockDim.x, count);
    const typename F::Level level(amax);
    for (; at - (int)threadIdx.x < count; at += step) {
        load_eights(next, x, at + step, blockDim.x, count);
        quantize_eights<F>(now, level, data, scales, at, blockDim.x, count);
#pragma unroll
        for (int i = 0; i < N; i++)
            now[i] = next[i];
    }
}

// Pieces that wait in shared memory.
constexpr int WAITING = 3;

extern __shared__ __align__(16) u8 shared[];

// The same, with the next pieces on their way to shared memory.
template <int N, class F, class T>
__device__ __forceinline__ void copied(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                       int rows, int cols) {
    __shared__ u64 arrival[WAITING];
    const int count = rows * (cols / 8), piece = N * blockDim.x, step = gridDim.x * piece;
    const auto room = [=](int slot) { return (T *)shared + slot * piece * 8; };
    const auto fetch = [=](int first, int slot) {
        if (threadIdx.x == 0 && first < count)
            copy_to_shared(room(slot), x + (size_t)first * 8, min(piece, count - first) * 8 * sizeof(T), arrival + slot);
    };
    if (threadIdx.x == 0)
        for (int slot = 0; slot < WAITING; slot++)
            arrival_init(arrival + slot);
    __syncthreads();
    int first = blockIdx.x * piece;
    for (int slot = 0; slot < WAITING; slot++)
        fetch(first + slot * step, slot);
    const typename F::Level level(amax);
    int slot = 0, parity = 0;
    for (; first < count; first += step) {
        arrival_wait(arrival + slot, parity);
        Eight<T> in[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = i * blockDim.x + threadIdx.x;
            if (first + at < count)
                in[i].load_shared(room(slot), at);
            else
                in[i].zero();
        }
        __syncthreads();
        fetch(first + WAITING * step, slot);
        quantize_eights<F>(in, level, data, scales, first + threadIdx.x, blockDim.x, count);
        if (++slot == WAITING)
            slot = 0, parity ^= 1;
    }
}

// Eights of a thread on their way at a time where the largest magnitude is found first.
template <class T> constexpr int EIGHTS = 8 / sizeof(T);

// Bytes at the end of x that stay in the second-level cache, to be read again first.
constexpr int KEPT = 32 << 20;

// The pieces of x that a thread block works on: those of its number and every gridDim.x, the first HELD of which stay in
// shared memory once they have been read.
template <class T, int HELD> struct Pieces {
    static constexpr int N = EIGHTS<T>;
    const T *x;
    int count;
    Eight<T> *held;

    __device__ __forceinline__ int step() const {
        return gridDim.x * N * blockDim.x;
    }

    // Where the thread's eights of its `turn`th piece are.
    __device__ __forceinline__ int at(int turn) const {
        return (turn * gridDim.x + blockIdx.x) * N * blockDim.x + threadIdx.x;
    }

    __device__ __forceinline__ void load(Eight<T> (&into)[N], int turn, u64 policy) const {
        load_eights(into, x, at(turn), blockDim.x, count, policy);
    }

    __device__ __forceinline__ Eight<T> &hold(int turn, int i) const {
        return held[(turn * N + i) * blockDim.x + threadIdx.x];
    }

    // The largest magnitude of all, stored by the first thread.
    __device__ __forceinline__ void find(u32 *largest) const {
        __shared__ u32 room[32];
        const int kept = count - KEPT / (8 * (int)sizeof(T));
        const u64 keep_it = keep(), drop_it = let_go();
        const auto policy = [=](int turn) { return at(turn) < kept ? drop_it : keep_it; };
        u32 found = 0;
        Eight<T> now[N], next[N];
        load(now, 0, policy(0));
        for (int turn = 0; at(turn) < count; turn++) {
            load(next, turn + 1, policy(turn + 1));
#pragma unroll
            for (int i = 0; i < N; i++) {
                found = larger(found, now[i].amax());
                if (turn < HELD)
                    hold(turn, i) = now[i];
                now[i] = next[i];
            }
        }
        found = block_max(found, room);
        if (threadIdx.x == 0)
            largest[blockIdx.x] = found;
    }

    // All under the largest magnitude of all thread blocks, which is stored too, from the last piece to the first. `ready`
    // returns once those magnitudes are there.
    template <class Ready>
    __device__ __forceinline__ void cast(const u32 *largest, float *amax, u32 *data, u8 *scales, Ready ready) const {
        __shared__ u32 room[32];
        const u64 drop_it = let_go();
        int turn = (count - 1) / step();
        Eight<T> now[N], next[N];
        load(now, turn, drop_it);
        ready();
        u32 all = 0;
        for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
            all = larger(all, __ldcg(largest + i));
        all = block_max(all, room);
        const float stored = __uint_as_float(all < INFINITY_BITS ? all : NAN_BITS);
        if (blockIdx.x == 0 && threadIdx.x == 0)
            *amax = stored;
        const Te::Level level(stored);
        for (; turn >= 0; turn--) {
            if (turn > HELD)
                load(next, turn - 1, drop_it);
            quantize_eights<nvfp4>(now, level, data, scales, at(turn), blockDim.x, count);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (0 < turn && turn <= HELD)
                    next[i] = hold(turn - 1, i);
                now[i] = next[i];
            }
        }
    }
};

// Pieces of 16 KB that a thread block holds; three thread blocks share a multiprocessor.
constexpr int HELD = 4;

template <class T> __device__ void fused(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scales, int count) {
    const Pieces<T, HELD> pieces = {x, count, (Eight<T> *)shared};
    pieces.find(largest);
    pieces.cast(largest, amax, data, scales, [=] {
#ifndef MUTANT_NO_BARRIER
        grid_barrier(arrived);
#endif
    });
}

#define VARIANT(NAME, FORMAT, DTYPE, T, BLOCKS, CALL)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                          \
        quantize_##NAME##_##FORMAT##_##DTYPE(const T *x, const float *amax, FORMAT::Codes *data,                       \
                                             FORMAT::Stored *scale, int rows, int cols) {                              \
        CALL(x, amax, data, scale, rows, cols);                                                                        \
    }

#define ALL(FORMAT, DTYPE, T, N)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        quantize_simple_##FORMAT##_##DTYPE(const T *x, const float *amax, u8 *data, FORMAT::Stored *scale, int rows,  \
                                           int cols) {                                                                 \
        simple<FORMAT>(x, amax, data, scale, rows, cols);                                                              \
    }                                                                                                                  \
    VARIANT(few, FORMAT, DTYPE, T, 4, (once<1, FORMAT>))                                                               \
    VARIANT(pieces, FORMAT, DTYPE, T, 5, (once<N, FORMAT>))                                                            \
    VARIANT(stream, FORMAT, DTYPE, T, 3, (stream<N, FORMAT>))                                                          \
    VARIANT(copied, FORMAT, DTYPE, T, 4, (copied<N, FORMAT>))

#define ENTRIES(FORMAT) ALL(FORMAT, bf16, bf16, 4) ALL(FORMAT, f32, float, 2)

FOR_ALL_FORMATS(ENTRIES)

#define FIND(DTYPE, T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 3)                                                               \
        quantize_amax_##DTYPE(const T *x, u32 *largest, int rows, int cols) {                                          \
        start_next();                                                                                                  \
        Pieces<T, 0>{x, rows * (cols / 8), nullptr}.find(largest);                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 3)                                                               \
        quantize_found_##DTYPE(const T *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        const Pieces<T, 0> pieces = {x, rows * (cols / 8), nullptr};                                                     \
        pieces.cast(largest, amax, data, scale, [] { wait_for_last(); });                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 3)                                                               \
        quantize_fused_##DTYPE(const T *x, u32 *largest, u32 *arrived, float *amax, u32 *data, u8 *scale, int rows,    \
                               int cols) {                                                                             \
        fused(x, largest, arrived, amax, data, scale, rows * (cols / 8));                                              \
    }

FIND(bf16, bf16)
FIND(f32, float)
