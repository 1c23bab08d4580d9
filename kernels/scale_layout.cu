/*
[[variant]]
name = "simple"
doc = "a thread for each word of the output, which looks for its group"

[[variant.launch]]
entry = "scale_layout_simple_{groups}"
grid = ["ceil(bytes, 1024)"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "registers"
doc = "16 bytes of 4 rows for each thread, their words transposed: a warp reads 64 bytes of 8 rows and writes 128 of 16 tiles"
needs = ["H * W % 16 == 0"]

[[variant.launch]]
entry = "scale_layout_registers_{groups}"
grid = ["ceil(W, 64) + col_groups", "ceil(H, 128) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "staged"
doc = "32 rows × 128 bytes of a warp pass through shared memory: it reads 128 bytes of a row and writes 128 of a tile at a time"

[[variant.launch]]
entry = "scale_layout_staged_{groups}"
grid = ["ceil(W, 128) + col_groups", "ceil(H, 128) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "staged_prefetch"
doc = "the same; the matrix is on its way to L2 before the groups are known"

[[variant.launch]]
entry = "scale_layout_staged_prefetch_{groups}"
grid = ["ceil(W, 128) + col_groups", "ceil(H, 128) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "staged2"
doc = "trial: staged, two pieces for each block"

[[variant.launch]]
entry = "scale_layout_staged_{groups}"
grid = ["ceil(W, 128 + 128 * (col_groups == 0)) + col_groups", "ceil(H, 128 + 128 * (col_groups > 0)) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "staged2_prefetch"
doc = "trial: staged, two pieces for each block"

[[variant.launch]]
entry = "scale_layout_staged_prefetch_{groups}"
grid = ["ceil(W, 128 + 128 * (col_groups == 0)) + col_groups", "ceil(H, 128 + 128 * (col_groups > 0)) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[mutant]]
name = "rows_in_order"
doc = "rows 4i … 4i + 3 side by side in a tile, not i, i + 32, i + 64 and i + 96"
variants = ["simple"]

[[mutant]]
name = "padding_kept"
doc = "columns that pad a tile hold the scales of the next group"

[[mutant]]
name = "tail_kept"
doc = "what comes after the last group is not written"

[[mutant]]
name = "last_rows_skipped"
doc = "a last tile of fewer than 128 rows is all padding"

[[mutant]]
name = "starts_unpadded"
doc = "groups follow each other without the padding between"
*/

// x [H, W] bytes, 16-byte aligned; y: groups g of rows (m) or columns (k) up to ends[g], or all of it (plain), each a
// matrix of tiles of 128 rows × 4 columns. Tiles follow along a group's columns, then down; 16 bytes of a tile are 4 columns
// of rows i, i + 32, i + 64, i + 96. Padding, and what comes after the last group, is 0.

#include "common.cuh"

enum Groups { plain, m, k };

__device__ constexpr int ceil(int a, int b) { return (a + b - 1) / b; }

// A rectangle of x with tiles of its own, the first of which is tile `at` of y.
struct Part {
    int row0, row1, col0, col1;
    size_t at;

    __device__ int across() const { return ceil(col1 - col0, 4); }
    __device__ int down() const { return ceil(row1 - row0, 128); }
};

// Group `g`, without `at`.
template <Groups GROUPS>
__device__ Part group(const int* ends, int g, int H, int W) {
    if (GROUPS == plain) return {0, H, 0, W, 0};
    int begin = g > 0 ? ends[g - 1] : 0;
    return GROUPS == m ? Part{begin, ends[g], 0, W, 0} : Part{0, H, begin, ends[g], 0};
}

// Which row of a tile's 128 is number `i` of those that share 16 bytes.
__device__ int row_of(int sixteen, int i) {
#ifdef MUTANT_ROWS_IN_ORDER
    return sixteen * 4 + i;
#else
    return sixteen + i * 32;
#endif
}

__device__ bool has_row(const Part& part, int row) {
#ifdef MUTANT_LAST_ROWS_SKIPPED
    return row < part.row1 && row - part.row0 < (part.row1 - part.row0) / 128 * 128;
#else
    return row < part.row1;
#endif
}

