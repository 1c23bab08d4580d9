//! Formats numbers for readers: with few digits, but with enough digits not to mislead.

use ulplab_core::metrics::Show;

/// Formats a quantity whose best value is 1 (a cosine, a recall): with all leading nines and two more digits, so that it reads
/// `1` only if it is 1.
pub fn near_one(x: f64) -> String {
    let short = 1.0 - x;
    if !x.is_finite() {
        x.to_string()
    } else if short == 0.0 {
        "1".into()
    } else if short.abs() < 1e-6 {
        // Use spaces that do not break a line: "1-2e-13" without spaces would read as a range.
        let sign = if short > 0.0 { '−' } else { '+' };
        format!("1\u{a0}{sign}\u{a0}{:.0e}", short.abs())
    } else {
        let digits = (1.0 - short.abs().log10().floor()).clamp(3.0, 8.0) as usize;
        format!("{x:.digits$}")
    }
}

/// Formats a fraction, e.g. of equal decisions, with three or four decimals; `>0.9999` if a number below 1 would be rounded to 1.
pub fn share(x: f64) -> String {
    match 1.0 - x {
        short if short > 0.0 && short < 1e-4 => ">0.9999".into(),
        short if short > 0.0 && short < 1e-3 => format!("{:.4}", (x * 1e4).floor() / 1e4),
        short if short > 0.0 => format!("{x:.3}"),
        _ => near_one(x),
    }
}

/// Formats a quantity whose best value is 0: three significant digits, in scientific notation below 1e-3 and from 1e4 on.
pub fn error(x: f64) -> String {
    significant(x, 3)
}

/// Formats a difference with its sign and three significant digits.
pub fn signed(x: f64) -> String {
    match x.is_nan() {
        true => x.to_string(),
        false => format!("{}{}", if x < 0.0 { '-' } else { '+' }, error(x.abs())),
    }
}

/// Formats `mean ±half`, where `half` is the distance to the farther end of the confidence interval. Formats only the mean if the
/// interval has no width or is undefined, as with a single window.
pub fn interval(mean: f64, low: f64, high: f64) -> String {
    let half = half_width(mean, low, high);
    let sign = if mean < 0.0 { '-' } else { '+' };
    if mean.is_nan() {
        mean.to_string()
    } else if half == 0.0 || half.is_nan() {
        format!("{sign}{}", significant(mean.abs(), 2))
    } else {
        format!("{sign}{} ±{}", significant(mean.abs(), 2), significant(half, 2))
    }
}

/// Returns the distance from the mean to the farther end of the interval; NaN if either end is NaN.
fn half_width(mean: f64, low: f64, high: f64) -> f64 {
    larger((mean - low).abs(), (high - mean).abs())
}

/// Returns the larger of two numbers; NaN if either is NaN.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Formats decibels and exponents with two decimals; 0.1 dB is about one per cent of the error.
pub fn decibels(x: f64) -> String {
    format!("{x:.2}")
}

/// Formats a value of the metric named `metric`, e.g. as `31.52 ±0.05`. The second number is the distance to the farther end of
/// the confidence interval; it is left out if the value has no interval.
pub fn of_metric_within(metric: &str, mean: f64, low: f64, high: f64) -> String {
    let half = half_width(mean, low, high);
    let show = Show::of(metric);
    match show {
        Show::Signed => interval(mean, low, high),
        _ if half == 0.0 || half.is_nan() || !mean.is_finite() => shown(show, mean),
        // Round up: the interval must not look narrower than it is.
        Show::Decibels | Show::DecibelsAbove | Show::Exponent => {
            format!("{} ±{:.2}", shown(show, mean), (half * 100.0).ceil() / 100.0)
        }
        _ => format!("{} ±{}", shown(show, mean), significant(half, 1)),
    }
}

/// Formats a whole number without decimals, and any other number with one decimal.
pub fn tenths(x: f64) -> String {
    format!("{x:.0$}", usize::from(x.fract() != 0.0))
}

/// Formats a value of the metric named `metric`.
pub fn of_metric(metric: &str, x: f64) -> String {
    shown(Show::of(metric), x)
}

/// Formats a value in the given style.
pub fn shown(show: Show, x: f64) -> String {
    match show {
        Show::NearOne => near_one(x),
        Show::Share => share(x),
        Show::DecibelsAbove if x > -0.005 => format!("+{}", decibels(x.abs())),
        Show::Decibels | Show::DecibelsAbove => decibels(x),
        Show::Signed => signed(x),
        Show::Exponent => decibels(if x.abs() < 0.005 { 0.0 } else { x }),
        Show::Count | Show::Tenths => tenths(x),
        Show::Significant => error(x),
    }
}

/// Formats the label of a tick: a round number in its shortest form.
pub fn tick(x: f64) -> String {
    if x == 0.0 || (1e-3..1e5).contains(&x.abs()) {
        let text = format!("{x:.6}");
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        format!("{x:.0e}")
    }
}

/// Formats a number with `digits` significant digits, in scientific notation below 1e-3 and from 1e4 on.
pub fn significant(x: f64, digits: i32) -> String {
    let size = x.abs();
    if !x.is_finite() {
        x.to_string()
    } else if x == 0.0 {
        "0".into()
    } else if (1e-3..1e4).contains(&size) {
        let decimals = (digits - 1 - size.log10().floor() as i32).max(0) as usize;
        format!("{x:.decimals$}")
    } else {
        format!("{x:.0$e}", digits as usize - 1)
    }
}
