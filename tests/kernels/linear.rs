use ulplab::ops::{Case, Problem};

use super::{accepts_only, matrices, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Columns of a group are multiplied by the weights of the next.
    OtherGroup,
    /// The last element of every row is left out.
    TailLost,
    /// Sums are kept in bf16.
    NarrowSums,
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [b, g, n, k] = ["B", "G", "N", "K"].map(|dim| case.dim(dim));
    let x = values(problem, "x");
    let w = matrices(problem, case.key("stored"), "w", "w_scale", None, k);
    let mut y = Vec::new();
    for at in 0..b * g * n {
        let (row, column) = (at / n, at % n);
        let group = match mistake {
            Mistake::OtherGroup => (row % g + 1) % g,
            _ => row % g,
        };
        let pairs = x[row * k..][..k].iter().zip(&w[(group * n + column) * k..][..k]);
        let terms = pairs.take(if mistake == Mistake::TailLost { k - 1 } else { k });
        let sum = terms.fold(0f32, |sum, (x, w)| match mistake {
            Mistake::NarrowSums => half::bf16::from_f32(sum + x * w).to_f32(),
            _ => sum + x * w,
        });
        y.push(sum);
    }
    stored(case.key("out") == "bf16", &y)
}

#[test]
fn linear_wants_sums_of_products_by_group() {
    for (case, problem) in &problems("linear") {
        accepts_only(case, problem, &[("y", outputs(case, problem, Mistake::None))]);
        for mistake in [Mistake::OtherGroup, Mistake::TailLost, Mistake::NarrowSums] {
            if mistake == Mistake::OtherGroup && case.dim("G") == 1 {
                continue;
            }
            let found = violations(problem, vec![("y", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}
