//! Evidence on a mean that may be looked at after every window.

use super::{CONFIDENCE, net};

/// The evidence of windows on a bound on a mean, so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The mean is on the right side of the bound.
    Right,
    /// The mean is on the wrong side.
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
/// Rare flips are not spread symmetrically. Where the values are those of `windows` with flips, bets on each prediction have to decide,
/// too: the evidence is the lesser of the two.
///
/// A value that is not finite decides nothing, and neither does any value after it.
pub fn decide(values: &[f64], windows: &[net::Window], bound: f64, lower: bool) -> (Decision, usize, Evidence) {
    let (mut of_values, mut bets) = ([0.0_f64; 2], net::Bets::new(bound));
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut evidence = Evidence {
        against_above: 1.0,
        against_below: 1.0,
    };
    for (at, value) in values.iter().enumerate() {
        let y = bound - value;
        if !y.is_finite() {
            return (Decision::Undecided, at, evidence);
        }
        for (log, sign) in of_values.iter_mut().zip([1.0, -1.0]) {
            let best = match squares > 0.0 {
                true => f64::max(sign * sum / squares, 0.0),
                false => 0.0,
            };
            let z = best * sign * y;
            *log += z - z * z / 2.0;
        }
        sum += y;
        squares += y * y;
        let mut log = of_values;
        if let Some(window) = windows.get(at) {
            bets.add(window);
            log = [0, 1].map(|side| f64::min(log[side], bets.log[side]));
        }
        evidence = Evidence {
            against_above: log[0].exp(),
            against_below: log[1].exp(),
        };
        let right = match (
            evidence.against_above >= Evidence::ENOUGH,
            evidence.against_below >= Evidence::ENOUGH,
        ) {
            (true, _) => lower,
            (_, true) => !lower,
            _ => continue,
        };
        let decision = if right { Decision::Right } else { Decision::Wrong };
        return (decision, at + 1, evidence);
    }
    (Decision::Undecided, values.len(), evidence)
}
