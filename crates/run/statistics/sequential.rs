//! Sequential tests of a bound on a mean. Their evidence is valid after every window, so that a run may end as soon as a test
//! decides.

use super::{CONFIDENCE, net};

/// Decision of a sequential test about a bound on a mean, from the values so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The mean meets the bound.
    Right,
    /// The mean violates the bound.
    Wrong,
    Undecided,
}

/// Evidence against each side of the bound. If the mean is on one side, the evidence against this side reaches 1/α at any time
/// with a probability of at most α.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Evidence against a mean above the bound.
    pub against_above: f64,
    /// Evidence against a mean below the bound.
    pub against_below: f64,
}

impl Evidence {
    /// Amount of evidence that decides: 1/(1 − confidence).
    pub const ENOUGH: f64 = 1.0 / (1.0 - CONFIDENCE);
}

/// Tests values in their order against a bound on their mean, and stops at the first value that decides. If `lower` is true, the
/// mean must be below the bound, else above it. Returns the decision, the number of values until the decision, and the evidence
/// at that point.
///
/// Assumes that each value, given the earlier values, is distributed symmetrically about one mean; the spread may be anything.
/// Let y = bound − x for a value x. If the mean of x is above the bound, the mean of y is −δ ≤ 0. By symmetry, −δ + a and −δ − a
/// are equally likely values of y, for each a ≥ 0. Then the expectation of exp(λy − λ²y²/2) is at most 1 for each λ ≥ 0 (de la
/// Peña 1999, for δ = 0): the mean over these two values is at most cosh(λa)·exp(−λ²a²/2) ≤ 1 if λa ≤ 1, and at most (exp(½) +
/// exp(−3/2))/2 < 1 if λa > 1. The product of these factors over all values is a supermartingale if each λ is chosen before its
/// value is seen, and Ville's inequality bounds its maximum. λ is the best choice for the earlier values, Σy/Σy², or 0 if this
/// quotient is negative. The first factor is 1, and no factor is above √e: the earliest decision falls at the seventh value.
///
/// Flips (predictions that became wrong or right) are rare, and not distributed symmetrically. If `windows` gives the flips of
/// the values, bets on each prediction (`net::Bets`) must also decide: the evidence is the lesser of the two.
///
/// A value that is not finite ends the test without a decision.
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
