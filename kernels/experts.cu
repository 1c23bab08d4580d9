/*
[[variant]]
name = "simple"
doc = "a warp for each number between the products, then a warp for each number of y, expert by expert"
scratch = [{ name = "hidden", bytes = "B * (K + 1) * I * 4" }]

[[variant.launch]]
entry = "experts_simple_hidden_{dtype}"
grid = ["ceil((K + 1) * I, 8)", "min(B, 65535)"]
block = [256]
args = ["x", "experts", "weights", "gate_up", "shared_gate_up", "hidden", "B", "E", "K", "D", "I", "limit"]

[[variant.launch]]
entry = "experts_simple_down_{dtype}"
grid = ["ceil(D, 8)", "min(B, 65535)"]
block = [256]
args = ["hidden", "experts", "down", "shared_down", "y", "B", "E", "K", "D", "I"]

[[variant]]
name = "grouped"
doc = """
rows are sorted by expert, and a row of a matrix is read once for eight rows that go through it; the bits are those of \
`simple`"""
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
entry = "experts_grouped_hidden_{dtype}"
grid = ["E + 1", "ceil(I, 8)"]
block = [256]
args = ["x", "first", "order", "weights", "gate_up", "shared_gate_up", "hidden", "B", "E", "K", "D", "I", "limit"]

[[variant.launch]]
entry = "experts_grouped_down_{dtype}"
grid = ["E + 1", "ceil(D, 8)"]
block = [256]
args = ["hidden", "first", "order", "down", "shared_down", "parts", "B", "E", "K", "D", "I"]

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
// slot of -1 has no expert. hidden [B, K + 1, I] holds silu(gate) · up · weight in f32; slot K is the shared expert.

#include "swiglu/swiglu.cuh"

// Rows that share what is read of a matrix.
constexpr int TILE = 8;

// What a lane has of the products of a row of a matrix and ROWS vectors; warp_sum adds the lanes up. The order depends on the
// length only.
template <int ROWS, class W, class X>
__device__ __forceinline__ void dot(const W *w, const X *const (&x)[ROWS], int length, float (&sum)[ROWS]) {
    for (int at = threadIdx.x % 32; at < length; at += 32) {
        const float own = to_f32(w[at]);
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            sum[row] = fmaf(own, to_f32(x[row][at]), sum[row]);
    }
}

// Number `unit` between the products, of ROWS rows x: all lanes have them. An expert's matrix is gate_up, [2·inner, dim].
template <int ROWS, class T>
__device__ __forceinline__ void hidden_of(const T *gate_up, const T *const (&x)[ROWS], int unit, int dim, int inner, float limit,
                                          float (&out)[ROWS]) {
#ifdef MUTANT_GATE_UP_INTERLEAVED
    const T *gate_row = gate_up + (size_t)(2 * unit) * dim, *up_row = gate_up + (size_t)(2 * unit + 1) * dim;
#else
    const T *gate_row = gate_up + (size_t)unit * dim, *up_row = gate_up + (size_t)(inner + unit) * dim;
#endif
#ifdef MUTANT_TAIL_SKIPPED
    dim = dim / 32 * 32;
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

template <class T>
__device__ void simple_hidden(const T *x, const int *experts, const float *weights, const T *gate_up, const T *shared_gate_up,
                              float *hidden, int rows, int selected, int dim, int inner, float limit) {
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
        hidden_of(shared ? shared_gate_up : gate_up + (size_t)expert * 2 * inner * dim, own, unit, dim, inner,
                  limit_of(shared, limit), out);
        const float weight = shared ? 1.0f : weight_of(weights + (size_t)row * selected, slot);
        if (threadIdx.x % 32 == 0)
            hidden[((size_t)row * (selected + 1) + slot) * inner + unit] = out[0] * weight;
    }
}

template <class T>
__device__ void simple_down(const float *hidden, const int *experts, const T *down, const T *shared_down, T *y, int rows,
                            int selected, int dim, int inner) {
    const int channel = blockIdx.x * 8 + threadIdx.x / 32;
    if (channel >= dim)
        return;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, 65535);
#endif
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const int *own_experts = experts + (size_t)row * selected;
        const float *own_hidden = hidden + (size_t)row * (selected + 1) * inner;
        const auto product = [&](const T *matrix, int slot) {
            const float *const from[1] = {own_hidden + (size_t)slot * inner};
            float sum[1] = {};
            dot(matrix + (size_t)channel * inner, from, inner, sum);
            return warp_sum(sum[0]);
        };
        float sum = 0.0f;
#ifdef MUTANT_NONE_IS_FIRST
        for (int slot = 0; slot < selected; slot++)
            sum += product(down + (size_t)max(own_experts[slot], 0) * dim * inner, slot);
#else
        for (int slot = next_slot(own_experts, selected, -1); slot >= 0; slot = next_slot(own_experts, selected, slot))
            sum += product(down + (size_t)own_experts[slot] * dim * inner, slot);
#endif
        sum += product(shared_down, selected);
        if (threadIdx.x % 32 == 0)
            from_f32(y[(size_t)row * dim + channel], sum);
    }
}

// ---- grouped

// A warp for each expert lists the slots that go to it, row by row, after those of the experts before it: order[first[e] ...
// first[e + 1] - 1]. Slots are counted through all rows.
extern "C" __global__ void __launch_bounds__(32)
    experts_grouped_sort(const int *experts, int *first, int *order, int rows, int count, int selected) {
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

template <class T>
__device__ void grouped_hidden(const T *x, const int *first, const int *order, const float *weights, const T *gate_up,
                               const T *shared_gate_up, float *hidden, int rows, int count, int selected, int dim, int inner,
                               float limit) {
    const int expert = blockIdx.x, unit = blockIdx.y * 8 + threadIdx.x / 32;
    if (unit >= inner)
        return;
    const Group group(first, order, expert, rows, count, selected);
    const T *matrix = group.shared ? shared_gate_up : gate_up + (size_t)expert * 2 * inner * dim;
    for (int tile = 0; tile < group.size; tile += TILE) {
        // A tile that is not full repeats the last.
        const T *from[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++)
            from[i] = x + (size_t)group.row(min(tile + i, group.size - 1)) * dim;
        float out[TILE];
        hidden_of(matrix, from, unit, dim, inner, limit_of(group.shared, limit), out);
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

template <class T>
__device__ void grouped_down(const float *hidden, const int *first, const int *order, const T *down, const T *shared_down,
                             float *parts, int rows, int count, int selected, int dim, int inner) {
    const int expert = blockIdx.x, channel = blockIdx.y * 8 + threadIdx.x / 32;
    if (channel >= dim)
        return;
    const Group group(first, order, expert, rows, count, selected);
    const T *matrix = group.shared ? shared_down : down + (size_t)expert * dim * inner;
    for (int tile = 0; tile < group.size; tile += TILE) {
        const float *from[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++)
            from[i] = hidden + group.place(min(tile + i, group.size - 1)) * inner;
        float sum[TILE] = {};
        dot(matrix + (size_t)channel * inner, from, inner, sum);
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

#define ENTRIES(DTYPE, T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) experts_simple_hidden_##DTYPE(                                          \
        const T *x, const int *experts, const float *weights, const T *gate_up, const T *shared_gate_up, float *hidden,       \
        int rows, int count, int selected, int dim, int inner, float limit) {                                                 \
        simple_hidden(x, experts, weights, gate_up, shared_gate_up, hidden, rows, selected, dim, inner, limit);               \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                         \
        experts_simple_down_##DTYPE(const float *hidden, const int *experts, const T *down, const T *shared_down, T *y,       \
                                    int rows, int count, int selected, int dim, int inner) {                                  \
        simple_down(hidden, experts, down, shared_down, y, rows, selected, dim, inner);                                       \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) experts_grouped_hidden_##DTYPE(                                         \
        const T *x, const int *first, const int *order, const float *weights, const T *gate_up, const T *shared_gate_up,      \
        float *hidden, int rows, int count, int selected, int dim, int inner, float limit) {                                  \
        grouped_hidden(x, first, order, weights, gate_up, shared_gate_up, hidden, rows, count, selected, dim, inner, limit);  \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) experts_grouped_down_##DTYPE(                                           \
        const float *hidden, const int *first, const int *order, const T *down, const T *shared_down, float *parts, int rows, \
        int count, int selected, int dim, int inner) {                                                                        \
        grouped_down(hidden, first, order, down, shared_down, parts, rows, count, selected, dim, inner);                      \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                         \
        experts_grouped_sum_##DTYPE(const float *parts, const int *experts, T *y, int rows, int selected, int dim) {          \
        grouped_sum(parts, experts, y, rows, selected, dim);                                                                  \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
