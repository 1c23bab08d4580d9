/*
[[variant]]
name = "simple"
doc = "a warp for each column, for eight rows at a time; weights are decoded one by one"

[[variant.launch]]
entry = "linear_simple_{dtype}_{stored}_{out}"
grid = ["ceil(N, 4)", "G"]
block = [128]
args = ["x", "w", "w_scale", "y", "B", "G", "N", "K"]

[[variant]]
name = "vector"
doc = "a warp for each column, for eight rows at a time, by 16 bytes"
needs = ["size > 0 && K * size % 16 == 0"]

[[variant.launch]]
entry = "linear_vector_{dtype}_{out}"
grid = ["ceil(N, 4)", "G"]
block = [128]
args = ["x", "w", "y", "B", "G", "N", "K"]

[[variant]]
name = "tensor"
doc = "tensor cores: 64 columns of y and 8 to 64 rows for a thread block, copies of several steps of 64 elements under way; where columns are few, two, four or eight thread blocks have a part of K each, and one adds their sums in order"
arch = "sm_90a"
needs = ["size == 2", "K % 8 == 0"]

[[variant.launch]]
entry = "linear_tensor_{dtype}_{out}"
grid = ["ceil(B, 8 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) * (1 + (G * ceil(N, 64) <= 66 && K >= 1024) + 2 * (G * ceil(N, 64) <= 33 && K >= 2048) + 4 * (G * ceil(N, 64) <= 16 && K >= 3072))", "ceil(N, 64)", "G"]
cluster = ["1 + (G * ceil(N, 64) <= 66 && K >= 1024) + 2 * (G * ceil(N, 64) <= 33 && K >= 2048) + 4 * (G * ceil(N, 64) <= 16 && K >= 3072)"]
block = [128]
shared = "(6 - (B > 8) - (B > 16) - (B > 32) + (G * ceil(N, 64) * (1 + (G * ceil(N, 64) <= 66 && K >= 1024) + 2 * (G * ceil(N, 64) <= 33 && K >= 2048) + 4 * (G * ceil(N, 64) <= 16 && K >= 3072)) <= 132) * (5 + (B > 8) + 2 * (B > 16) - (B > 32))) * 128 * (72 + 8 * (B > 8) + 16 * (B > 16) + 32 * (B > 32)) + (B <= 16) * (16 + 2048 * (1 + (B > 8)) * ((G * ceil(N, 64) <= 66 && K >= 1024) + 2 * (G * ceil(N, 64) <= 33 && K >= 2048) + 4 * (G * ceil(N, 64) <= 16 && K >= 3072)))"
args = ["x", "w", "y", "B", "G", "N", "K"]

[[mutant]]
name = "tail_skipped"
doc = "elements after the last whole step of a warp, or of tensor cores, are left out"

[[mutant]]
name = "first_group"
doc = "all groups have the weights of the first"

[[mutant]]
name = "rows_of_a_group"
doc = "rows of x follow each other as if there were one group"

[[mutant]]
name = "last_rows_lost"
doc = "rows after the last whole eight are not written"

[[mutant]]
name = "rounded_sums"
doc = "partial sums of a lane are rounded to bf16 before they are added up"
variants = ["simple", "vector"]

[[mutant]]
name = "half_added"
doc = "the sums of the upper half of a warp are left out"
variants = ["simple", "vector"]

[[mutant]]
name = "scales_of_row_before"
doc = "codes have the scales of the row before"
variants = ["simple"]

[[mutant]]
name = "last_part_lost"
doc = "the sums of the last thread block that has a part of K are left out"
variants = ["tensor"]

[[mutant]]
name = "stage_overwritten"
doc = "the copy of a later step begins before the products of the one in its place are done"
variants = ["tensor"]

[[mutant]]
name = "parts_early"
doc = "the sums of other thread blocks are added before all of them have arrived"
variants = ["tensor"]

[[mutant]]
name = "row_offset_u32"
doc = "the numbers before a row of x are counted in 32 bits without a sign"
variants = ["simple", "vector"]
*/

// reference: reference/ops/linear.rs
//
// The order of a sum depends on K alone, or on K, G and N: lane i has every 32nd element, or vector, from the i-th on, and lanes are
// added in a tree; tensor cores have sixteen elements after the other, and parts of K are added in order.

#include "lib/reduce.cuh"
#include "lib/stored.cuh"

constexpr int ROWS = 8;

__device__ __forceinline__ float lanes_added(float sum) {
#ifdef MUTANT_ROUNDED_SUMS
    bf16 rounded;
    from_f32(rounded, sum);
    sum = to_f32(rounded);
#endif
#ifdef MUTANT_HALF_ADDED
    sum = threadIdx.x % 32 < 16 ? sum : 0.0f;
#endif
    return warp_sum(sum);
}

