//! Sums of matrix instructions.

use ulplab_core::accumulator::{Factor, MOST_TERMS, Operand, WGMMA_BF16, WGMMA_E4M3, sum_of_steps};

#[test]
fn sums_of_32_bits_equal_those_of_64_bits() {
    for rule in [WGMMA_E4M3, WGMMA_BF16] {
        assert!(rule.narrow());
        // All codes, NaN and infinities among them, in sums of which some are cut short.
        let code = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16;
        let factor = |at: u64| match rule.operand {
            Operand::E4m3 => Operand::E4m3.factor(code(at) & 0xff),
            Operand::Bf16 if at.is_multiple_of(5) => Operand::Bf16.factor(code(at)),
            Operand::Bf16 => Operand::Bf16.factor(code(at) & 0x87ff | 0x3c00),
        };
        for first in 0..20_000 {
            let terms = 1 + first % 70;
            let row = |seed: u64| -> Vec<Factor> { (0..terms).map(|at| factor(seed + 1000 * first + at)).collect() };
            let (a, b, c) = (row(1), row(500), code(first) as f32 - 20_000.0);
            let wide = sum_of_steps::<MOST_TERMS, true>(rule, &a, &b, c);
            assert_eq!(
                rule.dot(&a, &b, c).to_bits(),
                wide.to_bits(),
                "{:?}, {first}",
                rule.operand
            );
        }
    }
}
