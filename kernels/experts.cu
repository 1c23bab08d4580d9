/*
[[variant]]
name = "simple"
doc = "a warp for each number between the products, then a warp for each number of y, expert by expert"
scratch = [{ name = "hidden", bytes = "B * (K + 1) * I * 4" }]

[[variant.launch]]
entry = "experts_simple_hidden_{dtype}_{stored}_{routed}"
grid = ["ceil((K + 1) * I, 8)", "min(B, 65535)"]
block = [256]
args = [
    "x", "experts", "weights", "gate_up", "gate_up_scale", "gate_up_level", "shared_gate_up", "shared_gate_up_scale", "hidden",
    "B", "E", "K", "D", "I", "limit",
]

[[variant.launch]]
entry = "experts_simple_down_{dtype}_{stored}_{routed}"
grid = ["ceil(D, 8)", "min(B, 65535)"]
block = [256]
args = [
    "hidden", "experts", "down", "down_scale", "down_level", "shared_down", "shared_down_scale", "y", "B", "E", "K", "D", "I",
]

[[variant]]
name = "grouped"
doc = """
rows are sorted by expert, and a row of a matrix is read once for eight rows that go through it; the bits are those of \
`simple`"""
needs = ["B * (K + 1) <= 2147483392"]
scratch = [
    { name = "first", bytes = "(E + 1) * 4" },
    { name = "order", bytes = "B * K * 4" },
    { name = "hidden", bytes = "B * (K + 1) * I * 4" },
    { name = "parts", bytes = "B * (K + 1) * D * 4" },
]

[[variant.launch]]
entry = "experts_grouped_sort"
grid = ["E"]
block = [32]
args = ["experts", "first", "order", "B", "E", "K"]

[[variant.launch]]
entry = "experts_grouped_hidden_{dtype}_{stored}_{routed}"
grid = ["E + 1", "ceil(I, 8)", "min(ceil(B, 512), 65535)"]
block = [256]
args = [
    "x", "first", "order", "weights", "gate_up", "gate_up_scale", "gate_up_level", "shared_gate_up", "shared_gate_up_scale",
    "hidden", "B", "E", "K", "D", "I", "limit",
]

[[variant.launch]]
entry = "experts_grouped_down_{dtype}_{stored}_{routed}"
grid = ["E + 1", "ceil(D, 8)"]
block = [256]
args = [
    "hidden", "first", "order", "down", "down_scale", "down_level", "shared_down", "shared_down_scale", "parts", "B", "E", "K",
    "D", "I",
]

[[variant.launch]]
entry = "experts_grouped_sum_{dtype}"
grid = ["ceil(D, 256)", "min(B, 65535)"]
block = [256]
args = ["parts", "experts", "y", "B", "K", "D"]

[[mutant]]
name = "clamp_below"
doc = "the gate clamped from below too"

[[mutant]]
name = "shared_unclamped"
doc = "the shared expert has no limit"

[[mutant]]
name = "gate_up_interleaved"
doc = "rows of gate and up are taken in turn, and not one half after the other"

[[mutant]]
name = "weight_of_first_slot"
doc = "all experts of a row have the weight of its first slot"

[[mutant]]
name = "last_slot_lost"
doc = "the expert in the last slot is not added"

[[mutant]]
name = "none_is_first"
doc = "a slot without an expert goes to the first"
variants = ["simple"]

[[mutant]]
name = "tail_skipped"
doc = "columns after the last 32 are left out of the first product"

[[mutant]]
name = "scales_of_row_before"
doc = "codes have the scales of the row before"

[[mutant]]
name = "level_of_first_expert"
doc = "all experts have the number above their scales that the first one has"

[[mutant]]
name = "nibble_order"
doc = "the high half of a byte is taken for the first of two codes"

[[mutant]]
name = "rows_of_the_grid"
doc = "rows after the first 65,535 are left as they are"

[[mutant]]
name = "groups_cut"
doc = "rows of an expert after the first eight are left out"
variants = ["grouped"]
*/

