//! Checks the mean and the root mean square of all errors of an output, if independent roundings dominate these errors. Both
//! statistics have much narrower bounds than a single error.
//!
//! For each element, let σ be the standard deviation of its error from roundings. Let e be its error minus the bound of all
//! errors with other causes. On average, (e/σ)² is near 1; the check allows 2, because the variance of a rounding varies within a
//! binade and is at most twice its average. Elements of a row may share a rounding, so a mean over the elements of R rows is
//! treated as a mean of R independent numbers. The standard deviation of such a number is √2 for (e/σ)², and 1 for e/σ; the check
//! allows λ ([`LAMBDA`]) standard deviations of the mean.

use reference::LAMBDA;
use safetensors::Dtype;

use super::Output;
use ulplab_core::error::counted;

/// Minimum number of elements for a check of the mean and the root mean square of errors.
const FEWEST: usize = 1000;

/// Returns a message for each statistic of the errors that shows a fault: a root mean square that is too large, or a mean too far
/// from 0. Returns no message if there are fewer than [`FEWEST`] elements.
pub(crate) fn found(expected: &Output, got: &[f64], dtype: Dtype) -> Vec<String> {
    let cols = expected.shape.last().copied().unwrap_or(1).max(1);
    let (mut count, mut square, mut gain) = (0usize, 0.0, 0.0);
    let (mut of_errors, mut of_values, mut of_spread) = (0.0, 0.0, 0.0);
    let (mut rows, mut last) = (0, None);
    let numbers = expected.value.iter().zip(&expected.error).zip(&expected.spread);
    for (at, (((value, error), spread), got)) in numbers.zip(got).enumerate() {
        if !(got.is_finite() && value.is_finite() && *spread > 0.0) {
            continue;
        }
        let other = (error - LAMBDA * spread).max(0.0) + super::half_spacing(dtype, value.abs());
        let off = got - value;
        let unexplained = (off.abs() - other).max(0.0).copysign(off) / spread;
        count += 1;
        square += unexplained * unexplained;
        gain += unexplained * value.signum();
        of_errors += off * off;
        of_values += value * value;
        of_spread += spread * spread;
        rows += usize::from(last.replace(at / cols) != Some(at / cols));
    }
    if count < FEWEST {
        return Vec::new();
    }
    let (n, independent) = (count as f64, (rows as f64).sqrt());
    let over = format!("over {} of {}", counted(count, "element"), counted(rows, "row"));
    let share = |squares: f64| 100.0 * (squares / of_values).sqrt();
    let mut said = Vec::new();
    let most = 2.0 + LAMBDA * 2f64.sqrt() / independent;
    if square / n > most {
        said.push(format!(
            "errors are large: their root mean square is {:.3} % of the output's {over}, where roundings of weights leave {:.3} % at most",
            share(of_errors),
            share(most * of_spread)
        ));
    }
    let most = LAMBDA / independent;
    if (gain / n).abs() > most {
        let towards = if gain > 0.0 { "away from zero" } else { "towards zero" };
        said.push(format!(
            "errors point {towards}: their mean is {:.3} of their standard deviation {over}, where right kernels have {most:.3} at most",
            (gain / n).abs()
        ));
    }
    said
}
