/*
[[variant]]
name = "simple"
doc = "a warp for each row; each of K rounds finds the best expert that comes after the last one found"
needs = ["E <= 2048"]

[[variant.launch]]
entry = "router_simple_{select}"
grid = ["min(ceil(B, 4), 8 * sms)"]
block = [128]
shared = "4 * 4 * E"
args = ["logits", "bias", "table", "token", "experts", "weights", "B", "E", "K", "scale"]

[[variant]]
name = "registers"
doc = "a warp for each row; a lane has every 32nd expert in registers, and each of K rounds finds the best one that is left: for few rows"
needs = ["E <= 512", "K <= 32"]

[[variant.launch]]
entry = "router_registers_{select}"
grid = ["min(ceil(B, 4), 8 * sms)"]
block = [128]
args = ["logits", "bias", "table", "token", "experts", "weights", "B", "E", "K", "scale"]

[[mutant]]
name = "bias_in_weights"
doc = "the weights are made of scores with the bias"

[[mutant]]
name = "sum_of_all"
doc = "weights are divided by the sum over all experts"

[[mutant]]
name = "no_square_root"
doc = "softplus without the square root"

[[mutant]]
name = "tie_to_larger"
doc = "of equal scores, the larger index comes first"

[[mutant]]
name = "scale_lost"
doc = "weights are not scaled"

[[mutant]]
name = "no_threshold"
doc = "softplus is computed by e^x for large logits too, which overflows"

[[mutant]]
name = "tiny_lost"
doc = "the sum of zeros is the divisor: NaN"

[[mutant]]
name = "token_of_first_row"
doc = "every row has the token of the first"

[[mutant]]
name = "rows_of_the_grid"
doc = "rows after one for each warp of the grid are left as they are"

[[mutant]]
name = "threshold_at_ten"
doc = "softplus is x from 10 on"
*/

// reference: reference/ops/router.rs, reference/ops/top_k.rs
//
// logits [B, E], bias [E], table [V, K], token [B] (-1 is padding), experts [B, K], weights [B, K]. `bias` does not read table,
// and `table` does not read bias.

#include "lib/ptx.cuh"
#include "lib/reduce.cuh"

// The square root of softplus. NaN is not above 20, and comes through.
__device__ __forceinline__ float sqrt_softplus(float x) {
#ifdef MUTANT_NO_THRESHOLD
    const float softplus = log1pf(expf(x));
#elif defined(MUTANT_THRESHOLD_AT_TEN)
    const float softplus = x > 10.0f ? x : log1pf(expf(x));
#else
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
#endif
#ifdef MUTANT_NO_SQUARE_ROOT
    return softplus;
#else
    return sqrtf(softplus);
#endif
}

// The order of scores, NaN first and -0 as 0: a larger number comes earlier. It is not 0.
__device__ __forceinline__ u32 order_of(float score) {
    const u32 bits = __float_as_uint(score + 0.0f);
    return score != score ? 0xffffffff : bits >> 31 ? ~bits : bits | 0x80000000;
}

// A number that is larger the earlier an expert comes: by its score, then by its index. It is neither 0 nor the largest number that
// there is.
__device__ __forceinline__ u64 place_of(float score, int expert) {
    const u32 order = order_of(score);
#ifdef MUTANT_TIE_TO_LARGER
    return (u64)order << 32 | (u32)expert;
#else
    return (u64)order << 32 | (u32)(0x7fffffff - expert);
#endif
}

__device__ __forceinline__ int expert_at(u64 place) {
#ifdef MUTANT_TIE_TO_LARGER
    return (int)(u32)place;
#else
    return 0x7fffffff - (int)(u32)place;
#endif
}

__device__ __forceinline__ u64 warp_first(u64 place) {
    for (int step = 16; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffff, place, step);
        place = other > place ? other : place;
    }
    return place;
}