template <Groups GROUPS>
__device__ void simple(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    int at = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (at >= bytes) return;
    uchar4 word = {0, 0, 0, 0};
    int first = 0;
    for (int g = 0; g < G; g++) {
        Part part = group<GROUPS>(ends, g, H, W);
        int size = part.down() * part.across() * 512, tile = (at - first) / 512;
        if (at < first + size) {
            int row = part.row0 + tile / part.across() * 128 + row_of(at % 512 / 16, at % 16 / 4);
            int col = part.col0 + tile % part.across() * 4;
            const u8* from = x + size_t(row) * W + col;
            if (has_row(part, row)) {
#ifdef MUTANT_PADDING_KEPT
                part.col1 = W;
#endif
                word.x = from[0];
                if (col + 1 < part.col1) word.y = from[1];
                if (col + 2 < part.col1) word.z = from[2];
                if (col + 3 < part.col1) word.w = from[3];
            }
            break;
        }
#ifdef MUTANT_STARTS_UNPADDED
        size -= (part.row1 - part.row0) % 128 || (part.col1 - part.col0) % 4 ? 512 : 0;
#endif
        first += size;
#ifdef MUTANT_TAIL_KEPT
        if (g == G - 1) return;
#endif
    }
    *reinterpret_cast<uchar4*>(y + at) = word;
}

__device__ int sum_up_to_lane(int x) {
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, x, step);
        if (threadIdx.x % 32 >= step) x += other;
    }
    return x;
}

// 128 rows or so many columns of a group, or what there is of them.
struct Piece {
    Part part;
    // Which piece of the group; negative if there is none.
    int index;
    // Tiles of all groups.
    size_t tiles;
};

// Piece number `piece` of all groups. A lane looks at a group, a warp at 32 at a time.
template <Groups GROUPS, int WIDTH>
__device__ Piece find(const int* ends, int H, int W, int G, int piece) {
    if (GROUPS == plain) return {{0, H, 0, W, 0}, piece, size_t(ceil(H, 128)) * ceil(W, 4)};
    constexpr int PIECE = GROUPS == m ? 128 : WIDTH, PAD = GROUPS == m ? 128 : 4;
    // Tiles side by side in the other dimension.
    size_t others = GROUPS == m ? ceil(W, 4) : ceil(H, 128);
    int begin = 0, size = 0, index = -1, pieces = 0, start = 0, pads = 0;
    for (int g0 = 0; g0 < G; g0 += 32) {
        int g = g0 + threadIdx.x % 32;
        int my_begin = g > 0 && g < G ? ends[g - 1] : 0, my_size = g < G ? ends[g] - my_begin : 0;
        int my_pieces = pieces + sum_up_to_lane(ceil(my_size, PIECE));
        int my_pads = PAD == PIECE ? my_pieces : pads + sum_up_to_lane(ceil(my_size, PAD));
        u32 after = __ballot_sync(~0u, piece < my_pieces);
        if (index < 0 && after) {
            int lane = __ffs(after) - 1;
            begin = __shfl_sync(~0u, my_begin, lane);
            size = __shfl_sync(~0u, my_size, lane);
            index = piece - __shfl_sync(~0u, my_pieces - ceil(my_size, PIECE), lane);
#ifdef MUTANT_STARTS_UNPADDED
            start = begin / PAD;
#else
            start = __shfl_sync(~0u, my_pads - ceil(my_size, PAD), lane);
#endif
        }
        pieces = __shfl_sync(~0u, my_pieces, 31);
        pads = __shfl_sync(~0u, my_pads, 31);
    }
    Part part = GROUPS == m ? Part{begin, begin + size, 0, W, start * others} : Part{0, H, begin, begin + size, start * others};
    return {part, index, pads * others};
}

// Zeros from byte `at` of y on, a share of them for each thread.
__device__ void clear_tail(u8* y, size_t at, int bytes) {
#ifndef MUTANT_TAIL_KEPT
    int threads = gridDim.x * gridDim.y * 128, thread = (blockIdx.y * gridDim.x + blockIdx.x) * 128 + threadIdx.x;
    for (at += thread * 4; at < bytes; at += threads * 4) *reinterpret_cast<u32*>(y + at) = 0;
#endif
}