// reference: reference/ops/experts.rs
//
// x and y [B, D], experts and weights [B, K], gate_up [E, 2·I, D], down [E, D, I], shared_gate_up [2·I, D], shared_down [D, I]. A
// slot of -1 has no expert. hidden [B, K + 1, I] holds silu(gate) · up · weight in f32; slot K is the shared expert. Matrices are
// numbers or codes; their scales follow rows, and one f32 stands above those of a routed expert's matrix.

#include "swiglu/swiglu.cuh"

#include "lib/stored.cuh"

// Rows that share what is read of a matrix.
constexpr int TILE = 8;

// Matrices of a kind, one for each expert, as they are stored in the way W.
template <class W> struct Matrices {
    const typename W::Code *codes;
    const typename W::Scale *scales;
    const float *levels;
    int rows, cols;

    __device__ __forceinline__ typename W::Row row(int expert, int row) const {
#ifdef MUTANT_LEVEL_OF_FIRST_EXPERT
        const float *const level = levels;
#else
        const float *const level = levels + expert;
#endif
        return typename W::Row(codes, scales, level, (size_t)expert * rows + row, cols);
    }
};

// The routed experts, stored in the way R, and the shared one, in the way S.
template <class R, class S> struct Both {
    Matrices<R> routed;
    Matrices<S> shared;
};

// What a lane has of the products of a row of a matrix and ROWS vectors; warp_sum adds the lanes up. The order depends on the
// length only.
template <int ROWS, class Row, class X>
__device__ __forceinline__ void dot(const Row &w, const X *const (&x)[ROWS], int length, float (&sum)[ROWS]) {
    for (int at = threadIdx.x % 32; at < length; at += 32) {
        const float own = w[at];
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            sum[row] = fmaf(own, to_f32(x[row][at]), sum[row]);
    }
}

// The product of a row of a matrix and a vector: all lanes have it.
template <class Row> __device__ __forceinline__ float product(const Row &w, const float *x, int length) {
    const float *const own[1] = {x};
    float sum[1] = {};
    dot(w, own, length, sum);
    return warp_sum(sum[0]);
}

// Number `unit` between the products, of ROWS rows x through an expert: all lanes have them.
template <int ROWS, class W, class T>
__device__ __forceinline__ void hidden_of(const Matrices<W> &gate_up, int expert, const T *const (&x)[ROWS], int unit, int inner,
                                          float limit, float (&out)[ROWS]) {
#ifdef MUTANT_GATE_UP_INTERLEAVED
    const typename W::Row gate_row = gate_up.row(expert, 2 * unit), up_row = gate_up.row(expert, 2 * unit + 1);
#else
    const typename W::Row gate_row = gate_up.row(expert, unit), up_row = gate_up.row(expert, inner + unit);
#endif
#ifdef MUTANT_TAIL_SKIPPED
    const int dim = gate_up.cols / 32 * 32;
#else
    const int dim = gate_up.cols;
#endif
    float gate[ROWS] = {}, up[ROWS] = {};
    dot(gate_row, x, dim, gate);
    dot(up_row, x, dim, up);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
        out[row] = swiglu(warp_sum(gate[row]), warp_sum(up[row]), limit);
}

__device__ __forceinline__ float limit_of(bool shared, float limit) {
#ifdef MUTANT_SHARED_UNCLAMPED
    return shared ? 3e38f : limit;
#else
    return limit;
#endif
}

// The weight of a slot of a row of K.
__device__ __forceinline__ float weight_of(const float *weights, int slot) {
#ifdef MUTANT_WEIGHT_OF_FIRST_SLOT
    return weights[0];
#else
    return weights[slot];
#endif
}

