//! Bound that a gate (a pass/fail check) imposes on a metric, e.g. `>= 0.999`.

use std::fmt;
use std::str::FromStr;

use super::Better;
use crate::text::number;

/// A bound on a metric, e.g. `>= 0.999` or `<= 1e-3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// `Higher` for a lower bound, written `>=`; `Lower` for an upper bound, written `<=`.
    pub better: Better,
    /// The number on the right-hand side, in the unit of the metric; equality is allowed.
    pub value: f64,
}

impl Bound {
    /// True if `value` meets the bound. NaN meets no bound.
    pub fn admits(self, value: f64) -> bool {
        match self.better {
            Better::Higher => value >= self.value,
            Better::Lower => value <= self.value,
        }
    }

    /// True if `a` is worse than `b` with respect to the bound. NaN is the worst value.
    pub fn worse(self, a: f64, b: f64) -> bool {
        match self.better {
            _ if b.is_nan() => false,
            _ if a.is_nan() => true,
            Better::Higher => a < b,
            Better::Lower => a > b,
        }
    }

    /// Formats a value that is shown next to the bound. `text` is the value in few digits, and is returned unless it misleads. It
    /// misleads if its number is on the other side of the bound than the value, or is zero although the value is not. In that
    /// case, the result has the fewest digits that do not mislead.
    pub fn beside(self, text: String, value: f64) -> String {
        let true_to = |text: &str| {
            // The text `>0.9999` does not show if the value is above or below a bound of, say, 0.99995.
            let shown = read(text).filter(|shown| !text.starts_with('>') || self.value <= *shown);
            shown.is_some_and(|shown| self.admits(shown) == self.admits(value) && (shown == 0.0) == (value == 0.0))
        };
        if !value.is_finite() || true_to(&text) {
            return text;
        }
        let plain = (1e-3..1e6).contains(&value.abs());
        let written = |digits: usize| match plain {
            true => {
                let whole = value.abs().log10().floor() as i32;
                format!("{value:.0$}", (digits as i32 - 1 - whole).max(0) as usize)
            }
            false => format!("{value:.0$e}", digits - 1),
        };
        let exact = if plain {
            format!("{value}")
        } else {
            format!("{value:e}")
        };
        let mut found = (3..17).map(written);
        found.find(|text| true_to(text)).unwrap_or(exact)
    }
}

/// Reads the number in a formatted text: `0.99`, `+1.5e-3`, `>0.9999` or `1 − 4e-9`.
fn read(text: &str) -> Option<f64> {
    let near_one = |sign: char| {
        let short = text.strip_prefix("1\u{a0}")?.strip_prefix(sign)?;
        short.trim().parse::<f64>().ok()
    };
    let number = text.strip_prefix('>').unwrap_or(text).parse().ok();
    let below = || near_one('−').map(|short| 1.0 - short);
    number.or_else(below).or_else(|| near_one('+').map(|over| 1.0 + over))
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (better, number) = match (text.strip_prefix(">="), text.strip_prefix("<=")) {
            (Some(number), _) => (Better::Higher, number.trim()),
            (_, Some(number)) => (Better::Lower, number.trim()),
            _ => return Err(format!("'{text}' is not a bound; expected '>= NUMBER' or '<= NUMBER'")),
        };
        match number.parse::<f64>() {
            // Rejects a number that underflows to 0: the text does not state a bound of 0.
            Ok(0.0) if significant(number) => {
                Err(format!("'{number}' in '{text}' is too small for a f64, it reads as 0"))
            }
            Ok(value) if value.is_finite() => Ok(Self { better, value }),
            Ok(_) => Err(format!("'{number}' in '{text}' is not finite")),
            Err(_) => Err(format!("'{number}' in '{text}' is not a number")),
        }
    }
}

/// True if the mantissa of the number has a digit other than 0.
fn significant(number: &str) -> bool {
    let digits = number.split(['e', 'E']).next().unwrap_or(number);
    digits.contains(|c: char| ('1'..='9').contains(&c))
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.better {
            Better::Higher => ">=",
            Better::Lower => "<=",
        };
        write!(f, "{sign} {}", number(self.value))
    }
}
