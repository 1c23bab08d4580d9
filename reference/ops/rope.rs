//! Rotary position embedding with YaRN. The interleaved form (GPT-J) rotates the last r of the d channels of a row: pair i
//! consists of the channels (d−r+2i, d−r+2i+1). The half-split form (GPT-NeoX) rotates the first r channels: (i, i + r/2).
//!
//! At position p, pair i is rotated by the angle φ = p·fᵢ. All published implementations compute p, fᵢ and φ in FP32. The
//! reference therefore computes φ as an f32 product of f32 factors, and the cosine and sine of this φ to the precision of `T`. At
//! p ≈ 2²⁰, φ is off by up to 2⁻⁵, which is part of the model's definition, not an error to correct.

use rayon::prelude::*;

use super::BLOCK;
use crate::{Real, Tensor};

/// Scaling of the frequencies for long contexts (YaRN without its attention factor).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Ratio of the extended context length to [`Yarn::original_positions`].
    pub factor: f64,
    /// Context length of the original training.
    pub original_positions: f64,
    /// Number of rotations over the original context above which a channel pair keeps its frequency.
    pub beta_fast: f64,
    /// Number of rotations over the original context below which the frequency of a channel pair is divided by `factor`.
    pub beta_slow: f64,
    /// True if the pair indices at which the ramp of [`frequencies`] begins and ends are rounded outwards to integers.
    pub truncate: bool,
}

/// Returns the frequencies fᵢ = θ^(−2i/r). With YaRN, slow frequencies are divided by the factor, fast frequencies are kept,
/// and a linear ramp connects the two ranges. Rounds to FP32 after every step, as DeepSeek's `precompute_freqs_cis` and
/// `transformers` do: one ulp of f changes φ by 0.01 at a million tokens.
pub fn frequencies(dims: usize, theta: f64, yarn: Option<Yarn>) -> Vec<f32> {
    let plain = |i: usize| 1.0 / theta.powf(2.0 * i as f64 / dims as f64) as f32;
    let Some(yarn) = yarn else {
        return (0..dims / 2).map(plain).collect();
    };
    let turns = |beta: f64| {
        let wavelengths = yarn.original_positions / (2.0 * std::f64::consts::PI * beta);
        dims as f64 * wavelengths.ln() / (2.0 * theta.ln())
    };
    let mut ends = [turns(yarn.beta_fast), turns(yarn.beta_slow)];
    if yarn.truncate {
        ends = [ends[0].floor(), ends[1].ceil()];
    }
    let (low, mut high) = (ends[0].max(0.0), ends[1].min(dims as f64 - 1.0));
    if high == low {
        high += 0.001;
    }
    let mixed = |i: usize| {
        let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
        plain(i) / yarn.factor as f32 * (1.0 - kept) + plain(i) * kept
    };
    (0..dims / 2).map(mixed).collect()
}

/// Table of cosines and sines by position, computed up to the last position used.
#[derive(Clone, Debug)]
pub struct Rope<T> {
    frequencies: Vec<f32>,
    /// YaRN's attention factor: cosines and sines are multiplied by the factor and rounded again.
    factor: Option<T>,
    /// Pairs (cos φ, sin φ): for each position, one pair per frequency.
    table: Vec<(T, T)>,
}

impl<T: Real> Rope<T> {
    /// Creates an empty table: call [`Rope::extend`] before use.
    pub fn new(frequencies: Vec<f32>) -> Self {
        Self {
            frequencies,
            factor: None,
            table: Vec::new(),
        }
    }

    /// Sets a factor by which cosines and sines are multiplied.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let factor = Some(T::from_f64(factor));
        Self { factor, ..self }
    }

    /// Extends the table to `positions` positions.
    pub fn extend(&mut self, positions: usize) {
        for position in self.table.len() / self.frequencies.len()..positions {
            self.table.extend(self.frequencies.iter().map(|&frequency| {
                let angle = f64::from(position as f32 * frequency);
                let turn = [angle.cos(), angle.sin()].map(T::from_f64);
                let [cos, sin] = self.factor.map_or(turn, |factor| turn.map(|x| x * factor));
                (cos, sin)
            }));
        }
    }

    /// Returns the pairs (cos φ, sin φ) of a position of the table.
    pub fn turns(&self, position: usize) -> &[(T, T)] {
        let pairs = self.frequencies.len();
        &self.table[position * pairs..(position + 1) * pairs]
    }

    /// Rotates the last r channels (two per frequency) of every row of `x` `[.., cols]`, in place. A token has `heads`
    /// consecutive rows: row i belongs to token `i / heads`, which is at `position(i / heads)`. If `inverse`, rotates by −φ.
    ///
    /// # Panics
    /// If a position is not in the table, or rows have fewer than r channels.
    pub fn apply(&self, x: &mut Tensor<T>, heads: usize, position: impl Fn(usize) -> usize + Sync, inverse: bool) {
        let first = x.cols() - 2 * self.frequencies.len();
        let sign = if inverse { -T::ONE } else { T::ONE };
        self.turn(x, heads, position, |x, turns| {
            for (pair, &(cos, sin)) in x[first..].chunks_exact_mut(2).zip(turns) {
                let (even, odd, sin) = (pair[0], pair[1], sign * sin);
                pair[0] = even * cos - odd * sin;
                pair[1] = odd * cos + even * sin;
            }
        });
    }

    /// Rotates the first r channels (two per frequency) of every row in place; channels i and i + r/2 form a pair (half-split).
    /// Rows are as in [`Rope::apply`]; token i is at position `start + i`.
    ///
    /// # Panics
    /// If a position is not in the table, or rows have fewer than r channels.
    pub fn apply_half(&self, x: &mut Tensor<T>, heads: usize, start: usize) {
        let pairs = self.frequencies.len();
        self.turn(
            x,
            heads,
            |token| start + token,
            |x, turns| {
                let (first, second) = x[..2 * pairs].split_at_mut(pairs);
                for ((a, b), &(cos, sin)) in first.iter_mut().zip(second).zip(turns) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            },
        );
    }

    /// Calls `turn` for each row of x with the pairs (cos φ, sin φ) of the row's position.
    fn turn(
        &self,
        x: &mut Tensor<T>,
        heads: usize,
        position: impl Fn(usize) -> usize + Sync,
        turn: impl Fn(&mut [T], &[(T, T)]) + Sync,
    ) {
        let cols = x.cols();
        let blocks = x.data.par_chunks_mut(BLOCK * heads * cols).enumerate();
        blocks.for_each(|(block, rows)| {
            for (row, x) in rows.chunks_exact_mut(cols).enumerate() {
                turn(x, self.turns(position(block * BLOCK + row / heads)));
            }
        });
    }
}
