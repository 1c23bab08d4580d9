// What a step does besides where keys are KV records.
#pragma once

#include "decode_step/step.cuh"

// Reads positions: how many slots of the window and of the chosen entries attention reads, and the slots, among those of all rows, that
// records of this token go to: that of its vector, and those of the entries that it completes. -1 is none.
KERNEL(decode_step_places, __launch_bounds__(128))(const int *position, int *window_count, int *chosen_count, int *window_at,
                                                   int *sparse_at, int *heavy_at, int rows, int window, int chosen,
                                                   int sparse_rate, int heavy_rate, int window_pages, int sparse_pages,
                                                   int heavy_pages) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (row >= rows)
        return;
    const int at = position[row], page = 64;
#ifdef MUTANT_WINDOW_AFTER_ENTRIES
    window_count[row] = min(max(at, 0), window);
#else
    window_count[row] = min(at + 1, window);
#endif
    chosen_count[row] = at < 0 ? 0 : chosen;
    window_at[row] = at < 0 ? -1 : row * window_pages * page + window_slot(at, window);
    const auto entry = [&](int rate, int pages) {
        if (at < 0 || (at + 1) % rate != 0)
            return -1;
        const int slot = (at + 1) / rate - 1;
#ifdef MUTANT_ENTRY_SLOT
        return (row * pages * page + slot + 1) % (rows * pages * page);
#else
        return row * pages * page + slot;
#endif
    };
    sparse_at[row] = entry(sparse_rate, sparse_pages);
    heavy_at[row] = entry(heavy_rate, heavy_pages);
}

// Rounds a vector of each row to bfloat16; rows are `stride` elements apart and begin at `first`.
KERNEL(decode_step_row, __launch_bounds__(128))(const float *from, bf16 *to, int cols, int stride, int first) {
    const int row = blockIdx.x;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        from_f32(to[(size_t)row * cols + col], from[(size_t)row * stride + first + col]);
}
