/*
[[variant]]
name = "simple"
doc = "a block for each token, a thread for each pair of channels"

[[variant.launch]]
entry = "record_write_simple_{record}_{form}"
grid = ["T"]
block = ["C / 2"]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "eights"
doc = """
one thread per 8 channels; if a token takes two warps, they add up its squares through shared memory: the fastest for few \
tokens, and for 128 channels"""

[[variant.launch]]
entry = "record_write_eights_{record}_{form}"
grid = ["ceil(T * C / 8, 256)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "rows"
doc = "a warp, or half of one, for a token at a time, the next ones on their way to shared memory: the fastest of many tokens"

[[variant.launch]]
entry = "record_write_rows_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[mutant]]
name = "nan_dropped"
doc = "largest magnitudes by fmaxf, which drops NaN"
variants = ["simple"]

[[mutant]]
name = "padding_not_zeroed"
doc = "the bytes of a token that hold nothing keep what was there"

[[mutant]]
name = "scale_of_part"
doc = "a block's scale is that of its first 8 channels"

[[mutant]]
name = "position_off_by_one"
doc = "rotated as at a neighbouring position"

[[mutant]]
name = "cos_sin_swapped"
doc = "cosine and sine exchanged"

[[mutant]]
name = "page_offset_32"
doc = "the bytes before a page are counted in 32 bits"

[[mutant]]
name = "skipped_written"
doc = "a token without a slot goes to the first one"

[[mutant]]
name = "position_of_16_bits"
doc = "positions are kept in 16 bits"
variants = ["rows"]
*/

// reference: crates/core/formats/records/codec.rs, reference/ops/rmsnorm.rs, reference/ops/rope.rs

#include "record/encode.cuh"
#include "lib/tma.cuh"

constexpr int ROPE = 64; // the rotated channels, the last ones

template <class R> constexpr int BLOCKS = (R::CODED + R::BLOCK - 1) / R::BLOCK;

template <class R> __device__ __forceinline__ float scaled(float x, float factor) {
    if constexpr (DIVIDES<typename R::Rule>)
        x = __fdiv_rn(x, factor);
    else
        x = x * factor;
    return CLEARS_ZERO<typename R::Rule> ? x + 0.0f : x;
}

template <class R> __device__ __forceinline__ void store_padding(u8 *tail, int thread) {
#ifndef MUTANT_PADDING_NOT_ZEROED
    if (R::ZEROS % 4 == 0 && thread < R::ZEROS / 4)
        ((u32 *)(tail + R::ZERO))[thread] = 0;
    if (R::ZEROS % 4 != 0 && thread < R::ZEROS)
        tail[R::ZERO + thread] = 0;
#endif
}

// The bits of the larger magnitude: as integers NaN > infinity > finite.
__device__ __forceinline__ u32 amax(u32 largest, float x) {
#ifdef MUTANT_NAN_DROPPED
    return __float_as_uint(fmaxf(__uint_as_float(largest), fabsf(x)));
#else
    return max(largest, __float_as_uint(x) & 0x7fffffff);
#endif
}

// Rotates a pair of channels by an angle.
__device__ __forceinline__ float2 rotated(float2 x, float2 cos_sin) {
#ifdef MUTANT_COS_SIN_SWAPPED
    cos_sin = make_float2(cos_sin.y, cos_sin.x);
#endif
    return make_float2(fmaf(x.x, cos_sin.x, -(x.y * cos_sin.y)), fmaf(x.y, cos_sin.x, x.x * cos_sin.y));
}

// The angles of a position: ROPE/2 pairs of cosine and sine.
__device__ __forceinline__ const float2 *cos_sin_of(const float *cos_sin, long long position) {
#ifdef MUTANT_POSITION_OFF_BY_ONE
    position ^= 1;
#endif
    return (const float2 *)cos_sin + position * (ROPE / 2);
}

struct Inputs {
    const bf16 *x;
    const float *weight;
    const long long *positions;
    const float *cos_sin;
    const void *slots;
    int tokens, slot_bytes;
    float eps;

    __device__ __forceinline__ long long slot(int token) const {
        const long long slot = slot_of(slots, slot_bytes, token);
#ifdef MUTANT_SKIPPED_WRITTEN
        return max(slot, 0LL);
#endif
        return slot;
    }
};

// ---- simple

