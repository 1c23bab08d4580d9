//! Numbers for people: few digits, but enough to be correct.

use ulplab_core::metrics::Show;

/// A quantity whose best value is 1 (a cosine, a recall): as many nines as it has and two digits more, so that it
/// reads `1` only if it is 1.
pub fn near_one(x: f64) -> String {
    let short = 1.0 - x;
    if !x.is_finite() {
        not_finite(x)
    } else if short == 0.0 {
        "1".into()
    } else if short.abs() < 1e-6 {
        // No line breaks at these spaces, and "1-2e-13" would read as a range.
        let sign = if short > 0.0 { '−' } else { '+' };
        format!("1\u{a0}{sign}\u{a0}{:.0e}", short.abs())
    } else {
        let digits = (1.0 - short.abs().log10().floor()).clamp(3.0, 8.0) as usize;
        format!("{x:.digits$}")
    }
}

/// A share of equal decisions: three or four decimals, and `>0.9999` if that would read 1.
pub fn share(x: f64) -> String {
    match 1.0 - x {
        short if short > 0.0 && short < 1e-4 => ">0.9999".into(),
        short if short > 0.0 && short < 1e-3 => format!("{:.4}", (x * 1e4).floor() / 1e4),
        short if short > 0.0 => format!("{x:.3}"),
        _ => near_one(x),
    }
}

/// A quantity whose best value is 0: three significant digits, scientific when far from 1.
pub fn error(x: f64) -> String {
    significant(x, 3)
}

/// A difference that may be of either sign.
pub fn signed(x: f64) -> String {
    if x.is_nan() {
        not_finite(x)
    } else {
        format!("{}{}", if x < 0.0 { '-' } else { '+' }, error(x.abs()))
    }
}

/// `value ±half`, `half` being the farther end of the interval; the value alone if the interval has no width, or if there is
/// none, as over one window.
pub fn interval(mean: f64, low: f64, high: f64) -> String {
    let half = half_width(mean, low, high);
    let sign = if mean < 0.0 { '-' } else { '+' };
    if mean.is_nan() {
        not_finite(mean)
    } else if half == 0.0 || half.is_nan() {
        format!("{sign}{}", significant(mean.abs(), 2))
    } else {
        format!("{sign}{} ±{}", significant(mean.abs(), 2), significant(half, 2))
    }
}

/// From the mean to the farther end; NaN if either end is.
fn half_width(mean: f64, low: f64, high: f64) -> f64 {
    larger((mean - low).abs(), (high - mean).abs())
}

/// The larger of two; NaN if either is.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Decibels (a tenth is a difference of about one per cent in the error) and exponents.
pub fn decibels(x: f64) -> String {
    if x.is_finite() {
        format!("{x:.2}")
    } else {
        not_finite(x)
    }
}

/// A value of the metric called `metric` with the farther end of its interval, if it has one: `31.52 ±0.05`.
pub fn of_metric_within(metric: &str, mean: f64, low: f64, high: f64) -> String {
    let half = half_width(mean, low, high);
    let show = Show::of(metric);
    match show {
        Show::Signed => interval(mean, low, high),
        _ if half == 0.0 || half.is_nan() || !mean.is_finite() => shown(show, mean),
        // The interval is never shown narrower than it is.
        Show::Decibels | Show::DecibelsAbove | Show::Exponent => {
            format!("{} ±{:.2}", shown(show, mean), (half * 100.0).ceil() / 100.0)
        }
        _ => format!("{} ±{}", shown(show, mean), significant(half, 1)),
    }
}

/// A whole number, or one decimal.
pub fn tenths(x: f64) -> String {
    if x.fract() == 0.0 {
        format!("{x:.0}")
    } else {
        format!("{x:.1}")
    }
}

/// A value of the metric called `metric`.
pub fn of_metric(metric: &str, x: f64) -> String {
    shown(Show::of(metric), x)
}

/// A value that is written in that way.
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

/// The label of a tick: a round number in its shortest form.
pub fn tick(x: f64) -> String {
    if x == 0.0 || (1e-3..1e5).contains(&x.abs()) {
        let text = format!("{x:.6}");
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        format!("{x:.0e}")
    }
}

/// So many significant digits, scientific when far from 1.
pub fn significant(x: f64, digits: i32) -> String {
    let size = x.abs();
    if !x.is_finite() {
        not_finite(x)
    } else if x == 0.0 {
        "0".into()
    } else if (1e-3..1e4).contains(&size) {
        let decimals = (digits - 1 - size.log10().floor() as i32).max(0) as usize;
        format!("{x:.decimals$}")
    } else {
        format!("{x:.0$e}", digits as usize - 1)
    }
}

