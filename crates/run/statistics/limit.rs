//! One-sided limits of a mean over windows.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::CONFIDENCE;
use ulplab_core::random::below;

/// Windows that a limit takes at least. With fewer, a resample of the bootstrap has too often no spread.
pub const LEAST_WINDOWS: usize = 6;

/// Resamples of a bootstrap.
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

/// Limits of the mean of independent values, by the studentised bootstrap (Efron 1982; Hall 1988): of resamples, the distance of their
/// mean in units of their own standard error is counted, and so a skew shifts both limits to the side where it must. The error of the
/// level falls with 1/n; that of percentiles, which only move within the values that were seen, with 1/√n.
///
/// `None` if there are fewer than [`LEAST_WINDOWS`] values, or one is not finite: a limit is then not defined. Equal values are their
/// own limits, as those of a candidate without any error are; counts of rare flips have [others](super::net). The seed decides the
/// resamples.
pub fn limits(values: &[f64], seed: [u8; 32]) -> Option<Limits> {
    let n = values.len();
    if n < LEAST_WINDOWS || !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    let (mean, error) = mean_and_error(values.iter().copied(), n);
    if values.iter().all(|value| *value == values[0]) {
        return Some(Limits::new(values[0], values[0]));
    }
    let mut rng = ChaCha8Rng::from_seed(seed);
    let mut resample = vec![0.0; n];
    let mut distances: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for value in &mut resample {
                *value = values[below(&mut rng, n)];
            }
            let (again, its_error) = mean_and_error(resample.iter().copied(), n);
            match again == mean {
                true => 0.0,
                // Infinite where all are one value.
                false => (again - mean) / its_error,
            }
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let outside = ((1.0 - CONFIDENCE) * RESAMPLES as f64) as usize;
    let limit = |distance: f64| Some(mean - distance * error).filter(|limit| limit.is_finite());
    Some(Limits::new(
        limit(distances[RESAMPLES - 1 - outside])?,
        limit(distances[outside])?,
    ))
}

/// The mean of `n` values, and its standard error, which is NaN of one value.
pub fn mean_and_error(values: impl Iterator<Item = f64> + Clone, n: usize) -> (f64, f64) {
    let mean = values.clone().sum::<f64>() / n as f64;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n * (n - 1)) as f64).sqrt())
}
