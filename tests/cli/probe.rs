//! Rules of sums, found from the sums.

use ulplab::commands::kernels::probe::Vectors;
use ulplab::ops;
use ulplab_core::accumulator::{Accumulator, WGMMA_BF16, WGMMA_E4M3};

/// Sums made by a rule are found to be made by that rule and no other.
#[test]
fn the_rule_is_found_from_the_sums() {
    let op = ops::find("wgmma").unwrap();
    for assumed in [&WGMMA_E4M3, &WGMMA_BF16] {
        let name = if *assumed == WGMMA_E4M3 { "e4m3" } else { "bf16" };
        let case = ops::case(op, &format!("{name}.n8.chain")).unwrap();
        let problem = ops::problem(op, &case).unwrap();
        let right = *assumed;
        let fewer = Accumulator {
            terms: right.terms / 2,
            ..right
        };
        let coarser = Accumulator {
            aligned_bits: right.aligned_bits - 1,
            ..right
        };
        for rule in [right, fewer, coarser] {
            let len = problem.buffers.iter().find(|buffer| buffer.name == "c").unwrap().size();
            let mut vectors = Vectors::new(&case, &problem, &vec![0; len]);
            vectors.d = (0..vectors.d.len()).map(|at| vectors.sum(&rule, at)).collect();
            let found = vectors.finding(name.into());
            assert_eq!(found.fitting, [rule], "{name}");
            assert_eq!(found.as_assumed(), rule == right, "{name}: {rule:?}");
        }
    }
}