fn not_finite(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN",
        x if x > 0.0 => "inf",
        _ => "-inf",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_one_reads_one() {
        assert_eq!(near_one(1.0), "1");
        assert_eq!(near_one(0.99965), "0.99965");
        assert_eq!(near_one(0.999999), "0.9999990");
        assert_eq!(near_one(1.0 - 4e-9), "1\u{a0}−\u{a0}4e-9");
        assert_eq!(near_one(1.0 + 2f64.powi(-52)), "1\u{a0}+\u{a0}2e-16");
        assert_eq!(near_one(0.5), "0.500");
        assert_eq!(near_one(-1.0), "-1.000");
        assert_eq!(near_one(f64::NAN), "NaN");
        for exponent in 1..=15 {
            for mantissa in [1.0, 1.4, 5.0, 9.96] {
                let x = 1.0 - mantissa * 10f64.powi(-exponent);
                assert!(
                    x == 1.0 || near_one(x).trim_end_matches('0') != "1.",
                    "{x}: {}",
                    near_one(x)
                );
            }
        }
    }

    #[test]
    fn a_share_reads_one_only_if_it_is() {
        assert_eq!(
            [1.0, 0.99999, 0.99985, 0.9991, 0.9989, 0.5].map(share),
            ["1", ">0.9999", "0.9998", "0.9991", "0.999", "0.500"]
        );
        assert_eq!([f64::NAN, 0.0, 0.99996].map(share), ["NaN", "0.000", ">0.9999"]);
    }

    #[test]
    fn errors_have_three_digits() {
        assert_eq!(error(0.0), "0");
        assert_eq!(error(0.012345), "0.0123");
        assert_eq!(error(12.345), "12.3");
        assert_eq!(error(1.2345e-5), "1.23e-5");
        assert_eq!(error(f64::INFINITY), "inf");
        assert_eq!(signed(-0.00213), "-0.00213");
        assert_eq!(interval(0.00213, 0.0017, 0.0025), "+0.0021 ±4.3e-4");
        assert_eq!((tenths(584.0), tenths(390.5)), ("584".into(), "390.5".into()));
    }

    #[test]
    fn intervals_are_never_narrower_than_they_are() {
        assert_eq!(of_metric_within("sqnr", 31.524, 31.521, 31.526), "31.52 ±0.01");
        assert_eq!(of_metric_within("sqnr", 31.524, 31.524, 31.524), "31.52");
        assert_eq!(of_metric_within("sqnr_gain", -0.001, -0.04, 0.012), "+0.00 ±0.04");
        assert_eq!(of_metric_within("sqnr_excess", -0.694, -0.7, -0.69), "-0.69 ±0.01");
        assert_eq!(of_metric_within("growth", -0.001, -0.012, 0.01), "0.00 ±0.02");
        assert_eq!(of_metric_within("recall", 0.9781, 0.9776, 0.9785), "0.978 ±5e-4");
        assert_eq!(
            of_metric_within("delta_nats", 0.00213, 0.0017, 0.0025),
            "+0.0021 ±4.3e-4"
        );
        assert_eq!(of_metric_within("sqnr", f64::NAN, f64::NAN, f64::NAN), "NaN");
    }

    #[test]
    fn every_metric_is_written_by_its_own_rule() {
        let written = [
            of_metric("us_rotated", 12.345),
            of_metric("of_matmul", 0.98765),
            of_metric("violations", 123_456.0),
            of_metric("recall_min", 0.99999),
            of_metric("sqnr_bits", 5.1234),
            of_metric("of another version", 0.012345),
        ];
        assert_eq!(written, ["12.3", "0.988", "123456", ">0.9999", "5.12", "0.0123"]);
    }

    #[test]
    fn where_there_is_no_interval_none_is_shown() {
        assert_eq!(interval(0.00213, f64::NAN, f64::NAN), "+0.0021");
        assert_eq!(interval(0.00213, 0.002, f64::NAN), "+0.0021");
        assert_eq!(interval(0.00213, 0.00213, 0.00213), "+0.0021");
        assert_eq!(of_metric_within("sqnr", 31.524, f64::NAN, f64::NAN), "31.52");
        assert_eq!(of_metric_within("recall", 0.9781, f64::NAN, f64::NAN), "0.978");
    }

    #[test]
    fn ticks_are_short() {
        let ticks = [0.0, 1.0, 0.05, 0.001, 1e-5, 2e-7, 1e6].map(tick);
        assert_eq!(ticks, ["0", "1", "0.05", "0.001", "1e-5", "2e-7", "1e6"]);
    }
}
