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
#ifdef MUTANT_WINDOW_SLOT_NONE_READ
    return entry < 0 ? max(slot_of_place(window.slots_of(row), at), 0) : slot_of_place(entries.slots_of(row), entry);
#else
    return entry < 0 ? slot_of_place(window.slots_of(row), at) : slot_of_place(entries.slots_of(row), entry);
#endif
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
#ifdef MUTANT_WINDOW_SLOT_NONE_READ
        return at < window.count ? max(window.slot(at), 0) : entries.slot(at - window.count);
#else
        return at < window.count ? window.slot(at) : entries.slot(at - window.count);
#endif
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

// ---- decoding: eight channels as pairs of bfloat16, the first in the low half

constexpr int EIGHTS = 64; // of a key

template <class Stored> __device__ __forceinline__ Stored from_bits(u32 bits) {
    if constexpr (sizeof(Stored) == 4)
        return __uint_as_float(bits);
    else
        return bits;
}

// Where eight number `at` is in the row, and where its scale behind the tail.
template <class R> __device__ __forceinline__ int codes_of_eight(int at) {
    return at * R::Element::bits;
}
template <class R> __device__ __forceinline__ int scale_of_eight(int at) {
    return R::SCALES + at * 8 / R::BLOCK * (int)sizeof(typename R::Stored);
}
template <class R> __device__ __forceinline__ int plain_of_eight(int at) {
    return R::BF16 + (at - R::CODED / 8) * 16;
}

// What is stored of eight channels: codes and their scale, or bfloat16. All zeros decode to zeros.
template <class R> struct Eight {
    typedef typename R::Stored Stored;
    u32 words[4], scale; // its bits

    // The codes and the scale that begin there.
    __device__ __forceinline__ void load_codes(const u8 *codes, const u8 *of_block) {
        if constexpr (R::Element::bits == 8) {
            const uint2 both = __ldg((const uint2 *)codes);
            words[0] = both.x, words[1] = both.y;
        } else {
            words[0] = __ldg((const u32 *)codes);
        }
        if constexpr (sizeof(Stored) == 4)
            scale = __ldg((const u32 *)of_block);
        else
            scale = __ldg(of_block);
    }

    __device__ __forceinline__ void load_plain(const u8 *from) {
        const uint4 all = __ldg((const uint4 *)from);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }

    __device__ __forceinline__ uint4 plain() const {
        return make_uint4(words[0], words[1], words[2], words[3]);
    }

    // Whether E4M3 under E8M0 can be decoded in pairs.
    static constexpr bool PAIRS = R::CODED && R::Element::bits == 8 && sizeof(Stored) == 1;

    // The top bits of bytes: whether one of the codes is NaN. One more changes the sign of a code that is NaN, and of no other,
    // unless the code below it is NaN.
    __device__ __forceinline__ u32 nans() const {
        return (words[0] ^ (words[0] + 0x01010101)) | (words[1] ^ (words[1] + 0x01010101));
    }

    // The largest scale of which 2^120 times as much is a bfloat16.
#ifdef MUTANT_PAIRS_SCALE_TOO_LARGE
    static constexpr u32 MOST_OF_PAIRS = 135;
#else
    static constexpr u32 MOST_OF_PAIRS = 134;
#endif

    // None of the codes is NaN, and the scale is at most that.
    __device__ __forceinline__ uint4 decode_pairs() const {
        // Four bits up, exponent and fraction of a code are those of a bfloat16 that is 2^120 times smaller. The product with
        // 2^120 times the scale is exact, or rounded once where it is subnormal.
        const u32 by = (scale + 120) * 0x00800080;
        u32 out[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 wide; // signed
            asm("prmt.b32 %0, %1, 0, %2;" : "=r"(wide) : "r"(words[i / 2]), "r"(i % 2 ? 0xb3a2 : 0x9180));
            out[i] = times_bf16x2(wide * 16 & 0x87f087f0, by);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    }

    __device__ __forceinline__ uint4 decode() const {
        const float factor = R::Rule::decode(from_bits<Stored>(scale), {});
        u32 out[4];
        if constexpr (R::Element::bits == 8) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float low, high;
                R::Element::decode2(words[i / 2] >> i % 2 * 16, low, high);
                out[i] = to_bf16x2(low * factor, high * factor);
            }
        } else {
            // A scale of 4-bit codes has at most four bits, so that the product is rounded once.
            const u32 by = to_bf16x2(factor, factor), magnitudes = words[0] & 0x77777777, signs = words[0] >> 3 & 0x11111111;
            const uint2 low = e2m1_pairs(magnitudes, signs), high = e2m1_pairs(magnitudes >> 16, signs >> 16);
            out[0] = times_bf16x2(low.x, by), out[1] = times_bf16x2(low.y, by);
            out[2] = times_bf16x2(high.x, by), out[3] = times_bf16x2(high.y, by);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    }
};

// Eight number `at` of a key.
template <class R> __device__ __forceinline__ uint4 decode_eight(const Token<const u8> &token, int at) {
    Eight<R> eight;
    if (at * 8 >= R::CODED) {
        eight.load_plain(token.row + plain_of_eight<R>(at));
        return eight.plain();
    }
    eight.load_codes(token.row + codes_of_eight<R>(at), token.tail + scale_of_eight<R>(at));
    return eight.decode();
}

// What a lane has of a key: the eight of its number, and the one half a key behind.
template <class R> struct Raw {
    static_assert(R::DIM == 512 && (R::CODED == 0 || R::CODED > 256), "the first are codes, unless none is");
    Eight<R> eights[2];

    static __device__ __forceinline__ bool is_plain(int half) {
        return R::CODED == 0 || half && R::CODED < R::DIM && int(threadIdx.x % 32) >= R::CODED / 8 - 32;
    }

    __device__ __forceinline__ void load(const Token<const u8> &token) {
        const int lane = threadIdx.x % 32;
        const u8 *const scale = token.tail + scale_of_eight<R>(lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = lane + 32 * half;
            const u8 *const from = token.row + (is_plain(half) ? plain_of_eight<R>(at) : codes_of_eight<R>(at));
            if (is_plain(half))
                eights[half].load_plain(from);
            else
                eights[half].load_codes(from, scale + half * (scale_of_eight<R>(32) - scale_of_eight<R>(0)));
        }
    }

    // Whether no lane has a NaN, or a scale, that forbids it.
    __device__ __forceinline__ bool in_pairs() const {
        u32 nans = eights[0].nans(), scale = eights[0].scale;
        if (!is_plain(1))
#ifdef MUTANT_NAN_CODE_IN_PAIRS
            scale = max(scale, eights[1].scale);
#else
            nans |= eights[1].nans(), scale = max(scale, eights[1].scale);
#endif
        return !__any_sync(0xffffffff, (nans & 0x80808080) != 0 || scale > Eight<R>::MOST_OF_PAIRS);
    }

    // To where the first belongs; the second lies HALF bytes behind.
    template <int HALF, bool PAIRS> __device__ __forceinline__ void store(u8 *to) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 plain = eights[half].plain(), codes = PAIRS ? eights[half].decode_pairs() : eights[half].decode();
            const bool as_is = is_plain(half);
            *(uint4 *)(to + half * HALF) = make_uint4(as_is ? plain.x : codes.x, as_is ? plain.y : codes.y,
                                                      as_is ? plain.z : codes.z, as_is ? plain.w : codes.w);
        }
    }

    template <int HALF> __device__ __forceinline__ void store(u8 *to) const {
        if (Eight<R>::PAIRS && in_pairs())
            store<HALF, true>(to);
        else
            store<HALF, false>(to);
    }
};
