/*
[[variant]]
name = "simple"
doc = "a thread for each word of the output, which looks for its group"

[[variant.launch]]
entry = "scale_layout_simple_{groups}"
grid = ["ceil(bytes, 1024)"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes / 512", "bytes % 512"]

[[variant]]
name = "columns"
doc = "16 bytes of four rows for each thread: their words are 16 bytes of each of four tiles"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_columns_{groups}"
grid = ["ceil(W, 256)", "min(4 * ceil(H, 128), 32768)", "ceil(H, 1048576)"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes / 512", "bytes % 512"]

[[variant]]
name = "rows"
doc = "the same for groups of rows: a block for the tiles of 128 rows, which come to L2 while their group is looked up"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_rows_{groups}"
grid = ["ceil(H, 128) + row_groups"]
block = ["min(2 * W, 448)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes / 512", "bytes % 512"]

[[mutant]]
name = "rows_in_order"
doc = "rows 4i … 4i + 3 side by side in a tile, not i, i + 32, i + 64 and i + 96"
variants = ["simple"]

[[mutant]]
name = "padding_kept"
doc = "columns that pad a tile hold the scales of the next group"
variants = ["simple", "columns"]

[[mutant]]
name = "tail_kept"
doc = "what comes after the last group is not written"

[[mutant]]
name = "last_rows_skipped"
doc = "a last tile of fewer than 128 rows is all padding"

[[mutant]]
name = "tile_offset_32"
doc = "the bytes before a tile are counted in 32 bits"

[[mutant]]
name = "tiles_beyond_grid"
doc = "rows beyond the second dimension of the grid are left out"
variants = ["columns"]

[[mutant]]
name = "starts_unpadded"
doc = "groups follow each other without the padding between"

[[mutant]]
name = "group_of_one_lost"
doc = "a group of a single row or column counts as empty"
variants = ["columns", "rows"]
*/

// reference: crates/operations/ops/scale_layout.rs
//
// x [H, W] bytes, 16-byte aligned; y: groups g of rows (m) or columns (k) up to ends[g], or all of it (plain), each a
// matrix of tiles of 128 rows × 4 columns. Tiles follow along a group's columns, then down; 16 bytes of a tile are 4 columns
// of rows i, i + 32, i + 64, i + 96. Padding, and what comes after the last group, is 0.

#include "lib/tma.cuh"

enum Groups { plain, m, k };

__device__ constexpr int ceil(int a, int b) {
    return (a + b - 1) / b;
}

// A rectangle of x with tiles of its own.
struct Part {
    int row0, row1, col0, col1;

    __device__ int across() const {
        return ceil(col1 - col0, 4);
    }
    __device__ int down() const {
        return ceil(row1 - row0, 128);
    }
};

template <Groups GROUPS> __device__ Part group(const int *ends, int g, int H, int W) {
    if (GROUPS == plain)
        return {0, H, 0, W};
    int begin = g > 0 ? ends[g - 1] : 0;
    return GROUPS == m ? Part{begin, ends[g], 0, W} : Part{0, H, begin, ends[g]};
}

// The row, of 128 in a tile, of number `i` of the four rows that share a 16-byte chunk.
__device__ int row_of(int chunk, int i) {
#ifdef MUTANT_ROWS_IN_ORDER
    return chunk * 4 + i;
#else
    return chunk + i * 32;
#endif
}

__device__ bool has_row(const Part &part, int row) {
#ifdef MUTANT_LAST_ROWS_SKIPPED
    return row < part.row1 && row - part.row0 < (part.row1 - part.row0) / 128 * 128;
#else
    return row < part.row1;
#endif
}

// The place of a tile of 512 bytes.
__device__ u8 *tile_at(u8 *y, int tile) {
#ifdef MUTANT_TILE_OFFSET_32
    return y + u32(tile) * 512;
#else
    return y + size_t(tile) * 512;
#endif
}

// How much y is: whole tiles, and bytes of one more.
struct Size {
    int tiles, rest;

    __device__ int bytes_of(int tile) const {
        return tile < tiles ? 512 : tile == tiles ? rest : 0;
    }
};

template <Groups GROUPS> __device__ void simple(const u8 *x, const int *ends, u8 *y, int H, int W, int G, Size size) {
    int tile = blockIdx.x * 2 + threadIdx.x / 128, at = threadIdx.x % 128 * 4;
    if (at >= size.bytes_of(tile))
        return;
    uchar4 word = {0, 0, 0, 0};
    int first = 0;
    for (int g = 0; g < G; g++) {
        Part part = group<GROUPS>(ends, g, H, W);
        int tiles = part.down() * part.across(), of_group = tile - first;
        if (tile < first + tiles) {
            int row = part.row0 + of_group / part.across() * 128 + row_of(at / 16, at % 16 / 4);
            int col = part.col0 + of_group % part.across() * 4;
            const u8 *from = x + size_t(row) * W + col;
            if (has_row(part, row)) {
#ifdef MUTANT_PADDING_KEPT
                part.col1 = W;
#endif
                word.x = from[0];
                if (col + 1 < part.col1)
                    word.y = from[1];
                if (col + 2 < part.col1)
                    word.z = from[2];
                if (col + 3 < part.col1)
                    word.w = from[3];
            }
            break;
        }
#ifdef MUTANT_STARTS_UNPADDED
        tiles -= (part.row1 - part.row0) % 128 || (part.col1 - part.col0) % 4 ? 1 : 0;
#endif
        first += tiles;
#ifdef MUTANT_TAIL_KEPT
        if (g == G - 1)
            return;
#endif
    }
    *reinterpret_cast<uchar4 *>(tile_at(y, tile) + at) = word;
}