template <class R, bool NORMED> __device__ __forceinline__ void simple(const Inputs in, u8 *pages) {
    __shared__ float sums[R::DIM / 64], y[R::DIM], factors[BLOCKS<R> + 1];
    const int token = blockIdx.x, channel = 2 * threadIdx.x;
    const long long slot = in.slot(token);
    if (slot < 0)
        return;
    const bf16 *pair = in.x + (long long)token * R::DIM + channel;
    float2 x = make_float2(to_f32(pair[0]), to_f32(pair[1]));
    if constexpr (NORMED) {
        const float sum = warp_sum(x.x * x.x + x.y * x.y);
        if (threadIdx.x % 32 == 0)
            sums[threadIdx.x / 32] = sum;
        __syncthreads();
        float total = 0;
        for (int warp = 0; warp < R::DIM / 64; warp++)
            total += sums[warp];
        const float scale = 1 / sqrtf(total / R::DIM + in.eps);
        x.x *= scale * in.weight[channel];
        x.y *= scale * in.weight[channel + 1];
        if (channel >= R::DIM - ROPE)
            x = rotated(x, cos_sin_of(in.cos_sin, in.positions[token])[(channel - (R::DIM - ROPE)) / 2]);
    }
    const u32 halves = to_bf16x2(x.x, x.y);
    y[channel] = x.x = __uint_as_float(halves << 16);
    y[channel + 1] = x.y = __uint_as_float(halves & 0xffff0000);
    __syncthreads();

    const auto [row, tail] = token_at<R>(pages, slot);
    if (R::CODED > 0 && threadIdx.x < BLOCKS<R>) {
        const int first = threadIdx.x * R::BLOCK;
        u32 largest = 0;
#ifdef MUTANT_SCALE_OF_PART
        for (int i = first; i < first + 8; i++)
#else
        for (int i = first; i < min(first + R::BLOCK, R::CODED); i++)
#endif
            largest = amax(largest, y[i]);
        const auto scale = R::Rule::template scale<typename R::Element>(largest, {});
        ((typename R::Stored *)(tail + R::SCALES))[threadIdx.x] = scale;
        factors[threadIdx.x] = R::Rule::factor(scale, {});
    }
    store_padding<R>(tail, threadIdx.x);
    __syncthreads();

    if (channel >= R::CODED) {
        *(u32 *)(row + R::BF16 + 2 * (channel - R::CODED)) = halves;
        return;
    }
    const float factor = factors[channel / R::BLOCK];
    const float first = scaled<R>(x.x, factor), second = scaled<R>(x.y, factor);
    if constexpr (R::Element::bits == 8)
        *(u16 *)(row + channel) = E4m3::encode2(first, second);
    else
        row[channel / 2] = E2m1::encode(first) | E2m1::encode(second) << 4;
}

// ---- eights

