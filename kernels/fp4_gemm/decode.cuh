// How weights of four bits are packed for wgmma, which takes them as A from registers, and how a thread decodes them.
#pragma once

__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

// Bytes of the codes of 128 rows and 64 columns.
constexpr int UNIT_CODES = 4096;

// Bytes of these codes and their scales.
template <class F> constexpr int UNIT_BYTES = UNIT_CODES + 128 * (64 / F::block);

// Two words have the codes of a thread for two instructions: registers 0 to 3 of A, of which each has a code in either half. Bits
// lie where a rotation to the left and a mask bring the sign to bit 15 and the others to bits 8 to 6 of a bfloat16. A word has
// three registers of its own, and bits 0, 1, 9 and 10 of either half are left. Those of both words make up a third word, of which
// the fourth registers of both are parts.
constexpr u32 REGISTER_BITS = 0x81c081c0, SHARED_BITS = 0x06030603;
constexpr int ROTATIONS[3] = {0, 4, 10}, SHARED_ROTATIONS[2] = {6, 12};

__device__ __forceinline__ u32 rotate_left(u32 word, int by) {
    return __funnelshift_l(word, word, by);
}
__device__ __forceinline__ u32 rotate_right(u32 word, int by) {
    return __funnelshift_r(word, word, by);
}

// What word `word` of two has of a code in half `half` of register `reg` of instruction `of`.
__device__ __forceinline__ u32 placed(u32 code, int reg, int half, int of, int word) {
    const u32 bits = ((code >> 3) << 15 | (code & 7) << 6) << 16 * half;
    if (reg < 3)
        return of == word ? rotate_right(bits, reg == 0 ? ROTATIONS[0] : reg == 1 ? ROTATIONS[1] : ROTATIONS[2]) : 0;
    const u32 shared = rotate_right(bits, of == 0 ? SHARED_ROTATIONS[0] : SHARED_ROTATIONS[1]);
    return word == 0 ? shared & SHARED_BITS : (shared & ~SHARED_BITS) >> 2;
}

// Bits of `a` where those of `mask` are set, and of `b` elsewhere: one instruction, which the compiler makes two of.
__device__ __forceinline__ u32 select_bits(u32 a, u32 b, u32 mask) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(a), "r"(b), "r"(mask));
    return out;
}

// The codes of both instructions, times 2^-126.
__device__ __forceinline__ void extract(u32 (&a)[4], u32 (&b)[4], u32 first, u32 second) {
    const u32 shared = select_bits(first, second << 2, SHARED_BITS);
    // Nothing goes round where bits below 6 are left out.
    a[0] = first & REGISTER_BITS, b[0] = second & REGISTER_BITS;
    a[1] = first << ROTATIONS[1] & REGISTER_BITS, b[1] = second << ROTATIONS[1] & REGISTER_BITS;
    a[2] = rotate_left(first, ROTATIONS[2]) & REGISTER_BITS, b[2] = rotate_left(second, ROTATIONS[2]) & REGISTER_BITS;
    a[3] = shared << SHARED_ROTATIONS[0] & REGISTER_BITS, b[3] = rotate_left(shared, SHARED_ROTATIONS[1]) & REGISTER_BITS;
}

// Scales are plain if one or two multiplications of what a mask makes of the packed scale decode weights: E8M0 up to 2, E4M3
// neither negative nor NaN. All that is computed here is exact.
__device__ __forceinline__ bool is_plain(Mxfp4, u32 code) {
    return code <= 128;
}
__device__ __forceinline__ bool is_plain(Nvfp4, u32 code) {
    return code < 0x7f;
}

// A thread has two rows, and for 64 columns of them 128 / F::block scales, in order. A word has four of these: the bits of the
// first two lie where a bfloat16 in either half has them, those of the others do so after a rotation to the left.
template <class F> struct ScaleBits;

// Eight bits of exponent, those of the code and 126: 2^126 is part of the factor, which is at most 2^127.
template <> struct ScaleBits<Mxfp4> {
    static constexpr u32 mask = 0x7f807f80;
    static constexpr int rotation = 8;

    static __device__ __forceinline__ u32 packed(u32 code, int number) {
        const u32 bits = (code + 126 & 0xff) << 7 + number % 2 * 16;
        return number / 2 % 2 == 0 ? bits : rotate_right(bits, rotation);
    }
    static __device__ __forceinline__ u32 code(u32 word, int number) {
        const u32 bits = number / 2 % 2 == 0 ? word : rotate_left(word, rotation);
        return (bits >> 7 + number % 2 * 16) - 126 & 0xff;
    }
};

