// The instruction at every width, with A in shared memory or in registers. Numbers of registers must stand in the text of the
// instruction, so they are put together from tens.
#pragma once

#include "lib/wgmma.cuh"

#define TEN(n) ", %" #n "0, %" #n "1, %" #n "2, %" #n "3, %" #n "4, %" #n "5, %" #n "6, %" #n "7, %" #n "8, %" #n "9"
#define UP_TO_9 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define UP_TO_29 UP_TO_9 TEN(1) TEN(2)
#define UP_TO_59 UP_TO_29 TEN(3) TEN(4) TEN(5)
#define UP_TO_89 UP_TO_59 TEN(6) TEN(7) TEN(8)

#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_24 UP_TO_9 ", %10, %11"
#define NAMES_32 NAMES_24 ", %12, %13, %14, %15"
#define NAMES_64 UP_TO_29 ", %30, %31"
#define NAMES_96 UP_TO_29 TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_128 UP_TO_59 ", %60, %61, %62, %63"
#define NAMES_192 UP_TO_89 ", %90, %91, %92, %93, %94, %95"
#define NAMES_256 UP_TO_89 TEN(9) TEN(10) TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"

#define SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_8 SUMS_4(0)
#define SUMS_16 SUMS_8, SUMS_4(4)
#define SUMS_24 SUMS_16, SUMS_4(8)
#define SUMS_32 SUMS_24, SUMS_4(12)
#define SUMS_16_FROM(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64 SUMS_32, SUMS_16_FROM(16)
#define SUMS_96 SUMS_64, SUMS_16_FROM(32)
#define SUMS_128 SUMS_96, SUMS_16_FROM(48)
#define SUMS_192 SUMS_128, SUMS_16_FROM(64), SUMS_16_FROM(80)
#define SUMS_256 SUMS_192, SUMS_16_FROM(96), SUMS_16_FROM(112)

// Steps of 32 bytes of each row: c [64, N] += a · bᵀ.
template <class Operand, int N> struct Step;

// P0 to P4 are the numbers of the operands that follow the sums. `ORDER` and `ORDER_B` say that rows of the operands that lie in
// shared memory are contiguous; the instruction of E4M3 knows nothing else.
#define STEP(OPERAND, INSTRUCTION, ORDER, ORDER_B, N, P0, P1, P2, P3, P4)                                            \
    template <> struct Step<OPERAND, N> {                                                                            \
        static __device__ __forceinline__ void shared(float (&c)[N / 2], u64 a, u64 b) {                             \
            asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N INSTRUCTION " {" NAMES_##N "}, %" #P0 ", %" #P1      \
                                                                                           ", add, 1, 1" ORDER "; }" \
                         : SUMS_##N                                                                                  \
                         : "l"(a), "l"(b));                                                                          \
        }                                                                                                            \
        static __device__ __forceinline__ void registers(float (&c)[N / 2], const u32 (&a)[4], u64 b) {              \
            asm volatile("{ .reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N INSTRUCTION " {" NAMES_##N                           \
                         "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", add, 1, 1" ORDER_B "; }"            \
                         : SUMS_##N                                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
        }                                                                                                            \
    };

#define STEPS(N, P0, P1, P2, P3, P4)                              \
    STEP(Fp8, "k32.f32.e4m3.e4m3", "", "", N, P0, P1, P2, P3, P4) \
    STEP(Bf16, "k16.f32.bf16.bf16", ", 0, 0", ", 0", N, P0, P1, P2, P3, P4)
STEPS(8, 4, 5, 6, 7, 8)
STEPS(16, 8, 9, 10, 11, 12)
STEPS(24, 12, 13, 14, 15, 16)
STEPS(32, 16, 17, 18, 19, 20)
STEPS(64, 32, 33, 34, 35, 36)
STEPS(96, 48, 49, 50, 51, 52)
STEPS(128, 64, 65, 66, 67, 68)
STEPS(192, 96, 97, 98, 99, 100)
STEPS(256, 128, 129, 130, 131, 132)
