/*
[[variant]]
name = "simple"
doc = "a warp for each head, its states over the lanes, a sum over the warp for each step; up to 128 states"
needs = ["N <= 128"]

[[variant.launch]]
entry = "diagonal_ssm_simple"
grid = ["H"]
block = [32]
args = ["u", "a", "b", "c", "y", "S", "N"]

[[variant]]
name = "heads"
doc = "many heads: a thread for each, its 32 states in registers; tiles of 64 steps of 32 heads go through shared memory"
needs = ["N == 32", "H % 32 == 0", "S % 64 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_heads"
grid = ["H / 32"]
block = [32]
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "cluster"
doc = """
few heads: each has 256 segments in a cluster of 8 thread blocks, with 4 threads per segment: the first pass scans every \
segment from 0 for its final states, the second scans from its true start"""
needs = ["N == 32", "S % 1024 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_cluster"
grid = ["8 * H"]
block = [128]
cluster = [8]
shared = "4 * (S / 8 + 4 * 32 + 36 * 32 + 8 * 32)"
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "rows"
doc = """
one thread block per head, 4 warps for 4,096 steps at a time: chunks of 32 steps are products with powers of a, on tensor \
cores, with f32 as two TF32, all in registers"""
needs = ["N == 32", "S % 32 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_rows"
grid = ["H"]
block = [128]
args = ["u", "a", "b", "c", "y", "S"]

[[mutant]]
name = "carry_rounded"
doc = "states that are carried from one piece to the next are rounded to bf16"
variants = ["rows"]

[[mutant]]
name = "input_late"
doc = "an output is of the state before its input"
variants = ["simple", "heads", "cluster"]

[[mutant]]
name = "b_dropped"
doc = "inputs are taken as they are"

[[mutant]]
name = "carry_lost"
doc = "a tile or segment starts from 0"
variants = ["heads", "cluster", "rows"]

[[mutant]]
name = "segment_power"
doc = "a segment's start is passed on with the decay of one step less"
variants = ["cluster", "rows"]

[[mutant]]
name = "block_lost"
doc = "a block starts from the final state of the one before it alone"
variants = ["cluster"]

[[mutant]]
name = "later_seen"
doc = "outputs read inputs of their chunk that come later"
variants = ["rows"]

[[mutant]]
name = "low_lost"
doc = "inputs and states are rounded to TF32"
variants = ["rows"]

[[mutant]]
name = "row_offset_32"
doc = "the bytes before the steps of a head are counted in 32 bits"

[[mutant]]
name = "barrier_missing"
doc = "where warps or blocks end is read before all are there"
variants = ["cluster", "rows"]
*/

// reference: reference/ops/diagonal_ssm.rs
//
// x_t = a ⊙ x_{t−1} + b u_t, y_t = Σ c x_t, with x from 0: u, y [H, S], a, b, c [H, N].
//
// Below, x stands for x / b, so that x_t = a x_{t−1} + u_t and y_t = Σ (c b) x_t: two fused operations for each state.

#include "lib/cluster.cuh"
#include "lib/reduce.cuh"
#include "lib/tma.cuh"

__device__ __forceinline__ float weight(float b, float c) {
#ifdef MUTANT_B_DROPPED
    return c;
#else
    return b * c;
#endif
}

// The number of the first step of a head.
__device__ __forceinline__ size_t first_step(int head, int S) {
#ifdef MUTANT_ROW_OFFSET_32
    return (u32)head * (u32)S % (1u << 30);
#else
    return (size_t)head * S;
#endif
}

// One step of `N` states; returns their share of y.
template <int N> __device__ __forceinline__ float step(float (&x)[N], const float (&a)[N], const float (&w)[N], float u) {
    float y = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float now = fmaf(a[n], x[n], u);
#ifdef MUTANT_INPUT_LATE
        y = fmaf(w[n], x[n], y);
#else
        y = fmaf(w[n], now, y);
#endif
        x[n] = now;
    }
    return y;
}

// Four steps. In a cycle the register file gives one even and one odd operand, and reuses the operand that the last instruction
// had in the same place. So four states take all steps before their weights are used, each four times in a row.
template <int N> __device__ __forceinline__ float4 step(float (&x)[N], const float (&a)[N], const float (&w)[N], float4 u4) {
    const float u[4] = {u4.x, u4.y, u4.z, u4.w};
    float y[4] = {};
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        float now[4][4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#ifdef MUTANT_INPUT_LATE
                now[t][i] = x[n + i];
                x[n + i] = fmaf(a[n + i], x[n + i], u[t]);
#else
                now[t][i] = x[n + i] = fmaf(a[n + i], x[n + i], u[t]);
#endif
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int t = 0; t < 4; t++)
                y[t] = fmaf(w[n + i], now[t][i], y[t]);
        }
    }
    return make_float4(y[0], y[1], y[2], y[3]);
}

