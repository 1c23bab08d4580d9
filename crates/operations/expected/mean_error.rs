//! Errors of many elements together: their mean, and their mean square, which no bound of single elements sees.
//!
//! A kernel stores r(v + e): v is the number in f64, e the error of the computation, r the rounding to the stored type. The bound of
//! an element knows |e| ≤ E. Of n elements together more is known, and this file derives it.
//!
//! t = stored − r(v) is 0 where no number within E of v rounds to another. Elsewhere it is 0 or one spacing, and its mean is that of e
//! if v lies anywhere in its spacing: the rounding to the stored type drops out of the mean of t, however coarse the type is.
//! With weights w = 1 / bound, and the sign of v for a gain (all magnitudes too large) or none for an offset, a right kernel has
//!
//! |Σ w t| ≤ Σ w·8u |v| + √(2 Σ over rows of (Σ w E)²) + 8 √(Σ over places of (Σ w s)²)
//!
//! The first part may point in one direction everywhere: two functions of up to 2 ulp, such as a reciprocal root and a quotient; an
//! exponential adds 2u |x| ([`Rows::leaning`](super::Rows)). The second is what differs from row to row: all elements of a row may
//! share its error, and rows are independent. E is 8 times the scale of a sum's roundings, √n·u, or for few terms (n + 8) u, which is
//! at least 8 √n·u / √2. The third is the place of v in its spacing s, for the elements that can be rounded either way; numbers with
//! the same digits, or of a row and as near as E, are at the same place. Both are passed once in 10¹³ (Hoeffding: 2 exp(−8² / 2)).
//! Rows of equal numbers count as one row.
//!
//! The mean square: an error that is symmetric and more often small than large within ±E has at most a mean square of E² / 3 (Gauss
//! 1823); the part of the error that rounding does not explain, max(0, |stored − v| − s / 2), is at most |e|. The mean of G rows' mean
//! squares over E², each in 0..1, is above 1/3 + 4 / √G once in 10¹³ (Hoeffding: exp(−2 G (4 / √G)²)).

use std::collections::HashMap;

use reference::LAMBDA;
use safetensors::Dtype;

use super::{Rows, half_spacing, rounded};

/// About so many elements are looked at: a quarter of a second.
const MOST: usize = 1 << 20;

/// An output, what is expected of it, and how far it may be off: an element each.
pub struct Elements<'a> {
    /// The output.
    pub got: &'a [f64],
    /// The expected numbers.
    pub value: &'a [f64],
    /// Error of each element before it is rounded to the stored type.
    pub error: &'a [f64],
    /// Bound of each element's error.
    pub bound: &'a [f64],
    /// Elements of a row, at least one.
    pub cols: usize,
}

/// The mean and the mean square of the errors of an output. Means are those of errors over bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanErrors {
    /// Elements that have a bound and digits.
    pub elements: usize,
    /// Rows of such elements that differ.
    pub rows: usize,
    /// The mean error away from zero.
    pub gain: f64,
    /// The mean error upwards.
    pub offset: f64,
    /// The largest magnitude of either that a right kernel has.
    pub allowed: f64,
    /// The factor, less 1, that fits the errors best.
    pub relative_gain: f64,
    /// The mean square of the errors over those of the computation.
    pub square: f64,
    /// The largest mean square that a right kernel has.
    pub square_allowed: f64,
}

/// Sums over rows of equal numbers.
#[derive(Default)]
struct Group {
    known: bool,
    weighted_error: f64,
    bounded: usize,
    square: f64,
}

/// An element that can be rounded either way.
struct Either {
    digits: f64,
    /// The error of the computation over the number.
    nearness: f64,
    weighted_step: f64,
    group: usize,
}

impl MeanErrors {
    /// Makes the mean errors of an output that is stored in a type, by a kernel that adds with the unit roundoff `u`.
    pub fn new(rows: &Rows, of: &Elements, dtype: Dtype, u: f64) -> Self {
        let mut all = Self::default();
        let (mut lean, mut most, mut magnitude) = (0.0, 0.0, 0.0);
        let (mut groups, mut either) = (Vec::<Group>::new(), Vec::new());
        let mut group_of = HashMap::new();
        // Of many rows, some that lie evenly: the choice does not depend on the errors.
        let every = (of.value.len() / MOST).max(1);
        for first in (0..of.value.len()).step_by(of.cols * every) {
            let row = first..first + of.cols;
            let known = |at: usize| {
                let (value, error) = (of.value[at], of.error[at]);
                // Where the error is larger than the number, the number has no digits, and a spacing around it says nothing.
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

/// The digits of a number, from ½ to 1, without its sign and its power of two; 0 for 0.
fn digits(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    // The smallest numbers have no leading digit before they are scaled.
    let power = if x.abs() < f64::MIN_POSITIVE { 64 } else { 0 };
    let x = x * 2f64.powi(power);
    match x == 0.0 {
        true => 0.0,
        false => f64::from_bits(x.to_bits() & FRACTION | 0.5f64.to_bits()),
    }
}

/// A key that equal rows share, and rows that differ in order, signs or the power of two of their numbers.
fn key(row: &[f64]) -> Vec<u64> {
    let mut key: Vec<u64> = row.iter().map(|x| digits(*x).to_bits()).collect();
    key.sort_unstable();
    key
}

/// The root of the sum of squares of the steps that elements at the same place of their spacing take together.
fn together(all: &[Either]) -> f64 {
    let root = |key: &dyn Fn(&Either) -> (u64, usize)| {
        let mut steps: Vec<_> = all.iter().map(|one| (key(one), one.weighted_step)).collect();
        steps.sort_by_key(|(key, _)| *key);
        let of_places = steps.chunk_by(|(a, _), (b, _)| a == b);
        let squares = of_places.map(|same| same.iter().map(|(_, step)| step).sum::<f64>().powi(2));
        squares.sum::<f64>().sqrt()
    };
    // In a row, numbers that are nearer than their error share it. With many rows, all numbers of a row do.
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