template <class R, bool NORMED> __device__ __forceinline__ void eights(const Inputs in, u8 *pages) {
    constexpr int THREADS = R::DIM / 8;
    const int thread = threadIdx.x % THREADS, token = blockIdx.x * (256 / THREADS) + threadIdx.x / THREADS;
    const int channel = thread * 8, pair = channel / 2 - (R::DIM - ROPE) / 2;
    const bool valid = token < in.tokens;
    const long long slot = valid ? in.slot(token) : -1;
    Vec8<bf16> halves;
    halves.zero();
    if (valid)
        halves.load(in.x + (long long)token * R::DIM, thread);
    float x[8];
    halves.unpack(x);

    if constexpr (NORMED) {
        float2 cos_sin_pairs[4];
        if (pair >= 0 && valid) {
            for (int i = 0; i < 4; i += 2)
                *(float4 *)&cos_sin_pairs[i] = *(const float4 *)(cos_sin_of(in.cos_sin, in.positions[token]) + pair + i);
        }
        float weight[8];
        for (int i = 0; i < 8; i += 4)
            *(float4 *)&weight[i] = __ldg((const float4 *)(in.weight + channel + i));
        float sum = 0;
        for (int i = 0; i < 8; i++)
            sum = fmaf(x[i], x[i], sum);
        for (int step = min(THREADS, 32) / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        if constexpr (THREADS == 64) {
            // Two warps share a token.
            __shared__ float sums[8];
            if (threadIdx.x % 32 == 0)
                sums[threadIdx.x / 32] = sum;
            __syncthreads();
            sum = sums[threadIdx.x / 64 * 2] + sums[threadIdx.x / 64 * 2 + 1];
        }
        const float scale = rsqrtf(sum / R::DIM + in.eps);
        for (int i = 0; i < 8; i++)
            x[i] *= scale * weight[i];
        if (pair >= 0) {
            for (int i = 0; i < 4; i++) {
                const float2 both = rotated(make_float2(x[2 * i], x[2 * i + 1]), cos_sin_pairs[i]);
                x[2 * i] = both.x, x[2 * i + 1] = both.y;
            }
        }
        for (int i = 0; i < 4; i++)
            halves.word[i] = to_bf16x2(x[2 * i], x[2 * i + 1]);
        halves.unpack(x);
    }

    u32 largest = channel < R::CODED ? halves.amax() : 0;
#ifdef MUTANT_SCALE_OF_PART
    largest = __shfl_sync(~0u, largest, 0, R::BLOCK / 8);
#else
    largest = lanes_max<R::BLOCK / 8>(largest);
#endif
    if (slot < 0)
        return;
    const auto [row, tail] = token_at<R>(pages, slot);
    store_padding<R>(tail, thread);
    if (channel >= R::CODED) {
        Vec8<bf16>::store((bf16 *)(row + R::BF16), (channel - R::CODED) / 8, x);
        return;
    }
    const auto scale = R::Rule::template scale<typename R::Element>(largest, {});
    if (channel % R::BLOCK == 0)
        ((typename R::Stored *)(tail + R::SCALES))[channel / R::BLOCK] = scale;
    *(typename R::Element::Codes *)(row + channel * R::Element::bits / 8) = codes_of<R>(halves.word, R::Rule::factor(scale, {}));
}

// ---- rows

// Keeps an offset in a register; the compiler would recompute it at every use.
__device__ __forceinline__ u64 in_register(u64 offset) {
    asm volatile("" : "+l"(offset));
    return offset;
}

// Stores a scale so that L2 keeps it until its neighbours of other tokens are there too: each store has few bytes of a sector.
template <class Stored> __device__ __forceinline__ void store_scale(u8 *to, Stored scale) {
    if constexpr (sizeof(Stored) == 1)
        asm volatile("st.global.L2::cache_hint.u8 [%0], %1, %2;" ::"l"(to), "r"((u32)scale), "l"(evict_last_policy()) : "memory");
    else
        asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(scale), "l"(evict_last_policy()) : "memory");
}