// The slot of the expert that is added after that of slot `last`, which is -1 at first: in ascending order of their numbers, and
// of their slots if a number is there twice. It is -1 after the last.
__device__ __forceinline__ int next_slot(const int *experts, int selected, int last) {
#ifdef MUTANT_LAST_SLOT_LOST
    selected--;
#endif
    int next = -1;
    for (int slot = 0; slot < selected; slot++) {
        const int expert = experts[slot];
        const bool after = last < 0 || expert > experts[last] || (expert == experts[last] && slot > last);
        if (expert >= 0 && after && (next < 0 || expert < experts[next]))
            next = slot;
    }
    return next;
}

// ---- simple

template <class R, class S, class T>
__device__ void simple_hidden(const T *x, const int *experts, const float *weights, const Both<R, S> gate_up, float *hidden,
                              int rows, int selected, int dim, int inner, float limit) {
    const int at = blockIdx.x * 8 + threadIdx.x / 32, slot = at / inner, unit = at % inner;
    if (slot > selected)
        return;
    const bool shared = slot == selected;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        int expert = shared ? 0 : experts[(size_t)row * selected + slot];
#ifdef MUTANT_NONE_IS_FIRST
        expert = max(expert, 0);
#endif
        if (expert < 0)
            continue;
        const T *const own[1] = {x + (size_t)row * dim};
        float out[1];
        if (shared)
            hidden_of(gate_up.shared, 0, own, unit, inner, limit_of(true, limit), out);
        else
            hidden_of(gate_up.routed, expert, own, unit, inner, limit_of(false, limit), out);
        const float weight = shared ? 1.0f : weight_of(weights + (size_t)row * selected, slot);
        if (threadIdx.x % 32 == 0)
            hidden[((size_t)row * (selected + 1) + slot) * inner + unit] = out[0] * weight;
    }
}

template <class R, class S, class T>
__device__ void simple_down(const float *hidden, const int *experts, const Both<R, S> down, T *y, int rows, int selected, int dim,
                            int inner) {
    const int channel = blockIdx.x * 8 + threadIdx.x / 32;
    if (channel >= dim)
        return;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, 65535);
#endif
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const int *own_experts = experts + (size_t)row * selected;
        const float *own_hidden = hidden + (size_t)row * (selected + 1) * inner;
        float sum = 0.0f;
#ifdef MUTANT_NONE_IS_FIRST
        for (int slot = 0; slot < selected; slot++)
            sum += product(down.routed.row(max(own_experts[slot], 0), channel), own_hidden + (size_t)slot * inner, inner);
#else
        for (int slot = next_slot(own_experts, selected, -1); slot >= 0; slot = next_slot(own_experts, selected, slot))
            sum += product(down.routed.row(own_experts[slot], channel), own_hidden + (size_t)slot * inner, inner);
#endif
        sum += product(down.shared.row(0, channel), own_hidden + (size_t)selected * inner, inner);
        if (threadIdx.x % 32 == 0)
            from_f32(y[(size_t)row * dim + channel], sum);
    }
}

// ---- grouped

// A warp for each expert lists the slots that go to it, row by row, after those of the experts before it: order[first[e] ...
// first[e + 1] - 1]. Slots are counted through all rows.
KERNEL(experts_grouped_sort, __launch_bounds__(32))(const int *experts, int *first, int *order, int rows, int count,
                                                    int selected) {
    const int own = blockIdx.x, lane = threadIdx.x, slots = rows * selected;
    int before = 0, here = 0;
    for (int at = lane; at - lane < slots; at += 32) {
        const int expert = at < slots ? experts[at] : -1;
        before += __popc(__ballot_sync(0xffffffff, expert >= 0 && expert < own));
        here += __popc(__ballot_sync(0xffffffff, expert == own));
    }
    if (lane == 0)
        first[own] = before;
    if (lane == 0 && own == count - 1)
        first[count] = before + here;
    int to = before;
    for (int at = lane; at - lane < slots; at += 32) {
        const bool goes = at < slots && experts[at] == own;
        const u32 all = __ballot_sync(0xffffffff, goes);
        if (goes)
            order[to + __popc(all & ((1u << lane) - 1))] = at;
        to += __popc(all);
    }
}

