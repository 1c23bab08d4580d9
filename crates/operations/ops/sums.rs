//! Checks sums of products in operations that define these sums to the bit. By default, outputs must have the bits of Hopper's
//! tensor cores. A kernel may declare another accumulator; then its sums must be within an error bound.

use rayon::prelude::*;
use reference::{Bounded, LAMBDA, Real};
use safetensors::Dtype;

use super::Case;
use super::data::float_bytes;
use super::judge::{Judge, UNIT};
use crate::expected::{Terms, overflow};
use ulplab_core::accumulator::{Accumulator, Factor, Operand};

/// Name of the case setting (key) that states the kernel's accumulator.
pub const ACCUMULATOR: &str = "accumulator";

/// Arithmetic that a kernel is assumed to use for sums of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Sums must be bit-exact: Hopper's tensor cores add the products in the order that the operation specifies.
    Defined,
    /// Products are exact, and are added in f32 in any order.
    F32,
    /// Products are summed by Hopper's tensor cores, which may process the steps in any order.
    Wgmma,
}

/// Allowed values of [`ACCUMULATOR`], with their meanings.
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
    /// The accumulator that a case declares; [`Sums::Defined`] if it declares none.
    pub(super) fn of(case: &Case) -> Self {
        let stated = ACCUMULATORS
            .iter()
            .find(|(name, ..)| case.word(ACCUMULATOR) == Some(name));
        stated.map_or(Self::Defined, |(_, sums, _)| *sums)
    }

    /// Creates the checks of an output `[rows, cols]`. For [`Sums::Defined`], the bits must equal `want`. For another
    /// accumulator, the output must be within the error bounds of `numbers`; elements with other bits than `want` are counted,
    /// but do not fail.
    ///
    /// # Errors
    /// Returns an error if the error bounds do not decide whether a sum overflows, or if an error has no bound.
    pub(super) fn judges(
        self,
        (output, dtype, shape): (&'static str, Dtype, [usize; 2]),
        want: &[f32],
        numbers: impl FnOnce() -> Vec<Bounded>,
        why: &'static str,
    ) -> Result<Vec<Judge>, String> {
        let equal = Judge::equal(output, dtype, &shape, float_bytes(dtype, want), why).any_nan(0..shape[1]);
        if self == Self::Defined {
            return Ok(vec![equal]);
        }
        let (mut numbers, overflow) = (numbers(), overflow(Dtype::F32));
        for (at, x) in numbers.iter_mut().enumerate() {
            let (value, error) = (x.value(), x.error());
            if value.is_finite() && value.abs() + error >= overflow {
                if value.abs() - error < overflow {
                    let index = ulplab_core::metrics::unravel(at, &shape);
                    return Err(format!(
                        "{output}{index:?}: sums may overflow or not; expected inputs of a smaller range for accumulator = '{}'",
                        self.row().0
                    ));
                }
                *x = Bounded::new(f64::INFINITY.copysign(value), 0.0);
            }
        }
        let why = format!("{}; every other operation rounds in f32", self.row().2);
        let bounded = Judge::bounded(output, dtype, &shape, &numbers, why)?;
        Ok(vec![bounded.without_metrics(), equal.only_fact()])
    }

    fn row(self) -> &'static (&'static str, Sums, &'static str) {
        let found = ACCUMULATORS.iter().find(|(_, sums, _)| *sums == self);
        found.expect("all are listed")
    }
}

/// Number type in which sums of products are computed: f32 with the bits of tensor cores, or [`Bounded`] with error bounds for
/// another accumulator.
pub trait Summed: Real {
    /// Sum of the products of two rows, starting from 0.
    fn dot(rule: &Accumulator, sums: Sums, a: &[Factor], b: &[Factor]) -> Self;

    /// Computes `self · by + acc` with one rounding in f32 (FMA).
    fn mul_add(self, by: Self, acc: Self) -> Self;

    /// Maximum of the number and 0; NaN stays NaN.
    fn positive(self) -> Self;
}

impl Summed for f32 {
    fn dot(rule: &Accumulator, _: Sums, a: &[Factor], b: &[Factor]) -> Self {
        rule.dot(a, b, 0.0)
    }

    fn mul_add(self, by: Self, acc: Self) -> Self {
        f32::mul_add(self, by, acc)
    }

    fn positive(self) -> Self {
        // Compare with 0 instead of using `max`, which would turn NaN into 0.
        if self < 0.0 { 0.0 } else { self }
    }
}

impl Summed for Bounded {
    fn dot(rule: &Accumulator, sums: Sums, a: &[Factor], b: &[Factor]) -> Self {
        let products: Vec<f64> = a
            .iter()
            .zip(b)
            .map(|(a, b)| rule.operand.value(*a) * rule.operand.value(*b))
            .collect();
        let terms = Terms::of(products.iter().copied(), UNIT);
        let error = match sums {
            _ if terms.magnitudes >= overflow(Dtype::F32) => f64::INFINITY,
            Sums::Wgmma => cut(rule, &products, &terms),
            _ => terms.error(),
        };
        Bounded::new(terms.sum, error)
    }

    fn mul_add(self, by: Self, acc: Self) -> Self {
        self * by + acc
    }

    fn positive(self) -> Self {
        if self.value().is_nan() {
            self
        } else {
            self.max(Self::ZERO)
        }
    }
}

/// Converts a bfloat16 number to a tensor-core factor.
pub fn factor(x: f32) -> Factor {
    Operand::Bf16.factor(half::bf16::from_f32(x).to_bits())
}

/// Converts bfloat16 numbers to tensor-core factors.
pub fn bf16_factors(x: &[f32]) -> Vec<Factor> {
    x.par_iter().map(|x| factor(*x)).collect()
}

/// Converts E4M3 codes to tensor-core factors.
pub fn e4m3_factors(codes: &[u8]) -> Vec<Factor> {
    let factors: Vec<Factor> = (0..256).map(|code| Operand::E4m3.factor(code)).collect();
    codes.par_iter().map(|code| factors[usize::from(*code)]).collect()
}

/// Error bound of a tensor-core sum whose terms may be spread over the steps in any order. A step adds several terms to the
/// partial sum.
///
/// A step first truncates its terms and the partial sum: it drops all digits below 2^−a times the largest of these numbers. Then
/// it drops the digits of its result below 2^−k times the result (a and k: [`Accumulator`]). Let T be the largest term t, and C a
/// bound of the partial sums. Each truncation loses less than U = 2^−a·max(T, C). In the worst case, C is Σ|t|, and the losses of
/// N terms in S steps add up to (N + S)·U + S·2^−k·C.
///
/// In a random order of the terms, partial sums are probably at most C = |s| + 3·√Σt², where s is the sum of all terms. The loss
/// of a term has the sign of the term and is U/2 on average. So the averages add up to U/2 times the difference between the
/// numbers of positive and of negative terms. Around this average, each loss has a variance of U²/12; λ standard deviations are
/// added ([`LAMBDA`]). For the losses of partial sums, the worst case is used. The bound is the smaller of the worst and the
/// likely error.
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
