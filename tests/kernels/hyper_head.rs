use safetensors::Dtype;
use ulplab::ops::{Case, Problem};

use super::{accepts_only, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Logits are not divided by the root mean square of the streams.
    NotNormed,
    /// Weights of streams add up to 1.
    Softmax,
    /// The mixture is not normed.
    Plain,
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let dim = case.dim("C");
    let [x, projection, base, scale, weight] = ["x", "fn", "base", "scale", "weight"].map(|name| values(problem, name));
    let mean = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let mut y = Vec::new();
    for x in x.chunks(4 * dim) {
        let root = match mistake {
            Mistake::NotNormed => 1.0,
            _ => (mean(x) + 1e-5).sqrt(),
        };
        let logit = |j: usize| {
            let products = projection[j * 4 * dim..][..4 * dim].iter().zip(x).map(|(w, x)| w * x);
            products.sum::<f32>() / root * scale[0] + base[j]
        };
        let mut weights: Vec<f32> = (0..4).map(|j| 1.0 / (1.0 + (-logit(j)).exp()) + 1e-6).collect();
        if mistake == Mistake::Softmax {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let mix = |c: usize| (0..4).map(|j| weights[j] * x[j * dim + c]).sum::<f32>();
        let mixed: Vec<f32> = (0..dim).map(mix).collect();
        let root = match mistake {
            Mistake::Plain => 1.0,
            _ => (mean(&mixed) + 1e-5).sqrt(),
        };
        y.extend(mixed.iter().zip(&weight).map(|(x, w)| x / root * w));
    }
    stored(problem.buffers[0].dtype == Dtype::BF16, &y)
}

#[test]
fn hyper_head_wants_the_normed_mixture() {
    for (case, problem) in &problems("hyper_head") {
        accepts_only(case, problem, &[("y", outputs(case, problem, Mistake::None))]);
        for mistake in [Mistake::NotNormed, Mistake::Plain] {
            let found = violations(problem, vec![("y", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
        // Weights that add up to 1 are undone by the norm, but for its epsilon, which counts in small rows.
        if case.name.contains("edges") {
            let found = violations(problem, vec![("y", outputs(case, problem, Mistake::Softmax))]);
            assert!(found >= 1.0, "{}", case.name);
        }
    }
}
