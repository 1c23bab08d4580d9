use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Inputs, Problem};

use super::{accepts_only, integers, problems, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Weights have the bias in them.
    Biased,
    /// Of equal scores, the larger index is taken.
    LargerTie,
    /// The first two experts are exchanged, with their weights.
    Exchanged,
    /// The first expert is chosen twice.
    Twice,
    Unscaled,
    /// Padding is treated as any other row.
    Padded,
    /// Softplus is x from 10 on.
    ThresholdAtTen,
    /// No mistake: experts are ordered by logits whose last bits were cut off.
    LastBits,
}

const MISTAKES: [Mistake; 7] = [
    Mistake::Biased,
    Mistake::LargerTie,
    Mistake::Exchanged,
    Mistake::Twice,
    Mistake::Unscaled,
    Mistake::Padded,
    Mistake::ThresholdAtTen,
];

impl Mistake {
    /// Whether it can be seen in a case.
    fn shows(self, case: &Case) -> bool {
        let by_bias = case.key("select") == "bias";
        match self {
            Self::Biased => by_bias && case.dim("K") > 1,
            Self::ThresholdAtTen => case.dim("K") > 1 && case.inputs == Inputs::Edges,
            Self::LargerTie => by_bias && case.inputs == Inputs::Edges,
            Self::Exchanged | Self::Twice => case.dim("K") > 1,
            Self::Padded => case.dim("B") > 3,
            Self::None | Self::Unscaled | Self::LastBits => true,
        }
    }
}

fn sigma_of(x: f32, threshold: f32) -> f32 {
    if x > threshold { x } else { x.exp().ln_1p() }.sqrt()
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> [(&'static str, Vec<u8>); 2] {
    let (count, k) = (case.dim("E"), case.dim("K"));
    let (table, token) = (integers(problem, "table"), integers(problem, "token"));
    let bias = values(problem, "bias");
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for (logits, &token) in values(problem, "logits").chunks_exact(count).zip(&token) {
        if token < 0 && mistake != Mistake::Padded {
            experts.extend(vec![-1; k]);
            weights.extend(vec![0.0; k]);
            continue;
        }
        let threshold = if mistake == Mistake::ThresholdAtTen { 10.0 } else { 20.0 };
        let sigma: Vec<f32> = logits.iter().map(|x| sigma_of(*x, threshold)).collect();
        let mut chosen: Vec<usize> = match case.key("select") {
            "table" => {
                let from = token.max(0) as usize * k;
                table[from..from + k].iter().map(|expert| *expert as usize).collect()
            }
            _ => {
                // Logits of 10 and above are not near to each other.
                let cut = |x: f32| f32::from_bits(x.to_bits() & if x < 10.0 { !63 } else { !0 });
                let of = |e: usize| {
                    if mistake == Mistake::LastBits {
                        sigma_of(cut(logits[e]), threshold)
                    } else {
                        sigma[e]
                    }
                };
                let score = |e: usize| match of(e) + bias[e] {
                    nan if nan.is_nan() => f32::NAN,
                    score => score + 0.0,
                };
                let mut all: Vec<usize> = (0..count).collect();
                if mistake == Mistake::LargerTie {
                    all.reverse();
                }
                // The sort is stable.
                all.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
                all[..k].to_vec()
            }
        };
        match mistake {
            Mistake::Exchanged => chosen.swap(0, 1),
            Mistake::Twice => chosen[1] = chosen[0],
            _ => {}
        }
        let own = |e: &usize| match mistake {
            Mistake::Biased => sigma[*e] + bias[*e],
            _ => sigma[*e],
        };
        let sum: f32 = chosen.iter().map(own).sum::<f32>() + 1e-20;
        let scale = if mistake == Mistake::Unscaled { 1.0 } else { 1.5 };
        weights.extend(chosen.iter().map(|e| own(e) / sum * scale));
        experts.extend(chosen.iter().map(|e| *e as i32));
    }
    let experts = experts.iter().flat_map(|e| e.to_le_bytes()).collect();
    [("experts", experts), ("weights", f32_bytes(&weights))]
}

#[test]
fn router_wants_the_best_experts_and_their_weights() {
    for (case, problem) in &problems("router") {
        accepts_only(case, problem, &outputs(case, problem, Mistake::None));
        for mistake in MISTAKES.into_iter().filter(|mistake| mistake.shows(case)) {
            let found = violations(problem, outputs(case, problem, mistake).into());
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}

/// Scores that differ by less than their errors may come in either order.
#[test]
fn router_lets_near_ties_fall_either_way() {
    let mut differing = 0;
    let problems = problems("router");
    for (case, problem) in problems.iter().filter(|(case, _)| case.inputs == Inputs::Edges) {
        let rounded = outputs(case, problem, Mistake::LastBits);
        differing += usize::from(rounded != outputs(case, problem, Mistake::None));
        assert!(violations(problem, rounded.into()) == 0.0, "{}", case.name);
    }
    assert!(differing > 0, "no case has near ties");
}
