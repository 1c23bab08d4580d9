//! Checks the mean and the mean square of the errors of many elements. This detects faults that bounds of single elements miss.
//!
//! A kernel stores r(v + e): v is the number in f64, e the error of the computation, r the rounding to the stored type. The bound
//! E of an element only ensures |e| ≤ E. The mean of e over many elements has a narrower bound, which is derived here.
//!
//! Let t = stored − r(v). If all numbers within E of v round to the same number, t is 0. Otherwise t is 0 or one spacing of the
//! stored type. The mean of t equals the mean of e if v is equally likely at any position between two stored numbers. So the mean
//! of t measures e, even if the type is coarse. The mean has weights w = 1/bound. To detect a gain (all magnitudes too large)
//! instead of an offset, w is multiplied by the sign of v. With the unit roundoff u and the spacing s of the stored type at v, a
//! correct kernel satisfies
//!
//! |Σ w t| ≤ Σ w·8u |v| + √(2 Σ over rows of (Σ w E)²) + 8 √(Σ over positions of (Σ w s)²)
//!
//! * The first part bounds errors that may have the same direction everywhere: errors of two functions of up to 2 ulp, such as a
//!   reciprocal root and a quotient. If there is an exponential of x, 2u |x| is added to 8u ([`Rows::leaning`](super::Rows)).
//! * The second part bounds errors that vary between rows: all elements of a row may share an error, and rows are independent.
//!   The roundings of a sum of n terms add up to about √n·u. E is 8 times this error or, for few terms, (n + 8) u, which is at
//!   least 8 √n·u / √2.
//! * The third part bounds the effect of the position of v between two stored numbers, for elements that may be rounded up or
//!   down. Numbers with the same digits, and numbers of a row that differ by less than E, count as one position.
//!
//! Correct kernels exceed the second and third parts once in 10¹³ (Hoeffding: 2 exp(−8² / 2)). Rows of equal numbers count as one
//! row.
//!
//! Mean square: an error that is symmetric, and more often small than large, within ±E has a mean square of at most E² / 3 (Gauss
//! 1823). The part of an error that rounding does not explain, max(0, |stored − v| − s / 2), is at most |e|. So the mean square
//! of this part in a row, divided by E², is in 0..1. The mean of these quotients over G rows exceeds 1/3 + 4 / √G once in 10¹³
//! (Hoeffding: exp(−2 G (4 / √G)²)).

use std::collections::HashMap;

use reference::LAMBDA;
use safetensors::Dtype;

use super::{Rows, half_spacing, rounded};

/// Approximate maximum number of elements that are examined. It takes a quarter of a second to examine them.
const MOST: usize = 1 << 20;

/// An output with its expected values and bounds; all slices have one entry per element.
pub struct Elements<'a> {
    /// The output that is checked.
    pub got: &'a [f64],
    /// Expected values.
    pub value: &'a [f64],
    /// Error bound of each element before it is rounded to the stored type.
    pub error: &'a [f64],
    /// Error bound of each element after it is rounded to the stored type.
    pub bound: &'a [f64],
    /// Number of elements per row, at least one.
    pub cols: usize,
}

/// Mean and mean square of an output's errors. Each error in a mean is divided by its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanErrors {
    /// Number of examined elements: those whose `bound` is above 0 and whose `error` is at most the magnitude of the value.
    pub elements: usize,
    /// Number of rows with examined elements. Rows that consist of the same numbers count as one row.
    pub rows: usize,
    /// Mean error in the direction away from zero; negative if magnitudes are too small.
    pub gain: f64,
    /// Mean error in the upward direction; negative if numbers are too small.
    pub offset: f64,
    /// Largest magnitude that `gain` and `offset` may have for a correct kernel.
    pub allowed: f64,
    /// Relative gain: estimate of c − 1, if the output is c times the expected values.
    pub relative_gain: f64,
    /// Mean over elements of the squared quotient of error and error bound; only the part of an error that rounding to the stored
    /// type does not explain counts.
    pub square: f64,
    /// Largest mean square of the errors that a correct kernel has.
    pub square_allowed: f64,
}

/// Sums over all rows that consist of the same numbers: such rows may have the same errors.
#[derive(Default)]
struct Group {
    known: bool,
    weighted_error: f64,
    bounded: usize,
    square: f64,
}

/// An element that a correct kernel may round up or down.
struct Either {
    digits: f64,
    /// Relative error bound of the computation. Significands that differ by less are treated as equal.
    nearness: f64,
    weighted_step: f64,
    group: usize,
}

