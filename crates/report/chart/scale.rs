//! From values to pixels, and where the ticks go.

use crate::number;

/// A linear or logarithmic axis.
#[derive(Clone, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Pixels of `low` and `high`.
    pixels: [f64; 2],
}

impl Scale {
    /// An axis that holds all finite values (on a logarithmic one: all above 0) with a little room at both ends; none
    /// if there is no such value.
    pub fn over(values: impl Iterator<Item = f64>, log: bool) -> Option<Self> {
        let shown = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (low, high) = shown.map(|v| (v, v)).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))?;
        let (mut low, mut high) = if log { (low.log10(), high.log10()) } else { (low, high) };
        let room = match high - low {
            0.0 => 0.1 * if log { 1.0 } else { high.abs().max(1.0) },
            span => 0.06 * span,
        };
        (low, high) = (low - room, high + room);
        Some(Self {
            low,
            high,
            log,
            pixels: [0.0, 1.0],
        })
    }

    pub fn between(mut self, low: f64, high: f64) -> Self {
        self.pixels = [low, high];
        self
    }

    /// The pixel of a value, never outside the axis.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }

    /// Whether a value is on the axis.
    pub fn holds(&self, value: f64) -> bool {
        let value = if self.log { value.log10() } else { value };
        (self.low..=self.high).contains(&value)
    }

    /// Values and labels of about five ticks.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.log {
            self.decades()
        } else {
            steps(self.low, self.high)
        };
        values.into_iter().map(|value| (value, number::tick(value))).collect()
    }

    fn decades(&self) -> Vec<f64> {
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let spread = |mantissas: &[f64], every: i32| -> Vec<f64> {
            let exponents = (first..=last).filter(|exponent| exponent.rem_euclid(every) == 0);
            // Parsed, not computed: 10^-5 must read 1e-5.
            let values = exponents.flat_map(|e| mantissas.iter().filter_map(move |m| format!("{m}e{e}").parse().ok()));
            values.filter(|value| self.holds(*value)).collect()
        };
        let every = (last - first) / 8 + 1;
        let choices = [(&[1.0][..], every), (&[1.0, 3.0], 1), (&[1.0, 2.0, 5.0], 1)];
        let enough = choices
            .iter()
            .map(|(mantissas, every)| spread(mantissas, *every))
            .find(|ticks| ticks.len() >= 3);
        enough.unwrap_or_else(|| steps(10f64.powf(self.low), 10f64.powf(self.high)))
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 6.0;
    let power = 10f64.powi(raw.log10().floor() as i32);
    let step = power * [1.0, 2.0, 5.0].into_iter().find(|m| m * power >= raw).unwrap_or(10.0);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    // Rounded to the step's own digits: 3 × 0.1 must read 0.3.
    (first..=last)
        .map(|n| (n as f64 * step / power * 10.0).round() * power / 10.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: [f64; 2], log: bool) -> Vec<String> {
        let scale = Scale::over(values.into_iter(), log).expect("finite values");
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(labels([0.0, 1.0], false), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels([0.001, 1.0], true), ["0.001", "0.01", "0.1", "1"]);
        assert_eq!(labels([0.01, 0.2], true), ["0.01", "0.03", "0.1"]);
        assert_eq!(
            labels([1e-9, 1.0], true),
            ["1e-8", "1e-6", "1e-4", "0.01", "1"].map(String::from)
        );
        for (low, high) in [
            (0.5, 0.5),
            (1e-12, 2e-12),
            (368.0, 1024.0),
            (0.98, 1.0),
            (0.011, 0.012),
            (1e-300, 1e300),
        ] {
            for log in [false, true] {
                let ticks = labels([low, high], log);
                assert!((2..=12).contains(&ticks.len()), "{low}..{high} log {log}: {ticks:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        assert!(Scale::over([f64::NAN, f64::INFINITY].into_iter(), false).is_none());
        assert!(Scale::over([0.0, -1.0].into_iter(), true).is_none());
        let scale = Scale::over([f64::NAN, 1.0, 3.0].into_iter(), false)
            .expect("two values")
            .between(100.0, 0.0);
        assert!((scale.at(2.0) - 50.0).abs() < 1e-9 && scale.at(99.0) == 0.0);
    }
}
