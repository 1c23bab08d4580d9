/*
[[variant]]
name = "simple"
doc = "a block for each row, a thread for each channel, which loops over the slots"

[[variant.launch]]
entry = "compressor_simple_{dtype}"
grid = ["min(B, 65535)"]
block = ["min(1024, 32 * ceil(D, 32))"]
shared = "4 * (D + 32)"
args = ["kv", "gate", "ape", "weight", "cos", "sin", "position", "ring_kv", "ring_gate", "entries", "stages",
    "B", "m", "D", "R", "N", "overlap", "eps"]

[[variant]]
name = "warps"
doc = "windows of 4 with overlap: a warp for 128 channels, its 8 slots in registers; only the norm's sum crosses warps"
needs = ["m == 4", "overlap == 1", "D % 128 == 0", "D <= 1024", "R % 4 == 0"]

[[variant.launch]]
entry = "compressor_warps_{dtype}"
grid = ["B"]
block = ["D / 4"]
args = ["kv", "gate", "ape", "weight", "cos", "sin", "position", "ring_kv", "ring_gate", "entries", "stages",
    "B", "m", "D", "R", "N", "overlap", "eps"]

[[variant]]
name = "cluster"
doc = "windows of 128 without overlap: 8 blocks for each row have 64 channels each; 16 groups of threads have 8 slots each"
needs = ["m == 128", "overlap == 0", "D == 512", "R % 4 == 0"]

[[variant.launch]]
entry = "compressor_cluster_{dtype}"
grid = ["8 * B"]
block = [256]
cluster = [8]
args = ["kv", "gate", "ape", "weight", "cos", "sin", "position", "ring_kv", "ring_gate", "entries", "stages",
    "B", "m", "D", "R", "N", "overlap", "eps"]

[[mutant]]
name = "maximum_of_first"
doc = "the maximum is that of the first half of the slots"

[[mutant]]
name = "scratch_overlaps"
doc = "the sums of warps, for the norm, begin in the last of the pooled values"
variants = ["simple"]

[[mutant]]
name = "ape_of_next"
doc = "the gate gets the ape of the next token"

[[mutant]]
name = "rope_at_last"
doc = "an entry is turned to the position of its window's last token"

[[mutant]]
name = "halves_exchanged"
doc = "the first half of the channels is pooled of the own window, the second of the window before"
variants = ["simple", "warps"]

[[mutant]]
name = "state_stale"
doc = "the pool sees what was in the token's slot before"

[[mutant]]
name = "absent_pooled"
doc = "a first window pools the slots of a window before it, which there is not"
variants = ["simple", "warps"]

[[mutant]]
name = "entry_late"
doc = "an entry is inserted one place too far"

[[mutant]]
name = "eps_missing"
doc = "the norm is without eps"
*/

// reference: reference/ops/compressor.rs, reference/ops/rmsnorm.rs, reference/ops/rope.rs
//
// kv, gate [B, W], ape [m, W], ring_kv, ring_gate [B, S, W] in place, entries [B, N, D] in place, stages [B, 3, D]: pooled,
// normed and rotated. W = D and S = m, or twice as much with overlap. Slots are pooled in the order of their tokens.

#include "compressor/four.cuh"
#include "lib/cluster.cuh"
#include "lib/reduce.cuh"

// ---- simple

