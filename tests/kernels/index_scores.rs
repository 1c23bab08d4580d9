use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Problem, Scalar};

use super::{accepts_only, integers, problems, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Products below 0 count.
    NoRelu,
    /// The sum over heads is cut at 0, and not each product.
    ReluOfSum,
    /// Entries that a row may not see score 0.
    Zeros,
    /// Products are rounded to bf16.
    Rounded,
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [h, d, n] = ["H", "D", "N"].map(|dim| case.dim(dim));
    let [q, keys, weights] = ["q", "keys", "head_weights"].map(|name| values(problem, name));
    let Scalar::F32(scale) = problem.scalars[0].1 else {
        panic!("scale")
    };
    let counts: Vec<usize> = integers(problem, "count")
        .into_iter()
        .map(|count| count as usize)
        .collect();
    let mut scores = Vec::new();
    for (row, &count) in counts.iter().enumerate() {
        for entry in 0..n {
            if entry >= count {
                scores.push(if mistake == Mistake::Zeros {
                    0.0
                } else {
                    f32::NEG_INFINITY
                });
                continue;
            }
            let key = &keys[(row * n + entry) * d..][..d];
            let head = |head: usize| {
                let query = &q[(row * h + head) * d..][..d];
                let product: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                let product = match mistake {
                    Mistake::Rounded => half::bf16::from_f32(product).to_f32(),
                    _ => product,
                };
                let cut = product < 0.0 && !matches!(mistake, Mistake::NoRelu | Mistake::ReluOfSum);
                weights[row * h + head] * scale * if cut { 0.0 } else { product }
            };
            let sum: f32 = (0..h).map(head).sum();
            scores.push(if mistake == Mistake::ReluOfSum {
                sum.max(0.0)
            } else {
                sum
            });
        }
    }
    f32_bytes(&scores)
}

#[test]
fn index_scores_want_the_sum_over_heads() {
    for (case, problem) in &problems("index_scores") {
        accepts_only(case, problem, &[("scores", outputs(case, problem, Mistake::None))]);
        for mistake in [Mistake::NoRelu, Mistake::ReluOfSum, Mistake::Zeros, Mistake::Rounded] {
            // The first row sees all entries.
            if case.dim("B") == 1 && mistake == Mistake::Zeros {
                continue;
            }
            let found = violations(problem, vec![("scores", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}
