/*
[[variant]]
name = "simple"
doc = "a thread for each element, written in order"

[[variant.launch]]
entry = "state_transpose_simple_{dtype}"
grid = ["ceil(B * H * K * V, 256)"]
block = [256]
args = ["x", "y", "B", "H", "K", "V"]

[[variant]]
name = "tile"
doc = "32 × 32 elements through shared memory: the fastest where rows are no multiple of 16 bytes"

[[variant.launch]]
entry = "state_transpose_tile_{dtype}"
grid = ["B * H * ceil(K, 32) * ceil(V, 32)"]
block = [32, 8]
args = ["x", "y", "K", "V"]

[[variant]]
name = "registers"
doc = """
16 bytes of 8 or 16 rows for each thread, transposed in registers; a warp, which is a thread block, reads and writes lines of 128 \
bytes"""
needs = ["K * size % 16 == 0", "V * size % 16 == 0"]

[[variant.launch]]
entry = "state_transpose_registers_{dtype}"
grid = ["B * H * ceil(K * size, 128) * ceil(V * size, 128)"]
block = [32]
args = ["x", "y", "K", "V"]

[[variant]]
name = "swizzled"
doc = "64 × 64 elements through shared memory, 16 bytes at a time, in rows of K for writes to follow one another: the fastest of f32"
needs = ["size == 4", "K % 4 == 0", "V % 4 == 0"]

[[variant.launch]]
entry = "state_transpose_swizzled_{dtype}"
grid = ["B * H * ceil(K, 64) * ceil(V, 64)"]
block = [512]
args = ["x", "y", "K", "V"]

[[variant]]
name = "matrices"
doc = "64 × 64 elements through shared memory, 16 bytes at a time, transposed by ldmatrix: the fastest of many states in bf16"
needs = ["size == 2", "K % 8 == 0", "V % 8 == 0"]

[[variant.launch]]
entry = "state_transpose_matrices_{dtype}"
grid = ["B * H * ceil(K, 64) * ceil(V, 64)"]
block = [256]
args = ["x", "y", "K", "V"]

[[mutant]]
name = "copied"
doc = "[K, V] taken for [V, K]"
variants = ["simple", "tile"]

[[mutant]]
name = "last_tile_skipped"
doc = "rows and columns after the last whole tile are left out"
variants = ["tile", "registers", "swizzled", "matrices"]

[[mutant]]
name = "barrier_missing"
doc = "a tile is read before all of it is there"
variants = ["tile", "swizzled", "matrices"]

[[mutant]]
name = "swizzle_of_next"
doc = "the tile is read by the swizzle of the next four rows"
variants = ["swizzled"]

[[mutant]]
name = "matrix_rows_in_order"
doc = "a lane takes the rows of a matrix of ldmatrix one after the other"
variants = ["matrices"]

[[mutant]]
name = "matrix_offset_u32"
doc = "the numbers before a matrix are counted in 32 bits without a sign"
variants = ["tile", "registers"]
*/

// reference: crates/operations/ops/state_transpose.rs
//
// x [B·H, K, V], y [B·H, V, K].

#include "lib/evict_last.cuh"
#include "lib/mma.cuh"

// The place of element (k, v) in a matrix of x, and in y.
__device__ size_t from(int k, int v, int K, int V) {
    return size_t(k) * V + v;
}
__device__ size_t to(int k, int v, int K, int V) {
#ifdef MUTANT_COPIED
    return from(k, v, K, V);
#else
    return size_t(v) * K + k;
#endif
}

// Whether `at`, of `all`, is covered by tiles of so many elements.
__device__ bool inside(int at, int all, int tile) {
#ifdef MUTANT_LAST_TILE_SKIPPED
    all -= all % tile;
#endif
    return at < all;
}

template <class E> __device__ void simple(const E *x, E *y, int B, int H, int K, int V) {
    long long at = blockIdx.x * 256ll + threadIdx.x;
    int k = at % K, v = at / K % V;
    long long matrix = at / K / V;
    if (matrix >= B * H)
        return;
    size_t first = size_t(matrix) * K * V;
    y[first + to(k, v, K, V)] = x[first + from(k, v, K, V)];
}