template <class T> __device__ __forceinline__ void simple(const Step<T> &step) {
    extern __shared__ float smem[];
    const int dim = step.dim;
    float *values = smem;
#ifdef MUTANT_SCRATCH_OVERLAPS
    float *partials = smem + dim - 1;
#else
    float *partials = smem + dim;
#endif
    for (int row = blockIdx.x; row < step.rows; row += gridDim.x) {
        const int t = step.position[row];
        // The thread that writes a channel is the one that pools it.
        const auto push = [&]() {
            for (int channel = threadIdx.x; channel < dim; channel += blockDim.x) {
                for (int at = channel; at < step.width(); at += dim) {
                    const size_t from = (size_t)row * step.width() + at, to = step.slot(row, t) + at;
                    step.ring_kv[to] = step.kv[from];
                    step.ring_gate[to] = step.gate[from] + step.ape_of(t)[at];
                }
            }
        };
#ifndef MUTANT_STATE_STALE
        if (t >= 0)
            push();
#endif
        if (!step.closes(t)) {
            for (int at = threadIdx.x; at < 3 * dim; at += blockDim.x)
                step.stage(row, 0)[at] = 0.0f;
#ifdef MUTANT_STATE_STALE
            if (t >= 0)
                push();
#endif
            continue;
        }

        float squares = 0.0f;
        for (int channel = threadIdx.x; channel < dim; channel += blockDim.x) {
            const int first = step.first_pooled(t);
            float top = -infinity(), sum = 0.0f, out = 0.0f;
#ifdef MUTANT_MAXIMUM_OF_FIRST
            for (int token = first; token < (first + t) / 2; token++)
#else
            for (int token = first; token <= t; token++)
#endif
                top = fmaxf(top, step.ring_gate[step.pooled(row, token, t) + channel]);
            for (int token = first; token <= t; token++) {
                const size_t at = step.pooled(row, token, t) + channel;
                const float share = expf(step.ring_gate[at] - top);
                sum += share;
                out = fmaf(share, step.ring_kv[at], out);
            }
            out /= sum;
            values[channel] = out;
            step.stage(row, 0)[channel] = out;
            squares = fmaf(out, out, squares);
        }
#ifdef MUTANT_STATE_STALE
        push();
#endif

        const float scale = step.inverse_rms(block_sum(squares, partials));
        for (int channel = threadIdx.x; channel < dim; channel += blockDim.x) {
            const float normed = values[channel] * scale * step.weight[channel];
            values[channel] = normed;
            step.stage(row, 1)[channel] = normed;
        }
        __syncthreads();

        const float *cos = step.turn(step.cos, t), *sin = step.turn(step.sin, t);
        for (int channel = threadIdx.x; channel < dim; channel += blockDim.x) {
            const int turned = channel - (dim - step.turned), pair = turned / 2;
            float rotated = values[channel];
            if (turned >= 0 && turned % 2 == 0)
                rotated = rotated * cos[pair] - values[channel + 1] * sin[pair];
            else if (turned >= 0)
                rotated = rotated * cos[pair] + values[channel - 1] * sin[pair];
            step.stage(row, 2)[channel] = rotated;
            from_f32(step.entry(row, t)[channel], rotated);
        }
        // The next row writes to shared memory again.
        __syncthreads();
    }
}

// ---- warps

template <class T, class To> __device__ __forceinline__ void warps(Step<T> step, To to, int row) {
    constexpr int SLOTS = 8;
    __shared__ float partials[32];
    step.rate = SLOTS / 2, step.overlap = 1;
    const int dim = step.dim, channel = 4 * threadIdx.x;
    const Four weight = Four::load(step.weight + channel);
    // All but weights comes from the launches before.
    wait_on_dependent_grids();
    launch_dependent_grids();
    // What does not depend on the position is loaded with it.
    const float *kv = step.kv + (size_t)row * 2 * dim + channel, *gate = step.gate + (size_t)row * 2 * dim + channel;
    const Four new_kv[2] = {Four::load(kv), Four::load(kv + dim)};
    Four new_gate[2] = {Four::load(gate), Four::load(gate + dim)};
    const int t = step.position[row];
    to.begin(row);
    const bool closes = step.closes(t);

    Four gates[SLOTS], values[SLOTS];
    if (closes) {
        const int first = step.first_pooled(t);
#pragma unroll
        for (int n = 0; n < SLOTS; n++) {
            const int token = t - SLOTS + 1 + n;
            // A share of 0 for what there is not.
            gates[n] = Four::of(-infinity()), values[n] = Four::of(0.0f);
#ifndef MUTANT_STATE_STALE
            if (n == SLOTS - 1)
                continue;
#endif
            if (token >= first) {
                const size_t at = step.pooled(row, token, t) + channel;
                gates[n] = Four::load(step.ring_gate + at), values[n] = Four::load(step.ring_kv + at);
            }
        }
    }
    if (t >= 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const size_t at = step.slot(row, t) + half * dim + channel;
            new_gate[half].add(Four::load(step.ape_of(t) + half * dim + channel));
            new_kv[half].store(step.ring_kv + at), new_gate[half].store(step.ring_gate + at);
        }
    }
    if (!closes) {
        for (int stage = 0; stage < STAGES; stage++)
            to.none(step, row, stage, channel);
        return;
    }
#ifndef MUTANT_STATE_STALE
#ifdef MUTANT_HALVES_EXCHANGED
    gates[SLOTS - 1] = new_gate[0], values[SLOTS - 1] = new_kv[0];
#else
    gates[SLOTS - 1] = new_gate[1], values[SLOTS - 1] = new_kv[1];
#endif
#endif

    Four top = Four::of(-infinity());
#ifdef MUTANT_MAXIMUM_OF_FIRST
#pragma unroll
    for (int n = 0; n < SLOTS / 2; n++)
#else
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
#endif
        top.raise(gates[n]);
    const Four pooled = Shares(gates, values, top).pooled();
    // A row of one warp waits for no other.
    const float squares = dim == 128 ? warp_sum(pooled.squares()) : block_sum(pooled.squares(), partials);
    finish(step, to, row, t, channel, pooled, weight, step.inverse_rms(squares));
}

// ---- cluster

