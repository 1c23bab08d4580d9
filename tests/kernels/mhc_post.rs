use safetensors::Dtype;
use ulplab::ops::{Case, Inputs, Problem};

use super::{accepts_only, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    Transposed,
    /// Streams are stored one after the other, in place.
    Overwritten,
    /// The sum over streams is rounded to bf16 before the block's output is added.
    RoundedTwice,
    /// Streams with weight 0 are left out, whatever they are.
    ZeroSkipped,
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let dim = case.dim("C");
    let [x, y, post, comb] = ["x", "y", "post", "comb"].map(|name| values(problem, name));
    let mut streams = x.clone();
    for (at, out) in streams.iter_mut().enumerate() {
        let (row, k, channel) = (at / dim / 4, at / dim % 4, at % dim);
        let mut sum = 0.0;
        for j in 0..4 {
            let weight = match mistake {
                Mistake::Transposed => comb[(row * 4 + k) * 4 + j],
                _ => comb[(row * 4 + j) * 4 + k],
            };
            if weight == 0.0 && mistake == Mistake::ZeroSkipped {
                continue;
            }
            sum += weight * x[(row * 4 + j) * dim + channel];
        }
        if mistake == Mistake::RoundedTwice {
            sum = half::bf16::from_f32(sum).to_f32();
        }
        *out = sum + post[row * 4 + k] * y[row * dim + channel];
    }
    if mistake == Mistake::Overwritten {
        streams = x;
        for at in 0..streams.len() {
            let (row, k, channel) = (at / dim / 4, at / dim % 4, at % dim);
            let old = |j: usize| comb[(row * 4 + j) * 4 + k] * streams[(row * 4 + j) * dim + channel];
            let sum: f32 = (0..4).map(old).sum();
            streams[at] = sum + post[row * 4 + k] * y[row * dim + channel];
        }
    }
    stored(problem.buffers[0].dtype == Dtype::BF16, &streams)
}

#[test]
fn mhc_post_wants_old_streams_and_output_mixed() {
    for (case, problem) in &problems("mhc_post") {
        accepts_only(case, problem, &[("x", outputs(case, problem, Mistake::None))]);
        for mistake in [Mistake::Transposed, Mistake::Overwritten, Mistake::RoundedTwice] {
            let found = violations(problem, vec![("x", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
        let found = violations(problem, vec![("x", outputs(case, problem, Mistake::ZeroSkipped))]);
        assert_eq!(found >= 1.0, case.inputs == Inputs::Edges, "{}", case.name);
    }
}
