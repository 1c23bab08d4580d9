// How matrices and tokens lie in memory for bulk copies.
#pragma once

// Tokens of a tile: columns of the instruction.
constexpr int TOKENS = 16;

// The byte of 16, number `chunk` of a row of [.., 8 · chunks], of token `at` of an expert whose first group this is.
__device__ __forceinline__ size_t packed_token(int first_group, int at, int chunk, int chunks) {
    return (size_t(first_group + at / 8) * chunks + chunk / 8) * 1024 + swizzle_128b(at % 8, chunk % 8);
}

// The row of the matrix that is row r of 128 of a block, or -1: in gate_up, eight rows of gate precede the same of up, so that a
// thread has both.
template <bool GATE_UP> __device__ __forceinline__ int packed_row(int block, int r, int count) {
    if (!GATE_UP)
        return block * 128 + r < count ? block * 128 + r : -1;
    const int unit = block * 64 + r / 16 * 8 + r % 8;
    return unit < count ? r / 8 % 2 * count + unit : -1;
}

// Packs 128 rows of an expert's matrix [count or 2 · count, K].
template <class F, bool GATE_UP>
__device__ void pack_matrix(const u8 *codes, const u8 *scales, u8 *packed, u32 *general, int count, int K) {
    const int block = blockIdx.x, chunks = (K + 63) / 64;
    const size_t first_row = size_t(blockIdx.y) * (GATE_UP ? 2 * count : count), own = size_t(blockIdx.y) * gridDim.x + block;
    pack_rows<F>(codes + first_row * (K / 2), scales + first_row * (K / F::block), packed + own * chunks * UNIT_BYTES<F>,
                 general + own, chunks, K, [&](int r) { return packed_row<GATE_UP>(block, r, count); });
}