KERNEL(diagonal_ssm_simple)(const float *u, const float *a, const float *b, const float *c, float *y, int S, int N) {
    const int head = blockIdx.x, lane = threadIdx.x;
    float x[4] = {}, decay[4] = {}, w[4] = {};
    for (int i = 0; i < 4 && lane + 32 * i < N; i++) {
        const size_t at = (size_t)head * N + lane + 32 * i;
        decay[i] = a[at], w[i] = weight(b[at], c[at]);
    }
    for (int t = 0; t < S; t++) {
        const float sum = warp_sum(step(x, decay, w, u[first_step(head, S) + t]));
        if (lane == 0)
            y[first_step(head, S) + t] = sum;
    }
}

template <int N> __device__ __forceinline__ void load(const float *from, float (&x)[N]) {
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        const float4 u4 = *(const float4 *)(from + n);
        x[n] = u4.x, x[n + 1] = u4.y, x[n + 2] = u4.z, x[n + 3] = u4.w;
    }
}

// ---- heads

KERNEL(diagonal_ssm_heads, __launch_bounds__(32, 8))(const float *u, const float *a, const float *b, const float *c, float *y,
                                                     int S) {
    constexpr int N = 32, STEPS = 64;
    // Four more columns avoid bank conflicts of the 16-byte accesses of eight rows.
    __shared__ __align__(16) float tiles[2][32][STEPS + 4];
    const int lane = threadIdx.x, head = blockIdx.x * 32 + lane;
    float x[N] = {}, decay[N], w[N], bs[N];
    load(a + (size_t)head * N, decay), load(b + (size_t)head * N, bs), load(c + (size_t)head * N, w);
#pragma unroll
    for (int n = 0; n < N; n++)
        w[n] = weight(bs[n], w[n]);
    // A lane copies 16 bytes of every second row.
    const int row = lane / 16, col = lane % 16 * 4;
    const size_t first = first_step(blockIdx.x * 32 + row, S) + col;
    auto fetch = [&](int tile) {
        if (tile * STEPS < S) {
#pragma unroll
            for (int i = 0; i < 32; i += 2)
                cp_async_16(&tiles[tile % 2][row + i][col], u + first + (size_t)i * S + tile * STEPS);
        }
        cp_async_commit_group();
    };
    fetch(0);
    for (int tile = 0; tile * STEPS < S; tile++) {
        fetch(tile + 1);
        cp_async_wait_group<1>();
        __syncwarp();
#ifdef MUTANT_CARRY_LOST
#pragma unroll
        for (int n = 0; n < N; n++)
            x[n] = 0.0f;
#endif
        float *segment_u = tiles[tile % 2][lane];
        float4 next = *(const float4 *)segment_u;
#pragma unroll 1
        for (int t = 0; t < STEPS; t += 4) {
            // The inputs after the last ones are padding, and not used.
            const float4 u4 = next;
            next = *(const float4 *)(segment_u + t + 4);
            *(float4 *)(segment_u + t) = step(x, decay, w, u4);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 32; i += 2)
            st_global_cs((float4 *)(y + first + (size_t)i * S + tile * STEPS), *(const float4 *)&tiles[tile % 2][row + i][col]);
        __syncwarp();
    }
}

// ---- cluster

// xⁿ.
__device__ __forceinline__ double power(double x, int n) {
    double out = 1.0;
    for (; n > 0; n /= 2, x *= x)
        out = n % 2 ? out * x : out;
    return out;
}

