use super::wgmma::rule;
use super::{accepts_only, buffer, problems, stored, values, violations};
use ulplab::ops::{Case, Problem};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Sums of f32 in place of those of tensor cores.
    PlainSums,
    /// The scale of another row of w's tiles.
    OtherTile,
    /// Blocks from the last to the first.
    Reversed,
    /// Scaling and adding round separately.
    RoundedTwice,
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [b, n, k] = ["B", "N", "K"].map(|dim| case.dim(dim));
    let codes = |name: &str| -> Vec<u16> {
        let buffer = buffer(problem, name);
        buffer.bytes.iter().map(|code| u16::from(*code)).collect()
    };
    let (x, w) = (codes("x"), codes("w"));
    let (x_scale, w_scale) = (values(problem, "x_scale"), values(problem, "w_scale"));
    let (rule, blocks) = (rule("e4m3"), k.div_ceil(128));
    let number = |code: &u16| ulplab::formats::E4M3.decode(*code);
    let mut y = Vec::new();
    for at in 0..b * n {
        let (row, col) = (at / n, at % n);
        let mut acc = 0f32;
        for block in 0..blocks {
            let block = if mistake == Mistake::Reversed {
                blocks - 1 - block
            } else {
                block
            };
            let columns = block * 128..k.min(block * 128 + 128);
            let (a, b) = (&x[row * k..][columns.clone()], &w[col * k..][columns]);
            let sum = match mistake {
                Mistake::PlainSums => a.iter().zip(b).map(|(a, b)| number(a) * number(b)).sum(),
                _ => a
                    .chunks(32)
                    .zip(b.chunks(32))
                    .fold(0.0, |c, (a, b)| rule.step(a, b, false, c)),
            };
            let tile = if mistake == Mistake::OtherTile {
                (col / 128 + 1) % n.div_ceil(128)
            } else {
                col / 128
            };
            let scale = x_scale[row * blocks + block] * w_scale[tile * blocks + block];
            acc = match mistake {
                Mistake::RoundedTwice => acc + sum * scale,
                _ => sum.mul_add(scale, acc),
            };
        }
        y.push(acc);
    }
    stored(case.key("out") == "bf16", &y)
}

#[test]
fn fp8_gemm_wants_sums_in_the_order_that_is_defined() {
    for (case, problem) in &problems("fp8_gemm") {
        let sizes = ["B", "N", "K"].map(|dim| case.dim(dim));
        if sizes.iter().product::<usize>() > 1 << 21 {
            continue;
        }
        accepts_only(case, problem, &[("y", outputs(case, problem, Mistake::None))]);
    }
    let all = problems("fp8_gemm");
    let (case, problem) = all.iter().find(|(case, _)| case.name == "f32.b33.200x1104").unwrap();
    for mistake in [
        Mistake::PlainSums,
        Mistake::OtherTile,
        Mistake::Reversed,
        Mistake::RoundedTwice,
    ] {
        let found = violations(problem, vec![("y", outputs(case, problem, mistake))]);
        assert!(found >= 1.0, "{mistake:?}");
    }
}
