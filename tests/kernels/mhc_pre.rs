use ulplab::ops::data::f32_bytes;

use super::{problems, scalar, stored, values, violations};

/// Outputs of a token.
struct Token {
    y: Vec<f32>,
    post: Vec<f32>,
    comb: Vec<f32>,
}

/// All in f32, sums from first to last, as straight as the definition; the second ε is that of all normalisations but the first.
fn pre(x: &[f32], fn_: &[f32], base: &[f32], scale: &[f32], weight: &[f32], [eps, again]: [f32; 2]) -> Token {
    let (k, dim) = (x.len(), weight.len());
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let rms = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32 + 1e-5).sqrt();
    let all = rms(x);
    let logit = |i: usize| {
        let mu: f32 = x.iter().zip(&fn_[i * k..]).map(|(x, f)| x * f).sum();
        mu / all * scale[usize::from(i >= 4) + usize::from(i >= 8)] + base[i]
    };
    let logits: Vec<f32> = (0..24).map(logit).collect();
    let mixed = |channel: usize| (0..4).map(|i| (sigmoid(logits[i]) + eps) * x[i * dim + channel]).sum();
    let mixed: Vec<f32> = (0..dim).map(mixed).collect();
    let norm = rms(&mixed);
    let y = mixed.iter().zip(weight).map(|(u, w)| u / norm * w).collect();
    let post = logits[4..8].iter().map(|logit| 2.0 * sigmoid(*logit)).collect();
    // Exponentials of logits that are far from 0 are infinite, or 0.
    let of_row = |row: &[f32]| {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        row.iter().map(|logit| (logit - top).exp()).collect::<Vec<f32>>()
    };
    let mut comb: Vec<f32> = logits[8..].chunks_exact(4).flat_map(of_row).collect();
    let divide = |comb: &mut [f32], line: usize, entry: usize, eps: f32| {
        for first in (0..4).map(|i| i * line) {
            let sum: f32 = (0..4).map(|i| comb[first + i * entry]).sum::<f32>() + eps;
            (0..4).for_each(|i| comb[first + i * entry] /= sum);
        }
    };
    divide(&mut comb, 4, 1, 0.0);
    comb.iter_mut().for_each(|c| *c += eps);
    for i in 0..20 {
        if i > 0 {
            divide(&mut comb, 4, 1, again);
        }
        divide(&mut comb, 1, 4, again);
    }
    Token { y, post, comb }
}

#[test]
fn mhc_pre_accepts_f32_and_no_mistake() {
    for (case, problem) in problems("mhc_pre") {
        let [fn_, base, scale, weight] = ["fn", "base", "scale", "weight"].map(|name| values(&problem, name));
        let bf16 = case.key("dtype") == "bf16";
        let eps = scalar(&problem, "eps");
        let judge_with = |again: f32, mistake: fn(&mut Token)| {
            let (mut ys, mut posts, mut combs) = (vec![], vec![], vec![]);
            for x in values(&problem, "x").chunks_exact(4 * case.dim("C")) {
                let mut token = pre(x, &fn_, &base, &scale, &weight, [eps, again]);
                mistake(&mut token);
                ys.extend(stored(bf16, &token.y));
                posts.extend(f32_bytes(&token.post));
                combs.extend(f32_bytes(&token.comb));
            }
            violations(&problem, vec![("y", ys), ("post", posts), ("comb", combs)])
        };
        let judge = |mistake| judge_with(eps, mistake);
        assert!(judge(|_| ()) == 0.0, "{}", case.name);
        if eps > 1e-4 {
            assert!(judge_with(0.0, |_| ()) > 0.0, "{}: epsilon is added once", case.name);
        }
        assert!(
            judge(|token| token.y.iter_mut().for_each(|y| *y *= 1.03)) > 0.0,
            "{}: y",
            case.name
        );
        let rounded = |token: &mut Token| token.y.iter_mut().for_each(|y| *y = half::bf16::from_f32(*y).to_f32());
        // The bound of long products is wider than half a step of bf16.
        if case.dim("C") < 100 {
            assert_eq!(judge(rounded) > 0.0, !bf16, "{}: y of bf16", case.name);
        }
        assert!(judge(|token| token.post.swap(0, 1)) > 0.0, "{}: post", case.name);
        assert!(judge(|token| token.comb.swap(1, 4)) > 0.0, "{}: comb", case.name);
    }
}
