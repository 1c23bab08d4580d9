// What lies between the operations of a decode step: where it begins and ends, and what is kept of it.
#pragma once

#include "lib/ptx.cuh"

// ---- what follows from the row and its position

__device__ __forceinline__ int token_of(const int *token, int row) {
#ifdef MUTANT_OWN_TOKEN_LOST
    return token[row > 0 ? row - 1 : 0];
#else
    return token[row];
#endif
}

// The position by which a row is rotated.
__device__ __forceinline__ int rotation_position(const int *position, int row) {
#ifdef MUTANT_ROPE_OF_ROW_0
    return position[0];
#else
    return position[row];
#endif
}

// Tokens up to this one, which count for entries.
__device__ __forceinline__ int entries_seen(int position) {
#ifdef MUTANT_COUNT_OF_LAST_STEP
    return position;
#else
    return position + 1;
#endif
}

// Tokens per entry of heavy layers.
__device__ __forceinline__ int heavy_rate(int of_sparse, int of_heavy) {
#ifdef MUTANT_HEAVY_AS_SPARSE
    return of_sparse;
#else
    return of_heavy;
#endif
}

__device__ __forceinline__ int window_slot(int position, int slots) {
#ifdef MUTANT_WINDOW_SLOT
    return (position + 1) % slots;
#else
    return position % slots;
#endif
}

// What a stream begins with.
__device__ __forceinline__ float stream_begins(float embedding, int stream) {
#ifdef MUTANT_ONE_STREAM
    return stream == 3 ? 0.0f : embedding;
#else
    return embedding;
#endif
}

// ---- launches
//
// They let the next launch start at once, and read and write nothing before the launches before have ended, where they are
// programmatic; elsewhere both instructions do nothing. `begin` is not programmatic, so that a step begins when the one before has ended.

// Reads positions: the streams of each row's token, angles, and how many entries there are with the one that this token completes. A
// row of padding has position -1, zeros for streams, and no entries. A CTA has 512 channels.
KERNEL(decode_step_begin, __launch_bounds__(128))(const int *token, const int *position, const float *embedding, const float *cos,
                                                  const float *sin, float *x, float *cos_t, float *sin_t, int *sparse_count,
                                                  int *heavy_count, int channels, int rotated, int sparse_rate,
                                                  int rate_of_heavy) {
    constexpr int EACH = 4;
    const int row = blockIdx.y, pairs = rotated / 2, first = blockIdx.x * (EACH * 128) + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int at = position[row];
    const bool padding = at < 0;
    const int id = token_of(token, row);
    float values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = first + 128 * i;
        values[i] = padding || channel >= channels ? 0.0f : embedding[(size_t)id * channels + channel];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int channel = first + 128 * i;
        for (int stream = 0; stream < 4 && channel < channels; stream++)
            x[((size_t)row * 4 + stream) * channels + channel] = stream_begins(values[i], stream);
    }
    const int angle = rotation_position(position, row);
    for (int pair = blockIdx.x * 128 + threadIdx.x; pair < pairs; pair += gridDim.x * 128) {
        cos_t[(size_t)row * pairs + pair] = angle < 0 ? 1.0f : cos[(size_t)angle * pairs + pair];
        sin_t[(size_t)row * pairs + pair] = angle < 0 ? 0.0f : sin[(size_t)angle * pairs + pair];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const int seen = padding ? 0 : entries_seen(at);
        sparse_count[row] = seen / sparse_rate;
        heavy_count[row] = seen / heavy_rate(sparse_rate, rate_of_heavy);
    }
}

// Puts the vector of each row into the ring of its window.
KERNEL(decode_step_push, __launch_bounds__(128))(const float *kv, const int *position, float *window, int slots, int channels) {
    const int row = blockIdx.x, at = position[row];
    if (at < 0)
        return;
    float *to = window + ((size_t)row * slots + window_slot(at, slots)) * channels;
    for (int channel = threadIdx.x; channel < channels; channel += blockDim.x)
        to[channel] = kv[(size_t)row * channels + channel];
}

// Keeps the values at a site, [runs, layers, B, cols]; rows are `stride` elements apart and begin at `first`.
KERNEL(decode_step_tap, __launch_bounds__(128))(const u32 *from, u32 *to, const int *clock, int layer, int layers, int rows,
                                                int runs, int cols, int stride, int first) {
    const int row = blockIdx.x, run = min(*clock, runs - 1);
    to += (((size_t)run * layers + layer) * rows + row) * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        to[col] = from[(size_t)row * stride + first + col];
}

// Keeps the logits of a run, [runs, B, V]. A CTA has 1,024 of a row.
KERNEL(decode_step_keep, __launch_bounds__(256))(const float *from, float *to, const int *clock, int rows, int runs, int cols) {
    constexpr int EACH = 4;
    const int row = blockIdx.x, first = blockIdx.y * (EACH * 256) + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int run = min(*clock, runs - 1);
    from += (size_t)row * cols, to += ((size_t)run * rows + row) * cols;
    float values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        values[i] = first + 256 * i < cols ? from[first + 256 * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + 256 * i < cols)
            to[first + 256 * i] = values[i];
}

// Hands the next token to the next run: the one that is given, or the one that was sampled. After the last position a row stays where
// it is, so that a graph can be replayed any number of times.
KERNEL(decode_step_end, __launch_bounds__(256))(const int *sampled, const int *forced, int *clock, int *token, int *position,
                                                int *tokens, int rows, int runs, int positions) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int run = min(*clock, runs - 1);
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        const int next = sampled[row], given = forced[(size_t)(run + 1) * rows + row];
        tokens[(size_t)run * rows + row] = next;
        token[row] = given >= 0 ? given : next;
#ifdef MUTANT_POSITION_KEPT
        if (position[row] >= 0 && run == 0)
#else
        if (position[row] >= 0)
#endif
            position[row] = min(position[row] + 1, positions - 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *clock = run + 1;
}
