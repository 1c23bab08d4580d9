//! What a rule's text means.

use crate::error::did_you_mean;
use crate::sweep::experiment::Statistic;
use crate::sweep::summary::Summary;

/// A bound a value is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Reads `>= 0.999` or `<= 1e-3`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (make, number): (fn(f64) -> Self, _) = if let Some(number) = text.strip_prefix(">=") {
            (Self::AtLeast, number)
        } else if let Some(number) = text.strip_prefix("<=") {
            (Self::AtMost, number)
        } else {
            return Err(format!("'{text}' is not a bound: expected '>= NUMBER' or '<= NUMBER'"));
        };
        match number.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(make(number)),
            _ => Err(format!("'{}' in '{text}' is not a finite number", number.trim())),
        }
    }

    /// NaN holds nowhere.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    /// Whether `a` is further on the wrong side than `b`; NaN is worst of all.
    pub fn worse(self, a: f64, b: f64) -> bool {
        match self {
            _ if b.is_nan() => false,
            _ if a.is_nan() => true,
            Self::AtLeast(_) => a < b,
            Self::AtMost(_) => a > b,
        }
    }
}

impl Statistic {
    pub fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::Mean => summary.mean,
            Self::Min => summary.min,
            Self::Max => summary.max,
            Self::CiLow => summary.ci_low,
            Self::CiHigh => summary.ci_high,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::CiLow => "lower 95 % bound",
            Self::CiHigh => "upper 95 % bound",
        }
    }
}

/// An error text for a pattern that matches nothing among `names`.
pub fn matches_nothing<'a>(what: &str, pattern: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    format!("'{pattern}' matches no {what}{}", did_you_mean(pattern, names))
}
