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

[[variant]]
name = "a_na"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_a_na_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "b_pl"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_b_pl_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "c_far"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_c_far_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "d_nacs"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_d_nacs_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "e_efcs"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_e_efcs_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "f_n2na"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_f_n2na_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "g_n2b128"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_g_n2b128_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "h_n4b128"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_h_n4b128_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "i_n4b512"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_i_n4b512_{format}_{dtype}"
grid = ["ceil(T * C * S, 32768)"]
block = [512]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "j_n1"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_j_n1_{format}_{dtype}"
grid = ["ceil(T * C * S, 4096)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "k_n2nacs"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_k_n2nacs_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "l_keep"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_l_keep_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "m_n2ef"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_m_n2ef_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "s4"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_s4_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "s2"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_s2_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "s4ef"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_s4ef_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "probe_ax_plain"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_plain_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_k32"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k32_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_k48"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k48_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_8x2"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_8x2_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_4x1"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 16384) * 4" }]

[[variant.launch]]
entry = "quantize_ax_4x1_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_16x1"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_16x1_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_ef"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_ef_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_ax_2x8"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_2x8_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "probe_amax_old"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "sms * 3 * 4" }]

[[variant.launch]]
entry = "quantize_amax_bf16"
grid = ["min(ceil(T * C * S, 16384), sms * 3)"]
block = [256]
args = ["x", "largest", "T", "C"]


[[variant]]
name = "t_a"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_plain_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_efcs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_b"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k32_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_ef_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_c"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k32_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_efcs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_d"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k48_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_efcs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_e"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_plain_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_nacs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_f"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k32_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_ns_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_g"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_k32_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_sat_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_h"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_8x2_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_efcs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_i"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 16384) * 4" }]

[[variant.launch]]
entry = "quantize_ax_4x1_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_16k_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "t_j"
doc = "probe"
needs = ["FIND == 1", "C % W == 0"]
scratch = [{ name = "largest", bytes = "ceil(T * C * S, 65536) * 4" }]

[[variant.launch]]
entry = "quantize_ax_2x8_bf16"
grid = ["ceil(T * C * S, 65536)"]
block = [256]
args = ["x", "largest", "T", "C"]

[[variant.launch]]
entry = "quantize_bx_efcs_bf16"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
programmatic = true
args = ["x", "largest", "amax", "data", "scale", "T", "C"]


