metrics! {
    /// Mean over positions of KL(want ‖ got) = Σ p (log p − log q), where p and q are the next-token distributions of reference
    /// and candidate at temperature 1.
    KL "kl" "nats" Lower Significant [0.0, DIFFERENCE] Logits(|logits| logits.mean(logits.kl));
        "mean Kullback-Leibler divergence of the next-token distributions"

    KL_MAX "kl_max" "nats" Lower Significant [0.0, DIFFERENCE] Logits(|logits| logits.judge(|logits| logits.kl_max));
        "largest Kullback-Leibler divergence of a position"
}

/// Returns KL(softmax(want) ‖ softmax(got)) in nats, averaged over rows of `cols` logits. A logit of −∞ has probability 0. `None`
/// if there are no rows, or if the divergence of a row is not defined.
pub fn divergence(want: &[f64], got: &[f64], cols: usize) -> Option<f64> {
    let logarithms = |row: &[f64]| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let normaliser = row.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
        row.iter().map(|x| x - most - normaliser).collect::<Vec<f64>>()
    };
    let of_row = |(want, got): (&[f64], &[f64])| -> f64 {
        let both = logarithms(want).into_iter().zip(logarithms(got));
        let terms = both.map(|(p, q)| if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) });
        terms.sum()
    };
    let rows = want.chunks(cols.max(1)).zip(got.chunks(cols.max(1)));
    let mean = rows.map(of_row).sum::<f64>() / (want.len() / cols.max(1)) as f64;
    // For equal rows, rounding may give a number slightly below 0.
    (!mean.is_nan()).then_some(mean.max(0.0))
}
