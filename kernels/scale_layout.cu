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
name = "d128a"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128a_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128b"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128b_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128c"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128c_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128d"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128d_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128e"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128e_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128s"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128s_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d64a"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d64a_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 4"]
block = [64]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d64b"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d64b_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 4"]
block = [64]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d256a"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d256a_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 1"]
block = [256]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "d128g"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups == 0"]

[[variant.launch]]
entry = "scale_layout_d128g_{groups}"
grid = ["ceil(W, 128)", "ceil(H, 128) * 2"]
block = [128]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n1"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n1_{groups}"
grid = ["ceil(2 * W, min(W, 256))", "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n0"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n0_{groups}"
grid = ["ceil(2 * W, min(W, 256))", "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n1p"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n1p_{groups}"
grid = ["ceil(2 * W, min(W, 256))", "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n6"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n6_{groups}"
grid = ["ceil(2 * W, min(W, 256))", "ceil(H, 128) + row_groups"]
block = ["min(W, 256)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n448"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n448_{groups}"
grid = ["ceil(2 * W, min(2 * W, 448))", "ceil(H, 128) + row_groups"]
block = ["min(2 * W, 448)"]
args = ["x", "ends", "y", "H", "W", "G", "bytes"]

[[variant]]
name = "n112"
doc = "candidate"
needs = ["W % 16 == 0", "row_groups > 0"]

[[variant.launch]]
entry = "scale_layout_n112_{groups}"
grid = ["ceil(2 * W, min(W / 2, 128))", "ceil(H, 128) + row_groups"]
block = ["min(W / 2, 128)"]
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
__device__ void clear_tail(u8* y, int at, int bytes) {
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
template <Groups GROUPS, int THREADS, int LOAD, int STORE, int EAGER>
__device__ __forceinline__ void column_pieces(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    constexpr int PARTS = 256 / THREADS;
    int lane = threadIdx.x % 32, chunk = lane % 8, tile = blockIdx.y / PARTS;
    int q = blockIdx.y % PARTS * (THREADS / 8) + threadIdx.x / 8, top = tile * 128 + q;
    int col0 = blockIdx.x * 128, col = col0 + chunk * 16, next = min(col0 + 128, W);
    u32 piece[4][5];
    Part all = {0, H, 0, W};
    const u8* from = x + top * W + col;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 words = {0, 0, 0, 0};
        if (has_row(all, top + i * 32) && col < W) words = get<LOAD>(from + i * 32 * W);
        piece[i][0] = words.x, piece[i][1] = words.y, piece[i][2] = words.z, piece[i][3] = words.w, piece[i][4] = 0;
    }
    // The four bytes that follow the 128 in each of the warp's 16 rows: row lane / 4 × 32, lane % 4.
    u32 after = 0;
    auto load_after = [&] {
        int row = top - lane / 8 + lane % 4 + lane / 4 * 32;
        if (lane < 16 && next < W && has_row(all, row)) after = __ldg((const u32*)(x + row * W + next));
    };
    if (GROUPS == k && EAGER) load_after();
    auto give = [&](int begin, int end, int tiles) {
        int skip = (begin - col) & 3, bits = skip * 8;
        if (GROUPS == k && bits) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 near = __shfl_down_sync(~0u, piece[i][0], 1, 8), far = __shfl_sync(~0u, after, i * 4 + lane / 8);
                piece[i][4] = chunk == 7 ? far : near;
            }
        }
        int at = col + skip;
        u8* to = y + (tiles * 512 + (at - begin) * 128 + q * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int count = end - at - j * 4;
            if (at + j * 4 < begin || count <= 0) continue;
            u32 mask = count < 4 ? (1u << 8 * count) - 1 : ~0u;
#ifdef MUTANT_PADDING_KEPT
            mask = ~0u;
#endif
            auto word = [&](int i) { return (GROUPS == k ? __funnelshift_r(piece[i][j], piece[i][j + 1], bits) : piece[i][j]) & mask; };
            put<STORE>(to + j * 512, uint4{word(0), word(1), word(2), word(3)});
        }
    };
    if (GROUPS == plain) {
        give(0, W, tile * all.across());
        clear_tail(y, all.down() * all.across() * 512, bytes);
        return;
    }
    int used = 0;
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += 32) {
        Groups32 groups(ends, g0, G, 4, used);
        bool here = groups.begin < next && groups.end > col0 && groups.begin < groups.end;
        if (!EAGER && __any_sync(~0u, here && groups.end > next && (next - groups.begin) % 4)) load_after();
#pragma unroll 1
        for (u32 left = __ballot_sync(~0u, here); left; left &= left - 1) {
            Groups32 group = groups.of(__ffs(left) - 1);
            Part part = {0, H, group.begin, group.end};
            give(group.begin, group.end, group.start * part.down() + tile * part.across());
        }
    }
    clear_tail(y, used * all.down() * 512, bytes);
}

template <int LOAD, int STORE>
__device__ __forceinline__ void row_pieces(const u8* x, const int* ends, u8* y, int H, int W, int G, int bytes) {
    int tile = blockIdx.y, used = 0, row1 = 0, top = 0;
    if (threadIdx.x == 0 && blockIdx.x == 0 && tile * 128 < H)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(x + tile * 128 * W), "r"(min(H - tile * 128, 128) * W));
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
    int chunks = W / 16, at = blockIdx.x * blockDim.x + threadIdx.x;
    if (tile < used && at < 32 * chunks) {
        int chunk = at / 8 % chunks, q = at / 8 / chunks * 8 + at % 8;
        const u8* from = x + (top + q) * W + chunk * 16;
        uint4 rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rows[i] = uint4{0, 0, 0, 0};
            if (has_row(part, top + q + i * 32)) rows[i] = get<LOAD>(from + i * 32 * W);
        }
        u8* to = y + ((tile * part.across() + chunk * 4) * 512 + q * 16);
        put<STORE>(to, uint4{rows[0].x, rows[1].x, rows[2].x, rows[3].x});
        put<STORE>(to + 512, uint4{rows[0].y, rows[1].y, rows[2].y, rows[3].y});
        put<STORE>(to + 1024, uint4{rows[0].z, rows[1].z, rows[2].z, rows[3].z});
        put<STORE>(to + 1536, uint4{rows[0].w, rows[1].w, rows[2].w, rows[3].w});
    }
    clear_tail(y, used * part.across() * 512, bytes);
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
ENTRY2(d128a, k, (128, 12), column_pieces<k, 128, 1, 0, 0>)
ENTRY2(d128a, plain, (128, 12), column_pieces<plain, 128, 1, 0, 0>)
ENTRY2(d128b, k, (128, 16), column_pieces<k, 128, 1, 0, 0>)
ENTRY2(d128b, plain, (128, 16), column_pieces<plain, 128, 1, 0, 0>)
ENTRY2(d128c, k, (128, 12), column_pieces<k, 128, 0, 0, 0>)
ENTRY2(d128c, plain, (128, 12), column_pieces<plain, 128, 0, 0, 0>)
ENTRY2(d128d, k, (128, 12), column_pieces<k, 128, 1, 0, 1>)
ENTRY2(d128d, plain, (128, 12), column_pieces<plain, 128, 1, 0, 1>)
ENTRY2(d128e, k, (128, 16), column_pieces<k, 128, 1, 0, 1>)
ENTRY2(d128e, plain, (128, 16), column_pieces<plain, 128, 1, 0, 1>)
ENTRY2(d128s, k, (128, 12), column_pieces<k, 128, 1, 1, 0>)
ENTRY2(d128s, plain, (128, 12), column_pieces<plain, 128, 1, 1, 0>)
ENTRY2(d64a, k, (64, 24), column_pieces<k, 64, 1, 0, 0>)
ENTRY2(d64a, plain, (64, 24), column_pieces<plain, 64, 1, 0, 0>)
ENTRY2(d64b, k, (64, 32), column_pieces<k, 64, 1, 0, 0>)
ENTRY2(d64b, plain, (64, 32), column_pieces<plain, 64, 1, 0, 0>)
ENTRY2(d128g, k, (128, 10), column_pieces<k, 128, 1, 0, 0>)
ENTRY2(d128g, plain, (128, 10), column_pieces<plain, 128, 1, 0, 0>)
ENTRY2(d256a, k, (256, 6), column_pieces<k, 256, 1, 0, 0>)
ENTRY2(d256a, plain, (256, 6), column_pieces<plain, 256, 1, 0, 0>)
ENTRY2(n1, m, (256, 8), row_pieces<1, 1>)
ENTRY2(n0, m, (256, 8), row_pieces<1, 0>)
ENTRY2(n1p, m, (256, 8), row_pieces<0, 1>)
ENTRY2(n6, m, (256, 6), row_pieces<1, 1>)
ENTRY2(n448, m, (448, 3), row_pieces<1, 1>)
ENTRY2(n112, m, (128, 16), row_pieces<1, 1>)
