use super::wgmma::rule;
use super::{bytes, integers, problems, stored, values, violations};
use ulplab::ops::{Case, Problem};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    HighNibbleFirst,
    NextScale,
    GateUpScalesExchanged,
    ClampedBelow,
    SharedUnclamped,
    WeightAfterDown,
    SharedLost,
    SharedFirst,
    /// Tensor cores sum on past 1024 columns.
    OnePart,
}

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn bits(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

/// A row of a matrix [.., cols].
fn row(problem: &Problem, name: [&'static str; 2], at: usize, cols: usize, block: usize, mistake: Mistake) -> Vec<u16> {
    let [codes, scales] = name.map(|name| bytes(problem, name));
    let blocks = cols / block;
    let weight = |col: usize| {
        let high = (col % 2 == 1) != (mistake == Mistake::HighNibbleFirst);
        let code = codes[(at * cols + col) / 2] >> if high { 4 } else { 0 } & 0xf;
        let of_row = (col / block + usize::from(mistake == Mistake::NextScale)).min(blocks - 1);
        let scale = match (block, u32::from(scales[at * blocks + of_row])) {
            (16, scale) => ulplab::formats::E4M3.decode(scale as u16),
            (_, 0) => f32::from_bits(1 << 22),
            (_, 255) => f32::NAN,
            (_, scale) => f32::from_bits(scale << 23),
        };
        let magnitude = E2M1[usize::from(code & 7)];
        bits(scale * if code > 7 { -magnitude } else { magnitude })
    };
    (0..cols).map(weight).collect()
}

fn dot(w: &[u16], x: &[u16], mistake: Mistake) -> f32 {
    let rule = rule("bf16");
    let part = if mistake == Mistake::OnePart { x.len() } else { 1024 };
    let sum = |(w, x): (&[u16], &[u16])| {
        let steps = w.chunks(16).zip(x.chunks(16));
        steps.fold(0.0, |sum, (w, x)| rule.step(w, x, true, sum))
    };
    let sums = w.chunks(part).zip(x.chunks(part)).map(sum);
    sums.reduce(|total, sum| total + sum).unwrap()
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<(&'static str, Vec<u8>)> {
    let [rows, count, k, dim, inner] = ["B", "E", "K", "D", "I"].map(|dim| case.dim(dim));
    let block = if case.key("format") == "nvfp4" { 16 } else { 32 };
    let (experts, weights) = (integers(problem, "experts"), values(problem, "weights"));
    let (gate_up_tensor, down_tensor) = (values(problem, "gate_up_tensor"), values(problem, "down_tensor"));
    let x: Vec<u16> = values(problem, "x").into_iter().map(bits).collect();
    let (mut hidden, mut y) = (vec![0.0; rows * (k + 1) * inner], vec![0.0f32; rows * dim]);
    for at in 0..rows {
        let mut slots: Vec<usize> = (0..k).filter(|slot| experts[at * k + slot] >= 0).collect();
        slots.sort_by_key(|slot| experts[at * k + slot]);
        match mistake {
            Mistake::SharedLost => {}
            Mistake::SharedFirst => slots.insert(0, k),
            _ => slots.push(k),
        }
        for slot in slots {
            let shared = slot == k;
            let expert = if shared { count } else { experts[at * k + slot] as usize };
            let weight = if shared { 1.0 } else { weights[at * k + slot] };
            let (before, after) = if mistake == Mistake::WeightAfterDown {
                (1.0, weight)
            } else {
                (weight, 1.0)
            };
            let limit = if shared && mistake == Mistake::SharedUnclamped {
                f32::MAX
            } else {
                10.0
            };
            let own = &mut hidden[(at * (k + 1) + slot) * inner..][..inner];
            for (unit, own) in own.iter_mut().enumerate() {
                let sum = |half: usize| {
                    let number = (expert * 2 + half) * inner + unit;
                    let w = row(problem, ["gate_up", "gate_up_scale"], number, dim, block, mistake);
                    let tensor = half ^ usize::from(mistake == Mistake::GateUpScalesExchanged);
                    dot(&w, &x[at * dim..][..dim], mistake) * gate_up_tensor[expert * 2 + tensor]
                };
                let (gate, up) = (sum(0), sum(1));
                // Minima of Rust's would drop NaN.
                let gate = if gate > limit { limit } else { gate };
                let gate = if mistake == Mistake::ClampedBelow && gate < -limit {
                    -limit
                } else {
                    gate
                };
                let silu = f64::from(gate) / (1.0 + (-f64::from(gate)).exp());
                *own = (silu * f64::from(up.clamp(-limit, limit)) * f64::from(before)) as f32;
            }
            let own: Vec<u16> = own.iter().map(|x| bits(*x)).collect();
            for channel in 0..dim {
                let w = row(
                    problem,
                    ["down", "down_scale"],
                    expert * dim + channel,
                    inner,
                    block,
                    mistake,
                );
                y[at * dim + channel] += dot(&w, &own, mistake) * down_tensor[expert] * after;
            }
        }
    }
    vec![
        ("hidden", stored(true, &hidden)),
        ("y", stored(case.key("out") == "bf16", &y)),
    ]
}

#[test]
fn moe_fp4_wants_what_each_expert_gives_and_sums_in_the_order_that_is_defined() {
    for (case, problem) in &problems("moe_fp4") {
        let work: usize = ["B", "K", "D", "I"].iter().map(|dim| case.dim(dim)).product();
        if work > 1 << 20 {
            continue;
        }
        let right = outputs(case, problem, Mistake::None);
        assert!(violations(problem, right.clone()) == 0.0, "{}", case.name);
        for output in 0..2 {
            let mut wrong = right.clone();
            let at = wrong[output].1.len() / 8 * 4 + 3;
            wrong[output].1[at] ^= 0x40;
            assert!(violations(problem, wrong) >= 1.0, "{}: {}", case.name, right[output].0);
        }
    }
}

#[test]
fn moe_fp4_notices_mistakes() {
    let all = problems("moe_fp4");
    let seen = |name: &str, mistakes: &[Mistake]| {
        let (case, problem) = all.iter().find(|(case, _)| case.name == name).unwrap();
        for mistake in mistakes {
            assert!(
                violations(problem, outputs(case, problem, *mistake)) >= 1.0,
                "{name}: {mistake:?}"
            );
        }
    };
    let all_formats = [
        Mistake::HighNibbleFirst,
        Mistake::NextScale,
        Mistake::ClampedBelow,
        Mistake::SharedUnclamped,
        Mistake::WeightAfterDown,
        Mistake::SharedLost,
        Mistake::SharedFirst,
    ];
    seen("mxfp4.f32.spread.b7.4x64x96", &all_formats);
    seen("nvfp4.f32.spread.b7.4x64x96", &all_formats);
    seen("nvfp4.f32.spread.b7.4x64x96", &[Mistake::GateUpScalesExchanged]);
    seen("mxfp4.f32.spread.b8.5x32x1120", &[Mistake::OnePart]);
}
