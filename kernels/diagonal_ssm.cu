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
name = "cluster"
doc = "few heads: 256 segments of each in a cluster of 8 blocks, of 4 threads each: first where they end, from 0, then from where they start"
needs = ["N == 32", "S % 1024 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_cluster"
grid = ["8 * H"]
block = [128]
cluster = [8]
shared = "4 * (S / 8 + 4 * 32 + 36 * 32)"
args = ["u", "a", "b", "c", "y", "S"]

[[variant]]
name = "chunks"
doc = "a block for each head: chunks of 32 steps as products with powers of a, by tensor cores, f32 as two TF32; a scan over chunks"
needs = ["N == 32", "S % 2048 == 0"]

[[variant.launch]]
entry = "diagonal_ssm_chunks"
grid = ["H"]
block = [128]
shared = "4 * (4 * 64 * 36 + 65 * 33 + 32)"
args = ["u", "a", "b", "c", "y", "S"]

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
variants = ["heads", "cluster", "chunks"]

[[mutant]]
name = "segment_power"
doc = "a segment's start is passed on with the decay of one step less"
variants = ["cluster"]

[[mutant]]
name = "block_lost"
doc = "a block starts from where the one before it ends alone"
variants = ["cluster"]
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
    // As many sums as there is room for between a product and the next to be added to it.
    constexpr int SUMS = N / 8 > 2 ? 4 : 2;
    float y[SUMS] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
#ifdef MUTANT_INPUT_LATE
        y[n % SUMS] = fmaf(w[n], x[n], y[n % SUMS]);
        x[n] = fmaf(a[n], x[n], u);
#else
        x[n] = fmaf(a[n], x[n], u);
        y[n % SUMS] = fmaf(w[n], x[n], y[n % SUMS]);
#endif
    }
    return SUMS == 4 ? (y[0] + y[1]) + (y[2] + y[3]) : y[0] + y[1];
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
        float4 next = *(const float4 *)mine;
