//! Evidence on a mean that may be looked at after every window.

use super::CONFIDENCE;

/// What windows say of a bound on a mean, so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The mean is on the right side of the bound.
    Right,
    /// It is on the wrong side.
    Wrong,
    Undecided,
}

/// Evidence against each side: if the mean is there, it ever reaches 1/α with probability at most α.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Against a mean above the bound.
    pub against_above: f64,
    /// Against a mean below the bound.
    pub against_below: f64,
}

impl Evidence {
    /// Evidence that decides: 1/(1 − confidence).
    pub const ENOUGH: f64 = 1.0 / (1.0 - CONFIDENCE);
}

/// Looks at values in the order in which they came, against a bound on their mean, and stops at the first that decides. `lower` says that
/// the right side is below the bound. Returns the decision, after how many values it fell, and the evidence then.
///
/// Assumes that each value, given those before it, is spread symmetrically about one mean; nothing is assumed of how far. With
/// y = bound − x, a mean above the bound makes exp(λy − λ²y²/2) ≤ 1 in expectation for each λ ≥ 0: the two values ±a about a mean −δ ≤ 0
/// of y give at most cosh(λa)·exp(−λ²a²/2) ≤ 1 (de la Peña 1999). So the product over values is a supermartingale for every λ that
/// is chosen before its value is seen, and Ville's inequality bounds its maximum. λ is what would have been best until then, Σy/Σy²,
/// or 0 if that is negative. No factor is above √e: the earliest decision falls at the seventh value.
///
/// A value that is not finite decides nothing, and so does whatever follows it.
pub fn decide(values: &[f64], bound: f64, lower: bool) -> (Decision, usize, Evidence) {
    let mut log = [0.0_f64; 2];
    let (mut sum, mut squares) = (0.0, 0.0);
    let evidence = |log: [f64; 2]| Evidence {
        against_above: log[0].exp(),
        against_below: log[1].exp(),
    };
    for (at, value) in values.iter().enumerate() {
        let y = bound - value;
        if !y.is_finite() {
            return (Decision::Undecided, at, evidence(log));
        }
        for (log, sign) in log.iter_mut().zip([1.0, -1.0]) {
            let best = if squares > 0.0 {
                f64::max(sign * sum / squares, 0.0)
            } else {
                0.0
            };
            let z = best * sign * y;
            *log += z - z * z / 2.0;
        }
        sum += y;
        squares += y * y;
        let enough = log.map(|log| log.exp() >= Evidence::ENOUGH);
        let side = match enough {
            [true, _] => Some(lower),
            [_, true] => Some(!lower),
            _ => None,
        };
        if let Some(right) = side {
            let decision = if right { Decision::Right } else { Decision::Wrong };
            return (decision, at + 1, evidence(log));
        }
    }
    (Decision::Undecided, values.len(), evidence(log))
}
