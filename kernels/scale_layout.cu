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
name = "staged"
doc = "32 rows × 128 bytes of a warp pass through shared memory: it reads 128 bytes of a row, writes 128 of a tile"
needs = ["col_groups == 0 || W % 16 == 0"]

[[variant.launch]]
entry = "scale_layout_staged_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "first"
doc = "staged, and what is read leaves L2 first, so that less is driven out of it"
needs = ["col_groups == 0 || W % 16 == 0"]

[[variant.launch]]
entry = "scale_layout_first_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) + row_groups"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "eager"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_eager_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128)"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c200t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c200t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c200f"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c200f_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c210t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c210t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c210f"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c210f_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c201t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c201t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c100t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c100t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c100f"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c100f_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c110t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c110t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c110f"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c110f_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "c101t"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_c101t_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "m1"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_m1_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(2 * W, 512)"]

args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "m1b"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_m1b_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(2 * W, 448)"]

args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "m2"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_m2_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]

args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "m2b"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_m2b_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]

args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "mt"
doc = "candidate"
needs = ["W % 16 == 0 && W <= 1024", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_mt_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
shared = "128 * W"
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "mt0"
doc = "candidate"
needs = ["W % 16 == 0 && W <= 1024", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_mt0_{groups}"
grid = [1, "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
shared = "128 * W"
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "probe100"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe100"
grid = ["ceil(bytes, 4096)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe110"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe110"
grid = ["ceil(bytes, 4096)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe101"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe101"
grid = ["ceil(bytes, 4096)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe200"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe200"
grid = ["ceil(bytes, 8192)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe210"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe210"
grid = ["ceil(bytes, 8192)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe201"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe201"
grid = ["ceil(bytes, 8192)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe400"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe400"
grid = ["ceil(bytes, 16384)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe410"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe410"
grid = ["ceil(bytes, 16384)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe401"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe401"
grid = ["ceil(bytes, 16384)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe800"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe800"
grid = ["ceil(bytes, 32768)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe810"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe810"
grid = ["ceil(bytes, 32768)"]
block = [256]
args = ["x", "y", "bytes"]

[[variant]]
name = "probe801"
doc = "probe"
needs = ["W % 16 == 0", "row_groups == 0", "col_groups == 0", "bytes == H * W", "bytes % 32768 == 0"]

[[variant.launch]]
entry = "scale_layout_probe801"
grid = ["ceil(bytes, 32768)"]
block = [256]
args = ["x", "y", "bytes"]

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

// A rectangle of x with tiles of its own.
struct Part {
    int row0, row1, col0, col1;

    __device__ int across() const { return ceil(col1 - col0, 4); }
    __device__ int down() const { return ceil(row1 - row0, 128); }
};

template <Groups GROUPS>
__device__ Part group(const int* ends, int g, int H, int W) {
    if (GROUPS == plain) return {0, H, 0, W};
    int begin = g > 0 ? ends[g - 1] : 0;
    return GROUPS == m ? Part{begin, ends[g], 0, W} : Part{0, H, begin, ends[g]};
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

// Zeros from byte `at` of y on, a share of them for each thread.
__device__ void clear_tail(u8* y, size_t at, int bytes) {
#ifndef MUTANT_TAIL_KEPT
    int threads = gridDim.x * gridDim.y * blockDim.x, thread = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    for (at += thread * 4; at < bytes; at += threads * 4) *reinterpret_cast<u32*>(y + at) = 0;
#endif
}

// 32 groups, one for each lane, from `g0` on. A group begins in padded rows or columns, in units of so many, at `start`.
struct Groups32 {
    int begin, end, start;

    // `used` is where the groups before begin, and becomes where those after do.
    __device__ Groups32(const int* ends, int g0, int G, int unit, int& used) {
        int g = g0 + threadIdx.x % 32;
        begin = g > 0 && g < G ? ends[g - 1] : 0;
        end = g < G ? ends[g] : begin;
        int units = ceil(end - begin, unit), after = used + sum_up_to_lane(units);
        used = __shfl_sync(~0u, after, 31);
        start = after - units;
#ifdef MUTANT_STARTS_UNPADDED
        start = begin / unit;
#endif
    }

    // That of one lane.
    __device__ Groups32 of(int lane) const {
        Groups32 one = *this;
        one.begin = __shfl_sync(~0u, begin, lane);
        one.end = __shfl_sync(~0u, end, lane);
        one.start = __shfl_sync(~0u, start, lane);
        return one;
    }
};

// Rows are read from a multiple of 16 bytes on, so 144 bytes hold 128. With it, words of 8 rows are in 8 × 4 banks.
constexpr int PITCH = 144;

// What is read once is the first to leave L2, so that it does not drive out what is to be written.
template <bool FIRST>
__device__ __forceinline__ u64 policy() {
    u64 policy;
    if (FIRST) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 16 bytes of x to shared memory, of which those from `count` on are 0 and not read.
__device__ __forceinline__ void copy(u8* to, const u8* from, int count, u64 hint) {
    u32 shared = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared), "l"(from), "r"(count),
                 "l"(hint));
}
__device__ __forceinline__ void copy(u8* to, const u8* from, u64 hint) {
    u32 shared = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "l"(hint));
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

// A warp's 32 rows × 128 columns of a part to shared memory: rows `top` to `top` + 8, and those 32, 64 and 96 below. 8
// lanes take a row.
__device__ __forceinline__ void fetch(u8* stage, const u8* x, int W, const Part& part, int top, int col, u64 hint) {
    int lane = threadIdx.x % 32, chunk = lane % 8;
#pragma unroll
    for (int q = lane / 8; q < 8; q += 4) {
        const u8* from = x + size_t(top + q) * W + col;
        u8* to = stage + q * PITCH + chunk * 16;
        int shift = size_t(from) % 16, left = part.col1 - col + shift - chunk * 16;
        from += chunk * 16 - shift;
        auto some = [&](int i, int left) { return has_row(part, top + q + i * 32) ? min(max(left, 0), 16) : 0; };
        if (top + q + 96 < part.row1 && left >= 16) {
#pragma unroll
            for (int i = 0; i < 4; i++) copy(to + i * 8 * PITCH, from + size_t(i) * 32 * W, hint);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) copy(to + i * 8 * PITCH, from + size_t(i) * 32 * W, some(i, left), hint);
        }
        if (shift && chunk == 7) {
            to += 16, from += 16, left -= 16;
#pragma unroll
            for (int i = 0; i < 4; i++) copy(to + i * 8 * PITCH, from + size_t(i) * 32 * W, some(i, left), hint);
        }
    }
}

// What `fetch` left of a part, to its tiles: those that begin in the 128 columns from `col` on. `y` is where the first tile
// of these rows is, `shift` how far from a multiple of 16 bytes the row began. 8 lanes take 128 bytes of a tile.
__device__ __forceinline__ void deliver(const u8* stage, u8* y, const Part& part, int col, int shift) {
    int lane = threadIdx.x % 32, q = lane % 8, skipped = max(col - part.col0, 0);
    int last = ceil(min(part.col1, col + 128) - part.col0, 4);
#pragma unroll 2
    for (int tile = ceil(skipped, 4) + lane / 8; tile < last; tile += 4) {
        int at = part.col0 + tile * 4 - col + shift, bits = at % 4 * 8, count = part.col1 - part.col0 - tile * 4;
        const u32* from = reinterpret_cast<const u32*>(stage + q * PITCH + at / 4 * 4);
        u32 mask = count < 4 ? (1u << 8 * count) - 1 : ~0u;
#ifdef MUTANT_PADDING_KEPT
        mask = ~0u;
#endif
        u32 rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rows[i] = from[i * 2 * PITCH];
            if (bits) rows[i] = __funnelshift_r(rows[i], from[i * 2 * PITCH + 1], bits);
            rows[i] &= mask;
        }
        *reinterpret_cast<uint4*>(y + tile * 512 + q * 16) = {rows[0], rows[1], rows[2], rows[3]};
    }
}

// Block (128 columns, 128 rows of x or of a group of rows).
template <Groups GROUPS, bool FIRST>
__device__ __forceinline__ void staged(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    alignas(16) __shared__ u8 room[4][32 * PITCH];
    int warp = threadIdx.x / 32, col = blockIdx.x * 128, tile = blockIdx.y, down = tile, used = ceil(H, 128);
    Part part = {0, H, 0, W};
    if (GROUPS == m) {
        used = 0;
        for (int g0 = 0; g0 < G; g0 += 32) {
            int before = used;
            Groups32 groups(ends, g0, G, 128, used);
            if (tile < before || tile >= used) continue;
            u32 upto = __ballot_sync(~0u, groups.start <= tile && groups.begin < groups.end);
            groups = groups.of(31 - __clz(upto));
            part.row0 = groups.begin, part.row1 = groups.end, down = tile - groups.start;
        }
    }
    if (tile < used) {
        int top = part.row0 + down * 128 + warp * 8;
        fetch(room[warp], x, W, part, top, col, policy<FIRST>());
        wait_for_copies();
        int shift = (size_t(x) + size_t(top + threadIdx.x % 8) * W + col) % 16;
        deliver(room[warp], y + size_t(tile) * part.across() * 512 + warp * 128, part, col, shift);
    }
    clear_tail(y, size_t(used) * part.across() * 512, bytes);
}

// The same with groups of columns. Blocks are cut as x is, so that what they read does not wait for the ends of groups.
template <bool FIRST, bool EAGER>
__device__ __forceinline__ void columns(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    alignas(16) __shared__ u8 room[4][32 * PITCH];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = blockIdx.x * 128, next = col + 128, used = 0;
    int top = blockIdx.y * 128 + warp * 8;
    u8* stage = room[warp];
    Part all = {0, H, 0, W};
    u64 hint = policy<FIRST>();
    fetch(stage, x, W, all, top, col, hint);
    if (EAGER && next < W) {
        int row = top + lane / 8 * 32 + lane % 8;
        copy(stage + lane * PITCH + 128, x + size_t(row) * W + next, has_row(all, row) ? 16 : 0, hint);
    }
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += 32) {
        Groups32 groups(ends, g0, G, 4, used);
        bool here = groups.begin < next && groups.end > col && groups.begin < groups.end;
        if (!EAGER && __any_sync(~0u, here && groups.end > next && (next - groups.begin) % 4)) {
            // A tile begins in these columns and ends after them.
            int row = top + lane / 8 * 32 + lane % 8;
            copy(stage + lane * PITCH + 128, x + size_t(row) * W + next, has_row(all, row) ? 16 : 0, hint);
        }
        wait_for_copies();
        for (u32 left = __ballot_sync(~0u, here); left; left &= left - 1) {
            Groups32 group = groups.of(__ffs(left) - 1);
            Part part = {0, H, group.begin, group.end};
            size_t tile = size_t(group.start) * part.down() + size_t(blockIdx.y) * part.across();
            deliver(stage, y + tile * 512 + warp * 128, part, col, 0);
        }
    }
    clear_tail(y, size_t(used) * all.down() * 512, bytes);
}


// ---- pieces

template <int LOAD> __device__ __forceinline__ uint4 get(const u8* from) {
    uint4 out;
    if (LOAD == 1) return load_once((const uint4*)from);
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}
template <int STORE> __device__ __forceinline__ void put(u8* to, uint4 x) {
    if (STORE == 0) *(uint4*)to = x;
    else __stcs((uint4*)to, x);
}

// 128 columns of a block; a thread has 16 of them of each of four rows.
template <Groups GROUPS, int THREADS, int LOAD, int STORE, bool EAGER>
__device__ __forceinline__ void column_pieces(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    constexpr int PARTS = 256 / THREADS;
    int lane = threadIdx.x % 32, chunk = lane % 8, tile = blockIdx.y / PARTS;
    int q = blockIdx.y % PARTS * (THREADS / 8) + threadIdx.x / 8, top = tile * 128 + q;
    int col0 = blockIdx.x * 128, col = col0 + chunk * 16, next = min(col0 + 128, W);
    uint4 piece[4];
    u32 after = 0;
    Part all = {0, H, 0, W};
    const u8* from = x + size_t(top) * W + col;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        piece[i] = uint4{0, 0, 0, 0};
        if (has_row(all, top + i * 32) && col < W) piece[i] = get<LOAD>(from + size_t(i * 32) * W);
    }
    // The four bytes that follow the 128 in each of the warp's 16 rows: row lane / 4 × 32, lane % 4.
    auto load_after = [&] {
        int row = top - lane / 8 + lane % 4 + lane / 4 * 32;
        if (lane < 16 && next < W && has_row(all, row)) after = __ldg((const u32*)(x + size_t(row) * W + next));
    };
    if (GROUPS == k && EAGER) load_after();
    auto give = [&](int begin, int end, size_t tiles) {
        int skip = (begin - col) & 3, bits = skip * 8;
        u32 words[4][5];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i][0] = piece[i].x, words[i][1] = piece[i].y, words[i][2] = piece[i].z, words[i][3] = piece[i].w;
        if (GROUPS == k && bits) {
            if (!EAGER) load_after();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 near = __shfl_down_sync(~0u, piece[i].x, 1, 8), far = __shfl_sync(~0u, after, i * 4 + lane / 8);
                words[i][4] = chunk == 7 ? far : near;
#pragma unroll
                for (int j = 0; j < 4; j++) words[i][j] = __funnelshift_r(words[i][j], words[i][j + 1], bits);
            }
        }
        u8* to = y + q * 16;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = col + j * 4 + skip, count = end - at;
            if (at < begin || count <= 0) continue;
            u32 mask = count < 4 ? (1u << 8 * count) - 1 : ~0u;
#ifdef MUTANT_PADDING_KEPT
            mask = ~0u;
#endif
            put<STORE>(to + (tiles + (at - begin) / 4) * 512,
                       uint4{words[0][j] & mask, words[1][j] & mask, words[2][j] & mask, words[3][j] & mask});
        }
    };
    if (GROUPS == plain) {
        give(0, W, size_t(tile) * all.across());
        clear_tail(y, size_t(all.down()) * all.across() * 512, bytes);
        return;
    }
    int used = 0;
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += 32) {
        Groups32 groups(ends, g0, G, 4, used);
        bool here = groups.begin < next && groups.end > col0 && groups.begin < groups.end;
        for (u32 left = __ballot_sync(~0u, here); left; left &= left - 1) {
            Groups32 group = groups.of(__ffs(left) - 1);
            Part part = {0, H, group.begin, group.end};
            give(group.begin, group.end, size_t(group.start) * part.down() + size_t(tile) * part.across());
        }
    }
    clear_tail(y, size_t(used) * all.down() * 512, bytes);
}

template <int LOAD, int STORE, int KIND>
__device__ __forceinline__ void row_pieces(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    int tile = blockIdx.y, used = 0, row1 = 0, top = 0;
    if (threadIdx.x == 0 && tile * 128 < H)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(x + size_t(tile) * 128 * W), "r"(min(H - tile * 128, 128) * W));
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += 32) {
        int before = used;
        Groups32 groups(ends, g0, G, 128, used);
        if (tile < before || tile >= used) continue;
        u32 upto = __ballot_sync(~0u, groups.start <= tile && groups.begin < groups.end);
        groups = groups.of(31 - __clz(upto));
        top = groups.begin + (tile - groups.start) * 128, row1 = groups.end;
    }
    Part part = {0, row1, 0, W};
    int chunks = W / 16;
    if (KIND == 2) {
        extern __shared__ uint4 stage[];
        __shared__ u64 arrival;
        if (tile < used) {
            if (threadIdx.x == 0) {
                arrival_init(&arrival);
                copy_to_shared(stage, x + size_t(top) * W, min(row1 - top, 128) * W, &arrival);
            }
            __syncthreads();
            arrival_wait(&arrival, 0);
            for (int at = threadIdx.x; at < 32 * chunks; at += blockDim.x) {
                int chunk = at / 8 % chunks, q = at / 8 / chunks * 8 + at % 8;
                uint4 rows[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    rows[i] = uint4{0, 0, 0, 0};
                    if (has_row(part, top + q + i * 32)) rows[i] = stage[(q + i * 32) * chunks + chunk];
                }
                u8* to = y + (size_t(tile) * part.across() + chunk * 4) * 512 + q * 16;
                put<STORE>(to, uint4{rows[0].x, rows[1].x, rows[2].x, rows[3].x});
                put<STORE>(to + 512, uint4{rows[0].y, rows[1].y, rows[2].y, rows[3].y});
                put<STORE>(to + 1024, uint4{rows[0].z, rows[1].z, rows[2].z, rows[3].z});
                put<STORE>(to + 1536, uint4{rows[0].w, rows[1].w, rows[2].w, rows[3].w});
            }
        }
    } else if (tile < used) {
        // KIND 1: two pieces at a time.
        constexpr int N = KIND == 1 ? 2 : 1;
#pragma unroll 1
        for (int first = threadIdx.x; first < 32 * chunks; first += N * blockDim.x) {
            uint4 rows[N][4];
            int chunk[N], q[N];
#pragma unroll
            for (int n = 0; n < N; n++) {
                int at = first + n * blockDim.x;
                chunk[n] = at / 8 % chunks, q[n] = at / 8 / chunks * 8 + at % 8;
                const u8* from = x + size_t(top + q[n]) * W + chunk[n] * 16;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    rows[n][i] = uint4{0, 0, 0, 0};
                    if (has_row(part, top + q[n] + i * 32) && at < 32 * chunks) rows[n][i] = get<LOAD>(from + size_t(i * 32) * W);
                }
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (first + n * blockDim.x >= 32 * chunks) continue;
                u8* to = y + (size_t(tile) * part.across() + chunk[n] * 4) * 512 + q[n] * 16;
                put<STORE>(to, uint4{rows[n][0].x, rows[n][1].x, rows[n][2].x, rows[n][3].x});
                put<STORE>(to + 512, uint4{rows[n][0].y, rows[n][1].y, rows[n][2].y, rows[n][3].y});
                put<STORE>(to + 1024, uint4{rows[n][0].z, rows[n][1].z, rows[n][2].z, rows[n][3].z});
                put<STORE>(to + 1536, uint4{rows[n][0].w, rows[n][1].w, rows[n][2].w, rows[n][3].w});
            }
        }
    }
    clear_tail(y, size_t(used) * part.across() * 512, bytes);
}

// Probe: a copy.
template <int N, int LOAD, int STORE> __device__ __forceinline__ void copied(const u8* x, u8* y, int bytes) {
    int first = blockIdx.x * (N * 256) + threadIdx.x;
    uint4 piece[N];
#pragma unroll
    for (int i = 0; i < N; i++) piece[i] = get<LOAD>(x + size_t(first + i * 256) * 16);
#pragma unroll
    for (int i = 0; i < N; i++) put<STORE>(y + size_t(first + i * 256) * 16, piece[i]);
}

#define ENTRY(variant, groups, threads, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(threads) scale_layout_##variant##_##groups(                           \
        const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {                                         \
        __VA_ARGS__(x, ends, y, H, W, G, bytes);                                                                       \
    }

#define ENTRY2(variant, groups, bounds, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__ bounds scale_layout_##variant##_##groups(                             \
        const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {                                         \
        __VA_ARGS__(x, ends, y, H, W, G, bytes);                                                                       \
    }

ENTRY(simple, plain, 256, simple<plain>)
ENTRY(simple, m, 256, simple<m>)
ENTRY(simple, k, 256, simple<k>)
ENTRY(staged, plain, 128, staged<plain, false>)
ENTRY(staged, m, 128, staged<m, false>)
ENTRY(staged, k, 128, columns<false, false>)
ENTRY(first, plain, 128, staged<plain, true>)
ENTRY(first, m, 128, staged<m, true>)
ENTRY(first, k, 128, columns<true, false>)
ENTRY(eager, k, 128, columns<false, true>)
ENTRY(eager, plain, 128, staged<plain, false>)
ENTRY(c200t, k, 256, column_pieces<k, 256, 0, 0, true>)
ENTRY(c200t, plain, 256, column_pieces<plain, 256, 0, 0, true>)
ENTRY(c200f, k, 256, column_pieces<k, 256, 0, 0, false>)
ENTRY(c200f, plain, 256, column_pieces<plain, 256, 0, 0, false>)
ENTRY(c210t, k, 256, column_pieces<k, 256, 1, 0, true>)
ENTRY(c210t, plain, 256, column_pieces<plain, 256, 1, 0, true>)
ENTRY(c210f, k, 256, column_pieces<k, 256, 1, 0, false>)
ENTRY(c210f, plain, 256, column_pieces<plain, 256, 1, 0, false>)
ENTRY(c201t, k, 256, column_pieces<k, 256, 0, 1, true>)
ENTRY(c201t, plain, 256, column_pieces<plain, 256, 0, 1, true>)
ENTRY(c100t, k, 128, column_pieces<k, 128, 0, 0, true>)
ENTRY(c100t, plain, 128, column_pieces<plain, 128, 0, 0, true>)
ENTRY(c100f, k, 128, column_pieces<k, 128, 0, 0, false>)
ENTRY(c100f, plain, 128, column_pieces<plain, 128, 0, 0, false>)
ENTRY(c110t, k, 128, column_pieces<k, 128, 1, 0, true>)
ENTRY(c110t, plain, 128, column_pieces<plain, 128, 1, 0, true>)
ENTRY(c110f, k, 128, column_pieces<k, 128, 1, 0, false>)
ENTRY(c110f, plain, 128, column_pieces<plain, 128, 1, 0, false>)
ENTRY(c101t, k, 128, column_pieces<k, 128, 0, 1, true>)
ENTRY(c101t, plain, 128, column_pieces<plain, 128, 0, 1, true>)
ENTRY2(m1, m, (512), row_pieces<0, 1, 0>)
ENTRY2(m1b, m, (448, 4), row_pieces<0, 1, 0>)
ENTRY2(m2, m, (256), row_pieces<0, 1, 1>)
ENTRY2(m2b, m, (256, 5), row_pieces<0, 1, 1>)
ENTRY2(mt, m, (256), row_pieces<0, 1, 2>)
ENTRY2(mt0, m, (256), row_pieces<0, 0, 2>)
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe100(const u8* x, u8* y, int bytes) { copied<1, 0, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe110(const u8* x, u8* y, int bytes) { copied<1, 1, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe101(const u8* x, u8* y, int bytes) { copied<1, 0, 1>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe200(const u8* x, u8* y, int bytes) { copied<2, 0, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe210(const u8* x, u8* y, int bytes) { copied<2, 1, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe201(const u8* x, u8* y, int bytes) { copied<2, 0, 1>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe400(const u8* x, u8* y, int bytes) { copied<4, 0, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe410(const u8* x, u8* y, int bytes) { copied<4, 1, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe401(const u8* x, u8* y, int bytes) { copied<4, 0, 1>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe800(const u8* x, u8* y, int bytes) { copied<8, 0, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe810(const u8* x, u8* y, int bytes) { copied<8, 1, 0>(x, y, bytes); }
extern "C" __global__ void __launch_bounds__(256) scale_layout_probe801(const u8* x, u8* y, int bytes) { copied<8, 0, 1>(x, y, bytes); }
