use safetensors::Dtype;
use ulplab::ops::{Case, Problem};

use super::{accepts_only, buffer, matrices, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    GateUpSwapped,
    Unlimited,
    Unweighted,
    /// Rows lack the shared expert.
    SharedLost,
    /// The numbers between the products are rounded to bf16.
    Rounded,
}

const MISTAKES: [Mistake; 5] = [
    Mistake::GateUpSwapped,
    Mistake::Unlimited,
    Mistake::Unweighted,
    Mistake::SharedLost,
    Mistake::Rounded,
];

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds to y what an expert makes of x, in f32, sums from first to last.
fn add(y: &mut [f32], x: &[f32], [gate_up, down]: [&[f32]; 2], weight: f32, mistake: Mistake) {
    let rows: Vec<f32> = gate_up.chunks_exact(x.len()).map(|row| dot(row, x)).collect();
    let inner = rows.len() / 2;
    let limit = if mistake == Mistake::Unlimited { f32::MAX } else { 10.0 };
    let hidden = (0..inner).map(|i| {
        let (gate, up) = match mistake {
            Mistake::GateUpSwapped => (rows[inner + i], rows[i]),
            _ => (rows[i], rows[inner + i]),
        };
        // A minimum of Rust's would drop NaN.
        let gate = if gate > limit { limit } else { gate };
        let weight = if mistake == Mistake::Unweighted { 1.0 } else { weight };
        let hidden = gate / (1.0 + (-gate).exp()) * up.clamp(-limit, limit) * weight;
        match mistake {
            Mistake::Rounded => half::bf16::from_f32(hidden).to_f32(),
            _ => hidden,
        }
    });
    let hidden: Vec<f32> = hidden.collect();
    for (y, row) in y.iter_mut().zip(down.chunks_exact(inner)) {
        *y += dot(row, &hidden);
    }
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [dim, inner, k] = ["D", "I", "K"].map(|name| case.dim(name));
    let [own, shared] = ["routed", "stored"].map(|key| case.key(key));
    let elements = 2 * inner * dim;
    let gate_up = matrices(
        problem,
        own,
        "gate_up",
        "gate_up_scale",
        Some(("gate_up_level", elements)),
        dim,
    );
    let down = matrices(
        problem,
        own,
        "down",
        "down_scale",
        Some(("down_level", elements / 2)),
        inner,
    );
    let shared = [
        matrices(problem, shared, "shared_gate_up", "shared_gate_up_scale", None, dim),
        matrices(problem, shared, "shared_down", "shared_down_scale", None, inner),
    ];
    let experts = buffer(problem, "experts");
    let experts = experts
        .bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| i32::from_le_bytes(*bytes));
    let experts: Vec<i32> = experts.collect();
    let mut all = Vec::new();
    let (x, weights) = (values(problem, "x"), values(problem, "weights"));
    let slots = experts.chunks_exact(k).zip(weights.chunks_exact(k));
    for (x, (experts, weights)) in x.chunks_exact(dim).zip(slots) {
        let mut y = vec![0.0; dim];
        let mut sent: Vec<(usize, f32)> = experts
            .iter()
            .zip(weights)
            .filter_map(|(expert, weight)| Some((usize::try_from(*expert).ok()?, *weight)))
            .collect();
        sent.sort_by_key(|(expert, _)| *expert);
        for (expert, weight) in sent {
            let gate_up = &gate_up[expert * 2 * inner * dim..][..2 * inner * dim];
            let down = &down[expert * dim * inner..][..dim * inner];
            add(&mut y, x, [gate_up, down], weight, mistake);
        }
        if mistake != Mistake::SharedLost {
            add(&mut y, x, [&shared[0], &shared[1]], 1.0, mistake);
        }
        all.extend(y);
    }
    let y = buffer(problem, "y");
    stored(y.dtype == Dtype::BF16, &all)
}

#[test]
fn experts_wants_the_weighted_sum_of_clamped_experts() {
    for (case, problem) in &problems("experts") {
        accepts_only(case, problem, &[("y", outputs(case, problem, Mistake::None))]);
        // What bf16 rounds once more hides that it was rounded before, and so does the bound of a sum of thousands of products.
        let fine = case.key("dtype") == "f32" && case.dim("D") < 1024;
        let seen = |mistake: &Mistake| *mistake != Mistake::Rounded || fine;
        for mistake in MISTAKES.into_iter().filter(seen) {
            let found = violations(problem, vec![("y", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}
