/*
[[variant]]
name = "shared"
doc = "A and B in shared memory, a warpgroup for each tile"
arch = "sm_90a"

[[variant.launch]]
entry = "wgmma_shared_{operand}_{width}"
grid = ["M"]
block = [128]
args = ["a", "b", "c", "d", "K"]

[[variant]]
name = "registers"
doc = "A in registers, B in shared memory"
arch = "sm_90a"

[[variant.launch]]
entry = "wgmma_registers_{operand}_{width}"
grid = ["M"]
block = [128]
args = ["a", "b", "c", "d", "K"]

[[mutant]]
name = "c_added_afterwards"
doc = "C is added to the sum of the products, rounded to nearest"

[[mutant]]
name = "last_step_skipped"
doc = "the last 32 bytes of each row are left out"

[[mutant]]
name = "steps_reversed"
doc = "the steps of a row are taken from the last to the first"

[[mutant]]
name = "two_halves"
doc = "a step is taken as two, of half as many terms"
variants = ["registers"]

[[mutant]]
name = "tile_offset_32"
doc = "bytes before a tile of a are counted in 32 bits"
*/

// reference: crates/core/accumulator.rs
//
// a [M, 64, K], b [M, N, K], c and d [M, 64, N]. A row has up to 128 bytes.

#if __CUDA_ARCH__ == 900
#include "wgmma/widths.cuh"

// Copies rows of `chunks` times 16 bytes into a tile with the 128-byte swizzle.
__device__ void to_tile(u8 *tile, const uint4 *from, int rows, int chunks) {
    for (int i = threadIdx.x; i < rows * chunks; i += 128) {
        const int row = i / chunks, chunk = i % chunks;
        *(uint4 *)(tile + row * 128 + ((chunk ^ row) & 7) * 16) = from[i];
    }
}

// The sums of this thread: those of rows lane / 4 and lane / 4 + 8 of the 16 of its warp, and of columns 8 n + 2 (lane % 4) and the
// next.
template <int N> __device__ size_t sum_at(int i) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    return (size_t(blockIdx.x) * 64 + row) * N + col;
}

template <class Operand, int N, bool REGISTERS> __device__ void tile(const u8 *a, const u8 *b, const float *c, float *d, int K) {
    __shared__ __align__(1024) u8 a_tile[64 * 128];
    __shared__ __align__(1024) u8 b_tile[N * 128];
    const int row_bytes = K * Operand::bytes, steps = row_bytes / 32;
#ifdef MUTANT_TILE_OFFSET_32
    a += u32(blockIdx.x * 64 * row_bytes), b += size_t(blockIdx.x) * N * row_bytes;
#else
    a += size_t(blockIdx.x) * 64 * row_bytes, b += size_t(blockIdx.x) * N * row_bytes;
#endif
    to_tile(a_tile, (const uint4 *)a, 64, row_bytes / 16);
    to_tile(b_tile, (const uint4 *)b, N, row_bytes / 16);
    fence_proxy_async_smem();
    __syncthreads();

    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
#ifdef MUTANT_C_ADDED_AFTERWARDS
        sums[i] = 0.0f;
#else
        sums[i] = c[sum_at<N>(i)];
#endif
    }
#ifdef MUTANT_LAST_STEP_SKIPPED
    for (int s = 0; s < steps - 1; s++) {
#else
    for (int s = 0; s < steps; s++) {
#endif
#ifdef MUTANT_STEPS_REVERSED
        const int step = steps - 1 - s;
#else
        const int step = s;
#endif
        const u64 b_at = wgmma_descriptor(smem_address(b_tile)) + step * 2;
        if (REGISTERS) {
            const u32 *row =
                (const u32 *)(a + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) * row_bytes + step * 32) + threadIdx.x % 4;
            const u32 *below = row + 2 * row_bytes;
            const u32 operand[4] = {row[0], below[0], row[4], below[4]};
#ifdef MUTANT_TWO_HALVES
            const u32 left[4] = {operand[0], operand[1], 0, 0}, right[4] = {0, 0, operand[2], operand[3]};
            wgmma_fence();
            Step<Operand, N>::registers(sums, left, b_at);
            Step<Operand, N>::registers(sums, right, b_at);
#else
            wgmma_fence();
            Step<Operand, N>::registers(sums, operand, b_at);
#endif
        } else {
            wgmma_fence();
            Step<Operand, N>::shared(sums, wgmma_descriptor(smem_address(a_tile)) + step * 2, b_at);
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
#ifdef MUTANT_C_ADDED_AFTERWARDS
        sums[i] += c[sum_at<N>(i)];
#endif
        d[sum_at<N>(i)] = sums[i];
    }
}

#define ENTRY(VARIANT, REGISTERS, NAME, OPERAND, N)                                                                             \
    KERNEL(wgmma_##VARIANT##_##NAME##_##N, __launch_bounds__(128))(const u8 *a, const u8 *b, const float *c, float *d, int K) { \
        tile<OPERAND, N, REGISTERS>(a, b, c, d, K);                                                                             \
    }
#define ENTRIES(N)                       \
    ENTRY(shared, false, e4m3, Fp8, N)   \
    ENTRY(shared, false, bf16, Bf16, N)  \
    ENTRY(registers, true, e4m3, Fp8, N) \
    ENTRY(registers, true, bf16, Bf16, N)
ENTRIES(8)
ENTRIES(16)
ENTRIES(24)
ENTRIES(32)
ENTRIES(64)
ENTRIES(96)
ENTRIES(128)
ENTRIES(192)
ENTRIES(256)
#endif
