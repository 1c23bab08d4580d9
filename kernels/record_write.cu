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
name = "warps"
doc = "a warp for each token at a time (half a warp where a token has 128 channels), the next token on its way; 8 channels a lane"

[[variant.launch]]
entry = "record_write_warps_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "eights"
doc = "a thread for each 8 channels; two warps that have a token add up its squares through shared memory"

[[variant.launch]]
entry = "record_write_eights_{record}_{form}"
grid = ["ceil(T * C / 8, 256)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s44k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s44k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s42k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s42k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s43k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s43k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s42"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s42_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s34k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s34k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 3 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s33k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s33k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 3 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "r42k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_r42k_{record}_{form}"
grid = ["min(ceil(T * min(C / 8, 32), 256), 4 * sms)"]
block = [256]
args = ["x", "weight", "positions", "cos_sin", "slots", "pages", "T", "slot_bytes", "eps"]

[[variant]]
name = "s41k"
doc = "candidate"

[[variant.launch]]
entry = "record_write_s41k_{record}_{form}"
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
name = "skipped_written"
doc = "a token without a slot goes to the first one"
*/
#include "records.cuh"

constexpr int ROPE = 64; // channels that are turned, the last ones

template <class R> constexpr int BLOCKS = (R::CODED + R::BLOCK - 1) / R::BLOCK;

template <class R> __device__ __forceinline__ float scaled(float x, float factor) {
    if constexpr (DIVIDES<typename R::Rule>)
        x = __fdiv_rn(x, factor);
    else
        x = x * factor;
    return CLEARS_ZERO<typename R::Rule> ? x + 0.0f : x;
}

// What the elements of a block are multiplied or divided by, where a thread has many. One step from the product with the
// reciprocal is the quotient to the last bit, for numbers of 8 bits and divisors amax/448 or of 4 bits, if nothing on the
// way is subnormal.
template <class R> struct Factor {
    float lift, factor, inverse;

    __device__ __forceinline__ explicit Factor(float by) : lift(1), factor(by), inverse(1) {
        if constexpr (DIVIDES<typename R::Rule>) {
            lift = by < 0x1p-60f ? 0x1p64f : 1;
            factor = by * lift;
            inverse = __frcp_rn(factor);
        }
    }

    __device__ __forceinline__ float of(float x) const {
        if constexpr (!DIVIDES<typename R::Rule>)
            return scaled<R>(x, factor);
        x *= lift;
        const float near = x * inverse, quotient = fmaf(fmaf(-near, factor, x), inverse, near);
        // A sum with what is left of it has lost the sign of a negative zero.
        return CLEARS_ZERO<typename R::Rule> ? quotient + 0.0f : copysignf(quotient, x);
    }
};

template <class R> __device__ __forceinline__ void store_padding(u8 *tail, int thread) {
#ifndef MUTANT_PADDING_NOT_ZEROED
    if (R::ZEROS % 4 == 0 && thread < R::ZEROS / 4)
        ((u32 *)(tail + R::ZERO))[thread] = 0;
    if (R::ZEROS % 4 != 0 && thread < R::ZEROS)
        tail[R::ZERO + thread] = 0;
#endif
}

// Bits of the larger magnitude: as integers NaN > infinity > finite.
__device__ __forceinline__ u32 amax(u32 largest, float x) {
#ifdef MUTANT_NAN_DROPPED
    return __float_as_uint(fmaxf(__uint_as_float(largest), fabsf(x)));
#else
    return max(largest, __float_as_uint(x) & 0x7fffffff);
#endif
}

// One pair of channels turned by an angle.
__device__ __forceinline__ float2 turned(float2 x, float2 turn) {
#ifdef MUTANT_COS_SIN_SWAPPED
    turn = make_float2(turn.y, turn.x);
#endif
    return make_float2(fmaf(x.x, turn.x, -(x.y * turn.y)), fmaf(x.y, turn.x, x.x * turn.y));
}

// Angles of a position: ROPE/2 pairs of cosine and sine.
__device__ __forceinline__ const float2 *turns_of(const float *cos_sin, long long position) {
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
            x = turned(x, turns_of(in.cos_sin, in.positions[token])[(channel - (R::DIM - ROPE)) / 2]);
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

// ---- warps

// The next token of a group of lanes, on its way.
template <int CHUNKS> struct Next {
    Eight<bf16> x[CHUNKS];
    long long slot = -1, position = 0;
};

template <class R, bool NORMED> __device__ __forceinline__ void warps(const Inputs in, u8 *pages) {
    // A lane has channels 8·lane … 8·lane + 7 of each of CHUNKS pieces of the vector.
    constexpr int LANES = R::DIM / 8 < 32 ? R::DIM / 8 : 32, CHUNKS = R::DIM / 8 / LANES;
    const int lane = threadIdx.x % LANES, groups = gridDim.x * blockDim.x / LANES;

    Next<CHUNKS> next;
    const auto fetch = [&](int token) {
        if (token >= in.tokens)
            return;
        next.slot = in.slot(token);
        if constexpr (NORMED)
            next.position = in.positions[token];
        for (int c = 0; c < CHUNKS; c++)
            next.x[c].load(in.x + (long long)token * R::DIM, c * LANES + lane);
    };
    int token = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    fetch(token);
    // Groups that share a warp go on together, for the sake of shuffles.
    for (; token - threadIdx.x % 32 / LANES < in.tokens; token += groups) {
        const bool written = token < in.tokens && next.slot >= 0;
        const auto [row, tail] = token_at<R>(pages, written ? next.slot : 0);
        Eight<bf16> halves[CHUNKS];
        float x[CHUNKS][8];
        for (int c = 0; c < CHUNKS; c++) {
            halves[c] = next.x[c];
            halves[c].unpack(x[c]);
        }

        if constexpr (NORMED) {
            // The last lanes have the channels that are turned, in the last piece.
            const int pair = ((CHUNKS - 1) * LANES + lane) * 4 - (R::DIM - ROPE) / 2;
            float2 turns[4];
            if (pair >= 0)
                for (int i = 0; i < 4; i += 2)
                    *(float4 *)&turns[i] = *(const float4 *)(turns_of(in.cos_sin, next.position) + pair + i);
            fetch(token + groups);
            float sum = 0;
            for (int c = 0; c < CHUNKS; c++)
                for (int i = 0; i < 8; i++)
                    sum = fmaf(x[c][i], x[c][i], sum);
            for (int step = LANES / 2; step > 0; step /= 2)
                sum += __shfl_xor_sync(~0u, sum, step);
            const float scale = rsqrtf(sum / R::DIM + in.eps);
            for (int c = 0; c < CHUNKS; c++)
                for (int i = 0; i < 8; i += 4) {
                    const float4 weight = *(const float4 *)(in.weight + (c * LANES + lane) * 8 + i);
                    x[c][i] *= scale * weight.x, x[c][i + 1] *= scale * weight.y;
                    x[c][i + 2] *= scale * weight.z, x[c][i + 3] *= scale * weight.w;
                }
            if (pair >= 0)
                for (int i = 0; i < 4; i++) {
                    float *both = &x[CHUNKS - 1][2 * i];
                    const float2 pair = turned(make_float2(both[0], both[1]), turns[i]);
                    both[0] = pair.x, both[1] = pair.y;
                }
        } else {
            fetch(token + groups);
        }

        for (int c = 0; c < CHUNKS; c++) {
            const int channel = (c * LANES + lane) * 8;
            if (NORMED)
                for (int i = 0; i < 4; i++)
                    halves[c].word[i] = to_bf16x2(x[c][2 * i], x[c][2 * i + 1]);
            if (written && channel >= R::CODED)
                Eight<bf16>::store((bf16 *)(row + R::BF16), (channel - R::CODED) / 8, x[c]);
            if constexpr (R::CODED > 0) {
                if (NORMED)
                    halves[c].unpack(x[c]);
                u32 largest = channel < R::CODED ? halves[c].amax() : 0;
#ifdef MUTANT_SCALE_OF_PART
                largest = __shfl_sync(~0u, largest, 0, R::BLOCK / 8);
#else
                largest = lanes_max<R::BLOCK / 8>(largest);
#endif
                if (written && channel < R::CODED) {
                    const auto scale = R::Rule::template scale<typename R::Element>(largest, {});
                    if (channel % R::BLOCK == 0)
                        ((typename R::Stored *)(tail + R::SCALES))[channel / R::BLOCK] = scale;
                    const Factor<R> factor(R::Rule::factor(scale, {}));
                    for (int i = 0; i < 8; i++)
                        x[c][i] = factor.of(x[c][i]);
                    typedef typename R::Element::Codes Codes;
                    *(Codes *)(row + channel * R::Element::bits / 8) = R::Element::encode8(x[c]);
                }
            }
        }
        if (written)
            store_padding<R>(tail, lane);
    }
}

// ---- eights

template <class R, bool NORMED> __device__ __forceinline__ void eights(const Inputs in, u8 *pages) {
    constexpr int THREADS = R::DIM / 8;
    const int thread = (blockIdx.x * 256 + threadIdx.x) % THREADS, token = (blockIdx.x * 256 + threadIdx.x) / THREADS;
    const int channel = thread * 8, pair = channel / 2 - (R::DIM - ROPE) / 2;
    const bool there = token < in.tokens;
    const long long slot = there ? in.slot(token) : -1;
    Eight<bf16> halves;
    halves.zero();
    if (there)
        halves.load(in.x + (long long)token * R::DIM, thread);
    float x[8];
    halves.unpack(x);

    if constexpr (NORMED) {
        float2 turns[4];
        if (pair >= 0 && there)
            for (int i = 0; i < 4; i += 2)
                *(float4 *)&turns[i] = *(const float4 *)(turns_of(in.cos_sin, in.positions[token]) + pair + i);
        float weight[8];
        for (int i = 0; i < 8; i += 4)
            *(float4 *)&weight[i] = __ldg((const float4 *)(in.weight + channel + i));
        float sum = 0;
        for (int i = 0; i < 8; i++)
            sum = fmaf(x[i], x[i], sum);
        for (int step = min(THREADS, 32) / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        if constexpr (THREADS == 64) {
            // Two warps have a token.
            __shared__ float sums[8];
            if (threadIdx.x % 32 == 0)
                sums[threadIdx.x / 32] = sum;
            __syncthreads();
            sum = sums[threadIdx.x / 64 * 2] + sums[threadIdx.x / 64 * 2 + 1];
        }
        const float scale = rsqrtf(sum / R::DIM + in.eps);
        for (int i = 0; i < 8; i++)
            x[i] *= scale * weight[i];
        if (pair >= 0)
            for (int i = 0; i < 4; i++) {
                const float2 both = turned(make_float2(x[2 * i], x[2 * i + 1]), turns[i]);
                x[2 * i] = both.x, x[2 * i + 1] = both.y;
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
        Eight<bf16>::store((bf16 *)(row + R::BF16), (channel - R::CODED) / 8, x);
        return;
    }
    const auto scale = R::Rule::template scale<typename R::Element>(largest, {});
    if (channel % R::BLOCK == 0)
        ((typename R::Stored *)(tail + R::SCALES))[channel / R::BLOCK] = scale;
    const Factor<R> factor(R::Rule::factor(scale, {}));
    for (int i = 0; i < 8; i++)
        x[i] = factor.of(x[i]);
    *(typename R::Element::Codes *)(row + channel * R::Element::bits / 8) = R::Element::encode8(x);
}

// ---- rows

constexpr u32 NONE = ~0u;

// Whether elements are multiplied by a power of two, exactly so in bf16.
template <class Rule> constexpr bool SHIFTS = !DIVIDES<Rule>;
template <> constexpr bool SHIFTS<Flashinfer> = false;

__device__ __forceinline__ u32 times_bf16x2(u32 x, u32 y) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}

// Of two pairs the larger magnitudes, with some sign; NaN is larger than any.
__device__ __forceinline__ u32 larger_bf16x2(u32 x, u32 y) {
    u32 out;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
}

// Pairs of halves, bf16 or f16: the integers from `one` on, a power of two, are a unit apart.
template <bool BF16> struct Pairs {
    static __device__ __forceinline__ u32 fma(u32 x, u32 y, u32 z) {
        u32 out;
        if (BF16)
            asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
        else
            asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
        return out;
    }

    // Magnitudes, at most 6; that of NaN is 6.
    static __device__ __forceinline__ u32 clamped(u32 x) {
        u32 out;
        if (BF16)
            asm("min.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x & 0x7fff7fff), "r"(0x40c040c0));
        else
            asm("min.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x & 0x7fff7fff), "r"(0x46004600));
        return out;
    }

    // E2M1 codes in bits 0 to 3 and 16 to 19, by the three sums of `E2m1::magnitude`.
    static __device__ __forceinline__ u32 e2m1(u32 x) {
        const u32 size = clamped(x), one = BF16 ? 0x3f803f80 : 0x3c003c00, step = BF16 ? 0x00800080 : 0x04000400;
        const u32 integers = BF16 ? 0x43004300 : 0x64006400;
        const u32 fine = fma(size, one + step, integers), middle = fma(size, one, integers + 0x00020002);
        const u32 coarse = fma(size, one - step, integers + 0x00040004);
        return (__vminu2(__vminu2(fine, middle), coarse) & 0x00070007) | (x >> 12 & 0x00080008);
    }

    static __device__ __forceinline__ u32 e2m1_8(const u32 (&x)[4]) {
        const u32 low = e2m1(x[0]) | e2m1(x[1]) << 8, high = e2m1(x[2]) | e2m1(x[3]) << 8;
        return __byte_perm(low | low >> 12, high | high >> 12, 0x5410);
    }
};

__device__ __forceinline__ u32 to_f16x2(float low, float high) {
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ void unpack(const u32 (&pairs)[4], float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = __uint_as_float(pairs[i] << 16), x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000);
}

// Codes of eight numbers in a block of which the elements are multiplied or divided by `by`.
template <class R> __device__ __forceinline__ typename R::Element::Codes codes_of(const u32 (&halves)[4], float by) {
    typedef typename R::Rule Rule;
    constexpr bool FOUR = R::Element::bits == 4;
    float x[8];
    if constexpr (SHIFTS<Rule>) {
        const u32 factor = to_bf16x2(by, by);
        u32 scaled[4];
        for (int i = 0; i < 4; i++)
            scaled[i] = times_bf16x2(halves[i], factor);
        if constexpr (FOUR)
            return Pairs<true>::e2m1_8(scaled);
        else {
            unpack(scaled, x);
            return R::Element::encode8(x);
        }
    } else if constexpr (FOUR && DIVIDES<Rule>) {
        // 8 bits over 4 bits are a tie of E2M1 or further than 2^-9 from one, so f16 decides rightly, whatever the last bits
        // of the quotient.
        float inverse;
        asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(by));
        u32 quotients[4];
        unpack(halves, x);
        for (int i = 0; i < 8; i++)
            x[i] = CLEARS_ZERO<Rule> ? fmaf(x[i], inverse, 0.0f) : x[i] * inverse;
        for (int i = 0; i < 4; i++)
            quotients[i] = to_f16x2(x[2 * i], x[2 * i + 1]);
        return Pairs<false>::e2m1_8(quotients);
    } else if constexpr (DIVIDES<Rule>) {
        // As `Factor` does; the sign of a zero is kept on the way.
        const bool small = by < 0x1p-60f;
        const u32 lift = small ? 0x5f805f80 : 0x3f803f80; // 2^64 or 1
        const float factor = small ? by * 0x1p64f : by, inverse = __frcp_rn(factor);
        u32 lifted[4];
        for (int i = 0; i < 4; i++)
            lifted[i] = times_bf16x2(halves[i], lift);
        unpack(lifted, x);
        for (int i = 0; i < 8; i++) {
            const float near = x[i] * inverse;
            x[i] = fmaf(fmaf(near, factor, -x[i]), -inverse, near);
        }
        return R::Element::encode8(x);
    } else {
        unpack(halves, x);
        for (int i = 0; i < 8; i++)
            x[i] *= by;
        return R::Element::encode8(x);
    }
}

// Keeps an offset in registers, where the compiler would work it out again at every use.
__device__ __forceinline__ u64 kept(u64 offset) {
    asm volatile("" : "+l"(offset));
    return offset;
}

template <bool ONCE> __device__ __forceinline__ void copy_16(uint4 *to, const void *from) {
    if (ONCE)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "l"(let_go()));
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}

// STAGES tokens of a warp, or twice as many of its halves, are on their way to shared memory.
template <class R, bool NORMED, int STAGES, int KEEP, bool HELD, bool EARLY> __device__ __forceinline__ void rows(const Inputs in, u8 *pages) {
    constexpr int LANES = R::DIM / 8 < 32 ? R::DIM / 8 : 32, CHUNKS = R::DIM / 8 / LANES, SIDES = 32 / LANES, SET = 32 / SIDES;
    constexpr int STRIDE = (PAGE * (R::ROW + R::TAIL) + R::ALIGN - 1) / R::ALIGN * R::ALIGN;
    constexpr int BITS = R::Element::bits, SHARE = R::BLOCK / 8;
    typedef typename R::Stored Stored;
    // What a token's padding is made of: codes or scales of channels that are not coded.
    constexpr bool PADS_CODES = R::ZEROS > 0 && R::TAIL == 0 && R::ZERO == R::CODED * BITS / 8 && R::ZERO < R::SCALES;
    constexpr bool PADS_SCALES = R::ZEROS > 0 && !PADS_CODES;
    static_assert(CHUNKS <= SHARE && CHUNKS <= 2, "a lane works out the scale of one of its pieces");
    constexpr int TURNING = ROPE / 8; // lanes
    __shared__ uint4 room[8][STAGES][CHUNKS * 32 + (NORMED ? 2 * TURNING * SIDES : 0)];

    const int lane = threadIdx.x % LANES, side = threadIdx.x % 32 / LANES, chunk = lane % CHUNKS;
    const int warps = gridDim.x * (blockDim.x / 32), warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int turning = lane - (LANES - TURNING);
    // Where the pieces are stored in slot 0.
    u64 places[CHUNKS];
    bool coded[CHUNKS];
    for (int c = 0; c < CHUNKS; c++) {
        const int channel = (c * LANES + lane) * 8;
        coded[c] = channel < R::CODED;
        places[c] = kept(coded[c] ? channel * BITS / 8 : R::BF16 + 2 * (channel - R::CODED));
    }
    const int block = (chunk * LANES + lane) / SHARE;
    const u64 scales = kept((R::TAIL ? PAGE * R::ROW : 0) + R::SCALES + block * sizeof(Stored));
#ifdef MUTANT_PADDING_NOT_ZEROED
    const bool scales_stored = lane % SHARE < CHUNKS && block * R::BLOCK < R::CODED;
#else
    const bool scales_stored = lane % SHARE < CHUNKS && (block * R::BLOCK < R::CODED || PADS_SCALES);
#endif
    uint4(*stages)[CHUNKS * 32 + (NORMED ? 2 * TURNING * SIDES : 0)] = room[threadIdx.x / 32];
    float4 held[HELD && NORMED ? CHUNKS * 2 : 1];
    if constexpr (HELD && NORMED)
        for (int c = 0; c < CHUNKS; c++)
            for (int i = 0; i < 2; i++)
                held[c * 2 + i] = __ldg((const float4 *)(in.weight + (c * LANES + lane) * 8) + i);

    const int units = (in.tokens + SIDES - 1) / SIDES;
    for (int first = warp; first < units; first += SET * warps) {
        const int steps = min(SET, (units - first + warps - 1) / warps);
        u32 my_slot = NONE, my_position = 0;
        const auto fetch = [&](int step) {
            const int token = (first + step * warps) * SIDES + side;
            if (token < in.tokens)
                for (int c = 0; c < CHUNKS; c++)
                    copy_16<true>(&stages[step % STAGES][c * 32 + threadIdx.x % 32],
                                  (const uint4 *)in.x + (size_t)token * (R::DIM / 8) + c * LANES + lane);
        };
        const auto fetch_turns = [&](int step) {
            if constexpr (NORMED) {
                if (step < steps) {
                    const u32 position = __shfl_sync(~0u, my_position, step * SIDES + side);
                    if (turning >= 0)
                        for (int i = 0; i < 2; i++)
                            copy_16<false>(&stages[step % STAGES][CHUNKS * 32 + (side * TURNING + turning) * 2 + i],
                                           (const uint4 *)turns_of(in.cos_sin, position) + turning * 2 + i);
                }
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        if constexpr (!EARLY)
#pragma unroll 1
            for (int s = 0; s < STAGES; s++)
                fetch(s);
        const int mine = (first + (int)(threadIdx.x % 32) / SIDES * warps) * SIDES + threadIdx.x % SIDES;
        long long slot = -1, position = 0;
        if (mine < in.tokens) {
            slot = in.slot(mine);
            if constexpr (NORMED)
                position = in.positions[mine];
        }
        if constexpr (EARLY)
#pragma unroll 1
            for (int s = 0; s < STAGES; s++)
                fetch(s);
        my_slot = slot < 0 ? NONE : (u32)slot;
        my_position = position;
#pragma unroll 1
        for (int s = 0; s < STAGES; s++)
            fetch_turns(s);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const u32 slot = __shfl_sync(~0u, my_slot, step * SIDES + side);
            const bool written = slot != NONE;
            const u64 page = (u64)(slot / PAGE) * STRIDE;
            const u64 row = page + slot % PAGE * R::ROW, tail = page + slot % PAGE * (R::TAIL ? R::TAIL : R::ROW);
            u32 half[CHUNKS][4];
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            for (int c = 0; c < CHUNKS; c++) {
                const uint4 piece = stages[step % STAGES][c * 32 + threadIdx.x % 32];
                half[c][0] = piece.x, half[c][1] = piece.y, half[c][2] = piece.z, half[c][3] = piece.w;
            }
            if constexpr (NORMED) {
                float x[CHUNKS][8], sum = 0;
                for (int c = 0; c < CHUNKS; c++)
                    unpack(half[c], x[c]);
                for (int c = 0; c < CHUNKS; c++)
                    for (int i = 0; i < 8; i++)
                        sum = fmaf(x[c][i], x[c][i], sum);
                for (int distance = LANES / 2; distance > 0; distance /= 2)
                    sum += __shfl_xor_sync(~0u, sum, distance);
                const float scale = rsqrtf(sum / R::DIM + in.eps);
                for (int c = 0; c < CHUNKS; c++)
                    for (int i = 0; i < 8; i += 4) {
                        const float4 weight = HELD ? held[c * 2 + i / 4] : __ldg((const float4 *)(in.weight + (c * LANES + lane) * 8 + i));
                        x[c][i] *= scale * weight.x, x[c][i + 1] *= scale * weight.y;
                        x[c][i + 2] *= scale * weight.z, x[c][i + 3] *= scale * weight.w;
                    }
                if (turning >= 0)
                    for (int i = 0; i < 2; i++) {
                        const float4 turns = *(float4 *)&stages[step % STAGES][CHUNKS * 32 + (side * TURNING + turning) * 2 + i];
                        float *four = &x[CHUNKS - 1][4 * i];
                        const float2 one = turned(make_float2(four[0], four[1]), make_float2(turns.x, turns.y));
                        const float2 two = turned(make_float2(four[2], four[3]), make_float2(turns.z, turns.w));
                        four[0] = one.x, four[1] = one.y, four[2] = two.x, four[3] = two.y;
                    }
                for (int c = 0; c < CHUNKS; c++)
                    for (int i = 0; i < 4; i++)
                        half[c][i] = to_bf16x2(x[c][2 * i], x[c][2 * i + 1]);
            } else {
                // So that NaN has the bits that arithmetic gives it.
                for (int c = 0; c < CHUNKS; c++)
                    for (int i = 0; i < 4; i++)
                        half[c][i] = times_bf16x2(half[c][i], 0x3f803f80);
            }
            fetch(step + STAGES);
            fetch_turns(step + STAGES);

            float factor[CHUNKS];
            Stored scale;
            if constexpr (R::CODED > 0) {
                // Largest magnitudes of blocks, those of the first piece in the low half.
                u32 largest[CHUNKS];
                for (int c = 0; c < CHUNKS; c++) {
                    const u32 two = larger_bf16x2(larger_bf16x2(half[c][0], half[c][1]), larger_bf16x2(half[c][2], half[c][3]));
                    largest[c] = (c * LANES + lane) * 8 < R::CODED ? two & 0x7fff7fff : 0;
                }
                u32 both = __vmaxu2(__byte_perm(largest[0], largest[CHUNKS - 1], 0x5410),
                                    __byte_perm(largest[0], largest[CHUNKS - 1], 0x7632));
#ifdef MUTANT_SCALE_OF_PART
                both = __shfl_sync(~0u, both, 0, SHARE);
#else
#pragma unroll
                for (int distance = SHARE / 2; distance > 0; distance /= 2)
                    both = __vmaxu2(both, __shfl_xor_sync(~0u, both, distance));
#endif
                const u32 amax = CHUNKS == 1 || chunk ? both & 0xffff0000 : both << 16;
                scale = R::Rule::template scale<typename R::Element>(amax, {});
                const float by = R::Rule::factor(scale, {});
                factor[0] = by;
                if constexpr (CHUNKS == 2) {
                    const float other = __shfl_xor_sync(~0u, by, 1);
                    factor[0] = chunk ? other : by, factor[1] = chunk ? by : other;
                }
            }
            if (!written || KEEP == 9)
                continue;
            if (scales_stored && KEEP != 2) {
                const Stored value = PADS_SCALES && block * R::BLOCK >= R::CODED ? 0 : scale;
                if (KEEP == 1 && R::TAIL) {
                    if constexpr (sizeof(Stored) == 1)
                        asm volatile("st.global.L2::cache_hint.u8 [%0], %1, %2;" ::"l"(pages + (scales + tail)), "r"((u32)value), "l"(keep()) : "memory");
                    else
                        asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(pages + (scales + tail)), "f"((float)value), "l"(keep()) : "memory");
                } else
                    *(Stored *)(pages + (scales + tail)) = value;
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                typedef typename R::Element::Codes Codes;
                Codes encoded = {};
                if constexpr (R::CODED > 0)
                    encoded = codes_of<R>(half[c], factor[c]);
                u8 *to = pages + (places[c] + row);
                if (coded[c])
                    *(Codes *)to = encoded;
                if (!coded[c])
                    *(uint4 *)to = make_uint4(half[c][0], half[c][1], half[c][2], half[c][3]);
#ifndef MUTANT_PADDING_NOT_ZEROED
                if (PADS_CODES && !coded[c])
                    *(Codes *)(pages + row + (c * LANES + lane) * BITS) = Codes{};
#endif
            }
        }
    }
}

#define ROWS(NAME, BLOCKS, STAGES, KEEP, HELD, EARLY, RECORD, FORM, NORMED)                                                   \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) record_write_##NAME##_##RECORD##_##FORM(                  \
        const bf16 *__restrict__ x, const float *__restrict__ weight, const long long *__restrict__ positions,         \
        const float *__restrict__ cos_sin, const void *__restrict__ slots, u8 *__restrict__ pages, int tokens,         \
        int slot_bytes, float eps) {                                                                                   \
        rows<RECORD, NORMED, STAGES, KEEP, HELD, EARLY>({x, weight, positions, cos_sin, slots, tokens, slot_bytes, eps}, pages); \
    }

#define ENTRY(VARIANT, RECORD, FORM, NORMED, THREADS)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) record_write_##VARIANT##_##RECORD##_##FORM(                  \
        const bf16 *__restrict__ x, const float *__restrict__ weight, const long long *__restrict__ positions,         \
        const float *__restrict__ cos_sin, const void *__restrict__ slots, u8 *__restrict__ pages, int tokens,         \
        int slot_bytes, float eps) {                                                                                   \
        VARIANT<RECORD, NORMED>({x, weight, positions, cos_sin, slots, tokens, slot_bytes, eps}, pages);               \
    }
#define ENTRIES(RECORD)                                                                                                \
    ENTRY(simple, RECORD, raw, false, RECORD::DIM / 2)                                                                 \
    ENTRY(simple, RECORD, normed, true, RECORD::DIM / 2)                                                               \
    ENTRY(warps, RECORD, raw, false, 256)                                                                              \
    ENTRY(warps, RECORD, normed, true, 256)                                                                            \
    ENTRY(eights, RECORD, raw, false, 256)                                                                             \
    ENTRY(eights, RECORD, normed, true, 256) \
    ROWS(s44k, 4, 4, 1, false, true, RECORD, raw, false) \
    ROWS(s44k, 4, 4, 1, false, true, RECORD, normed, true) \
    ROWS(s42k, 4, 2, 1, false, true, RECORD, raw, false) \
    ROWS(s42k, 4, 2, 1, false, true, RECORD, normed, true) \
    ROWS(s43k, 4, 3, 1, false, true, RECORD, raw, false) \
    ROWS(s43k, 4, 3, 1, false, true, RECORD, normed, true) \
    ROWS(s42, 4, 2, 0, false, true, RECORD, raw, false) \
    ROWS(s42, 4, 2, 0, false, true, RECORD, normed, true) \
    ROWS(s34k, 3, 4, 1, true, true, RECORD, raw, false) \
    ROWS(s34k, 3, 4, 1, true, true, RECORD, normed, true) \
    ROWS(s33k, 3, 3, 1, false, true, RECORD, raw, false) \
    ROWS(s33k, 3, 3, 1, false, true, RECORD, normed, true) \
    ROWS(r42k, 4, 2, 1, false, false, RECORD, raw, false) \
    ROWS(r42k, 4, 2, 1, false, false, RECORD, normed, true) \
    ROWS(s41k, 4, 1, 1, false, true, RECORD, raw, false) \
    ROWS(s41k, 4, 1, 1, false, true, RECORD, normed, true)
FOR_ALL_RECORDS(ENTRIES)