// What the σ of a row's experts are divided by: their sum, or a little more. All lanes have it.
__device__ __forceinline__ float divisor(float sum, const float *logits, int count) {
#ifdef MUTANT_SUM_OF_ALL
    float part = 0.0f;
    for (int expert = threadIdx.x % 32; expert < count; expert += 32)
        part += sqrt_softplus(logits[expert]);
    sum = warp_sum(part);
#endif
#ifndef MUTANT_TINY_LOST
    sum += 1e-20f;
#endif
    return sum;
}

// The weight of an expert with this σ, or of none.
template <bool TABLE>
__device__ __forceinline__ float weight_of(int expert, float sigma, float divisor, const float *bias, float scale) {
#ifdef MUTANT_BIAS_IN_WEIGHTS
    sigma += TABLE || expert < 0 ? 0.0f : bias[expert];
#endif
#ifdef MUTANT_SCALE_LOST
    return sigma / divisor;
#else
    return sigma / divisor * scale;
#endif
}

template <bool TABLE>
__device__ void simple(const float *logits, const float *bias, const int *table, const int *token, int *experts, float *weights,
                       int rows, int count, int selected, float scale) {
    extern __shared__ float scores_of_warps[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A lane reads only what it wrote itself.
    float *scores = scores_of_warps + warp * count;
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, (int)gridDim.x * 4);
#endif
    for (int row = blockIdx.x * 4 + warp; row < rows; row += gridDim.x * 4) {
        const float *own_logits = logits + (size_t)row * count;
        int *own_experts = experts + (size_t)row * selected;
        float *own_weights = weights + (size_t)row * selected;
#ifdef MUTANT_TOKEN_OF_FIRST_ROW
        const int id = token[0];
#else
        const int id = token[row];
#endif
        if (id < 0) {
            for (int slot = lane; slot < selected; slot += 32)
                own_experts[slot] = -1, own_weights[slot] = 0.0f;
            continue;
        }
        if (!TABLE) {
            for (int expert = lane; expert < count; expert += 32)
                scores[expert] = sqrt_softplus(own_logits[expert]) + bias[expert];
        }
        // All lanes have the same sum, in the order of slots.
        float sum = 0.0f;
        u64 last = ~0ull;
        for (int slot = 0; slot < selected; slot++) {
            int expert = -1;
            if (TABLE) {
                expert = table[(size_t)id * selected + slot];
            } else {
                u64 first = 0;
                for (int other = lane; other < count; other += 32) {
                    const u64 place = place_of(scores[other], other);
                    first = place < last && place > first ? place : first;
                }
                last = warp_first(first);
                // There is none if K is larger than E.
                expert = last != 0 ? expert_at(last) : -1;
            }
            if (lane == 0)
                own_experts[slot] = expert;
            sum += expert < 0 ? 0.0f : sqrt_softplus(own_logits[expert]);
        }
        sum = divisor(sum, own_logits, count);
        // The experts that the first lane wrote.
        __syncwarp();
        for (int slot = lane; slot < selected; slot += 32) {
            const int expert = own_experts[slot];
            const float sigma = expert < 0 ? 0.0f : sqrt_softplus(own_logits[expert]);
            own_weights[slot] = weight_of<TABLE>(expert, sigma, sum, bias, scale);
        }
    }
}

// ---- registers