// LANES lanes have a token, and each has 8 channels of each of CHUNKS pieces of it. A lane reads from shared memory only what it
// has copied itself.
template <class R, bool NORMED> __device__ __forceinline__ void rows(const Inputs in, u8 *pages) {
    constexpr int LANES = R::DIM / 8 < 32 ? R::DIM / 8 : 32, CHUNKS = R::DIM / 8 / LANES, WARP_TOKENS = 32 / LANES;
    constexpr int STAGES = NORMED ? 2 : 3, STEPS = 32 / WARP_TOKENS, ROPE_LANES = ROPE / 8, BITS = R::Element::bits,
                  BLOCK_LANES = R::BLOCK / 8;
    typedef typename R::Stored Stored;
    typedef typename R::Element::Codes Codes;
    // The padding of a token takes the place of codes or of scales of channels that are not coded.
    constexpr bool PADS_CODES = R::ZEROS > 0 && R::ZERO == R::CODED * BITS / 8 && R::ZERO < R::SCALES;
    constexpr bool PADS_SCALES = R::ZEROS > 0 && !PADS_CODES;
    static_assert(CHUNKS <= 2 && CHUNKS <= BLOCK_LANES, "one lane works out the scale of one of its pieces");

    __shared__ uint4 smem[8][STAGES][CHUNKS * 32 + (NORMED ? 2 * ROPE_LANES * WARP_TOKENS : 0)];
    auto &stages = smem[threadIdx.x / 32];
    const int lane = threadIdx.x % LANES, warp_token = threadIdx.x % 32 / LANES;
    const int rope_lane = lane - (LANES - ROPE_LANES), angles = CHUNKS * 32 + (warp_token * ROPE_LANES + rope_lane) * 2;
    const int warps = gridDim.x * 8, warp = blockIdx.x * 8 + threadIdx.x / 32;

    // ---- prologue: the offsets of a lane's pieces, and of the scale that it stores, in slot 0
    bool coded[CHUNKS];
    u64 code_offsets[CHUNKS];
    for (int c = 0; c < CHUNKS; c++) {
        const int channel = (c * LANES + lane) * 8;
        coded[c] = channel < R::CODED;
        code_offsets[c] = in_register(coded[c] ? channel * BITS / 8 : R::BF16 + 2 * (channel - R::CODED));
    }
    const int chunk = lane % CHUNKS, block = (chunk * LANES + lane) / BLOCK_LANES;
    const u64 scale_offset = in_register((R::TAIL ? PAGE * R::ROW : 0) + R::SCALES + block * sizeof(Stored));
    const bool padding = block * R::BLOCK >= R::CODED;
#ifdef MUTANT_PADDING_NOT_ZEROED
    const bool stores_scale = lane % BLOCK_LANES < CHUNKS && !padding;
#else
    const bool stores_scale = lane % BLOCK_LANES < CHUNKS && (!padding || PADS_SCALES);
#endif

    const int units = (in.tokens + WARP_TOKENS - 1) / WARP_TOKENS;
    for (int first = warp; first < units; first += STEPS * warps) {
        const int steps = min(STEPS, (units - first + warps - 1) / warps);
        // Each lane loads the slot and the position of one of the next tokens.
        const int lane_token = (first + int(threadIdx.x % 32) / WARP_TOKENS * warps) * WARP_TOKENS + threadIdx.x % WARP_TOKENS;
        long long slot_64 = -1, position_64 = 0;
        if (lane_token < in.tokens) {
            slot_64 = in.slot(lane_token);
            if constexpr (NORMED)
                position_64 = in.positions[lane_token];
        }
        const auto fetch = [&](int step) {
            const int token = (first + step * warps) * WARP_TOKENS + warp_token;
            if (step < steps && token < in.tokens) {
                for (int c = 0; c < CHUNKS; c++)
                    cp_async_16(&stages[step % STAGES][c * 32 + threadIdx.x % 32],
                                (const uint4 *)in.x + (size_t)token * (R::DIM / 8) + c * LANES + lane, evict_first_policy());
            }
        };
        fetch(0);
#ifdef MUTANT_POSITION_OF_16_BITS
        const u32 my_slot = narrow_slot(slot_64), my_position = position_64 & 0xffff;
#else
        const u32 my_slot = narrow_slot(slot_64), my_position = position_64;
#endif
        // The addresses of angles depend on the position.
        const auto fetch_angles = [&](int step) {
            if (NORMED && step < steps) {
                const u32 position = __shfl_sync(~0u, my_position, step * WARP_TOKENS + warp_token);
                if (rope_lane >= 0) {
                    for (int i = 0; i < 2; i++)
                        cp_async_16(&stages[step % STAGES][angles + i],
                                    (const uint4 *)cos_sin_of(in.cos_sin, position) + rope_lane * 2 + i);
                }
            }
            cp_async_commit_group();
        };
#pragma unroll 1
        for (int s = 0; s < STAGES; s++) {
            fetch_angles(s);
            if (s + 1 < STAGES)
                fetch(s + 1);
        }

#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            // ---- mainloop: wait for a stage, norm, rotate
            const u32 slot = __shfl_sync(~0u, my_slot, step * WARP_TOKENS + warp_token);
            cp_async_wait_group<STAGES - 1>();
            const uint4 *stage = stages[step % STAGES];
            u32 halves[CHUNKS][4];
            for (int c = 0; c < CHUNKS; c++)
                *(uint4 *)halves[c] = stage[c * 32 + threadIdx.x % 32];
            if constexpr (NORMED) {
                float x[CHUNKS][8], sum = 0;
                for (int c = 0; c < CHUNKS; c++) {
                    unpack(halves[c], x[c]);
                    for (int i = 0; i < 8; i++)
                        sum = fmaf(x[c][i], x[c][i], sum);
                }
                for (int distance = LANES / 2; distance > 0; distance /= 2)
                    sum += __shfl_xor_sync(~0u, sum, distance);
                const float scale = rsqrtf(sum / R::DIM + in.eps);
                for (int c = 0; c < CHUNKS; c++) {
                    for (int i = 0; i < 8; i += 4) {
                        const float4 weight = __ldg((const float4 *)(in.weight + (c * LANES + lane) * 8 + i));
                        x[c][i] *= scale * weight.x, x[c][i + 1] *= scale * weight.y;
                        x[c][i + 2] *= scale * weight.z, x[c][i + 3] *= scale * weight.w;
                    }
                }
                if (rope_lane >= 0) {
                    for (int i = 0; i < 4; i++) {
                        float *both = &x[CHUNKS - 1][2 * i];
                        const float2 pair = rotated(make_float2(both[0], both[1]), ((const float2 *)(stage + angles))[i]);
                        both[0] = pair.x, both[1] = pair.y;
                    }
                }
                for (int c = 0; c < CHUNKS; c++) {
                    for (int i = 0; i < 4; i++)
                        halves[c][i] = to_bf16x2(x[c][2 * i], x[c][2 * i + 1]);
                }
            } else {
                // A product with one gives NaN the bits that arithmetic gives it.
                for (int c = 0; c < CHUNKS; c++) {
                    for (int i = 0; i < 4; i++)
                        halves[c][i] = times_bf16x2(halves[c][i], 0x3f803f80);
                }
            }
            // ---- mainloop: prefetch a later stage
            fetch(step + STAGES);
            fetch_angles(step + STAGES);

            // The largest magnitudes of blocks, those of the first piece in the low halves. If there are two pieces, neighbouring
            // lanes compute one scale each.
            Stored scale = {};
            float factors[2] = {};
            if constexpr (R::CODED > 0) {
                u32 largest[CHUNKS];
                for (int c = 0; c < CHUNKS; c++) {
                    const u32(&half)[4] = halves[c];
                    const u32 both =
                        max_magnitude_bf16x2(max_magnitude_bf16x2(half[0], half[1]), max_magnitude_bf16x2(half[2], half[3]));
                    largest[c] = coded[c] ? both & 0x7fff7fff : 0;
                }
                u32 both = __vmaxu2(__byte_perm(largest[0], largest[CHUNKS - 1], 0x5410),
                                    __byte_perm(largest[0], largest[CHUNKS - 1], 0x7632));
#ifdef MUTANT_SCALE_OF_PART
                both = __shfl_sync(~0u, both, 0, BLOCK_LANES);
#else
#pragma unroll
                for (int distance = BLOCK_LANES / 2; distance > 0; distance /= 2)
                    both = __vmaxu2(both, __shfl_xor_sync(~0u, both, distance));
#endif
                scale = R::Rule::template scale<typename R::Element>(chunk == 0 ? both << 16 : both & 0xffff0000, {});
                const float own_factor = R::Rule::factor(scale, {}), other = __shfl_xor_sync(~0u, own_factor, CHUNKS - 1);
                factors[0] = chunk == 0 ? own_factor : other, factors[1] = chunk == 0 ? other : own_factor;
            }
            // ---- epilogue: scale, codes and padding to the token's page
            if (slot == NO_SLOT)
                continue;
            const u64 page = page_offset<R>(slot), row = page + slot % PAGE * R::ROW;
            if (R::CODED > 0 && stores_scale)
                store_scale<Stored>(pages + (scale_offset + (R::TAIL ? page + slot % PAGE * R::TAIL : row)), padding ? 0 : scale);
            for (int c = 0; c < CHUNKS; c++) {
                u8 *to = pages + (code_offsets[c] + row);
                if (R::CODED > 0 && coded[c])
                    *(Codes *)to = codes_of<R>(halves[c], factors[c]);
                if (!coded[c])
                    *(uint4 *)to = *(const uint4 *)halves[c];
#ifndef MUTANT_PADDING_NOT_ZEROED
                if (PADS_CODES && !coded[c])
                    *(Codes *)(pages + row + (c * LANES + lane) * BITS) = Codes{};
#endif
            }
        }
    }
}

#define ENTRY(VARIANT, RECORD, FORM, NORMED, THREADS)                                                                          \
    KERNEL(record_write_##VARIANT##_##RECORD##_##FORM, __launch_bounds__(THREADS, 4))(                                         \
        const bf16 *__restrict__ x, const float *__restrict__ weight, const long long *__restrict__ positions,                 \
        const float *__restrict__ cos_sin, const void *__restrict__ slots, u8 *__restrict__ pages, int tokens, int slot_bytes, \
        float eps) {                                                                                                           \
        VARIANT<RECORD, NORMED>({x, weight, positions, cos_sin, slots, tokens, slot_bytes, eps}, pages);                       \
    }
#define ENTRIES(RECORD)                                  \
    ENTRY(simple, RECORD, raw, false, RECORD::DIM / 2)   \
    ENTRY(simple, RECORD, normed, true, RECORD::DIM / 2) \
    ENTRY(eights, RECORD, raw, false, 256)               \
    ENTRY(eights, RECORD, normed, true, 256)             \
    ENTRY(rows, RECORD, raw, false, 256)                 \
    ENTRY(rows, RECORD, normed, true, 256)
FOR_ALL_RECORDS(ENTRIES)