// The first `count` bytes of `a` and `b` from byte `shift` on, then zeros.
__device__ void cut(const uint4& a, const uint4& b, int shift, int count, u32 (&words)[4]) {
    u32 all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (shift) {
#pragma unroll
        for (int i = 0; i < 6; i++) all[i] = shift & 8 ? all[i + 2] : all[i];
#pragma unroll
        for (int i = 0; i < 5; i++) all[i] = shift & 4 ? all[i + 1] : all[i];
#pragma unroll
        for (int i = 0; i < 4; i++) all[i] = __funnelshift_r(all[i], all[i + 1], shift % 4 * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int left = count - 4 * i;
#ifdef MUTANT_PADDING_KEPT
        left = 4;
#endif
        words[i] = left <= 0 ? 0 : left < 4 ? all[i] & ((1 << 8 * left) - 1) : all[i];
    }
}

// 128 rows × 64 columns of a part. A thread has 16 columns of four rows that share 16 bytes of each of four tiles, and
// are equally far from a multiple of 16 bytes, as they are 32 rows apart.
__device__ void move(const u8* x, u8* y, int W, const Part& part, int down, int across) {
    int sixteen = threadIdx.x / 32 * 8 + threadIdx.x % 8, tile = across * 16 + threadIdx.x % 32 / 8 * 4;
    int row = part.row0 + down * 128 + sixteen, col = part.col0 + tile * 4, count = min(16, part.col1 - col);
    if (count <= 0) return;
    size_t at = size_t(row) * W + col;
    int shift = at % 16;
    uint4 a[4] = {}, b[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!has_row(part, row + i * 32)) continue;
        const uint4* from = reinterpret_cast<const uint4*>(x + at - shift) + size_t(i) * 2 * W;
        a[i] = from[0];
        if (shift + count > 16) b[i] = from[1];
    }
    u32 words[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) cut(a[i], b[i], shift, count, words[i]);
    y += (part.at + size_t(down) * part.across() + tile) * 512 + sixteen * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 all = {words[0][i], words[1][i], words[2][i], words[3][i]};
        if (4 * i < count) *reinterpret_cast<uint4*>(y + i * 512) = all;
    }
}

// Block (piece of columns, piece of rows).
template <Groups GROUPS>
__device__ void registers(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    Piece piece = find<GROUPS, 64>(ends, H, W, G, GROUPS == k ? blockIdx.x : blockIdx.y);
    int down = GROUPS == k ? blockIdx.y : piece.index, across = GROUPS == k ? piece.index : blockIdx.x;
    if (piece.index >= 0) move(x, y, W, piece.part, down, across);
    clear_tail(y, piece.tiles * 512, bytes);
}

// 16 bytes each of four rows that begin `from` words and some bits after `rows`, which `next` follows.
template <int from>
__device__ __forceinline__ void advance(uint4 (&rows)[4], const uint4 (&next)[4], int bits) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 all[8] = {rows[i].x, rows[i].y, rows[i].z, rows[i].w, next[i].x, next[i].y, next[i].z, next[i].w};
        auto word = [&](int at) { return __funnelshift_r(all[from + at], all[from + at + 1], bits); };
        rows[i] = {word(0), word(1), word(2), word(3)};
    }
}

__device__ __forceinline__ void skip(uint4 (&rows)[4], const uint4 (&next)[4], int bytes) {
    int bits = bytes % 4 * 8;
    switch (bytes / 4) {
    case 0: return advance<0>(rows, next, bits);
    case 1: return advance<1>(rows, next, bits);
    case 2: return advance<2>(rows, next, bits);
    default: return advance<3>(rows, next, bits);
    }
}

// Rows are read from a multiple of 16 bytes on, so 144 bytes hold 128. It also puts 16 bytes of 8 rows into all banks.
constexpr int PITCH = 9;

// 16 bytes of x to shared memory, of which those from `count` on are 0 and not read.
__device__ __forceinline__ void copy(uint4* to, const u8* from, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(count));
}
__device__ __forceinline__ void copy(uint4* to, const u8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}

// A warp's 32 rows × 128 columns of x to shared memory: rows `top` to `top` + 8, and those 32, 64 and 96 below. 8 lanes
// take a row.
__device__ __forceinline__ void fetch(uint4* stage, const u8* x, int W, const Part& part, int top, int col) {
    int lane = threadIdx.x % 32, chunk = lane % 8, cols = part.col1 - col;
#ifdef MUTANT_PADDING_KEPT
    cols = W - col;
#endif
#pragma unroll
    for (int q = lane / 8; q < 8; q += 4) {
        const u8* from = x + size_t(top + q) * W + col;
        int shift = size_t(from) % 16, count = min(max(cols + shift - chunk * 16, 0), 16);
        from += chunk * 16 - shift;
        uint4* to = stage + q * PITCH + chunk;
        if (top + q + 96 < part.row1 && count == 16) {
#pragma unroll
            for (int i = 0; i < 4; i++) copy(to + i * 8 * PITCH, from + size_t(i) * 32 * W);
        } else if (count + shift > 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                copy(to + i * 8 * PITCH, from + size_t(i) * 32 * W, has_row(part, top + q + i * 32) ? count : 0);
            }
        }
        if (shift && chunk == 7) {
            count = min(max(cols + shift - 128, 0), 16);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                copy(to + i * 8 * PITCH + 1, from + size_t(i) * 32 * W + 16, has_row(part, top + q + i * 32) ? count : 0);
            }
        }
    }
}

