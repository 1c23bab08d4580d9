// Where the keys of a row are, and what their records hold.
#pragma once

// The window of a row, or its entries. Pools of rows lie `pages_own` pages behind each other; 0 if all rows have one.
struct Part {
    const u8 *pages;
    const int *slots, *count;
    int pages_own, listed, places;

    // The list of a row, if there are lists.
    __device__ __forceinline__ const int *slots_of(int row) const {
        return listed ? slots + (size_t)row * places : nullptr;
    }
};

// The slot of a place; negative if there is none.
__device__ __forceinline__ int slot_of_place(const int *slots, int place) {
    const int slot = slots ? slots[place] : place;
#ifdef MUTANT_SKIPPED_SLOT_READ
    return max(slot, 0);
#endif
    return slot;
}

// The slot of key `at` of a row whose window is full, as most are; -1 if there can be no such key. It takes no count, and so
// waits for none.
__device__ __forceinline__ int slot_if_full(const Part &window, const Part &entries, int row, int at) {
    const int entry = at - window.places;
    if (entry >= entries.places)
        return -1;
    return entry < 0 ? slot_of_place(window.slots_of(row), at) : slot_of_place(entries.slots_of(row), entry);
}

// A part of one row. 32-bit slots suffice, and 32-bit offsets of bytes do not.
template <class R> struct RowPart {
    const u8 *pages;
    const int *slots;
    int count;

    __device__ __forceinline__ RowPart(const Part &of, int row) {
#ifdef MUTANT_POOL_OF_FIRST_ROW
        pages = of.pages;
#else
        pages = of.pages + (u64)row * of.pages_own * page_bytes<R>;
#endif
        slots = of.slots_of(row);
#ifdef MUTANT_COUNT_IGNORED
        count = of.count[row] > 0 ? of.places : 0;
#else
        count = min(of.count[row], of.places);
#endif
    }

    __device__ __forceinline__ int slot(int place) const {
        return slot_of_place(slots, place);
    }
};

template <class R> struct Keys {
    RowPart<R> window, entries;

    __device__ __forceinline__ Keys(const Part &window, const Part &entries, int row)
        : window(window, row), entries(entries, row) {}

    __device__ __forceinline__ int count() const {
        return window.count + entries.count;
    }

    // The slot of key `at`, which is one of the window or of the entries.
    __device__ __forceinline__ int slot(int at) const {
        return at < window.count ? window.slot(at) : entries.slot(at - window.count);
    }

    // The record of a key, whose slot is not negative.
    __device__ __forceinline__ Token<const u8> record(int at, int slot) const {
        const u8 *const pages = at < window.count ? window.pages : entries.pages;
        Token<const u8> token = token_at<R>(pages, (u64)slot);
#ifdef MUTANT_SCALES_OF_FIRST_SLOT
        token.tail = token_at<R>(pages, (u64)(slot / PAGE * PAGE)).tail;
#endif
#ifdef MUTANT_PAGES_UNPADDED
        const u64 padding = slot / PAGE * (u64)(page_bytes<R> - PAGE * (R::ROW + R::TAIL));
        token.row -= padding, token.tail -= padding;
#endif
        return token;
    }
};

// ---- decoding: 16 channels as pairs of bfloat16, the first in the low half

constexpr int RUN = 16;

// The codes of a run and its scale, as they are stored. A run of bfloat16 has two vectors of 16 bytes.
template <class R> struct Run {
    static constexpr int BYTES = RUN * R::Element::bits / 8;
    uint4 words;
    typename R::Stored scale;

    // Run `at` of the codes.
    __device__ __forceinline__ void load(const Token<const u8> &token, int at) {
        const u8 *const from = token.row + at * BYTES;
        if constexpr (BYTES == 16) {
            words = __ldg((const uint4 *)from);
        } else {
            const uint2 both = __ldg((const uint2 *)from);
            words.x = both.x, words.y = both.y;
        }
        scale = __ldg((const typename R::Stored *)(token.tail + R::SCALES) + at * RUN / R::BLOCK);
    }

    // Both halves of the run, or the second and then the first.
    __device__ __forceinline__ void decode(uint4 (&out)[2], bool swapped = false) const {
        const uint2 low = make_uint2(words.x, words.y), high = make_uint2(words.z, words.w);
        u32 in[4];
        if constexpr (BYTES == 16) {
            in[0] = swapped ? high.x : low.x, in[1] = swapped ? high.y : low.y;
            in[2] = swapped ? low.x : high.x, in[3] = swapped ? low.y : high.y;
        } else {
            in[0] = swapped ? low.y : low.x, in[1] = swapped ? low.x : low.y;
        }
        u32 pairs[8];
        if (fits_bf16x2(in)) {
            // Four bits up, exponent and fraction of a code are those of a bfloat16 that is 2^120 times smaller; its sign is four
            // bits further up. The product with 2^120 times the scale is exact, or rounded once where it is subnormal.
            const u32 by = ((u32)scale + 120) * 0x00800080;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const u32 codes = __byte_perm(in[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
                pairs[i] = times_bf16x2((codes + (codes & 0x00800080) * 15) * 16, by);
            }
        } else if constexpr (R::Element::bits == 8) {
            const float factor = R::Rule::decode(scale, {});
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float low, high;
                R::Element::decode2(in[i / 2] >> i % 2 * 16, low, high);
                pairs[i] = to_bf16x2(low * factor, high * factor);
            }
        } else {
            // Three bits of a bfloat16, times 2^126, then times the scale: both are exact.
            const float factor = R::Rule::decode(scale, {});
            const u32 by = to_bf16x2(factor, factor);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const u32 codes = in[i / 4] >> i % 4 * 8 & 0xff, spread = codes | codes << 12;
                const u32 value = (spread << 6 & 0x01c001c0) | (spread << 12 & 0x80008000);
                pairs[i] = times_bf16x2(times_bf16x2(value, 0x7e807e80), by);
            }
        }
        out[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        out[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }

    // Whether codes are E4M3, none of them NaN, and the scale is E8M0, so small that 2^120 times as much is a bfloat16.
    __device__ __forceinline__ bool fits_bf16x2(const u32 (&in)[4]) const {
        if constexpr (R::Element::bits == 8 && sizeof(typename R::Stored) == 1) {
            // One more changes the sign of a code that is NaN, and of no other, unless the code below it is NaN.
            u32 changed = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                changed |= in[i] ^ (in[i] + 0x01010101);
            return scale <= 134 && !(changed & 0x80808080);
        }
        return false;
    }
};

// Eight channels that are stored as they are, of the channels from R::CODED on.
template <class R> __device__ __forceinline__ uint4 plain_eight(const Token<const u8> &token, int at) {
    return __ldg((const uint4 *)(token.row + R::BF16) + at);
}

// A run of a key, whichever it is.
template <class R> __device__ __forceinline__ void decode_run(const Token<const u8> &token, int run, uint4 (&out)[2]) {
    if (run * RUN < R::CODED) {
        Run<R> codes;
        codes.load(token, run);
        codes.decode(out);
    } else {
        const int at = (run * RUN - R::CODED) / 8;
        out[0] = plain_eight<R>(token, at), out[1] = plain_eight<R>(token, at + 1);
    }
}