template <class T, class To> __device__ __forceinline__ void cluster(Step<T> step, To to) {
    constexpr int CTAS = 8, WARPS = 8, QUADS = 16, GROUPS = 16, EACH = 8, DIM = 4 * CTAS * QUADS;
    __shared__ Four tops[WARPS][QUADS], sums[WARPS][QUADS], outs[WARPS][QUADS];
    __shared__ float squares[CTAS];
    step.rate = GROUPS * EACH, step.overlap = 0, step.dim = DIM;
    const int row = blockIdx.x / CTAS, rank = blockIdx.x % CTAS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Four channels of eight slots; the last group has the token's own when its window is complete.
    const int quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS, channel = 4 * (rank * QUADS + quad);
    const bool last = group == GROUPS - 1;
    Four new_kv, new_gate, weight;
    if (warp == 0)
        weight = Four::load(step.weight + channel);
    // All but weights comes from the launches before.
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (last)
        new_kv = Four::load(step.kv + (size_t)row * DIM + channel),
        new_gate = Four::load(step.gate + (size_t)row * DIM + channel);
    const int t = step.position[row];
    to.begin(row);
    const bool closes = step.closes(t);
    if (closes)
        cluster_arrive_relaxed();

    Four gates[EACH], values[EACH];
    if (closes) {
#pragma unroll
        for (int n = 0; n < EACH; n++) {
#ifndef MUTANT_STATE_STALE
            if (last && n == EACH - 1)
                continue;
#endif
            const size_t at = step.slot(row, group * EACH + n) + channel;
            gates[n] = Four::load(step.ring_gate + at), values[n] = Four::load(step.ring_kv + at);
        }
    }
    if (last && t >= 0) {
        const size_t at = step.slot(row, t) + channel;
        new_gate.add(Four::load(step.ape_of(t) + channel));
        new_kv.store(step.ring_kv + at), new_gate.store(step.ring_gate + at);
#ifndef MUTANT_STATE_STALE
        gates[EACH - 1] = new_gate, values[EACH - 1] = new_kv;
#endif
    }
    if (!closes) {
        if (group < STAGES)
            to.none(step, row, group, channel);
        return;
    }

    // ---- maxima, then sums: over eight slots, two groups of a warp, eight warps
    Four top = gates[0];
#pragma unroll
    for (int n = 1; n < EACH; n++)
        top.raise(gates[n]);
    top.raise(top.across());
    if (lane < QUADS)
        tops[warp][quad] = top;
    __syncthreads();
#ifdef MUTANT_MAXIMUM_OF_FIRST
    top = tops[0][quad];
    for (int other = 0; other < WARPS / 2; other++)
#else
#pragma unroll
    for (int other = 0; other < WARPS; other++)
#endif
        top.raise(tops[other][quad]);
    Shares shares(gates, values, top);
    shares.sum.add(shares.sum.across()), shares.out.add(shares.out.across());
    if (lane < QUADS)
        sums[warp][quad] = shares.sum, outs[warp][quad] = shares.out;
    __syncthreads();
    // The other CTAs of the cluster have begun, so their shared memory exists.
    cluster_wait();

    // ---- norm: the first warp has the channels of this CTA, twice, in its halves
    Four pooled;
    if (warp == 0) {
        shares.sum = shares.out = Four::of(0.0f);
#pragma unroll
        for (int other = 0; other < WARPS; other++)
            shares.sum.add(sums[other][quad]), shares.out.add(outs[other][quad]);
        pooled = shares.pooled();
        const float total = lanes_sum<QUADS>(pooled.squares());
        if (lane < CTAS)
            st_shared_cluster(map_shared_rank(&squares[rank], lane), total);
    }
    cluster_sync();
    // Both halves of the warp store the same.
    if (warp > 0)
        return;
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < CTAS; other++)
        sum += squares[other];
    finish(step, to, row, t, channel, pooled, weight, step.inverse_rms(sum));
}

#define PARAMETERS(T)                                                                                                  \
    const float *kv, const float *gate, const float *ape, const float *weight, const float *cos, const float *sin,     \
        const int *position, float *ring_kv, float *ring_gate, T *entries, float *stages, int rows, int rate, int dim, \
        int turned, int capacity, int overlap, float eps
#define STEP_OF(T)                                                                                                         \
    Step<T> {                                                                                                              \
        kv, gate, ape, weight, cos, sin, position, ring_kv, ring_gate, entries, stages, rows, rate, dim, turned, capacity, \
            overlap, eps                                                                                                   \
    }
#define ENTRIES(DTYPE, T)                                                       \
    KERNEL(compressor_simple_##DTYPE, __launch_bounds__(1024))(PARAMETERS(T)) { \
        simple(STEP_OF(T));                                                     \
    }                                                                           \
    KERNEL(compressor_warps_##DTYPE, __launch_bounds__(256))(PARAMETERS(T)) {   \
        warps(STEP_OF(T), ToMemory{}, blockIdx.x);                              \
    }                                                                           \
    KERNEL(compressor_cluster_##DTYPE, __launch_bounds__(256))(PARAMETERS(T)) { \
        cluster(STEP_OF(T), ToMemory{});                                        \
    }

ENTRIES(bf16, bf16)
ENTRIES(f32, float)
