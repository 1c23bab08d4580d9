/*
[[variant]]
name = "simple"
doc = "a warp for each head, its states over the lanes, a sum over the warp for each step; up to 128 states"

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
name = "split64"
doc = "fewer heads: 64 segments of a head's steps at a time, each in 4 threads: first where they end, from 0, then from where they start"
needs = ["N == 32", "S % 256 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_split_1"
grid = ["H"]
block = [256]
shared = "4 * (S + 4 * 64 + 36 * 64)"
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "split32"
doc = "the same with 32 segments"
needs = ["N == 32", "S % 128 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_split_1"
grid = ["H"]
block = [128]
shared = "4 * (S + 4 * 32 + 36 * 32)"
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "cluster"
doc = "few heads: the same by clusters of 8 blocks, 64 segments in each"
needs = ["N == 32", "S % 2048 == 0", "H <= 64"]

[[variant.launch]]
entry = "diagonal_ssm_split_8"
grid = ["8 * H"]
block = [256]
cluster = [8]
shared = "4 * (S / 8 + 4 * 64 + 36 * 64)"
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "cluster32"
doc = "few heads: the same by clusters of 8 blocks, 32 segments in each"
needs = ["N == 32", "S % 2048 == 0", "H <= 64"]

[[variant.launch]]
entry = "diagonal_ssm_split_8"
grid = ["8 * H"]
block = [128]
cluster = [8]
shared = "4 * (S / 8 + 4 * 32 + 36 * 32)"
args = ["u", "a", "b", "c", "y", "S"]

[[mutant]]
name = "input_late"
doc = "an output is of the state before its input"

[[mutant]]
name = "b_dropped"
doc = "inputs are taken as they are"

[[mutant]]
name = "carry_lost"
doc = "a tile or segment starts from 0"
variants = ["heads", "split64", "split32", "cluster", "cluster32"]

[[mutant]]
name = "segment_power"
doc = "a segment's start is passed on with the decay of one step less"
variants = ["split64", "split32", "cluster", "cluster32"]

[[mutant]]
name = "block_lost"
doc = "a block starts from where the one before it ends alone"
variants = ["cluster", "cluster32"]
*/

// x_t = a ⊙ x_{t−1} + b u_t, y_t = Σ c x_t, with x from 0: u, y [H, S], a, b, c [H, N].
//
// Below x stands for x / b, so that x_t = a x_{t−1} + u_t and y_t = Σ (c b) x_t: two fused operations for each state.

#include "common.cuh"

__device__ __forceinline__ float weight(float b, float c) {
#ifdef MUTANT_B_DROPPED
    return c;
#else
    return b * c;
#endif
}

// A step of `N` states; gives their share of y.
template <int N> __device__ __forceinline__ float step(float (&x)[N], const float (&a)[N], const float (&w)[N], float u) {
    float y[2] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
#ifdef MUTANT_INPUT_LATE
        y[n % 2] = fmaf(w[n], x[n], y[n % 2]);
        x[n] = fmaf(a[n], x[n], u);
#else
        x[n] = fmaf(a[n], x[n], u);
        y[n % 2] = fmaf(w[n], x[n], y[n % 2]);
#endif
    }
    return y[0] + y[1];
}

extern "C" __global__ void diagonal_ssm_simple(const float *u, const float *a, const float *b, const float *c, float *y, int S,
                                               int N) {
    const int head = blockIdx.x, lane = threadIdx.x;
    float x[4] = {}, decay[4] = {}, w[4] = {};
    for (int i = 0; i < 4 && lane + 32 * i < N; i++) {
        const size_t at = (size_t)head * N + lane + 32 * i;
        decay[i] = a[at], w[i] = weight(b[at], c[at]);
    }
    for (int t = 0; t < S; t++) {
        const float sum = warp_sum(step(x, decay, w, u[(size_t)head * S + t]));
        if (lane == 0)
            y[(size_t)head * S + t] = sum;
    }
}

template <int N> __device__ __forceinline__ void load(const float *from, float (&x)[N]) {
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        const float4 four = *(const float4 *)(from + n);
        x[n] = four.x, x[n + 1] = four.y, x[n + 2] = four.z, x[n + 3] = four.w;
    }
}

// ---- heads

// 16 bytes on their way to shared memory, and all but the last `PENDING` groups of them there.
__device__ __forceinline__ void copy_async(float *to, const float *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32) diagonal_ssm_heads(const float *u, const float *a, const float *b,
                                                                     const float *c, float *y, int S) {
    constexpr int N = 32, STEPS = 64;
    // Four columns more, so that the 16 bytes of eight rows are in 32 banks.
    __shared__ __align__(16) float tiles[2][32][STEPS + 4];
    const int lane = threadIdx.x, head = blockIdx.x * 32 + lane;
    float x[N] = {}, decay[N], w[N], bs[N];
    load(a + (size_t)head * N, decay), load(b + (size_t)head * N, bs), load(c + (size_t)head * N, w);
#pragma unroll
    for (int n = 0; n < N; n++)
        w[n] = weight(bs[n], w[n]);
    // This lane's 16 bytes of every second row.
    const int row = lane / 16, col = lane % 16 * 4;
    const size_t first = ((size_t)blockIdx.x * 32 + row) * S + col;
    auto fetch = [&](int tile) {
        if (tile * STEPS < S) {
#pragma unroll
            for (int i = 0; i < 32; i += 2)
                copy_async(&tiles[tile % 2][row + i][col], u + first + (size_t)i * S + tile * STEPS);
        }
        copy_group();
    };
    fetch(0);
    for (int tile = 0; tile * STEPS < S; tile++) {
        fetch(tile + 1);
        copy_wait<1>();
#ifdef MUTANT_CARRY_LOST
#pragma unroll
        for (int n = 0; n < N; n++)
            x[n] = 0.0f;
#endif
        float *mine = tiles[tile % 2][lane];
#pragma unroll 1
        for (int t = 0; t < STEPS; t += 4) {
            float4 four = *(const float4 *)(mine + t);
            four.x = step(x, decay, w, four.x), four.y = step(x, decay, w, four.y);
            four.z = step(x, decay, w, four.z), four.w = step(x, decay, w, four.w);
            *(float4 *)(mine + t) = four;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 32; i += 2)
            store_once((float4 *)(y + first + (size_t)i * S + tile * STEPS), *(const float4 *)&tiles[tile % 2][row + i][col]);
        __syncwarp();
    }
}

