/*
[[variant]]
name = "simple"
doc = "a warp for each column, for eight rows at a time"

[[variant.launch]]
entry = "linear_simple_{dtype}_{out}"
grid = ["ceil(N, 4)", "G"]
block = [128]
args = ["x", "w", "y", "B", "G", "N", "K"]

[[variant]]
name = "vector"
doc = "a warp for each column, for eight rows at a time, by 16 bytes"
needs = ["K * size % 16 == 0"]

[[variant.launch]]
entry = "linear_vector_{dtype}_{out}"
grid = ["ceil(N, 4)", "G"]
block = [128]
args = ["x", "w", "y", "B", "G", "N", "K"]

[[mutant]]
name = "tail_skipped"
doc = "elements after the last whole step of a warp are left out"

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

[[mutant]]
name = "half_added"
doc = "the sums of the upper half of a warp are left out"
*/

// reference: reference/ops/linear.rs
//
// The order of a sum depends on K alone: lane i has every 32nd element, or vector, from the i-th on, and lanes are added in a tree.

#include "lib/reduce.cuh"

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

// Calls `add(sums, xs, at)` for every step of a row; xs are the rows, of which `count` are there.
template <class T, class Y, class Add>
__device__ __forceinline__ void columns(const T *x, const T *w, Y *y, int rows, int groups, int N, int K, Add add) {
    const int column = blockIdx.x * 4 + threadIdx.x / 32, group = blockIdx.y;
    if (column >= N)
        return;
#ifdef MUTANT_FIRST_GROUP
    const T *weights = w + (size_t)column * K;
#else
    const T *weights = w + ((size_t)group * N + column) * K;
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
#else
            of_row[row] = x + (at * groups + group) * K;
#endif
        }
        add(sums, of_row, weights);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float sum = lanes_added(sums[row]);
            if (row < count && threadIdx.x % 32 == 0)
                from_f32(y[((size_t)(first + row) * groups + group) * N + column], sum);
        }
    }
}

template <class T, class Y>
__device__ __forceinline__ void simple(const T *x, const T *w, Y *y, int rows, int groups, int N, int K) {
#ifdef MUTANT_TAIL_SKIPPED
    const int last = K / 32 * 32;
#else
    const int last = K;
#endif
    columns(x, w, y, rows, groups, N, K, [=](float (&sums)[ROWS], const T *(&of_row)[ROWS], const T *weights) {
        for (int k = threadIdx.x % 32; k < last; k += 32) {
            const float weight = to_f32(weights[k]);
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
    columns(x, w, y, rows, groups, N, K, [=](float (&sums)[ROWS], const T *(&of_row)[ROWS], const T *weights) {
        for (int k = threadIdx.x % 32; k < last; k += 32) {
            float weight[EACH], value[EACH];
            unpack(((const uint4 *)weights)[k], weight);
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

#define ENTRIES(VARIANT, DTYPE, OUT, T, Y)                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                          \
        linear_##VARIANT##_##DTYPE##_##OUT(const T *x, const T *w, Y *y, int rows, int groups, int N, int K) { \
        VARIANT(x, w, y, rows, groups, N, K);                                                                  \
    }

ENTRIES(simple, f32, f32, float, float)
ENTRIES(simple, bf16, bf16, bf16, bf16)
ENTRIES(simple, bf16, f32, bf16, float)
ENTRIES(vector, f32, f32, float, float)
ENTRIES(vector, bf16, bf16, bf16, bf16)
ENTRIES(vector, bf16, f32, bf16, float)
