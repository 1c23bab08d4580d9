/*
[[variant]]
name = "simple"
doc = "a thread block for each row"

[[variant.launch]]
entry = "sample_simple"
grid = ["B"]
block = [256]
args = ["logits", "temperature", "sequence", "position", "token", "V", "seed"]

[[variant]]
name = "split"
doc = "several thread blocks for each row; a second launch finds the best of them"
scratch = [{ name = "bests", bytes = "B * ceil(V, 4096) * 8" }]

[[variant.launch]]
entry = "sample_split"
grid = ["B", "ceil(V, 4096)"]
block = [256]
args = ["logits", "temperature", "sequence", "position", "bests", "V", "seed"]

[[variant.launch]]
entry = "sample_merge"
grid = ["B"]
block = [256]
args = ["bests", "position", "token", "V"]

[[mutant]]
name = "last_of_ties"
doc = "of equal logits the last is taken"

[[mutant]]
name = "nan_smallest"
doc = "NaN counts as smallest"

[[mutant]]
name = "noise_of_row_0"
doc = "all rows draw as the first sequence does"

[[mutant]]
name = "noise_of_position_0"
doc = "a sequence draws alike at all positions"

[[mutant]]
name = "nine_rounds"
doc = "random words lack the last round"

[[mutant]]
name = "noise_scaled"
doc = "noise is divided by the temperature, too"

[[mutant]]
name = "tail_lost"
doc = "logits after the last whole 256 are left out"

[[mutant]]
name = "parts_of_a_warp"
doc = "the second launch looks at the first 32 parts of a row"
variants = ["split"]

[[mutant]]
name = "sequence_of_16_bits"
doc = "sequences draw by the lower 16 bits of their number"

[[mutant]]
name = "tiny_temperature_greedy"
doc = "temperatures below 1e-5 count as 0"
*/

// reference: crates/operations/ops/sample.rs, reference/ops/top_k.rs

#include "lib/ptx.cuh"

constexpr int PART = 4096;

// Philox4x32-10: word `word` of the four.
__device__ __forceinline__ u32 philox(u32 c0, u32 c1, u32 c2, u32 k0, u32 k1, int word) {
    u32 c3 = 0;
#ifdef MUTANT_NINE_ROUNDS
    constexpr int rounds = 9;
#else
    constexpr int rounds = 10;
#endif
#pragma unroll
    for (int round = 0; round < rounds; round++) {
        const u32 high_0 = __umulhi(0xd2511f53, c0), low_0 = 0xd2511f53 * c0;
        const u32 high_1 = __umulhi(0xcd9e8d57, c2), low_1 = 0xcd9e8d57 * c2;
        c0 = high_1 ^ c1 ^ k0, c1 = low_1, c2 = high_0 ^ c3 ^ k1, c3 = low_0;
        k0 += 0x9e3779b9, k1 += 0xbb67ae85;
    }
    return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

// Larger for a better candidate: the order of scores, in which -0 is 0 and NaN the largest, then the smaller index.
__device__ __forceinline__ u64 candidate(float score, int index) {
    u32 bits = __float_as_uint(score + 0.0f);
    bits = bits & 0x80000000 ? ~bits : bits | 0x80000000;
#ifdef MUTANT_NAN_SMALLEST
    bits = score != score ? 0 : bits;
#else
    bits = score != score ? 0xffffffff : bits;
#endif
#ifdef MUTANT_LAST_OF_TIES
    return (u64)bits << 32 | (u32)index;
#else
    return (u64)bits << 32 | ~(u32)index;
#endif
}

__device__ __forceinline__ int index_of(u64 candidate) {
#ifdef MUTANT_LAST_OF_TIES
    return (int)(u32)candidate;
#else
    return (int)~(u32)candidate;
#endif
}

// The best of all threads of a block, for thread 0.
__device__ u64 block_best(u64 best) {
    __shared__ u64 bests[8];
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (threadIdx.x % 32 == 0)
        bests[threadIdx.x / 32] = best;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; warp++)
        best = max(best, bests[warp]);
    return best;
}

// A logit by its temperature, with Gumbel noise: the best of them is a draw. At temperature 0 it is the logit.
__device__ __forceinline__ float noisy(float logit, float temperature, int token, u32 step, u32 stream, long long seed) {
#ifdef MUTANT_TINY_TEMPERATURE_GREEDY
    if (!(temperature > 1e-5f))
#else
    if (!(temperature > 0.0f))
#endif
        return logit;
    const u32 bits = philox(token / 4, step, stream, (u32)seed, (u32)(seed >> 32), token % 4) >> 9;
    const float noise = -logf(-logf((bits + 0.5f) * 0x1p-23f));
#ifdef MUTANT_NOISE_SCALED
    return (logit + noise) / temperature;
#else
    return logit / temperature + noise;
#endif
}

// The best of the logits from `first` to `last` of a row.
__device__ u64 best_of(const float *logits, const float *temperature, const int *sequence, const int *position, int first,
                       int last, int vocabulary, long long seed) {
    const int row = blockIdx.x, at = position[row];
    const float scale = temperature[row];
#ifdef MUTANT_NOISE_OF_ROW_0
    const u32 stream = sequence[0];
#elif defined(MUTANT_SEQUENCE_OF_16_BITS)
    const u32 stream = sequence[row] & 0xffff;
#else
    const u32 stream = sequence[row];
#endif
#ifdef MUTANT_NOISE_OF_POSITION_0
    const u32 step = 0;
#else
    const u32 step = at;
#endif
#ifdef MUTANT_TAIL_LOST
    last = last < 256 ? last : last / 256 * 256;
#endif
    logits += (size_t)row * vocabulary;
    u64 best = 0;
    for (int token = first + threadIdx.x; token < last && at >= 0; token += blockDim.x) {
        const float score = noisy(logits[token], scale, token, step, stream, seed);
        best = max(best, candidate(score, token));
    }
    return block_best(best);
}

KERNEL(sample_simple, __launch_bounds__(256))(const float *logits, const float *temperature, const int *sequence,
                                              const int *position, int *token, int vocabulary, long long seed) {
    const u64 best = best_of(logits, temperature, sequence, position, 0, vocabulary, vocabulary, seed);
    if (threadIdx.x == 0)
        token[blockIdx.x] = position[blockIdx.x] < 0 ? -1 : index_of(best);
}

KERNEL(sample_split, __launch_bounds__(256))(const float *logits, const float *temperature, const int *sequence,
                                             const int *position, u64 *bests, int vocabulary, long long seed) {
    const int first = blockIdx.y * PART, last = min(first + PART, vocabulary);
    launch_dependent_grids();
    wait_on_dependent_grids();
    const u64 best = best_of(logits, temperature, sequence, position, first, last, vocabulary, seed);
    if (threadIdx.x == 0)
        bests[(size_t)blockIdx.x * gridDim.y + blockIdx.y] = best;
}

KERNEL(sample_merge, __launch_bounds__(256))(const u64 *bests, const int *position, int *token, int vocabulary) {
    const int parts = (vocabulary + PART - 1) / PART;
    u64 best = 0;
    launch_dependent_grids();
    wait_on_dependent_grids();
#ifdef MUTANT_PARTS_OF_A_WARP
    for (int part = threadIdx.x; part < min(parts, 32); part += blockDim.x)
#else
    for (int part = threadIdx.x; part < parts; part += blockDim.x)
#endif
        best = max(best, bests[(size_t)blockIdx.x * parts + part]);
    best = block_best(best);
    if (threadIdx.x == 0)
        token[blockIdx.x] = position[blockIdx.x] < 0 ? -1 : index_of(best);
}