[[variant]]
name = "n8b128"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_n8b128_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "n8b256"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_n8b256_{format}_{dtype}"
grid = ["ceil(T * C * S, 32768)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "n8b64"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_n8b64_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [64]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "u1"
doc = "probe"
needs = ["FIND == 0", "T * C % 8192 == 0"]

[[variant.launch]]
entry = "quantize_u1_{format}_{dtype}"
grid = ["T * C * S / 16384"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "u2"
doc = "probe"
needs = ["FIND == 0", "T * C % 8192 == 0"]

[[variant.launch]]
entry = "quantize_u2_{format}_{dtype}"
grid = ["T * C * S / 16384"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "u3"
doc = "probe"
needs = ["FIND == 0", "T * C % 8192 == 0"]

[[variant.launch]]
entry = "quantize_u3_{format}_{dtype}"
grid = ["T * C * S / 8192"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "u4"
doc = "probe"
needs = ["FIND == 0", "T * C % 8192 == 0"]

[[variant.launch]]
entry = "quantize_u4_{format}_{dtype}"
grid = ["T * C * S / 8192"]
block = [128]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "f4"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_f4_{format}_{dtype}"
grid = ["ceil(T * C * S, 16384)"]
block = [256]
args = ["x", "amax", "data", "scale", "T", "C"]

[[variant]]
name = "f2"
doc = "probe"
needs = ["FIND == 0", "C % W == 0"]

[[variant.launch]]
entry = "quantize_f2_{format}_{dtype}"
grid = ["ceil(T * C * S, 8192)"]
block = [256]
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
template <class F, int HOW = 0, bool SAT = false, bool FULL = false, int N, class T>
__device__ __forceinline__ void quantize(const Eight<T> (&in)[N], typename F::Level level, typename F::Codes *data,
                                         typename F::Stored *scales, int at, int count) {
    u32 amax[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        amax[i] = in[i].amax();
    const auto get = [&](int i, float(&x)[8]) { in[i].unpack(x); };
    if (FULL && at - (int)(threadIdx.x % 32) + N * 32 <= count)
        quantize_eights<F, N, HOW, SAT>(amax, get, level, data, scales, at, All());
    else
        quantize_eights<F, N, HOW, SAT>(amax, get, level, data, scales, at, Below{count});
}

// N eights of each thread once, all of a thread block in one piece.
template <int N, class F, class T>
__device__ __forceinline__ void once(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols) {
    const int count = rows * (cols / 8), at = blockIdx.x * N * blockDim.x + first_eight<N>();
    Eight<T> in[N];
    load_eights(in, x, at, count);
    quantize<F>(in, typename F::Level(amax), data, scales, at, count);
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
        return (turn * gridDim.x + blockIdx.x) * N * blockDim.x + first_eight<N>();
    }

    __device__ __forceinline__ void load(Eight<T> (&into)[N], int turn, u64 policy) const {
        load_eights(into, x, at(turn), count, policy);
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
            quantize<nvfp4>(now, level, data, scales, at(turn), count);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (0 < turn && turn <= HELD)
                    next[i] = hold(turn - 1, i);
                now[i] = next[i];
            }
        }
    }
};

extern __shared__ __align__(16) u8 shared[];

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
    VARIANT(pieces, FORMAT, DTYPE, T, 5, (once<N, FORMAT>))

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

// ==== probes
template <int N, class F, int HOW, bool SAT, bool FULL = false, class T, class... Policy>
__device__ __forceinline__ void once_x(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols, Policy... policy) {
    const int count = rows * (cols / 8), at = blockIdx.x * N * blockDim.x + first_eight<N>();
    Eight<T> in[N];
    load_eights(in, x, at, count, policy...);
    quantize<F, HOW, SAT, FULL>(in, typename F::Level(amax), data, scales, at, count);
}
#define X(NAME, FORMAT, N, B, MIN, HOW, SAT, ...) \
    extern "C" __global__ void __launch_bounds__(B, MIN) quantize_##NAME##_##FORMAT##_bf16(const bf16 *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, int rows, int cols) { \
        once_x<N, FORMAT, HOW, SAT>(x, amax, data, scale, rows, cols, ##__VA_ARGS__); }
#define XF(NAME, FORMAT, N, B, MIN, HOW, SAT, ...) \
    extern "C" __global__ void __launch_bounds__(B, MIN) quantize_##NAME##_##FORMAT##_bf16(const bf16 *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, int rows, int cols) { \
        once_x<N, FORMAT, HOW, SAT, true>(x, amax, data, scale, rows, cols, ##__VA_ARGS__); }
#define X2(NAME, N, B, MIN, HOW, ...) X(NAME, fp8_b128_f32, N, B, MIN, HOW, false, __VA_ARGS__) X(NAME, nvfp4, N, B, MIN, HOW, false, __VA_ARGS__)
X2(a_na, 4, 256, 5, 0, Hinted{})
X2(b_pl, 4, 256, 5, 0, Cached{})
X2(c_far, 4, 256, 5, 0, Far{})
X2(d_nacs, 4, 256, 5, 1, Hinted{})
X2(e_efcs, 4, 256, 5, 1)
X2(f_n2na, 2, 256, 8, 0, Hinted{})
X2(g_n2b128, 2, 128, 16, 0, Hinted{})
X2(h_n4b128, 4, 128, 10, 0, Hinted{})
X2(i_n4b512, 4, 512, 2, 0, Hinted{})
X2(j_n1, 1, 256, 8, 0, Hinted{})
X2(k_n2nacs, 2, 256, 8, 1, Hinted{})
X2(l_keep, 4, 256, 5, 2)
X2(m_n2ef, 2, 256, 8, 0)
XF(f4, nvfp4, 4, 256, 5, 0, true, Hinted{})
XF(f4, fp8_b128_f32, 4, 256, 5, 0, false, Hinted{})
XF(f2, nvfp4, 2, 256, 8, 0, true, Hinted{})
XF(f2, fp8_b128_f32, 2, 256, 8, 0, false, Hinted{})
X(s4, nvfp4, 4, 256, 5, 0, true, Hinted{})
X(s2, nvfp4, 2, 256, 8, 0, true, Hinted{})
X(s4ef, nvfp4, 4, 256, 5, 0, true, )

template <int GROUPS, class F, int HOW, bool SAT, class T, class... Policy>
__device__ __forceinline__ void groups_x(const T *x, const float *amax, typename F::Codes *data, typename F::Stored *scales,
                                     int rows, int cols, Policy... policy) {
    const int count = rows * (cols / 8), at = blockIdx.x * GROUPS * 4 * blockDim.x + first_eight<GROUPS * 4>();
    Eight<T> in[GROUPS][4];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        load_eights(in[g], x, at + g * 128, count, policy...);
    const typename F::Level level(amax);
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        quantize<F, HOW, SAT>(in[g], level, data, scales, at + g * 128, count);
}
#define G(NAME, FORMAT, GROUPS, B, MIN, HOW, SAT, ...) \
    extern "C" __global__ void __launch_bounds__(B, MIN) quantize_##NAME##_##FORMAT##_bf16(const bf16 *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, int rows, int cols) { \
        groups_x<GROUPS, FORMAT, HOW, SAT>(x, amax, data, scale, rows, cols, ##__VA_ARGS__); }
G(n8b128, fp8_b128_f32, 2, 128, 7, 0, false, Hinted{})
G(n8b128, nvfp4, 2, 128, 7, 0, true, Hinted{})
G(n8b256, fp8_b128_f32, 2, 256, 3, 0, false, Hinted{})
G(n8b256, nvfp4, 2, 256, 3, 0, true, Hinted{})
G(n8b64, fp8_b128_f32, 2, 64, 14, 0, false, Hinted{})
G(n8b64, nvfp4, 2, 64, 14, 0, true, Hinted{})

// A piece by one bulk copy, and codes by another.
template <int N, int B, class F, bool SAT, bool OUT> __device__ __forceinline__ void bulk_x(const bf16 *x, const float *amax, typename F::Codes *data, typename F::Stored *scales, int rows, int cols) {
    __shared__ __align__(128) u8 in_room[N * B * 16];
    __shared__ __align__(128) typename F::Codes out_room[OUT ? N * B : 1];
    __shared__ u64 arrival;
    const int first = blockIdx.x * N * B, local = first_eight<N>(), count = rows * (cols / 8);
    if (threadIdx.x == 0) {
        arrival_init(&arrival);
        copy_to_shared(in_room, (const uint4 *)x + first, N * B * 16, &arrival);
    }
    const typename F::Level level(amax);
    __syncthreads();
    arrival_wait(&arrival, 0);
    Eight<bf16> in[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        in[i].load_shared((const bf16 *)in_room, local + i * 32);
    if (OUT) {
        u32 top[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            top[i] = in[i].amax();
        typedef Shared<F, N> Share;
        float factor[N];
        typename F::Stored scale[Share::own];
        Share::scales(top, level, scale, factor);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float v[8];
            in[i].unpack(v);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] *= factor[i];
            out_room[local + i * 32] = F::Element::encode8(v);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        typename F::Stored *to = scales + (first + local) / F::lanes + Share::first() * (32 / F::lanes);
#pragma unroll
        for (int i = 0; i < Share::own; i++)
            if (Share::stores())
                to[i * (32 / F::lanes)] = scale[i];
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(data + first), "r"(shared_address(out_room)), "r"((u32)sizeof(out_room)) : "memory");
            asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
    } else
        quantize<F, 0, SAT>(in, level, data, scales, first + local, count);
}
#define BULK(NAME, FORMAT, N, B, MIN, SAT, OUT) \
    extern "C" __global__ void __launch_bounds__(B, MIN) quantize_##NAME##_##FORMAT##_bf16(const bf16 *x, const float *amax, FORMAT::Codes *data, FORMAT::Stored *scale, int rows, int cols) { \
        bulk_x<N, B, FORMAT, SAT, OUT>(x, amax, data, scale, rows, cols); }
BULK(u1, fp8_b128_f32, 4, 256, 6, false, false)
BULK(u2, fp8_b128_f32, 4, 256, 6, false, true)
BULK(u3, fp8_b128_f32, 2, 256, 8, false, true)
BULK(u4, fp8_b128_f32, 4, 128, 12, false, true)
BULK(u1, nvfp4, 4, 256, 5, true, false)
BULK(u2, nvfp4, 4, 256, 5, true, true)
BULK(u4, nvfp4, 4, 128, 11, true, true)

// Amax of TURNS pieces of N eights a thread.
template <int N, int TURNS, class Choose> __device__ __forceinline__ void amax_x(const bf16 *x, u32 *largest, int count, Choose choose) {
    __shared__ u32 room[32];
    start_next();
    const int first = blockIdx.x * TURNS * N * blockDim.x + first_eight<N>();
    u32 found = 0;
    Eight<bf16> now[N], next[N];
    load_eights(now, x, first, count, choose(first));
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn + 1 < TURNS) {
            const int at = first + (turn + 1) * N * blockDim.x;
            load_eights(next, x, at, count, choose(at));
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            found = larger(found, now[i].amax()), now[i] = next[i];
    }
    found = block_max(found, room);
    if (threadIdx.x == 0)
        largest[blockIdx.x] = found;
}
// The cast, from the last piece to the first.
template <int PER, int HOW, bool SAT, class... Policy> __device__ __forceinline__ void found_x(const bf16 *x, const u32 *largest, float *amax, u32 *data, u8 *scales, int count, bool pdl, Policy... policy) {
    __shared__ u32 room[32];
    const int at = (gridDim.x - 1 - blockIdx.x) * 4 * blockDim.x + first_eight<4>();
    Eight<bf16> in[4];
    load_eights(in, x, at, count, policy...);
    if (pdl) wait_for_last();
    const int many = (count + PER / 16 - 1) / (PER / 16);
    u32 all = 0;
    for (int i = threadIdx.x; i < many; i += blockDim.x)
        all = larger(all, __ldcg(largest + i));
    all = block_max(all, room);
    const float stored = __uint_as_float(all < INFINITY_BITS ? all : NAN_BITS);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *amax = stored;
    quantize<nvfp4, HOW, SAT>(in, Te::Level(stored), data, scales, at, count);
}
struct Keeping { int from; u64 k, d; __device__ __forceinline__ Keeping(int count, int mb) : from(count - (mb << 16)), k(keep()), d(let_go()) {} __device__ __forceinline__ u64 operator()(int at) const { return at < from ? d : k; } };
#define A(NAME, N, TURNS, MIN, CHOOSE) extern "C" __global__ void __launch_bounds__(256, MIN) quantize_##NAME##_bf16(const bf16 *x, u32 *largest, int rows, int cols) { \
        const int count = rows * (cols / 8); amax_x<N, TURNS>(x, largest, count, CHOOSE); }
#define B(NAME, PER, HOW, SAT, PDL, ...) extern "C" __global__ void __launch_bounds__(256, 5) quantize_##NAME##_bf16(const bf16 *x, const u32 *largest, float *amax, u32 *data, u8 *scale, int rows, int cols) { \
        found_x<PER, HOW, SAT>(x, largest, amax, data, scale, rows * (cols / 8), PDL, ##__VA_ARGS__); }
A(ax_plain, 4, 4, 4, ([](int) { return Hinted(); }))
A(ax_k32, 4, 4, 4, (Keeping(count, 32)))
A(ax_k48, 4, 4, 4, (Keeping(count, 48)))
A(ax_8x2, 8, 2, 3, ([](int) { return Hinted(); }))
A(ax_4x1, 4, 1, 8, ([](int) { return Hinted(); }))
A(ax_16x1, 16, 1, 3, ([](int) { return Hinted(); }))
A(ax_ef, 4, 4, 4, ([p = let_go()](int) { return p; }))
A(ax_2x8, 2, 8, 8, ([](int) { return Hinted(); }))
B(bx_efcs, 65536, 1, false, true)
B(bx_ef, 65536, 0, false, true)
B(bx_nacs, 65536, 1, false, true, Hinted{})
B(bx_ns, 65536, 1, false, false)
B(bx_sat, 65536, 1, true, true)
B(bx_16k, 16384, 1, false, true)