impl MeanErrors {
    /// Computes the mean errors of an output that is stored as `dtype`, for a kernel that adds with unit roundoff `u`.
    pub fn new(rows: &Rows, of: &Elements, dtype: Dtype, u: f64) -> Self {
        let mut all = Self::default();
        let (mut lean, mut most, mut magnitude) = (0.0, 0.0, 0.0);
        let (mut groups, mut either) = (Vec::<Group>::new(), Vec::new());
        let mut group_of = HashMap::new();
        // If there are many rows, examine evenly spaced ones, so that the choice does not depend on the errors.
        let every = (of.value.len() / MOST).max(1);
        for first in (0..of.value.len()).step_by(of.cols * every) {
            let row = first..first + of.cols;
            let known = |at: usize| {
                let (value, error) = (of.value[at], of.error[at]);
                // Skip elements whose error bound exceeds the value: no digit is certain, and the position between two stored
                // numbers is unknown.
                of.got[at].is_finite() && value.is_finite() && of.bound[at] > 0.0 && error <= value.abs()
            };
            let values = row.clone().map(|at| if known(at) { of.value[at] } else { 0.0 });
            let values: Vec<f64> = values.collect();
            let group = *group_of.entry(key(&values)).or_insert(groups.len());
            groups.resize_with(groups.len().max(group + 1), Group::default);
            let leaning = (8.0 + (rows.leaning)(&values)) * u;
            for at in row.filter(|at| known(*at)) {
                let (got, value, error, weight) = (of.got[at], of.value[at], of.error[at], 1.0 / of.bound[at]);
                let (near, step) = (rounded(dtype, value), 2.0 * half_spacing(dtype, value));
                all.elements += 1;
                all.gain += weight * value.signum() * (got - near) * f64::from(value != 0.0);
                all.offset += weight * (got - near);
                magnitude += weight * value.abs();
                lean += weight * error.min(leaning * value.abs());
                most += weight * (error + step);
                if 0.5 * step - (value - near).abs() <= error {
                    let (digits, nearness) = (digits(value), error / value.abs());
                    either.push(Either {
                        digits,
                        nearness,
                        weighted_step: weight * step,
                        group,
                    });
                }
                let sums = &mut groups[group];
                sums.known = true;
                sums.weighted_error += weight * error;
                if error > 0.0 {
                    let unexplained = ((got - value).abs() - 0.5 * step).max(0.0);
                    sums.bounded += 1;
                    sums.square += (unexplained / error).min(1.0).powi(2);
                }
            }
        }
        let of_rows: f64 = groups.iter().map(|group| group.weighted_error.powi(2)).sum();
        let count = all.elements.max(1) as f64;
        all.allowed = (lean + (2.0 * of_rows).sqrt() + LAMBDA * together(&either)).min(most) / count;
        all.relative_gain = if magnitude > 0.0 { all.gain / magnitude } else { 0.0 };
        all.gain /= count;
        all.offset /= count;
        all.rows = groups.iter().filter(|group| group.known).count();
        let means = groups.iter().map(|group| group.square / group.bounded.max(1) as f64);
        all.square = means.sum::<f64>() / groups.len().max(1) as f64;
        all.square_allowed = 1.0 / 3.0 + 4.0 / (all.rows.max(1) as f64).sqrt();
        all
    }
}

/// Significand of a number, from ½ to 1, without its sign; 0 for 0.
fn digits(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    // Scale subnormal numbers up, so that they have a leading digit.
    let power = if x.abs() < f64::MIN_POSITIVE { 64 } else { 0 };
    let x = x * 2f64.powi(power);
    match x == 0.0 {
        true => 0.0,
        false => f64::from_bits(x.to_bits() & FRACTION | 0.5f64.to_bits()),
    }
}

/// Key of a row. Two rows have equal keys if they consist of the same numbers, except for order, signs and powers of two.
fn key(row: &[f64]) -> Vec<u64> {
    let mut key: Vec<u64> = row.iter().map(|x| digits(*x).to_bits()).collect();
    key.sort_unstable();
    key
}

/// Adds the weighted spacings of elements at the same position between two stored numbers before squaring, because these elements
/// have equal rounding errors. Returns the root of the sum of the squares.
fn together(all: &[Either]) -> f64 {
    let root = |key: &dyn Fn(&Either) -> (u64, usize)| {
        let mut steps: Vec<_> = all.iter().map(|one| (key(one), one.weighted_step)).collect();
        steps.sort_by_key(|(key, _)| *key);
        let of_places = steps.chunk_by(|(a, _), (b, _)| a == b);
        let squares = of_places.map(|same| same.iter().map(|(_, step)| step).sum::<f64>().powi(2));
        squares.sum::<f64>().sqrt()
    };
    // Significands within a row that differ by less than their error count as equal; if there are many rows, so do all numbers of
    // a row. Equal numbers have equal rounding errors, so their steps are added before squaring.
    let apart = all.iter().map(|one| one.nearness).fold(2f64.powi(-40), f64::max);
    let many = all.iter().any(|one| one.group >= 1 << 11);
    let cell = |one: &Either| {
        if many {
            0.0
        } else {
            (one.digits / apart).round_ties_even()
        }
    };
    root(&|one| (one.digits.to_bits(), 0)).max(root(&|one| (cell(one).to_bits(), one.group)))
}
