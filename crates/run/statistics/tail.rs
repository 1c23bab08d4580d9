//! Computes a threshold with a given rate of false alarms, from random samples (draws) of a correct candidate.

use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::binomial::{cumulative, draws_for, rate_above};

/// Least number of excesses to which a tail is fitted. An excess is the amount by which one of the largest draws exceeds the
/// largest of the other draws.
pub const LEAST_EXCESSES: usize = 10;

/// The scale on which a tail is assumed to fall at least as fast as an exponential tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The values themselves, of either sign.
    Linear,
    /// The logarithms of the values, for errors: errors are positive, and each layer multiplies them by a factor.
    Log,
}

/// A threshold, and the number of draws from which it was extrapolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub value: f64,
    /// Number of draws (the largest ones) to which a tail was fitted; `None` if the threshold is one of the draws.
    pub excesses: Option<usize>,
}

/// Returns the value that similar draws exceed at a rate of at most `flake`, with this confidence; larger values are worse.
///
/// With enough draws, the value is one of them (Clopper and Pearson 1934), without assumptions. Otherwise the tail is
/// extrapolated from the largest tenth of the draws, at least [`LEAST_EXCESSES`]. Let u be the largest draw below this tenth,
/// S(u) the share of draws above u, and μ the mean excess over u. If the hazard rate of excesses does not fall, then for each q
/// in (0, 1), at most S(u)·q of all draws exceed u + μ·ln(1/q)/(1 − q). (Barlow and Proschan 1965: of such excesses, at most
/// the share exp(−ωt) is above t, for t > μ, where ω is the solution of 1 − ωμ = exp(−ωt).) The hazard rate does not fall for
/// any log-concave tail, such as the normal and the exponential; this function assumes such a tail on the scale `scale`. Upper
/// limits replace S(u) and μ, each with half of the error probability; the limit of μ is the exponential distribution's (Barlow
/// and Proschan 1966).
///
/// # Errors
/// Returns an error if the draws support no threshold: too few, not finite, too many equal, not positive on the scale of
/// logarithms, or with a tail that falls visibly slower than assumed (total time on test, at the level 5 %). The message gives
/// the number of draws that suffice without a fitted tail.
pub fn threshold(draws: &[f64], flake: f64, confidence: f64, scale: Scale) -> Result<Threshold, String> {
    let n = draws.len();
    let needed = draws_for(flake, confidence);
    let no = |why: String| {
        Err(format!(
            "{n} draws support no threshold for {flake:e} false alarms: {why}; {needed} draws need no tail"
        ))
    };
    if let Some(value) = draws.iter().find(|value| !value.is_finite()) {
        return no(format!("one of them is {value}"));
    }
    let mut sorted = draws.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The largest k for which the k-th largest draw is a valid threshold: at this confidence, the true rate above it is at most
    // `flake`. 0 if no draw is valid.
    let above = (0..n)
        .take_while(|&above| cumulative(above, n, flake) <= 1.0 - confidence)
        .count();
    if above > 0 {
        return Ok(Threshold {
            value: sorted[n - above],
            excesses: None,
        });
    }
    let k = LEAST_EXCESSES.max(n / 10);
    if n < 2 * k {
        return no(format!("a tail takes at least {} draws", 2 * LEAST_EXCESSES));
    }
    if scale == Scale::Log {
        if let Some(value) = sorted.iter().find(|value| **value <= 0.0) {
            return no(format!("{value} among them has no logarithm"));
        }
        sorted.iter_mut().for_each(|value| *value = value.ln());
    }
    let (rest, tail) = sorted.split_at(n - k);
    let least = rest[rest.len() - 1];
    let excesses: Vec<f64> = tail.iter().map(|value| value - least).collect();
    if excesses.windows(2).filter(|pair| pair[0] == pair[1]).count() * 4 > k {
        return no("the largest of them are mostly equal, as counts are".into());
    }
    let z = falls_slowly(&excesses);
    if z < -1.645 {
        return no(format!(
            "their tail falls slower than an exponential one ({:.1} standard deviations)",
            -z
        ));
    }
    let half = (1.0 - confidence) / 2.0;
    let share = rate_above(k, n, 1.0 - half);
    let chi = ChiSquared::new(2.0 * k as f64).expect("k is positive");
    let chi = chi.inverse_cdf(half);
    let mean = 2.0 * excesses.iter().sum::<f64>() / chi;
    let q = flake / share;
    if q >= 1.0 {
        return no(format!("a tail begins below a rate of {share:.2}"));
    }
    let value = least - mean * q.ln() / (1.0 - q);
    Ok(Threshold {
        value: if scale == Scale::Log { value.exp() } else { value },
        excesses: Some(k),
    })
}

/// Returns a test statistic of excesses in rising order: the standardised cumulative total time on test. It is nearly standard
/// normal for exponential excesses, and tends to be below 0 if the hazard rate falls (Barlow, Bartholomew, Bremner and Brunk
/// 1972).
fn falls_slowly(excesses: &[f64]) -> f64 {
    let k = excesses.len();
    let (mut total, mut before, mut at) = (0.0, 0.0, Vec::with_capacity(k));
    for (rank, excess) in excesses.iter().enumerate() {
        total += (k - rank) as f64 * (excess - before);
        before = *excess;
        at.push(total);
    }
    let sum: f64 = at[..k - 1].iter().map(|at| at / total).sum();
    (sum - (k - 1) as f64 / 2.0) / ((k - 1) as f64 / 12.0).sqrt()
}