__device__ int sum_up_to_lane(int x) {
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, x, step);
        if (threadIdx.x % 32 >= step)
            x += other;
    }
    return x;
}

// All threads of so many blocks together write zeros from tile `used` of y on.
__device__ void clear_tail(u8 *y, int used, Size size, int block, int blocks) {
#ifndef MUTANT_TAIL_KEPT
    for (int tile = used + block; tile <= size.tiles; tile += blocks)
        for (int at = threadIdx.x * 4; at < size.bytes_of(tile); at += blockDim.x * 4)
            *reinterpret_cast<u32 *>(tile_at(y, tile) + at) = 0;
#endif
}

// 32 groups, one for each lane, from `g0` on. A group begins in padded rows or columns, in units of so many, at `start`.
struct Groups32 {
    int begin, end, start;

    // `used` is the end of the groups before, and becomes the end of these.
    __device__ Groups32(const int *ends, int g0, int G, int unit, int &used) {
        int g = g0 + threadIdx.x % 32;
        begin = g > 0 && g < G ? ends[g - 1] : 0;
        end = g < G ? ends[g] : begin;
#ifdef MUTANT_GROUP_OF_ONE_LOST
        int units = end - begin == 1 ? 0 : ceil(end - begin, unit), after = used + sum_up_to_lane(units);
#else
        int units = ceil(end - begin, unit), after = used + sum_up_to_lane(units);
#endif
        used = __shfl_sync(~0u, after, 31);
        start = after - units;
#ifdef MUTANT_STARTS_UNPADDED
        start = begin / unit;
#endif
    }

    // Broadcasts the group of one lane.
    __device__ Groups32 of(int lane) const {
        Groups32 one = *this;
        one.begin = __shfl_sync(~0u, begin, lane);
        one.end = __shfl_sync(~0u, end, lane);
        one.start = __shfl_sync(~0u, start, lane);
        return one;
    }
};

// Two warps side by side have 128 columns each, of 8 of every 32 rows. CTAs partition x, not its groups.
template <Groups GROUPS>
__device__ __forceinline__ void columns(const u8 *x, const int *ends, u8 *y, int H, int W, int G, Size size) {
    // Where the second dimension of the grid is too small for all rows, the others are in the third.
    int quarter = blockIdx.z * gridDim.y + blockIdx.y;
    int lane = threadIdx.x % 32, chunk = lane % 8, warp = threadIdx.x / 32, tile = quarter / 4;
    int q0 = quarter % 4 * 8, q = q0 + warp / 2 * 4 + lane / 8, top = tile * 128 + q;
    int first = blockIdx.x * 256 + warp % 2 * 128, col = first + chunk * 16, next = min(first + 128, W);
    Part all = {0, H, 0, W};
#ifdef MUTANT_TILES_BEYOND_GRID
    if (blockIdx.z > 0)
        return;
#endif
    if (tile >= all.down())
        return;
    // Prefetches the CTA's 64 lines to L2 while groups are looked up.
    int line = threadIdx.x / 2, prefetch_row = tile * 128 + q0 + line % 8 + line / 8 * 32;
    int prefetch_col = blockIdx.x * 256 + threadIdx.x % 2 * 128;
    if (line < 32 && prefetch_row < H && prefetch_col < W)
        prefetch_l2(x + size_t(prefetch_row) * W + prefetch_col);

    // Whether a tile begins in these columns and ends after them.
    bool cut = false;
    for (int g = lane; GROUPS == k && g < G; g += 32) {
        int begin = g > 0 ? ends[g - 1] : 0;
        cut |= begin < next && ends[g] > next && (next - begin) % 4;
    }
    cut = __any_sync(~0u, cut);

    u32 words[4][5];
    const u8 *from = x + size_t(top) * W + col;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 piece = {0, 0, 0, 0};
        if (has_row(all, top + i * 32) && col < W)
            piece = __ldg(reinterpret_cast<const uint4 *>(from + i * 32 * W));
        words[i][0] = piece.x, words[i][1] = piece.y, words[i][2] = piece.z, words[i][3] = piece.w;
    }
    // The word after those: a neighbour's, or the one after the columns, which half the lanes load, one for each row of the warp.
    u32 after = 0;
    int row = top - lane / 8 + lane % 4 + lane / 4 * 32;
    if (cut && lane < 16 && has_row(all, row))
        after = __ldg(reinterpret_cast<const u32 *>(x + size_t(row) * W + next));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 near = __shfl_down_sync(~0u, words[i][0], 1, 8), far = __shfl_sync(~0u, after, i * 4 + lane / 8);
        words[i][4] = chunk == 7 ? far : near;
    }

    // Stores the tiles of columns `begin` to `end`; the first of these rows has this number.
    auto store_tiles = [&](int begin, int end, int number) {
        int skipped = (begin - col) & 3, at = col + skipped;
        u8 *to = tile_at(y, number) + (at - begin) * 128LL + q * 16;
#pragma unroll
        for (int j = 0; j < 4; j++, at += 4) {
            if (at < begin || at >= end)
                continue;
            u32 mask = end - at < 4 ? (1u << 8 * (end - at)) - 1 : ~0u;
#ifdef MUTANT_PADDING_KEPT
            mask = ~0u;
#endif
            auto word = [&](int i) { return __funnelshift_r(words[i][j], words[i][j + 1], skipped * 8) & mask; };
            *reinterpret_cast<uint4 *>(to + j * 512) = {word(0), word(1), word(2), word(3)};
        }
    };
    int used = 0;
    if (GROUPS == plain) {
        used = all.across();
        store_tiles(0, W, tile * used);
    }