// The slots of an expert, of which the last is the shared one.
struct Group {
    const int *order;
    int size, selected;
    bool shared;

    __device__ __forceinline__ Group(const int *first, const int *all, int expert, int rows, int count, int of_row) {
        shared = expert == count, selected = of_row;
        size = shared ? rows : first[expert + 1] - first[expert];
        order = shared ? all : all + first[expert];
#ifdef MUTANT_GROUPS_CUT
        size = shared ? size : min(size, TILE);
#endif
    }

    __device__ __forceinline__ int row(int at) const {
        return shared ? at : order[at] / selected;
    }

    __device__ __forceinline__ int slot(int at) const {
        return shared ? selected : order[at] % selected;
    }

    // Its place among K + 1 slots of each row.
    __device__ __forceinline__ size_t place(int at) const {
        return (size_t)row(at) * (selected + 1) + slot(at);
    }
};

template <class R, class S, class T>
__device__ void grouped_hidden(const T *x, const int *first, const int *order, const float *weights, const Both<R, S> gate_up,
                               float *hidden, int rows, int count, int selected, int dim, int inner, float limit) {
    const int expert = blockIdx.x, unit = blockIdx.y * 8 + threadIdx.x / 32;
    if (unit >= inner)
        return;
    const Group group(first, order, expert, rows, count, selected);
    for (int tile = blockIdx.z * TILE; tile < group.size; tile += gridDim.z * TILE) {
        // A tile that is not full repeats the last.
        const T *from[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++)
            from[i] = x + (size_t)group.row(min(tile + i, group.size - 1)) * dim;
        float out[TILE];
        if (group.shared)
            hidden_of(gate_up.shared, 0, from, unit, inner, limit_of(true, limit), out);
        else
            hidden_of(gate_up.routed, expert, from, unit, inner, limit_of(false, limit), out);
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            if (threadIdx.x % 32 == 0 && tile + i < group.size) {
                const float *own = weights + (size_t)group.row(tile + i) * selected;
                const float weight = group.shared ? 1.0f : weight_of(own, group.slot(tile + i));
                hidden[group.place(tile + i) * inner + unit] = out[i] * weight;
            }
        }
    }
}

template <class R, class S>
__device__ void grouped_down(const float *hidden, const int *first, const int *order, const Both<R, S> down, float *parts,
                             int rows, int count, int selected, int dim, int inner) {
    const int expert = blockIdx.x, channel = blockIdx.y * 8 + threadIdx.x / 32;
    if (channel >= dim)
        return;
    const Group group(first, order, expert, rows, count, selected);
    for (int tile = 0; tile < group.size; tile += TILE) {
        const float *from[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++)
            from[i] = hidden + group.place(min(tile + i, group.size - 1)) * inner;
        float sum[TILE] = {};
        if (group.shared)
            dot(down.shared.row(0, channel), from, inner, sum);
        else
            dot(down.routed.row(expert, channel), from, inner, sum);
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            const float total = warp_sum(sum[i]);
            if (threadIdx.x % 32 == 0 && tile + i < group.size)
                parts[group.place(tile + i) * dim + channel] = total;
        }
    }
}

template <class T> __device__ void grouped_sum(const float *parts, const int *experts, T *y, int rows, int selected, int dim) {
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= dim)
        return;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, 65535);
#endif
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const int *own_experts = experts + (size_t)row * selected;
        const float *own = parts + (size_t)row * (selected + 1) * dim + channel;
        float sum = 0.0f;
        for (int slot = next_slot(own_experts, selected, -1); slot >= 0; slot = next_slot(own_experts, selected, slot))
            sum += own[(size_t)slot * dim];
        sum += own[(size_t)selected * dim];
        from_f32(y[(size_t)row * dim + channel], sum);
    }
}