// What `fetch` left, to tiles: the first of them begins at `y`. 8 lanes take 128 bytes of a tile.
__device__ __forceinline__ void deliver(const uint4* stage, u8* y, int shift, int cols) {
    int lane = threadIdx.x % 32, q = lane % 8;
#pragma unroll
    for (int chunk = lane / 8; chunk < 8; chunk += 4) {
        int count = cols - chunk * 16;
        if (count <= 0) return;
        const uint4* from = stage + q * PITCH + chunk;
        uint4 rows[4], next[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rows[i] = from[i * 8 * PITCH];
        if (shift) {
#pragma unroll
            for (int i = 0; i < 4; i++) next[i] = from[i * 8 * PITCH + 1];
            skip(rows, next, shift);
        }
        uint4* to = reinterpret_cast<uint4*>(y + chunk * 2048 + q * 16);
        to[0] = {rows[0].x, rows[1].x, rows[2].x, rows[3].x};
        if (count > 4) to[32] = {rows[0].y, rows[1].y, rows[2].y, rows[3].y};
        if (count > 8) to[64] = {rows[0].z, rows[1].z, rows[2].z, rows[3].z};
        if (count > 12) to[96] = {rows[0].w, rows[1].w, rows[2].w, rows[3].w};
    }
}

// Block (piece of columns, piece of rows); where groups do not need a block of its own for each piece, it takes several.
template <Groups GROUPS, bool PREFETCH>
__device__ __forceinline__ void staged(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    __shared__ uint4 room[4][32 * PITCH];
    int piece_first = GROUPS == k ? blockIdx.x : blockIdx.y, other_first = GROUPS == k ? blockIdx.y : blockIdx.x;
    int others = GROUPS == k ? ceil(H, 128) : ceil(W, 128), step = GROUPS == k ? gridDim.y : gridDim.x;
    if (PREFETCH) {
        // No piece begins later in x than without groups, and few begin much earlier.
        for (int other = other_first; other < others; other += step) {
            int row = (GROUPS == k ? other : piece_first) * 128 + threadIdx.x;
            int col = (GROUPS == k ? piece_first : other) * 128;
            if (row < H && col < W) asm volatile("prefetch.global.L2 [%0];" ::"l"(x + size_t(row) * W + col));
        }
    }
    Piece piece = find<GROUPS, 128>(ends, H, W, G, piece_first);
    clear_tail(y, piece.tiles * 512, bytes);
    if (piece.index < 0) return;
    const Part& part = piece.part;
    int warp = threadIdx.x / 32;
    for (int other = other_first; other < others; other += step) {
        int down = GROUPS == k ? other : piece.index, across = GROUPS == k ? piece.index : other;
        int top = part.row0 + down * 128 + warp * 8, col = part.col0 + across * 128, cols = part.col1 - col;
        fetch(room[warp], x, W, part, top, col);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        int shift = (size_t(x) + size_t(top + threadIdx.x % 8) * W + col) % 16;
        size_t tile = part.at + size_t(down) * part.across() + across * 32;
        deliver(room[warp], y + tile * 512 + warp * 128, shift, cols);
        __syncwarp();
    }
}

#define ENTRY(variant, groups, bounds, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__ bounds scale_layout_##variant##_##groups(                             \
        const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {                                         \
        __VA_ARGS__(x, ends, y, H, W, G, bytes);                                                                       \
    }
#define ENTRIES(groups)                                                                                                \
    ENTRY(simple, groups, (256), simple<groups>)                                                                       \
    ENTRY(registers, groups, (128), registers<groups>)                                                                 \
    ENTRY(staged, groups, (128, 8), staged<groups, false>)                                                            \
    ENTRY(staged_prefetch, groups, (128, 8), staged<groups, true>)

ENTRIES(plain)
ENTRIES(m)
ENTRIES(k)
