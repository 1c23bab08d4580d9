//! Sums of products in operations that define them to the bit: those of Hopper's tensor cores, or, for a kernel that states another
//! accumulator, within a bound.

use std::ops::{Add, AddAssign, Mul};

use reference::{Bounded, LAMBDA, Real as _};

use super::Case;
use super::judge::{Judge, UNIT};
use crate::expected::Terms;
use ulplab_core::accumulator::{Accumulator, Factor};

/// The key of a case that names what a kernel states of its sums.
pub const ACCUMULATOR: &str = "accumulator";

/// What is assumed of a kernel's sums of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Every bit is that of the operation's definition: tensor cores of Hopper, in the order that it says.
    Defined,
    /// Products are exact and added in f32, in any order.
    F32,
    /// Tensor cores of Hopper add them, in any order of their steps.
    Wgmma,
}

/// The values of [`ACCUMULATOR`], with what each means.
pub const ACCUMULATORS: [(&str, Sums, &str); 3] = [
    (
        "f32",
        Sums::F32,
        "products are exact and are added in f32, in any order",
    ),
    (
        "wgmma",
        Sums::Wgmma,
        "Hopper's tensor cores add products, in any order of their steps: each step cuts its terms and its sum",
    ),
    (
        "defined",
        Sums::Defined,
        "every bit is that of the operation's definition: Hopper's tensor cores, in its order",
    ),
];

impl Sums {
    /// The accumulator that a case states; the operation's definition if it states none.
    pub(super) fn of(case: &Case) -> Self {
        let stated = case.keys.iter().find(|(key, _)| *key == ACCUMULATOR);
        let named = |(_, value): &(&str, String)| ACCUMULATORS.iter().find(|(name, ..)| name == value);
        stated.and_then(named).map_or(Self::Defined, |(_, sums, _)| *sums)
    }

    /// The judgements of an output: equal bits, or bounds for another accumulator and equality as a fact.
    ///
    /// # Errors
    /// A sum may overflow or not, or its error cannot be bounded.
    pub(super) fn judges(self, equal: Judge, numbers: impl FnOnce() -> Vec<Bounded>) -> Result<Vec<Judge>, String> {
        match self {
            Self::Defined => Ok(vec![equal]),
            _ => Ok(vec![self.bounded(&equal, numbers())?, equal.only_fact()]),
        }
    }

    /// The judgement by bounds of the output that `equal` judges.
    pub(super) fn bounded(self, equal: &Judge, mut numbers: Vec<Bounded>) -> Result<Judge, String> {
        for (at, x) in numbers.iter_mut().enumerate() {
            let (value, error) = (x.value(), x.error());
            if value.is_finite() && value.abs() + error >= OVERFLOW {
                if value.abs() - error < OVERFLOW {
                    let index = ulplab_core::metrics::unravel(at, &equal.shape);
                    return Err(format!(
                        "{}{index:?}: sums may overflow or not; expected inputs of a smaller range for accumulator = '{}'",
                        equal.output,
                        self.name()
                    ));
                }
                *x = Bounded::new(f64::INFINITY.copysign(value), 0.0);
            }
        }
        let why = format!("{}; every other operation rounds in f32", self.why());
        let judge = Judge::bounded(equal.output, equal.dtype, &equal.shape, &numbers, why)?;
        Ok(judge.without_metrics())
    }

    fn row(self) -> &'static (&'static str, Sums, &'static str) {
        let found = ACCUMULATORS.iter().find(|(_, sums, _)| *sums == self);
        found.expect("all are listed")
    }

    fn name(self) -> &'static str {
        self.row().0
    }

    fn why(self) -> &'static str {
        self.row().2
    }
}

/// The magnitude from which rounding to f32 gives an infinity.
const OVERFLOW: f64 = (2.0 - 1.0 / (1 << 24) as f64) * (1u128 << 127) as f64;

