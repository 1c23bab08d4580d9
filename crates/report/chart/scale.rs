//! Maps values to pixels, and chooses ticks.

use crate::number;

/// A linear or logarithmic axis.
#[derive(Clone, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Pixel positions of `low` and `high`.
    pixels: [f64; 2],
}

impl Scale {
    /// Returns an axis that contains all finite values (on a logarithmic axis: all above 0), with a margin at both ends; `None`
    /// if no value can be on the axis.
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

    /// Returns the pixel position of a value, clamped to the axis.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }

    /// True if a value is within the range of the axis.
    pub fn holds(&self, value: f64) -> bool {
        let value = if self.log { value.log10() } else { value };
        (self.low..=self.high).contains(&value)
    }

    /// Returns the values and labels of about five ticks.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = match self.log {
            true => self.decades(),
            false => steps(self.low, self.high),
        };
        values.into_iter().map(|value| (value, number::tick(value))).collect()
    }

    fn decades(&self) -> Vec<f64> {
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let spread = |mantissas: &[f64], every: i32| -> Vec<f64> {
            let exponents = (first..=last).filter(|exponent| exponent.rem_euclid(every) == 0);
            // Parses the text `1e-5` instead of computing 10^-5, which may be off by a rounding error.
            let values = exponents.flat_map(|e| mantissas.iter().filter_map(move |m| format!("{m}e{e}").parse().ok()));
            values.filter(|value| self.holds(*value)).collect()
        };
        let every = (last - first) / 8 + 1;
        let choices = [(&[1.0][..], every), (&[1.0, 3.0], 1), (&[1.0, 2.0, 5.0], 1)];
        let mut ticks = choices.iter().map(|(mantissas, every)| spread(mantissas, *every));
        let enough = ticks.find(|ticks| ticks.len() >= 3);
        enough.unwrap_or_else(|| steps(10f64.powf(self.low), 10f64.powf(self.high)))
    }
}

/// Returns the multiples of a step in `low..=high`. The step is 1, 2 or 5 times a power of ten.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 6.0;
    let power = 10f64.powi(raw.log10().floor() as i32);
    let step = power * [1.0, 2.0, 5.0].into_iter().find(|m| m * power >= raw).unwrap_or(10.0);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    // Rounds each tick to the digits of the step: 3 × 0.1 is not exactly 0.3 in f64.
    let rounded = |n| (n as f64 * step / power * 10.0).round() * power / 10.0;
    (first..=last).map(rounded).collect()
}