template <class E> __device__ void tile(const E *x, E *y, int K, int V) {
    // One more column avoids bank conflicts of a column of the tile.
    __shared__ E tile[32][33];
    int across = (V + 31) / 32, down = (K + 31) / 32;
    int v0 = blockIdx.x % across * 32, k0 = blockIdx.x / across % down * 32;
#ifdef MUTANT_MATRIX_OFFSET_U32
    size_t first = blockIdx.x / across / down * u32(K) * u32(V);
#else
    size_t first = size_t(blockIdx.x / across / down) * K * V;
#endif
    for (int i = threadIdx.y; i < 32; i += 8) {
        int k = k0 + i, v = v0 + threadIdx.x;
        if (inside(k, K, 32) && inside(v, V, 32))
            tile[i][threadIdx.x] = x[first + from(k, v, K, V)];
    }
#ifndef MUTANT_BARRIER_MISSING
    __syncthreads();
#endif
    for (int i = threadIdx.y; i < 32; i += 8) {
        int k = k0 + threadIdx.x, v = v0 + i;
        if (inside(k, K, 32) && inside(v, V, 32))
            y[first + to(k, v, K, V)] = tile[threadIdx.x][i];
    }
}

// Transposes 4 × 4 elements of 4 bytes.
__device__ void transpose(const u32 (&rows)[4][4], u32 (&cols)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            cols[i][j] = rows[j][i];
    }
}

// Transposes 8 × 8 elements of 2 bytes.
__device__ void transpose(const u32 (&rows)[8][4], u32 (&cols)[8][4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 halves = i % 2 ? 0x7632 : 0x5410;
#pragma unroll
        for (int j = 0; j < 4; j++)
            cols[i][j] = __byte_perm(rows[2 * j][i / 2], rows[2 * j + 1][i / 2], halves);
    }
}

// Each warp has 128 bytes of y and of x across. It handles y in two halves, so each thread transposes two blocks of N × N elements. A
// CTA is a warp, so that few states, too, are spread over all multiprocessors.
template <class E> __device__ void registers(const E *x, E *y, int K, int V) {
    constexpr int N = 16 / sizeof(E), WIDE = 8, DEEP = 4;
    int across = (V + WIDE * N - 1) / (WIDE * N), down = (K + 8 * N - 1) / (8 * N);
    int lane = threadIdx.x, matrix = blockIdx.x / across / down;
    int v = (blockIdx.x % across * WIDE + lane / DEEP) * N, k0 = (blockIdx.x / across % down * 8 + lane % DEEP) * N;
    if (!inside(v, V, WIDE * N))
        return;
#ifdef MUTANT_MATRIX_OFFSET_U32
    size_t first = u32(matrix) * u32(K) * u32(V);
#else
    size_t first = size_t(matrix) * K * V;
#endif
    u32 rows[2][N][4], cols[N][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int k = k0 + half * DEEP * N;
#pragma unroll
        for (int i = 0; i < N && inside(k, K, 8 * N); i++) {
            uint4 row = *reinterpret_cast<const uint4 *>(x + first + from(k + i, v, K, V));
            rows[half][i][0] = row.x, rows[half][i][1] = row.y, rows[half][i][2] = row.z, rows[half][i][3] = row.w;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int k = k0 + half * DEEP * N;
        if (!inside(k, K, 8 * N))
            return;
        transpose(rows[half], cols);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint4 col = {cols[i][0], cols[i][1], cols[i][2], cols[i][3]};
            *reinterpret_cast<uint4 *>(y + first + to(k, v + i, K, V)) = col;
        }
    }
}

// A tile of 64 × 64 elements for each CTA, in chunks of 16 bytes. Tiles below one another are of CTAs that follow one another.
template <class E, int THREADS> struct Tile {
    static constexpr int SIDE = 64, N = 16 / sizeof(E), CHUNKS = SIDE / N, EACH = SIDE * CHUNKS / THREADS;

    int k0, v0, K, V;
    size_t first; // of the matrix

    __device__ Tile(int K, int V) : K(K), V(V) {
        const int down = (K + SIDE - 1) / SIDE, across = (V + SIDE - 1) / SIDE;
        k0 = blockIdx.x % down * SIDE, v0 = blockIdx.x / down % across * SIDE;
        first = size_t(blockIdx.x / down / across) * K * V;
    }

    // Returns when all chunks are there, chunk c of row r at place(r, c).
    template <class Place> __device__ void load(uint4 (&tile)[SIDE][CHUNKS], const E *x, Place place) const {
        uint4 chunks[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = i * THREADS + threadIdx.x, k = k0 + at / CHUNKS, v = v0 + at % CHUNKS * N;
            if (inside(k, K, SIDE) && inside(v, V, SIDE))
                chunks[i] = ld_global_evict_last(reinterpret_cast<const uint4 *>(x + first + from(k, v, K, V)));
        }
#ifdef MUTANT_BARRIER_MISSING
        // Half of the warps are made late; by themselves they seldom are.
        if (threadIdx.x / 32 % 2)
            __nanosleep(100000);
#endif
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = i * THREADS + threadIdx.x, row = at / CHUNKS;
            tile[row][place(row, at % CHUNKS)] = chunks[i];
        }
#ifndef MUTANT_BARRIER_MISSING
        __syncthreads();
#endif
    }

    // Elements k and on of row v of y.
    __device__ void store(E *y, int k, int v, uint4 col) const {
        if (inside(k, K, SIDE) && inside(v, V, SIDE))
            *reinterpret_cast<uint4 *>(y + first + to(k, v, K, V)) = col;
    }
};