/// A number that sums of products give: in f32 with the bits of tensor cores, or with the error of a stated accumulator.
pub trait Summed: Copy + Default + Send + Sync + Add<Output = Self> + AddAssign + Mul<Output = Self> {
    /// A number of f32.
    fn exact(x: f32) -> Self;

    /// The sum of the products of two rows, from 0.
    fn dot(rule: &Accumulator, sums: Sums, a: &[Factor], b: &[Factor]) -> Self;

    /// `self · by + acc`, rounded once in f32.
    fn mul_add(self, by: Self, acc: Self) -> Self;

    /// The larger of the number and 0; NaN if it is NaN.
    fn positive(self) -> Self;
}

impl Summed for f32 {
    fn exact(x: f32) -> Self {
        x
    }

    fn dot(rule: &Accumulator, _: Sums, a: &[Factor], b: &[Factor]) -> Self {
        rule.dot(a, b, 0.0)
    }

    fn mul_add(self, by: Self, acc: Self) -> Self {
        f32::mul_add(self, by, acc)
    }

    fn positive(self) -> Self {
        // NaN is not below 0.
        if self < 0.0 { 0.0 } else { self }
    }
}

impl Summed for Bounded {
    fn exact(x: f32) -> Self {
        Bounded::exact(x)
    }

    fn dot(rule: &Accumulator, sums: Sums, a: &[Factor], b: &[Factor]) -> Self {
        let products: Vec<f64> = a
            .iter()
            .zip(b)
            .map(|(a, b)| rule.operand.value(*a) * rule.operand.value(*b))
            .collect();
        let terms = Terms::of(products.iter().copied(), UNIT);
        let error = match sums {
            _ if terms.magnitudes >= OVERFLOW => f64::INFINITY,
            Sums::Wgmma => cut(rule, &products, &terms),
            _ => terms.error(),
        };
        Bounded::new(terms.sum, error)
    }

    fn mul_add(self, by: Self, acc: Self) -> Self {
        self * by + acc
    }

    fn positive(self) -> Self {
        match self.value().is_nan() {
            true => self,
            false => self.max(Self::ZERO),
        }
    }
}

/// The error of tensor cores that add the terms in any order of steps, each of which adds some terms to what was there.
///
/// A step cuts its n terms and the number that was there towards zero, below 2^−a of the largest of them, and its sum below 2^−k of
/// itself ([`Accumulator`]). With T the largest term and C the largest partial sum, a term loses less than U = 2^−a·max(T, C).
/// At worst all that is lost adds up: (N + S)·U + S·2^−k·C for N terms in S steps, where C is Σ|t|.
///
/// In a likely order C is at most |s| + 3·√Σt², where partial sums of a random order stay. What terms lose has their signs:
/// U/2 on average, which adds up to half of the difference of the numbers of positive and negative terms, and around it a variance of
/// U²/12 each, taken λ times ([`LAMBDA`]). What is lost of partial sums is taken at its worst. The smaller of both is the bound.
fn cut(rule: &Accumulator, terms: &[f64], all: &Terms) -> f64 {
    let largest = terms.iter().fold(0.0, |largest: f64, t| largest.max(t.abs()));
    let some = terms.iter().filter(|t| **t != 0.0);
    let (count, steps) = (some.clone().count() as f64, terms.len().div_ceil(rule.terms) as f64);
    let [aligned, kept] = [rule.aligned_bits, rule.kept_bits].map(|bits| 2f64.powi(-(bits as i32)));
    let unit = |partial: f64| aligned * largest.max(partial);
    let worst = (count + steps) * unit(all.magnitudes) + steps * kept * all.magnitudes;
    let partial = (all.sum.abs() + 3.0 * all.squares.sqrt()).min(all.magnitudes);
    let one_sided = some.map(|t| t.signum()).sum::<f64>().abs();
    let spread = LAMBDA * ((count + steps) / 12.0).sqrt();
    let likely = unit(partial) * (0.5 * one_sided + steps + spread) + steps * kept * partial;
    worst.min(likely) + f64::from(f32::MIN_POSITIVE)
}
