//! One-sided confidence limits of a mean over windows (samples of data).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::CONFIDENCE;
use ulplab_core::random::below;

/// Least number of windows for a limit. With fewer windows, too many bootstrap resamples consist of equal values.
pub const LEAST_WINDOWS: usize = 6;

/// Number of bootstrap resamples.
const RESAMPLES: usize = 4000;

/// One-sided limits of a mean, each with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub low: f64,
    pub high: f64,
}

impl Limits {
    pub fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }
}

/// Returns confidence limits of the mean of n independent values, by the studentised bootstrap (Efron 1982; Hall 1988). For each
/// resample, takes the distance between its mean and the mean of the values, in units of the resample's own standard error. Thus
/// the limits follow the skew of the values. The one-sided error of coverage falls with 1/n; for limits by percentiles, which are
/// not studentised, it falls only with 1/√n.
///
/// `None` if there are fewer than [`LEAST_WINDOWS`] values, or a value is not finite. If all values are equal (e.g. for a
/// candidate without any error), both limits are this value. [`net`](super::net) gives limits of rare predictions that became
/// wrong or right. The seed decides the resamples.
pub fn limits(values: &[f64], seed: [u8; 32]) -> Option<Limits> {
    let n = values.len();
    if n < LEAST_WINDOWS || !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    let (mean, error) = mean_and_error(values.iter().copied(), n);
    if values.iter().all(|value| *value == values[0]) {
        return Some(Limits::new(values[0], values[0]));
    }
    let distances = bootstrap(values, seed, RESAMPLES, |resample| {
        let (again, its_error) = mean_and_error(resample.iter().copied(), n);
        match again == mean {
            true => 0.0,
            // The distance is infinite if all values of the resample are equal.
            false => (again - mean) / its_error,
        }
    });
    let outside = ((1.0 - CONFIDENCE) * RESAMPLES as f64) as usize;
    let limit = |distance: f64| Some(mean - distance * error).filter(|limit| limit.is_finite());
    Some(Limits::new(
        limit(distances[RESAMPLES - 1 - outside])?,
        limit(distances[outside])?,
    ))
}

/// Returns a statistic of `resamples` bootstrap resamples of the values, sorted. The seed decides the resamples.
pub fn bootstrap(values: &[f64], seed: [u8; 32], resamples: usize, statistic: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::from_seed(seed);
    let mut resample = vec![0.0; values.len()];
    let once = |_| {
        resample.fill_with(|| values[below(&mut rng, values.len())]);
        statistic(&resample)
    };
    let mut found: Vec<f64> = (0..resamples).map(once).collect();
    found.sort_by(f64::total_cmp);
    found
}

/// Returns the mean of `n` values, and its standard error; the standard error of a single value is NaN.
pub fn mean_and_error(values: impl Iterator<Item = f64> + Clone, n: usize) -> (f64, f64) {
    let mean = values.clone().sum::<f64>() / n as f64;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n * (n - 1)) as f64).sqrt())
}