// Seven bits of a bfloat16, times 2^120. Signs lie in bits that are left.
template <> struct ScaleBits<Nvfp4> {
    static constexpr u32 mask = 0x07f007f0;
    static constexpr int rotation = 7;

    static __device__ __forceinline__ u32 packed(u32 code, int number) {
        const u32 bits = (code & 0x7f) << 4 + number % 2 * 16;
        return (number / 2 % 2 == 0 ? bits : rotate_right(bits, rotation)) | code >> 7 << sign_at(number);
    }
    static __device__ __forceinline__ u32 code(u32 word, int number) {
        const u32 bits = number / 2 % 2 == 0 ? word : rotate_left(word, rotation);
        return bits >> 4 + number % 2 * 16 & 0x7f | (word >> sign_at(number) & 1) << 7;
    }
    static __device__ __forceinline__ int sign_at(int number) {
        return 12 - number / 2 % 2 + number % 2 * 16;
    }
};

// What a thread reads for 64 columns.
template <class F> struct Packed {
    static constexpr int OF_ROW = 64 / F::block, SCALES = OF_ROW / 2;
    u32 codes[4], scales[SCALES];

    __device__ __forceinline__ Packed(const u8 *unit) {
        const uint4 four = ((const uint4 *)unit)[threadIdx.x];
        codes[0] = four.x, codes[1] = four.y, codes[2] = four.z, codes[3] = four.w;
        const u8 *const from = unit + UNIT_CODES + threadIdx.x / 4 * (SCALES * 4);
        if (SCALES == 1) {
            scales[0] = *(const u32 *)from;
        } else {
            const uint2 both = *(const uint2 *)from;
            scales[0] = both.x, scales[SCALES - 1] = both.y;
        }
    }
    // Those of scales 2 · pair and 2 · pair + 1.
    __device__ __forceinline__ u32 factors(int pair) const {
        const u32 word = scales[pair / 2];
        return (pair % 2 == 0 ? word : rotate_left(word, ScaleBits<F>::rotation)) & ScaleBits<F>::mask;
    }
};

// Both codes times a half of `factors`.
__device__ __forceinline__ u32 multiply_by_half(u32 codes, u32 factors, int half) {
    u32 out;
    if (half == 0)
        asm("{ .reg .b16 low, high;\n.reg .b32 twice;\nmov.b32 {low, high}, %2;\nmov.b32 twice, {low, low};\n"
            "mul.rn.bf16x2 %0, %1, twice; }"
            : "=r"(out)
            : "r"(codes), "r"(factors));
    else
        asm("{ .reg .b16 low, high;\n.reg .b32 twice;\nmov.b32 {low, high}, %2;\nmov.b32 twice, {high, high};\n"
            "mul.rn.bf16x2 %0, %1, twice; }"
            : "=r"(out)
            : "r"(codes), "r"(factors));
    return out;
}

// The scales of both rows of a thread for 64 columns, as factors of codes. General ones follow the definition.
template <class F, bool GENERAL> struct Scales;

template <class F> struct GeneralScales {
    u32 factors[2 * Packed<F>::OF_ROW];

    __device__ __forceinline__ GeneralScales(const Packed<F> &packed) {
#pragma unroll
        for (int i = 0; i < 2 * Packed<F>::OF_ROW; i++) {
            const float scale = F::scale(ScaleBits<F>::code(packed.scales[i / 4], i));
            factors[i] = to_bf16x2(scale, scale);
        }
    }
    __device__ __forceinline__ u32 times(u32 codes, int number) const {
        return multiply_bf16x2(multiply_bf16x2(codes, 0x7e807e80), factors[number]);
    }
};
template <class F> struct Scales<F, true> : GeneralScales<F> {
    using GeneralScales<F>::GeneralScales;
};

template <> struct Scales<Mxfp4, false> {
    u32 factors[2];

    __device__ __forceinline__ Scales(const Packed<Mxfp4> &packed) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            factors[i] = packed.factors(i);
    }
    __device__ __forceinline__ u32 times(u32 codes, int number) const {
        return multiply_by_half(codes, factors[number / 2], number % 2);
    }
};

