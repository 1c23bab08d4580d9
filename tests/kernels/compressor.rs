use safetensors::Dtype;
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Problem};

use super::{accepts_only, buffer, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// The pool does not see the token's own row, but what was in its slot.
    Stale,
    /// The two halves of the channels are exchanged.
    Halves,
    /// The gate gets the ape of the next token.
    NextApe,
    /// The entry is turned to the position of the window's last token.
    LastToken,
    /// The entry is inserted one place too far.
    Late,
    /// The norm has no ε.
    NoEps,
    /// The entry is that of the normed value, not turned.
    NotTurned,
}

/// Rings, entries and stages, all sums in f32 from the first to the last.
fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<(&'static str, Vec<u8>)> {
    let [m, d, r, n, s, w] = ["m", "D", "R", "N", "S", "W"].map(|dim| case.dim(dim));
    let [kv, gate, ape, weight, cos, sin] =
        ["kv", "gate", "ape", "weight", "cos", "sin"].map(|name| values(problem, name));
    let [mut ring_kv, mut ring_gate, mut entries] =
        ["ring_kv", "ring_gate", "entries"].map(|name| values(problem, name));
    let buffer = |name: &str| buffer(problem, name);
    let positions = buffer("position").bytes.as_chunks::<4>().0;
    let old = (ring_kv.clone(), ring_gate.clone());
    let mut stages = vec![0f32; positions.len() * 3 * d];
    for (row, position) in positions.iter().enumerate() {
        let Ok(t) = usize::try_from(i32::from_le_bytes(*position)) else {
            continue;
        };
        for at in 0..w {
            let slot = (row * s + t % s) * w + at;
            let phase = (t + usize::from(mistake == Mistake::NextApe)) % m;
            ring_kv[slot] = kv[row * w + at];
            ring_gate[slot] = gate[row * w + at] + ape[phase * w + at];
        }
        if (t + 1) % m != 0 {
            continue;
        }
        let (from_kv, from_gate) = match mistake {
            Mistake::Stale => (&old.0, &old.1),
            _ => (&ring_kv, &ring_gate),
        };
        let stage = &mut stages[row * 3 * d..][..3 * d];
        let own = t / m * m;
        let first = if s == 2 * m { own.saturating_sub(m) } else { own };
        for (channel, pooled_into) in stage[..d].iter_mut().enumerate() {
            let place = |token: usize| {
                let second = s == 2 * m && (token >= own) != (mistake == Mistake::Halves);
                (row * s + token % s) * w + if second { d } else { 0 } + channel
            };
            let top = (first..=t).map(|token| from_gate[place(token)]);
            let top = top.fold(f32::NEG_INFINITY, f32::max);
            let (mut sum, mut pooled) = (0f32, 0f32);
            for token in first..=t {
                let share = (from_gate[place(token)] - top).exp();
                sum += share;
                pooled += share * from_kv[place(token)];
            }
            *pooled_into = pooled / sum;
        }
        let eps = if mistake == Mistake::NoEps { 0.0 } else { 1e-6 };
        let squares: f32 = stage[..d].iter().map(|x| x * x).sum();
        let root = (squares / d as f32 + eps).sqrt();
        for channel in 0..d {
            stage[d + channel] = stage[channel] / root * weight[channel];
        }
        stage.copy_within(d..2 * d, 2 * d);
        let to = if mistake == Mistake::LastToken { t } else { own };
        for pair in 0..r / 2 {
            let (even, at) = (3 * d - r + 2 * pair, to * r / 2 + pair);
            let (a, b) = (stage[even], stage[even + 1]);
            stage[even] = a * cos[at] - b * sin[at];
            stage[even + 1] = b * cos[at] + a * sin[at];
        }
        let entry = t / m + usize::from(mistake == Mistake::Late);
        let from = if mistake == Mistake::NotTurned { d } else { 2 * d };
        entries[(row * n + entry) * d..][..d].copy_from_slice(&stage[from..from + d]);
    }
    let entries = stored(buffer("entries").dtype == Dtype::BF16, &entries);
    vec![
        ("ring_kv", f32_bytes(&ring_kv)),
        ("ring_gate", f32_bytes(&ring_gate)),
        ("entries", entries),
        ("stages", f32_bytes(&stages)),
    ]
}

#[test]
fn compressor_wants_each_stage_of_a_window_and_nothing_else_written() {
    for (case, problem) in &problems("compressor") {
        accepts_only(case, problem, &outputs(case, problem, Mistake::None));
        let mut mistakes = vec![
            Mistake::Stale,
            Mistake::NextApe,
            Mistake::LastToken,
            Mistake::Late,
            Mistake::NotTurned,
        ];
        if case.dim("overlap") == 1 {
            mistakes.push(Mistake::Halves);
        }
        // Only there are values small enough.
        if case.name.contains("edges") {
            mistakes.push(Mistake::NoEps);
        }
        for mistake in mistakes {
            let found = violations(problem, outputs(case, problem, mistake));
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}