// Of elements of 4 bytes, chunk c of row r is kept at place c ^ (r / 4 % 8), so that threads which read four rows of one column each have
// at most two that share a bank. A thread has two chunks: with more on their way, more pages of memory are open, and the rate falls.
__device__ void swizzled(const u32 *x, u32 *y, int K, int V) {
    typedef Tile<u32, 512> Own;
    __shared__ uint4 tile[Own::SIDE][Own::CHUNKS];
    const Own own(K, V);
    own.load(tile, x, [](int row, int chunk) { return chunk ^ row / 4 % 8; });
#pragma unroll
    for (int i = 0; i < Own::EACH; i++) {
        const int at = i * 512 + threadIdx.x, col = at / Own::CHUNKS, rows = at % Own::CHUNKS;
#ifdef MUTANT_SWIZZLE_OF_NEXT
        const int place = col / 4 ^ (rows + 1) % 8;
#else
        const int place = col / 4 ^ rows % 8;
#endif
        const auto element = [&](int j) { return reinterpret_cast<const u32 *>(&tile[4 * rows + j][place])[col % 4]; };
        own.store(y, own.k0 + 4 * rows, own.v0 + col, {element(0), element(1), element(2), element(3)});
    }
}

// Of elements of 2 bytes, ldmatrix gives lane l elements 2 · (l % 4) and the next of column l / 4 of four matrices of 8 × 8. Row r of
// matrix m is row 8 · (r / 2) + 2 · m + r % 2 of 32, so that a lane has eight elements that follow one another in y. Chunk c of a row is
// kept at a place that differs in the rows that one matrix has, and these lie in different banks.
__device__ void matrices(const u16 *x, u16 *y, int K, int V) {
    typedef Tile<u16, 256> Own;
    __shared__ uint4 tile[Own::SIDE][Own::CHUNKS];
    const auto place = [](int row, int chunk) { return chunk ^ (row / 8 % 4 * 2 + row % 2); };
    const Own own(K, V);
    own.load(tile, x, place);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Own::EACH; i++) {
        const int at = i * 8 + warp, rows = at % 2 * 32, chunk = at / 2;
#ifdef MUTANT_MATRIX_ROWS_IN_ORDER
        const int row = rows + lane;
#else
        const int row = rows + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
#endif
        u32 col[4];
        ldmatrix_x4_trans(col, smem_address(&tile[row][place(row, chunk)]));
        own.store(y, own.k0 + rows + lane % 4 * 8, own.v0 + chunk * 8 + lane / 4, {col[0], col[1], col[2], col[3]});
    }
}

#define ENTRIES(dtype, E)                                                                              \
    KERNEL(state_transpose_simple_##dtype)(const E *x, E *y, int B, int H, int K, int V) {             \
        simple(x, y, B, H, K, V);                                                                      \
    }                                                                                                  \
    KERNEL(state_transpose_tile_##dtype)(const E *x, E *y, int K, int V) {                             \
        tile(x, y, K, V);                                                                              \
    }                                                                                                  \
    KERNEL(state_transpose_registers_##dtype, __launch_bounds__(32))(const E *x, E *y, int K, int V) { \
        registers(x, y, K, V);                                                                         \
    }

ENTRIES(f32, u32)
ENTRIES(bf16, u16)

KERNEL(state_transpose_swizzled_f32, __launch_bounds__(512))(const u32 *x, u32 *y, int K, int V) {
    swizzled(x, y, K, V);
}

KERNEL(state_transpose_matrices_bf16, __launch_bounds__(256))(const u16 *x, u16 *y, int K, int V) {
    matrices(x, y, K, V);
}
