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

// A word has the codes of a thread for one instruction: registers 0 to 3 of A, of which each has a code in either half. Bits
// lie where a shift and a mask bring the sign to bit 15 and the others to bits 8 to 6 of a bfloat16; only the last register
// takes what is left: 15 8..6, 12 5..3, 9 2..0, and 14 13 11..10.
__device__ __forceinline__ u32 placed(u32 code, int reg) {
    const u32 sign = code >> 3, rest = code & 7;
    return reg == 3 ? sign << 14 | (rest >> 2) << 13 | (rest & 3) << 10 : sign << (15 - 3 * reg) | rest << (6 - 3 * reg);
}

// Both codes of a register, times 2^-126.
__device__ __forceinline__ u32 extracted(u32 word, int reg) {
    if (reg == 3)
        return word << 1 & 0x80008000 | word >> 5 & 0x01000100 | word >> 4 & 0x00c000c0;
    return word << 3 * reg & 0x81c081c0;
}

// Scales are plain if one or two multiplications of what a shift makes of the code decode weights: E8M0 up to 2, E4M3 neither
// negative nor NaN. All that is computed here is exact.
__device__ __forceinline__ bool is_plain(Mxfp4, u32 code) {
    return code <= 128;
}
__device__ __forceinline__ bool is_plain(Nvfp4, u32 code) {
    return code < 0x7f;
}

// The scales of both rows of a thread for 64 columns, as factors of codes. General ones follow the definition.
template <class F, bool GENERAL> struct Scales;

template <class F> struct GeneralScales {
    static constexpr int OF_ROW = 64 / F::block;
    u32 factors[2][OF_ROW];

    __device__ __forceinline__ GeneralScales(const u8 *codes) {
#pragma unroll
        for (int i = 0; i < 2 * OF_ROW; i++) {
            const float scale = F::scale(codes[i]);
            factors[i / OF_ROW][i % OF_ROW] = to_bf16x2(scale, scale);
        }
    }
    __device__ __forceinline__ u32 times(u32 codes, int row, int block) const {
        return multiply_bf16x2(multiply_bf16x2(codes, 0x7e807e80), factors[row][block]);
    }
};
template <class F> struct Scales<F, true> : GeneralScales<F> {
    using GeneralScales<F>::GeneralScales;
};

// 2^126 is part of the factor: at most 2^127.
template <> struct Scales<Mxfp4, false> {
    u32 factors[2][2];

    __device__ __forceinline__ Scales(const u8 *codes) {
        const u32 four = *(const u32 *)codes + 0x7e7e7e7e;
#pragma unroll
        for (int i = 0; i < 4; i++)
            factors[i / 2][i % 2] = (four >> 8 * i & 0xff) * 0x00800080;
    }
    __device__ __forceinline__ u32 times(u32 codes, int row, int block) const {
        return multiply_bf16x2(codes, factors[row][block]);
    }
};

// Seven bits of a bfloat16, times 2^120.
template <> struct Scales<Nvfp4, false> {
    u32 factors[2][4];

    __device__ __forceinline__ Scales(const u8 *codes) {
        const uint2 eight = *(const uint2 *)codes;
#pragma unroll
        for (int i = 0; i < 8; i++)
            factors[i / 4][i % 4] = multiply_bf16x2(((i < 4 ? eight.x : eight.y) >> i % 4 * 8 & 0xff) * 0x00100010, 0x7b807b80);
    }
    __device__ __forceinline__ u32 times(u32 codes, int row, int block) const {
        return multiply_bf16x2(multiply_bf16x2(codes, 0x7e807e80), factors[row][block]);
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
        for (int at = 0; at < 8; at++) {
            const int reg = at % 4, row = row_of(top + reg % 2 * 8);
            const int col = chunk * 64 + step * 16 + reg / 2 * 8 + lane % 4 * 2 + at / 4;
            if (row >= 0 && col < K)
                word |= placed(codes[size_t(row) * of_codes + col / 2] >> nibble_of(col) & 15, reg) << at / 4 * 16;
        }
        *(u32 *)(packed + size_t(chunk) * UNIT_BYTES<F> + i % 1024 * 4) = word;
    }
    constexpr int OF_ROW = 64 / F::block;
    bool other = false;
    for (int i = threadIdx.x; i < chunks * 128 * OF_ROW; i += blockDim.x) {
        const int chunk = i / (128 * OF_ROW), within = i % (128 * OF_ROW), pair = within / (2 * OF_ROW);
        const int row = row_of(pair / 8 * 16 + within / OF_ROW % 2 * 8 + pair % 8);
        const int col = chunk * 64 + within % OF_ROW * F::block;
        u8 scale = 0;
        if (row >= 0 && col < K)
            scale = scales[size_t(row) * blocks + block_of<F>(col, blocks)];
        other = other || !is_plain(F(), scale);
        packed[size_t(chunk) * UNIT_BYTES<F> + UNIT_CODES + within] = scale;
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
template <class F, bool GENERAL> __device__ __forceinline__ void decode_chunk(u32 (&a)[4][4], const u8 *unit) {
    const uint4 four = ((const uint4 *)unit)[threadIdx.x];
    const u32 words[4] = {four.x, four.y, four.z, four.w};
    const Scales<F, GENERAL> scales(unit + UNIT_CODES + threadIdx.x / 4 * (128 / F::block));
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int reg = 0; reg < 4; reg++)
            a[step][reg] = scales.times(extracted(words[step], reg), reg % 2, step * 16 / F::block);
}