#pragma unroll 1
    for (int g0 = 0; GROUPS == k && g0 < G; g0 += 32) {
        Groups32 groups(ends, g0, G, 4, used);
        bool here = groups.begin < next && groups.end > first && groups.begin < groups.end;
#pragma unroll 1
        for (u32 left = __ballot_sync(~0u, here); left; left &= left - 1) {
            Groups32 group = groups.of(__ffs(left) - 1);
            Part part = {0, H, group.begin, group.end};
            store_tiles(group.begin, group.end, group.start * part.down() + tile * part.across());
        }
    }
    clear_tail(y, used * all.down(), size, quarter * gridDim.x + blockIdx.x, 4 * all.down() * gridDim.x);
}

// The tiles of 128 rows.
__device__ __forceinline__ void rows(const u8 *x, const int *ends, u8 *y, int H, int W, int G, Size size) {
    int tile = blockIdx.x, used = 0, top = 0, across = ceil(W, 4), chunks = W / 16;
    // Prefetches rows of this CTA, or of one close by: the padding of groups before is not known yet.
    if (threadIdx.x == 0 && tile * 128 < H)
        tma_prefetch_l2(x + size_t(tile) * 128 * W, min(H - tile * 128, 128) * W);
    Part part = {};
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += 32) {
        int before = used;
        Groups32 groups(ends, g0, G, 128, used);
        if (tile < before || tile >= used)
            continue;
        u32 started = __ballot_sync(~0u, groups.start <= tile && groups.begin < groups.end);
        groups = groups.of(31 - __clz(started));
        part = {groups.begin, groups.end, 0, W};
        top = groups.begin + (tile - groups.start) * 128;
    }
#pragma unroll 1
    for (int at = threadIdx.x; tile < used && at < 32 * chunks; at += blockDim.x) {
        // 16 columns of 8 rows, then the next 16 of them.
        int chunk = at / 8 % chunks, q = at / 8 / chunks * 8 + at % 8;
        const u8 *from = x + size_t(top + q) * W + chunk * 16;
        uint4 piece[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            piece[i] = uint4{0, 0, 0, 0};
            if (has_row(part, top + q + i * 32))
                piece[i] = __ldg(reinterpret_cast<const uint4 *>(from + i * 32 * W));
        }
        uint4 *to = reinterpret_cast<uint4 *>(tile_at(y, tile * across + chunk * 4)) + q;
        to[0] = {piece[0].x, piece[1].x, piece[2].x, piece[3].x};
        to[32] = {piece[0].y, piece[1].y, piece[2].y, piece[3].y};
        to[64] = {piece[0].z, piece[1].z, piece[2].z, piece[3].z};
        to[96] = {piece[0].w, piece[1].w, piece[2].w, piece[3].w};
    }
    clear_tail(y, used * across, size, blockIdx.x, gridDim.x);
}

#define ENTRY(variant, groups, threads, ...)                                                                                 \
    KERNEL(scale_layout_##variant##_##groups, __launch_bounds__(threads))(const u8 *x, const int *ends, u8 *y, int H, int W, \
                                                                          int G, int tiles, int rest) {                      \
        __VA_ARGS__(x, ends, y, H, W, G, Size{tiles, rest});                                                                 \
    }

ENTRY(simple, plain, 256, simple<plain>)
ENTRY(simple, m, 256, simple<m>)
ENTRY(simple, k, 256, simple<k>)
ENTRY(columns, plain, 128, columns<plain>)
ENTRY(columns, k, 128, columns<k>)
ENTRY(rows, m, 448, rows)
