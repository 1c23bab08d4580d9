use rayon::prelude::*;

use super::wgmma::rule;
use super::{accepts_only, bytes, problems, stored, values, violations};
use ulplab::ops::{Case, Problem};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Sums of f32 in place of those of tensor cores.
    PlainSums,
    HighNibbleFirst,
    NextScale,
    /// Tensor cores sum on past 1024 columns.
    OnePart,
}

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [b, n, k] = ["B", "N", "K"].map(|dim| case.dim(dim));
    let (w, w_scale) = (bytes(problem, "w"), bytes(problem, "w_scale"));
    let tensor = values(problem, "w_tensor")[0];
    let bits = |x: f32| half::bf16::from_f32(x).to_bits();
    let x: Vec<u16> = values(problem, "x").into_iter().map(bits).collect();
    let nvfp4 = case.key("format") == "nvfp4";
    let block = if nvfp4 { 16 } else { 32 };
    let blocks = k.div_ceil(block);
    let weight = |at: usize| {
        let (row, col) = (at / k, at % k);
        let high = (col % 2 == 1) != (mistake == Mistake::HighNibbleFirst);
        let code = w[at / 2] >> if high { 4 } else { 0 } & 0xf;
        let of_row = col / block + usize::from(mistake == Mistake::NextScale);
        let scale = u32::from(w_scale[row * blocks + of_row.min(blocks - 1)]);
        let scale = match (nvfp4, scale) {
            (true, _) => ulplab::formats::E4M3.decode(scale as u16),
            (false, 0) => f32::from_bits(1 << 22),
            (false, 255) => f32::NAN,
            (false, _) => f32::from_bits(scale << 23),
        };
        let magnitude = E2M1[usize::from(code & 7)];
        bits(scale * if code > 7 { -magnitude } else { magnitude })
    };
    let w: Vec<u16> = (0..n * k).map(weight).collect();
    let part = if mistake == Mistake::OnePart { k } else { 1024 };
    let number = |code: &u16| half::bf16::from_bits(*code).to_f32();
    let rule = rule("bf16");
    let sum = |(x, w): (&[u16], &[u16])| match mistake {
        Mistake::PlainSums => x.iter().zip(w).map(|(x, w)| number(x) * number(w)).sum::<f32>(),
        _ => x
            .chunks(16)
            .zip(w.chunks(16))
            .fold(0.0, |c, (x, w)| rule.step(w, x, true, c)),
    };
    let y = (0..b * n).into_par_iter().map(|at| {
        let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        let sums = x.chunks(part).zip(w.chunks(part)).map(sum);
        sums.reduce(|total, sum| total + sum).unwrap() * tensor
    });
    stored(case.key("out") == "bf16", &y.collect::<Vec<_>>())
}

#[test]
fn fp4_gemm_wants_exact_weights_and_sums_in_the_order_that_is_defined() {
    let all = problems("fp4_gemm");
    for (case, problem) in &all {
        let sizes = ["B", "N", "K"].map(|dim| case.dim(dim));
        if sizes.iter().product::<usize>() <= 1 << 21 {
            accepts_only(case, problem, &[("y", outputs(case, problem, Mistake::None))]);
        }
    }
    for (case, problem) in all.iter().filter(|(case, _)| case.name.ends_with("f32.b7.136x1040")) {
        for mistake in [
            Mistake::PlainSums,
            Mistake::HighNibbleFirst,
            Mistake::NextScale,
            Mistake::OnePart,
        ] {
            let found = violations(problem, vec![("y", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{}: {mistake:?}", case.name);
        }
    }
}