template <> struct Scales<Nvfp4, false> {
    u32 factors[4];

    __device__ __forceinline__ Scales(const Packed<Nvfp4> &packed) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            factors[i] = multiply_bf16x2(packed.factors(i), 0x7b807b80);
    }
    __device__ __forceinline__ u32 times(u32 codes, int number) const {
        return multiply_by_half(multiply_bf16x2(codes, 0x7e807e80), factors[number / 2], number % 2);
    }
};

// Packs 128 rows of a matrix of K columns: for each 64 columns the codes, 16 bytes for a thread of either warpgroup, and the scales of
// rows r and r + 8, which a thread has, next to each other. `row_of` says which row of the matrix is row r, or -1; outside of the matrix
// all is 0. `general` says whether a scale is not plain.
template <class F, class Row>
__device__ void pack_rows(const u8 *codes, const u8 *scales, u8 *packed, u32 *general, int chunks, int K, Row row_of) {
    const int of_codes = (K + 1) / 2, blocks = (K + F::block - 1) / F::block;
    for (int i = threadIdx.x; i < chunks * (UNIT_CODES / 4); i += blockDim.x) {
        const int chunk = i / 1024, step = i % 4, thread = i / 4 % 128, lane = thread % 32;
        const int top = i / 512 % 2 * 64 + thread / 32 * 16 + lane / 4;
        u32 word = 0;
        for (int at = 0; at < 16; at++) {
            const int reg = at % 4, half = at / 4 % 2, of = at / 8, row = row_of(top + reg % 2 * 8);
            const int col = chunk * 64 + (step / 2 * 2 + of) * 16 + reg / 2 * 8 + lane % 4 * 2 + half;
            if (row >= 0 && col < K)
                word |= placed(codes[size_t(row) * of_codes + col / 2] >> nibble_of(col) & 15, reg, half, of, step % 2);
        }
        *(u32 *)(packed + size_t(chunk) * UNIT_BYTES<F> + i % 1024 * 4) = word;
    }
    constexpr int OF_ROW = 64 / F::block, WORDS = 128 * OF_ROW / 4;
    bool other = false;
    for (int i = threadIdx.x; i < chunks * WORDS; i += blockDim.x) {
        const int chunk = i / WORDS;
        u32 word = 0;
        for (int within = i % WORDS * 4, end = within + 4; within < end; within++) {
            const int pair = within / (2 * OF_ROW);
            const int row = row_of(pair / 8 * 16 + within / OF_ROW % 2 * 8 + pair % 8);
            const int col = chunk * 64 + within % OF_ROW * F::block;
            u8 scale = 0;
            if (row >= 0 && col < K)
                scale = scales[size_t(row) * blocks + block_of<F>(col, blocks)];
            other = other || !is_plain(F(), scale);
            word |= ScaleBits<F>::packed(scale, within % (2 * OF_ROW));
        }
        *(u32 *)(packed + size_t(chunk) * UNIT_BYTES<F> + UNIT_CODES + i % WORDS * 4) = word;
    }
    other = __syncthreads_or(other);
#ifdef MUTANT_ALWAYS_PLAIN
    other = false;
#endif
    if (threadIdx.x == 0)
        *general = other;
}

// The compiler must see that all threads of a warp go the same way, or it waits for each product.
__device__ __forceinline__ int same_of_warp(int x) {
    return __shfl_sync(0xffffffff, x, 0);
}

// Weights of 64 columns as operand A of four instructions.
template <class F, bool GENERAL> __device__ __forceinline__ void decode_chunk(u32 (&a)[4][4], const Packed<F> &packed) {
    const Scales<F, GENERAL> scales(packed);
#pragma unroll
    for (int step = 0; step < 4; step += 2)
        extract(a[step], a[step + 1], packed.codes[step], packed.codes[step + 1]);
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int reg = 0; reg < 4; reg++)
            a[step][reg] = scales.times(a[step][reg], reg % 2 * Packed<F>::OF_ROW + step * 16 / F::block);
}

// The products of 64 columns of 64 rows for each warpgroup, and T tokens, which lie in shared memory.
template <int T> __device__ __forceinline__ void multiply_chunk(float (&sums)[T / 2], const u32 (&a)[4][4], u64 tokens) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        Step<Bf16, T>::registers(sums, a[step], tokens + step * 2);
    wgmma_commit_group();
}