#pragma unroll 1
        for (int t = 0; t < STEPS; t += 4) {
            // The inputs after the last ones are not used: what is read there are the columns more.
            float4 four = next;
            next = *(const float4 *)(mine + t + 4);
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

// ---- cluster

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

extern "C" __global__ void __launch_bounds__(128) diagonal_ssm_cluster(const float *u, const float *a, const float *b,
                                                                       const float *c, float *y, int S) {
    constexpr int N = 32, EACH = 8, ENDS = N + 4, BLOCKS = 8, SEGMENTS = 32;
    extern __shared__ __align__(16) float shared[];
    __shared__ float total[N];
    const int head = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, steps = S / BLOCKS;
    const int length = steps / SEGMENTS, stride = length + 4;
    const int segment = threadIdx.x / 4, part = threadIdx.x % 4;
    float *ends = shared + SEGMENTS * stride, *mine = shared + segment * stride, *my_end = ends + segment * ENDS + part * EACH;
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

    float start = 0.0f, end[SEGMENTS];
    if (threadIdx.x < N) {
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            end[s] = ends[s * ENDS + threadIdx.x];
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            start = fmaf(of_segment, start, end[s]);
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
    if (threadIdx.x < N) {
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++) {
            ends[s * ENDS + threadIdx.x] = start;
            start = fmaf(of_segment, start, end[s]);
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

// ---- chunks
//
// With chunks of T = 32 steps, K_j = Σ c b aʲ and x the state before a chunk, of each chunk's inputs u:
//
//   e = Σ_s a^(T−1−s) u_s    y_t = Σ_{s≤t} K_{t−s} u_s + Σ_n c b a^(t+1) x    x ← a^T x + e
//
// Chunks are the columns of products of 32 × 32 matrices. A warp has 16 of the rows and half of the columns.

// A number as two of TF32, both cut: 22 bits of it. To round takes conversions, of which there are few in a cycle.
__device__ __forceinline__ void two_tf32(float x, u32 &high, u32 &low) {
    const u32 bits = 0xffffe000;
    high = __float_as_uint(x) & bits, low = __float_as_uint(x - __uint_as_float(high)) & bits;
}

// c += a b of 16 × 8 and 8 × 8.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16 rows of a 32 × 32 matrix, as the left side of products.
struct Rows {
    u32 high[4][4], low[4][4];

    // `at(row, col)` for this lane's rows and columns; `first` is the first of the rows.
    template <class At> __device__ __forceinline__ Rows(int first, At at) {
        const int row = first + threadIdx.x % 32 / 4, col = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                two_tf32(at(row + i % 2 * 8, 8 * k + col + i / 2 * 4), high[k][i], low[k][i]);
        }
    }

    // out += these · columns, for four times 8 columns, which are rows of `STRIDE` numbers in shared memory: only the first
    // 8 · `depth` of the numbers.
    template <int STRIDE> __device__ __forceinline__ void times(float (&out)[4][4], const float *columns, int depth) const {
        const float *mine = columns + threadIdx.x % 32 / 4 * STRIDE + threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k >= depth)
                break;
            u32 right[4][2], rest[4][2];
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
                two_tf32(mine[tile * 8 * STRIDE + 8 * k], right[tile][0], rest[tile][0]);
                two_tf32(mine[tile * 8 * STRIDE + 8 * k + 4], right[tile][1], rest[tile][1]);
            }
#pragma unroll
            for (int tile = 0; tile < 4; tile++)
                multiply(out[tile], low[k], right[tile]);
#pragma unroll
            for (int tile = 0; tile < 4; tile++)
                multiply(out[tile], high[k], rest[tile]);
#pragma unroll
            for (int tile = 0; tile < 4; tile++)
                multiply(out[tile], high[k], right[tile]);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128, 3) diagonal_ssm_chunks(const float *u, const float *a, const float *b,
                                                                          const float *c, float *y, int S) {
    constexpr int T = 32, CHUNKS = 64, STRIDE = T + 4, PIECE = CHUNKS * T, STAGES = 3;
    extern __shared__ __align__(16) float shared[];
    float *inputs = shared, *states = inputs + STAGES * CHUNKS * STRIDE;
    // aʲ and, from the 33rd row on, c b a^(j+1), of every state; and the K_j.
    float(*powers)[33] = (float(*)[33])(states + CHUNKS * STRIDE), *kernel = &powers[65][0];
    const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u += (size_t)head * S, y += (size_t)head * S;
    auto fetch = [&](int piece) {
        if (piece * PIECE < S) {
#pragma unroll
            for (int i = 0; i < PIECE / 512; i++) {
                const int chunk = i * 16 + threadIdx.x / 8, step = threadIdx.x % 8 * 4;
                copy_async(inputs + (piece % STAGES * CHUNKS + chunk) * STRIDE + step, u + piece * PIECE + chunk * T + step);
            }
        }
        copy_group();
    };
    fetch(0), fetch(1);

    // Every warp has eight of the powers of each lane's state.
    const double decay = a[head * T + lane], of_output = weight(b[head * T + lane], c[head * T + lane]);
    double power = 1.0, eighth = decay * decay;
    eighth *= eighth, eighth *= eighth;
    for (int i = 0; i < warp; i++)
        power *= eighth;
    for (int j = warp * 8; j < warp * 8 + 8; j++, power *= decay) {
        powers[j][lane] = (float)power;
        powers[33 + j][lane] = (float)(of_output * (power * decay));
        const float sum = warp_sum((float)(of_output * power));
        if (lane == 0)
            kernel[j] = sum;
    }
    // a^T, in the warp that comes to it.
    const float of_chunk = (float)power;
    __syncthreads();
    const int row = warp % 2 * 16, depth = warp % 2 * 2 + 2;
    const Rows ends(row, [&](int n, int s) { return powers[T - 1 - s][n]; });
    const Rows within(row, [&](int t, int s) { return t < s ? 0.0f : kernel[t - s]; });
    const Rows outputs(row, [&](int t, int n) { return powers[33 + t][n]; });

    const int first = warp / 2 * 32, mine = lane % 4 * 2;
    float start = 0.0f;
    for (int piece = 0; piece * PIECE < S; piece++) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        fetch(piece + 2);
        const float *in = inputs + (piece % STAGES * CHUNKS + first) * STRIDE;
        {
            float out[4][4] = {};
            ends.times<STRIDE>(out, in, 4);
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    states[(first + tile * 8 + mine + i % 2) * STRIDE + row + lane / 4 + i / 2 * 8] = out[tile][i];
            }
        }
        __syncthreads();
        if (warp == 3) {
#ifdef MUTANT_CARRY_LOST
            start = 0.0f;
#endif
            // Read ahead, since only the sums wait for each other.
            for (int chunk = 0; chunk < CHUNKS; chunk += 16) {
                float *places = states + chunk * STRIDE + lane, end[16];
#pragma unroll
                for (int i = 0; i < 16; i++)
                    end[i] = places[i * STRIDE];
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    places[i * STRIDE] = start;
                    start = fmaf(of_chunk, start, end[i]);
                }
            }
        }
        __syncthreads();
        float out[4][4] = {};
        within.times<STRIDE>(out, in, depth);
        outputs.times<STRIDE>(out, states + first * STRIDE, 4);
        float *to = y + piece * PIECE + (first + mine) * T + row + lane / 4;
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_once(to + (tile * 8 + i % 2) * T + i / 2 * 8, out[tile][i]);
        }
    }
}