// ---- split

// xⁿ, rounded once.
__device__ __forceinline__ float power(float x, int n) {
#ifdef MUTANT_SEGMENT_POWER
    n--;
#endif
    double square = x, out = 1.0;
    for (; n > 0; n /= 2, square *= square)
        out = n % 2 ? out * square : out;
    return (float)out;
}

// A number in the shared memory of another block of the cluster.
__device__ __forceinline__ float of_block(const float *at, int rank) {
    u32 address;
    float out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(at)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(out) : "r"(address) : "memory");
    return out;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <int BLOCKS>
__device__ __forceinline__ void split(const float *u, const float *a, const float *b, const float *c, float *y, int S) {
    constexpr int N = 32, EACH = 8, ENDS = N + 4;
    extern __shared__ __align__(16) float shared[];
    __shared__ float total[N];
    const int head = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, steps = S / BLOCKS;
    const int segments = blockDim.x / 4, length = steps / segments, stride = length + 4;
    const int segment = threadIdx.x / 4, part = threadIdx.x % 4;
    float *ends = shared + segments * stride, *mine = shared + segment * stride, *my_end = ends + segment * ENDS + part * EACH;
    u += (size_t)head * S + rank * steps, y += (size_t)head * S + rank * steps;
    a += head * N, b += head * N, c += head * N;

    for (int t = 4 * threadIdx.x; t < steps; t += 4 * blockDim.x)
        *(float4 *)(shared + t / length * stride + t % length) = *(const float4 *)(u + t);
    float x[EACH] = {}, decay[EACH], w[EACH], bs[EACH];
    load(a + part * EACH, decay), load(b + part * EACH, bs), load(c + part * EACH, w);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        w[n] = weight(bs[n], w[n]);
    float of_segment, of_block_steps;
    if (threadIdx.x < N)
        of_segment = power(a[threadIdx.x], length), of_block_steps = power(a[threadIdx.x], steps);
    __syncthreads();

    for (int t = 0; t < length; t += 4) {
        const float4 four = *(const float4 *)(mine + t);
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            x[n] = fmaf(decay[n], fmaf(decay[n], x[n], four.x), four.y);
            x[n] = fmaf(decay[n], fmaf(decay[n], x[n], four.z), four.w);
        }
    }
    *(float4 *)my_end = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(my_end + 4) = make_float4(x[4], x[5], x[6], x[7]);
    __syncthreads();

    float start = 0.0f;
    if (BLOCKS > 1) {
        if (threadIdx.x < N) {
            for (int s = 0; s < segments; s++)
                start = fmaf(of_segment, start, ends[s * ENDS + threadIdx.x]);
            total[threadIdx.x] = start;
        }
        cluster_barrier();
        start = 0.0f;
        if (threadIdx.x < N) {
#ifdef MUTANT_BLOCK_LOST
            for (int block = max(rank - 1, 0); block < rank; block++)
#else
            for (int block = 0; block < rank; block++)
#endif
                start = fmaf(of_block_steps, start, of_block(total + threadIdx.x, block));
        }
        // Nobody leaves before all have read.
        cluster_barrier();
    }
    if (threadIdx.x < N) {
#pragma unroll 8
        for (int s = 0; s < segments; s++) {
            float &end = ends[s * ENDS + threadIdx.x];
            const float next = fmaf(of_segment, start, end);
            end = start, start = next;
        }
    }
    __syncthreads();
#ifdef MUTANT_CARRY_LOST
#pragma unroll
    for (int n = 0; n < EACH; n++)
        x[n] = 0.0f;
#else
    load(my_end, x);
#endif

    const bool second = part & 1, upper = part & 2;
    for (int t = 0; t < length; t += 4) {
        const float4 four = *(const float4 *)(mine + t);
        const float y0 = step(x, decay, w, four.x), y1 = step(x, decay, w, four.y);
        const float y2 = step(x, decay, w, four.z), y3 = step(x, decay, w, four.w);
        // Of the four sums over four threads, each thread is left with its own.
        const float even = (upper ? y2 : y0) + __shfl_xor_sync(0xffffffff, upper ? y0 : y2, 2);
        const float odd = (upper ? y3 : y1) + __shfl_xor_sync(0xffffffff, upper ? y1 : y3, 2);
        const float sum = (second ? odd : even) + __shfl_xor_sync(0xffffffff, second ? even : odd, 1);
        __syncwarp();
        mine[t + part] = sum;
    }
    __syncthreads();
    for (int t = 4 * threadIdx.x; t < steps; t += 4 * blockDim.x)
        store_once((float4 *)(y + t), *(const float4 *)(shared + t / length * stride + t % length));
}

extern "C" __global__ void __launch_bounds__(256) diagonal_ssm_split_1(const float *u, const float *a, const float *b,
                                                                       const float *c, float *y, int S) {
    split<1>(u, a, b, c, y, S);
}

extern "C" __global__ void __launch_bounds__(256) diagonal_ssm_split_8(const float *u, const float *a, const float *b,
                                                                       const float *c, float *y, int S) {
    split<8>(u, a, b, c, y, S);
}