// Calls `add(sums, xs, at)` for every eight rows; xs are the rows of x, and `at` is that of w.
template <class T, class Y, class Add>
__device__ __forceinline__ void columns(const T *x, Y *y, int rows, int groups, int N, int K, Add add) {
    const int column = blockIdx.x * 4 + threadIdx.x / 32, group = blockIdx.y;
    if (column >= N)
        return;
#ifdef MUTANT_FIRST_GROUP
    const size_t of_weights = column;
#else
    const size_t of_weights = (size_t)group * N + column;
#endif
#ifdef MUTANT_LAST_ROWS_LOST
    rows = rows < ROWS ? rows : rows / ROWS * ROWS;
#endif
    for (int first = 0; first < rows; first += ROWS) {
        const int count = min(ROWS, rows - first);
        const T *of_row[ROWS];
        float sums[ROWS] = {};
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            // A row that is not there is read as the last one, and not written.
            const size_t at = first + min(row, count - 1);
#ifdef MUTANT_ROWS_OF_A_GROUP
            of_row[row] = x + (at + (size_t)group * rows) * K;
#elif defined(MUTANT_ROW_OFFSET_U32)
            of_row[row] = x + (u32)((at * groups + group) * K);
#else
            of_row[row] = x + (at * groups + group) * K;
#endif
        }
        add(sums, of_row, of_weights);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float sum = lanes_added(sums[row]);
            if (row < count && threadIdx.x % 32 == 0)
                from_f32(y[((size_t)(first + row) * groups + group) * N + column], sum);
        }
    }
}

template <class W, class T, class Y>
__device__ __forceinline__ void simple(const T *x, const typename W::Code *w, const typename W::Scale *w_scale, Y *y, int rows,
                                       int groups, int N, int K) {
#ifdef MUTANT_TAIL_SKIPPED
    const int last = K / 32 * 32;
#else
    const int last = K;
#endif
    columns(x, y, rows, groups, N, K, [=](float (&sums)[ROWS], const T *(&of_row)[ROWS], size_t at) {
        const typename W::Row weights(w, w_scale, nullptr, at, K);
        for (int k = threadIdx.x % 32; k < last; k += 32) {
            const float weight = weights[k];
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                sums[row] = __fmaf_rn(to_f32(of_row[row][k]), weight, sums[row]);
        }
    });
}

// Sixteen bytes as numbers.
__device__ __forceinline__ void unpack(uint4 bytes, float (&x)[4]) {
    x[0] = __uint_as_float(bytes.x), x[1] = __uint_as_float(bytes.y);
    x[2] = __uint_as_float(bytes.z), x[3] = __uint_as_float(bytes.w);
}

__device__ __forceinline__ void unpack(uint4 bytes, float (&x)[8]) {
    const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = from_bf16x2(words[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

template <class T, class Y>
__device__ __forceinline__ void vector(const T *x, const T *w, Y *y, int rows, int groups, int N, int K) {
    constexpr int EACH = 16 / sizeof(T);
#ifdef MUTANT_TAIL_SKIPPED
    const int last = K / EACH / 32 * 32;
#else
    const int last = K / EACH;
#endif
    columns(x, y, rows, groups, N, K, [=](float (&sums)[ROWS], const T *(&of_row)[ROWS], size_t at) {
        const uint4 *const weights = (const uint4 *)(w + at * K);
        for (int k = threadIdx.x % 32; k < last; k += 32) {
            float weight[EACH], value[EACH];
            unpack(weights[k], weight);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                unpack(((const uint4 *)of_row[row])[k], value);
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    sums[row] = __fmaf_rn(value[i], weight[i], sums[row]);
            }
        }
    });
}

#define ENTRY(DTYPE, WEIGHTS, OUT, T, Y)                                                                                    \
    KERNEL(linear_simple_##DTYPE##_##WEIGHTS##_##OUT, __launch_bounds__(128))(const T *x, const stored_##WEIGHTS::Code *w,  \
                                                                              const stored_##WEIGHTS::Scale *w_scale, Y *y, \
                                                                              int rows, int groups, int N, int K) {         \
        simple<stored_##WEIGHTS>(x, w, w_scale, y, rows, groups, N, K);                                                     \
    }
#define ENTRIES(DTYPE, OUT, T, Y)                                                                                            \
    KERNEL(linear_vector_##DTYPE##_##OUT, __launch_bounds__(128))(const T *x, const T *w, Y *y, int rows, int groups, int N, \
                                                                  int K) {                                                   \
        vector(x, w, y, rows, groups, N, K);                                                                                 \
    }

ENTRY(f32, f32, f32, float, float)
ENTRY(f32, bf16, f32, float, float)
ENTRY(f32, fp8_b64_f32, f32, float, float)
ENTRY(bf16, bf16, bf16, bf16, bf16)
ENTRY(bf16, bf16, f32, bf16, float)
ENTRIES(f32, f32, float, float)
ENTRIES(bf16, bf16, bf16, bf16)
ENTRIES(bf16, f32, bf16, float)

// ---- tensor

#if __CUDA_ARCH__ == 900
#include "linear/tensor.cuh"

#define TENSOR(OUT, Y)                                                                                                        \
    KERNEL(linear_tensor_bf16_##OUT, __launch_bounds__(128))(const bf16 *x, const bf16 *w, Y *y, int rows, int groups, int N, \
                                                             int K) {                                                         \
        tensor(blockIdx.y, blockIdx.z, fits(groups * gridDim.y, 1), x, w, y, rows, groups, N, K);                             \
    }

TENSOR(bf16, bf16)
TENSOR(f32, float)
#endif