// The experts of one row, one for each of the first lanes, and their σ; a lane has the biases of its experts. −1 is none.
template <int EACH>
__device__ __forceinline__ void best_experts(const float *logits, const float (&bias)[EACH], int count, int selected, int &expert,
                                             float &sigma) {
    const int lane = threadIdx.x % 32;
    float sigmas[EACH];
    u32 orders[EACH]; // 0 is none, or one that has been found
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sigmas[i] = lane + 32 * i < count ? logits[lane + 32 * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sigmas[i] = sqrt_softplus(sigmas[i]);
        orders[i] = lane + 32 * i < count ? order_of(sigmas[i] + bias[i]) : 0;
    }
    expert = -1, sigma = 0.0f;
    for (int slot = 0; slot < selected; slot++) {
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            most = max(most, orders[i]);
        most = __reduce_max_sync(0xffffffff, most);
        // There is none if K is larger than E.
        if (most == 0)
            break;
#ifdef MUTANT_TIE_TO_LARGER
        int found = -1;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            found = orders[i] == most ? lane + 32 * i : found;
        found = __reduce_max_sync(0xffffffff, found);
#else
        int found = 32 * EACH;
#pragma unroll
        for (int i = EACH - 1; i >= 0; i--)
            found = orders[i] == most ? lane + 32 * i : found;
        found = __reduce_min_sync(0xffffffff, found);
#endif
        float own = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            own = found == lane + 32 * i ? sigmas[i] : own;
            orders[i] = found == lane + 32 * i ? 0 : orders[i];
        }
        own = __shfl_sync(0xffffffff, own, found % 32);
        if (lane == slot)
            expert = found, sigma = own;
    }
}

template <bool TABLE, int EACH>
__device__ __forceinline__ void registers(const float *logits, const float *bias, const int *table, const int *token,
                                          int *experts, float *weights, int rows, int count, int selected, float scale) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float biases[EACH];
    launch_dependent_grids();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        biases[i] = !TABLE && lane + 32 * i < count ? bias[lane + 32 * i] : 0.0f;
    // All but biases and the table comes from the launches before.
    wait_on_dependent_grids();
#ifdef MUTANT_ROWS_OF_THE_GRID
    rows = min(rows, (int)gridDim.x * 4);
#endif
    for (int row = blockIdx.x * 4 + warp; row < rows; row += gridDim.x * 4) {
        const float *own_logits = logits + (size_t)row * count;
        const size_t to = (size_t)row * selected + lane;
#ifdef MUTANT_TOKEN_OF_FIRST_ROW
        const int id = token[0];
#else
        const int id = token[row];
#endif
        if (id < 0) {
            if (lane < selected)
                experts[to] = -1, weights[to] = 0.0f;
            continue;
        }
        int expert = -1;
        float sigma = 0.0f;
        if constexpr (TABLE) {
            expert = lane < selected ? table[(size_t)id * selected + lane] : -1;
            sigma = expert < 0 ? 0.0f : sqrt_softplus(own_logits[expert]);
        } else {
            best_experts(own_logits, biases, count, selected, expert, sigma);
        }
        // All lanes have the same sum, in the order of slots.
        float sum = 0.0f;
        for (int slot = 0; slot < selected; slot++)
            sum += __shfl_sync(0xffffffff, sigma, slot);
        sum = divisor(sum, own_logits, count);
        if (lane < selected)
            experts[to] = expert, weights[to] = weight_of<TABLE>(expert, sigma, sum, bias, scale);
    }
}

#define ENTRIES(SELECT, TABLE)                                                                                                  \
    KERNEL(router_simple_##SELECT, __launch_bounds__(128))(const float *logits, const float *bias, const int *table,            \
                                                           const int *token, int *experts, float *weights, int rows, int count, \
                                                           int selected, float scale) {                                         \
        simple<TABLE>(logits, bias, table, token, experts, weights, rows, count, selected, scale);                              \
    }                                                                                                                           \
    KERNEL(router_registers_##SELECT, __launch_bounds__(128))(const float *logits, const float *bias, const int *table,         \
                                                              const int *token, int *experts, float *weights, int rows,         \
                                                              int count, int selected, float scale) {                           \
        if (count <= 256)                                                                                                       \
            registers<TABLE, 8>(logits, bias, table, token, experts, weights, rows, count, selected, scale);                    \
        else                                                                                                                    \
            registers<TABLE, 16>(logits, bias, table, token, experts, weights, rows, count, selected, scale);                   \
    }

ENTRIES(bias, false)
ENTRIES(table, true)