// Four threads for each segment.
KERNEL(diagonal_ssm_cluster, __launch_bounds__(128))(const float *u, const float *a, const float *b, const float *c, float *y,
                                                     int S) {
    constexpr int N = 32, STATES = 8, ENDS = N + 4, BLOCKS = 8, THREADS = 128, SEGMENTS = THREADS / 4;
    extern __shared__ __align__(16) float smem[];
    const int head = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, steps = S / BLOCKS;
    const int length = steps / SEGMENTS, stride = length + 4;
    const int segment = threadIdx.x / 4, part = threadIdx.x % 4;
    // The final, then the initial states of segments; and the final states of the CTAs before this one.
    float *ends = smem + SEGMENTS * stride, *before = ends + SEGMENTS * ENDS;
    float *segment_u = smem + segment * stride, *lane_end = ends + segment * ENDS + part * STATES;
    u += first_step(head, S) + rank * steps, y += first_step(head, S) + rank * steps;
    a += (size_t)head * N, b += (size_t)head * N, c += (size_t)head * N;

    // ---- prologue: all loads are issued at once
    cluster_arrive_relaxed();
    for (int t = 4 * threadIdx.x; t < steps; t += 4 * THREADS)
        cp_async_16(smem + t / length * stride + t % length, u + t);
    cp_async_commit_group();
    const double lane_decay = a[threadIdx.x % N];
    float x[STATES] = {}, decay[STATES], w[STATES], bs[STATES];
    load(a + part * STATES, decay), load(b + part * STATES, bs), load(c + part * STATES, w);
#pragma unroll
    for (int n = 0; n < STATES; n++)
        w[n] = weight(bs[n], w[n]);
#ifdef MUTANT_SEGMENT_POWER
    double square = power(lane_decay, length - 1);
#else
    double square = power(lane_decay, length);
#endif
    const float of_segment = (float)square;
#pragma unroll
    for (int i = 1; i < SEGMENTS; i *= 2)
        square *= square;
    const float of_block = (float)square;
    cp_async_wait_group<0>();
    __syncwarp();
    __syncthreads();

    // ---- final states of segments, each from 0
    for (int t = 0; t < length; t += 4) {
        const float4 u4 = *(const float4 *)(segment_u + t);
#pragma unroll
        for (int n = 0; n < STATES; n++) {
            x[n] = fmaf(decay[n], fmaf(decay[n], x[n], u4.x), u4.y);
            x[n] = fmaf(decay[n], fmaf(decay[n], x[n], u4.z), u4.w);
        }
    }
    *(float4 *)lane_end = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(lane_end + 4) = make_float4(x[4], x[5], x[6], x[7]);
    __syncthreads();

    // ---- scan: over the segments of this CTA, then over CTAs
    float start = 0.0f, end[SEGMENTS];
    if (threadIdx.x < N) {
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            end[s] = ends[s * ENDS + threadIdx.x];
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            start = fmaf(of_segment, start, end[s]);
    }
    // The other CTAs of the cluster have begun, so their shared memory exists.
    cluster_wait();
#ifdef MUTANT_BARRIER_MISSING
    if (rank % 2 == 0)
        __nanosleep(100000);
#endif
    if (threadIdx.x < N) {
        for (int to = rank + 1; to < BLOCKS; to++)
            st_shared_cluster(map_shared_rank(before + rank * N + threadIdx.x, to), start);
    }
    cluster_arrive();
#ifndef MUTANT_BARRIER_MISSING
    cluster_wait();
#endif
    if (threadIdx.x < N) {
        start = 0.0f;
#ifdef MUTANT_BLOCK_LOST
        for (int block = max(rank - 1, 0); block < rank; block++)
#else
        for (int block = 0; block < rank; block++)
#endif
            start = fmaf(of_block, start, before[block * N + threadIdx.x]);
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++) {
            ends[s * ENDS + threadIdx.x] = start;
            start = fmaf(of_segment, start, end[s]);
        }
    }
    __syncthreads();
#ifdef MUTANT_CARRY_LOST
#pragma unroll
    for (int n = 0; n < STATES; n++)
        x[n] = 0.0f;
#else
    load(lane_end, x);
#endif

    // ---- outputs, from the initial states of segments
    const bool second = part & 1, upper = part & 2;
    for (int t = 0; t < length; t += 4) {
        const float4 out = step(x, decay, w, *(const float4 *)(segment_u + t));
        // Reduce-scatter: each of four threads keeps one of four sums.
        const float even = (upper ? out.z : out.x) + __shfl_xor_sync(0xffffffff, upper ? out.x : out.z, 2);
        const float odd = (upper ? out.w : out.y) + __shfl_xor_sync(0xffffffff, upper ? out.y : out.w, 2);
        const float sum = (second ? odd : even) + __shfl_xor_sync(0xffffffff, second ? even : odd, 1);
        __syncwarp();
        segment_u[t + part] = sum;
    }
    __syncthreads();
    for (int t = 4 * threadIdx.x; t < steps; t += 4 * THREADS)
        st_global_cs((float4 *)(y + t), *(const float4 *)(smem + t / length * stride + t % length));
#ifdef MUTANT_BARRIER_MISSING
    cluster_wait();
#endif
}

// ---- rows

#include "diagonal_ssm/rows.cuh"
