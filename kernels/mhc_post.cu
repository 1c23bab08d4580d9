/*
[[variant]]
name = "simple"
doc = "a thread for each channel of a row, which it computes in all streams"

[[variant.launch]]
entry = "mhc_post_simple_{dtype}"
grid = ["min(B, 65535)", "ceil(C, 256)"]
block = [256]
args = ["x", "y", "post", "comb", "B", "C"]

[[mutant]]
name = "comb_transposed"
doc = "the second index of comb is contracted, and not the first"

[[mutant]]
name = "streams_overwritten"
doc = "a stream is stored before the others have read it"

[[mutant]]
name = "post_lost"
doc = "the last stream lacks the block's output"

[[mutant]]
name = "weights_of_first_row"
doc = "every row is mixed with the weights of the first"

[[mutant]]
name = "rows_of_the_grid"
doc = "rows after the first 65,535 are left as they are"

[[mutant]]
name = "row_offset_u32"
doc = "the numbers before a row of streams are counted in 32 bits without a sign"
*/

// reference: reference/ops/hyper_connection.rs
//
// x [B, 4, C] in place, y [B, C], post [B, 4], comb [B, 4, 4]; all sums are f32.

#include "lib/ptx.cuh"

constexpr int STREAMS = 4;

template <class T> __device__ void simple(T *x, const T *y, const float *post, const float *comb, int rows, int channels) {
    const int channel = blockIdx.y * blockDim.x + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (channel >= channels)
        return;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, 65535);
#endif
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
#ifdef MUTANT_ROW_OFFSET_U32
        T *streams = x + (u32)row * STREAMS * (u32)channels + channel;
#else
        T *streams = x + (size_t)row * STREAMS * channels + channel;
#endif
#ifdef MUTANT_WEIGHTS_OF_FIRST_ROW
        const float *to = post, *between = comb;
#else
        const float *to = post + (size_t)row * STREAMS, *between = comb + (size_t)row * STREAMS * STREAMS;
#endif
        const float out = to_f32(y[(size_t)row * channels + channel]);
        float old[STREAMS];
        for (int j = 0; j < STREAMS; j++)
            old[j] = to_f32(streams[(size_t)j * channels]);
        for (int k = 0; k < STREAMS; k++) {
            float sum = to[k] * out;
#ifdef MUTANT_POST_LOST
            sum = k == STREAMS - 1 ? 0.0f : sum;
#endif
            for (int j = 0; j < STREAMS; j++)
#ifdef MUTANT_COMB_TRANSPOSED
                sum = fmaf(between[k * STREAMS + j], old[j], sum);
#else
                sum = fmaf(between[j * STREAMS + k], old[j], sum);
#endif
            from_f32(streams[(size_t)k * channels], sum);
#ifdef MUTANT_STREAMS_OVERWRITTEN
            old[k] = sum;
#endif
        }
    }
}

#define ENTRIES(DTYPE, T)                                                                                                      \
    KERNEL(mhc_post_simple_##DTYPE, __launch_bounds__(256))(T * x, const T *y, const float *post, const float *comb, int rows, \
                                                            int channels) {                                                    \
        simple(x, y, post, comb, rows, channels);                                                                              \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