#define EXPERTS_GATE_UP(R, S)                                                                                         \
    const R::Code *gate_up, const R::Scale *gate_up_scale, const float *gate_up_level, const S::Code *shared_gate_up, \
        const S::Scale *shared_gate_up_scale
#define EXPERTS_DOWN(R, S)                                                                                \
    const R::Code *down, const R::Scale *down_scale, const float *down_level, const S::Code *shared_down, \
        const S::Scale *shared_down_scale
#define EXPERTS_BOTH(R, S, NAME, ROWS, COLS)                          \
    Both<R, S> {                                                      \
        {NAME, NAME##_scale, NAME##_level, ROWS, COLS}, {             \
            shared_##NAME, shared_##NAME##_scale, nullptr, ROWS, COLS \
        }                                                             \
    }

// R and S are the ways in which routed experts and the shared one are stored, T is the type of x and y.
#define ENTRIES(NAME, R, S, T)                                                                                                  \
    KERNEL(experts_simple_hidden_##NAME, __launch_bounds__(256))(const T *x, const int *experts, const float *weights,          \
                                                                 EXPERTS_GATE_UP(R, S), float *hidden, int rows, int count,     \
                                                                 int selected, int dim, int inner, float limit) {               \
        simple_hidden(x, experts, weights, EXPERTS_BOTH(R, S, gate_up, 2 * inner, dim), hidden, rows, selected, dim, inner,     \
                      limit);                                                                                                   \
    }                                                                                                                           \
    KERNEL(experts_simple_down_##NAME, __launch_bounds__(256))(const float *hidden, const int *experts, EXPERTS_DOWN(R, S),     \
                                                               T *y, int rows, int count, int selected, int dim, int inner) {   \
        simple_down(hidden, experts, EXPERTS_BOTH(R, S, down, dim, inner), y, rows, selected, dim, inner);                      \
    }                                                                                                                           \
    KERNEL(experts_grouped_hidden_##NAME,                                                                                       \
           __launch_bounds__(256))(const T *x, const int *first, const int *order, const float *weights, EXPERTS_GATE_UP(R, S), \
                                   float *hidden, int rows, int count, int selected, int dim, int inner, float limit) {         \
        grouped_hidden(x, first, order, weights, EXPERTS_BOTH(R, S, gate_up, 2 * inner, dim), hidden, rows, count, selected,    \
                       dim, inner, limit);                                                                                      \
    }                                                                                                                           \
    KERNEL(experts_grouped_down_##NAME, __launch_bounds__(256))(const float *hidden, const int *first, const int *order,        \
                                                                EXPERTS_DOWN(R, S), float *parts, int rows, int count,          \
                                                                int selected, int dim, int inner) {                             \
        grouped_down(hidden, first, order, EXPERTS_BOTH(R, S, down, dim, inner), parts, rows, count, selected, dim, inner);     \
    }

ENTRIES(bf16_bf16_bf16, stored_bf16, stored_bf16, bf16)
ENTRIES(f32_f32_f32, stored_f32, stored_f32, float)
ENTRIES(f32_bf16_bf16, stored_bf16, stored_bf16, float)
ENTRIES(f32_fp8_b64_f32_fp8_b64_f32, stored_fp8_b64_f32, stored_fp8_b64_f32, float)
ENTRIES(f32_fp8_b64_f32_mxfp4, stored_mxfp4, stored_fp8_b64_f32, float)
ENTRIES(f32_fp8_b64_f32_nvfp4, stored_nvfp4, stored_fp8_b64_f32, float)

#define ENTRY(DTYPE, T)                                                                                                 \
    KERNEL(experts_grouped_sum_##DTYPE, __launch_bounds__(256))(const float *parts, const int *experts, T *y, int rows, \
                                                                int selected, int dim) {                                \
        grouped_sum(parts, experts, y, rows, selected, dim);                                                            \
    }

ENTRY(bf16, bf16)
ENTRY(f32, float)
