//! The condition that a gate imposes on a number.

use std::fmt;
use std::str::FromStr;

use super::Better;

/// `>= 0.999` or `<= 1e-3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// `Higher` is a lower bound, written `>=`.
    pub better: Better,
    /// The number on the right-hand side, in the unit of the metric; equality is allowed.
    pub value: f64,
}

impl Bound {
    /// Whether a value meets the bound; NaN does not.
    pub fn admits(self, value: f64) -> bool {
        match self.better {
            Better::Higher => value >= self.value,
            Better::Lower => value <= self.value,
        }
    }

    /// Whether `a` is further on the wrong side than `b`; NaN is the worst.
    pub fn worse(self, a: f64, b: f64) -> bool {
        match self.better {
            _ if b.is_nan() => false,
            _ if a.is_nan() => true,
            Better::Higher => a < b,
            Better::Lower => a > b,
        }
    }
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
            // Only zeros stand for 0: what underflows to it is another bound.
            Ok(0.0) if significant(number) => {
                Err(format!("'{number}' in '{text}' is too small for a f64, it reads as 0"))
            }
            Ok(value) if value.is_finite() => Ok(Self { better, value }),
            Ok(_) => Err(format!("'{number}' in '{text}' is not finite")),
            Err(_) => Err(format!("'{number}' in '{text}' is not a number")),
        }
    }
}

/// True if a digit other than 0 stands before the exponent.
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
        write!(f, "{sign} {}", self.value)
    }
}
