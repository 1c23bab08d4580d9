use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Problem};

use super::{buffer, problems, stored, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    None,
    DecayLast,
    OldStateRead,
    BetaDropped,
    LayoutConfused,
    SequencesJoined,
    ScaleDropped,
    NormDropped,
    HeadsTiled,
    LastRowLost,
}

/// Token by token in f32, as straight as the definition.
pub fn prefill(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<(&'static str, Vec<u8>)> {
    let [n, h, hv, k, v, decays] = ["N", "H", "HV", "K", "V", "G"].map(|dim| case.dim(dim));
    let [q, keys, x, g, beta, initial] = ["q", "k", "v", "g", "beta", "initial"].map(|name| values(problem, name));
    let starts = buffer(problem, "starts");
    let starts: Vec<usize> = starts
        .bytes
        .chunks(case.dim("index"))
        .map(|bytes| i32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize)
        .collect();
    let place = |key: usize, value: usize, vk: usize| if vk == 1 { value * k + key } else { key * v + value };
    let normal = |row: &[f32]| -> Vec<f32> {
        let norm = (row.iter().map(|x| x * x).sum::<f32>() + 1e-6).sqrt();
        row.iter()
            .map(|x| if mistake == Mistake::NormDropped { *x } else { x / norm })
            .collect()
    };
    let scale = if mistake == Mistake::ScaleDropped {
        1.0
    } else {
        (k as f32).sqrt().recip()
    };
    let (mut o, mut last) = (vec![0.0; x.len()], vec![0.0; initial.len()]);
    for head in 0..hv {
        let mut s = vec![0.0f32; k * v];
        for sequence in 0..n {
            let matrix = (sequence * hv + head) * k * v;
            if sequence == 0 || mistake != Mistake::SequencesJoined {
                for at in 0..k * v {
                    s[at] = initial[matrix + place(at / v, at % v, case.dim("in_vk"))];
                }
            }
            for token in starts[sequence]..starts[sequence + 1] {
                let key_head = if mistake == Mistake::HeadsTiled {
                    head % h
                } else {
                    head / (hv / h)
                };
                let row = |x: &[f32]| normal(&x[(token * h + key_head) * k..][..k]);
                let (q, key, at) = (row(&q), row(&keys), token * hv + head);
                let decay: Vec<f32> = (0..k).map(|c| g[at * decays + c % decays].exp()).collect();
                let decayed = |s: &mut [f32]| {
                    let rows = s.chunks_exact_mut(v).zip(&decay);
                    rows.for_each(|(row, decay)| row.iter_mut().for_each(|s| *s *= decay));
                };
                let read = |s: &[f32], by: &[f32]| {
                    let mut sum = vec![0.0f32; v];
                    for (row, x) in s.chunks_exact(v).zip(by) {
                        sum.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * x);
                    }
                    sum
                };
                let old = read(&s, &q);
                if mistake != Mistake::DecayLast {
                    decayed(&mut s);
                }
                let beta = if mistake == Mistake::BetaDropped { 1.0 } else { beta[at] };
                let x = &x[at * v..][..v];
                let step: Vec<f32> = x
                    .iter()
                    .zip(read(&s, &key))
                    .map(|(x, read)| beta * (x - read))
                    .collect();
                for (row, k) in s.chunks_exact_mut(v).zip(&key) {
                    row.iter_mut().zip(&step).for_each(|(s, step)| *s += k * step);
                }
                if mistake == Mistake::DecayLast {
                    decayed(&mut s);
                }
                let seen = if mistake == Mistake::OldStateRead {
                    old
                } else {
                    read(&s, &q)
                };
                o[at * v..][..v]
                    .iter_mut()
                    .zip(seen)
                    .for_each(|(o, seen)| *o = scale * seen);
            }
            let out = if mistake == Mistake::LayoutConfused {
                "in_vk"
            } else {
                "out_vk"
            };
            for at in 0..k * v {
                let lost = mistake == Mistake::LastRowLost && at / v == k - 1;
                last[matrix + place(at / v, at % v, case.dim(out))] = if lost { 0.0 } else { s[at] };
            }
        }
    }
    let o = stored(case.key("dtype") == "bf16", &o);
    vec![("o", o), ("final", f32_bytes(&last))]
}

#[test]
fn delta_prefill_accepts_f32_and_no_mistake() {
    use Mistake::*;
    let mistakes = [
        DecayLast,
        OldStateRead,
        BetaDropped,
        LayoutConfused,
        SequencesJoined,
        ScaleDropped,
        NormDropped,
        HeadsTiled,
        LastRowLost,
    ];
    for (case, problem) in &problems("delta_prefill") {
        let right = prefill(case, problem, None);
        assert_eq!(violations(problem, right.clone()), 0.0, "{}", case.name);
        for mistake in mistakes.into_iter().filter(|_| case.dim("K") < 128) {
            // Where it makes no difference it is none.
            let wrong = prefill(case, problem, mistake);
            let expected = wrong != right;
            assert_eq!(violations(problem, wrong) > 0.0, expected, "{}: {mistake:?}", case.name);
        }
        for output in 0..2 {
            let mut wrong = right.clone();
            let bytes = &mut wrong[output].1;
            let at = bytes.len() / 3 / 4 * 4;
            bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            assert!(violations(problem, wrong) > 0.0, "{}: NaN", case.name);
        }
    }
}
