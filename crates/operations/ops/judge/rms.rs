//! Checks outputs whose errors are random: limits the root mean square (RMS) of the errors of groups and rows, the error of
//! single elements, and the gain (common scale error) of each group.

use rayon::prelude::*;
use safetensors::Dtype;

use super::failure::WorstElement;
use super::values::{self, number};
use super::{Judge, Measured};

/// Allowed RMS error of a row, as a multiple of the allowed RMS error of its group. Emulated kernels that round all operands to
/// bfloat16 reached a multiple of 1.1 for rows and of 6.5 for elements (tests/kernels/delta_rounded.rs).
const ROW: f64 = 2.0;
/// Allowed error of an element, as a multiple of the allowed RMS error of its group.
const ELEMENT: f64 = 10.0;
/// Allowed gain of a group (all numbers too large or too small by a common factor), as a multiple of the group's allowed RMS
/// error divided by √rows. Rows err independently, but rows of large numbers weigh more, so the multiple may exceed 1. The
/// largest multiple was 1.4 in emulated kernels that round all operands to bfloat16, and 2.5 for 16,384 states after 17 tokens on
/// a GPU, where few roundings average out.
const GAIN: f64 = 4.0;
/// Minimum RMS by which the errors of a row are divided. In sums of smaller numbers, f32 is less precise, because their terms are
/// subnormal.
const SMALL: f64 = 1e-33;

/// Data of a check by RMS error ([`Rule::Rms`](super::Rule::Rms)).
pub struct Rms {
    /// Expected values.
    pub want: Vec<f64>,
    /// For each row of the last dimension, the index of its group.
    pub groups: Vec<u32>,
    /// For each group, the sum of squares of other numbers that kernels may round, such as the terms of a sum. It is added to the
    /// sum of squares of the group's expected values.
    pub added: Vec<f64>,
    /// Typical mean square of each row. If `Some`, single rows and elements and the gain of each group are also checked; the
    /// errors of a row are then relative to the typical mean square or the row's own mean square, whichever is larger.
    pub usual: Option<Vec<f64>>,
    /// Largest allowed RMS error of a group, relative to the RMS of its expected values.
    pub bar: f64,
}

impl Rms {
    /// For each group, the sum of squares including `added`, and the number of elements.
    pub(super) fn sums(&self, cols: usize) -> Vec<(f64, usize)> {
        let mut sums: Vec<(f64, usize)> = self.added.iter().map(|added| (*added, 0)).collect();
        for (row, group) in self.want.chunks(cols).zip(&self.groups) {
            let (sum, count) = &mut sums[*group as usize];
            *sum += row.iter().map(|x| x * x).sum::<f64>();
            *count += cols;
        }
        sums
    }
}

/// Ratio of an error to the limit for this kind of error, and the kind.
type Ratio = (f64, Of);

/// Kind of error; each has its own limit.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Group,
    Gain,
    Row,
    Element,
}

/// Sums over a row, or over all rows of a group.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Sum of squares of expected values. For a group, the sum over its rows of the number by which the squared errors of a row
    /// are divided.
    squares: f64,
    /// Sum of squared errors.
    error: f64,
    /// Σ over elements of error · expected value.
    gain: f64,
    /// Σ over rows of (the row's `squares`)².
    fourths: f64,
    rows: usize,
}

impl Sums {
    fn add(&mut self, row: Self, squares: f64) {
        self.squares += squares;
        self.error += row.error;
        self.gain += row.gain;
        self.fourths += squares * squares;
        self.rows += 1;
    }

    /// Relative gain: the common factor by which the numbers are too large or too small.
    fn relative_gain(&self) -> f64 {
        (self.gain / self.squares).abs()
    }

    /// Limit of the relative gain, proportional to 1/√n. The effective number of rows n = `squares`² / `fourths` is the actual
    /// number if all rows are equally large.
    fn gain_limit(&self, bar: f64) -> f64 {
        GAIN * bar * self.fourths.sqrt() / self.squares
    }
}

/// Returns the pair with the larger ratio; the first if both are equal.
fn larger(a: Ratio, b: Ratio) -> Ratio {
    if b.0 > a.0 { b } else { a }
}

/// Returns √(error / want) / limit: the ratio of an RMS error to its limit. Infinite if the quotient is NaN: expected values are
/// finite, so a NaN comes from the output.
fn over(error: f64, want: f64, limit: f64) -> f64 {
    match error / want {
        _ if error == 0.0 => 0.0,
        ratio if ratio.is_nan() => f64::INFINITY,
        ratio => ratio.sqrt() / limit,
    }
}

impl Judge {
    pub(super) fn rms_of(&self, by: &Rms, got: &[u8]) -> Vec<Measured> {
        let (dtype, cols) = (self.dtype, self.cols());
        let (want, bar) = (&by.want[..], by.bar);
        let of_row = |(row, want): (usize, &[f64])| {
            let mut sums = Sums::default();
            for (want, at) in want.iter().zip(row * cols..) {
                let off = number(dtype, got, at) - want;
                sums.squares += want * want;
                sums.error += off * off;
                sums.gain += off * want;
            }
            sums
        };
        let rows: Vec<Sums> = want.par_chunks(cols).enumerate().map(of_row).collect();
        // Sum of squares by which the squared errors of a row are divided: the larger of the row's own sum and the sum of an
        // average row at its position.
        let squares = |row: usize| {
            by.usual.as_ref().map_or(rows[row].squares, |usual| {
                let usual = usual[row].max(SMALL * SMALL) * cols as f64;
                rows[row].squares.max(usual)
            })
        };
        let group = |added: &f64| Sums {
            squares: *added,
            ..Sums::default()
        };
        let mut groups: Vec<Sums> = by.added.iter().map(group).collect();
        for (row, group) in by.groups.iter().enumerate() {
            groups[*group as usize].add(rows[row], squares(row));
        }
        let of_group = |group: &Sums| {
            let whole = (over(group.error, group.squares, bar), Of::Group);
            match by.usual {
                Some(_) => larger(whole, (group.relative_gain() / group.gain_limit(bar), Of::Gain)),
                None => whole,
            }
        };
        let ratios: Vec<Ratio> = groups.iter().map(of_group).collect();
        let of_row = |row: usize| {
            let group = ratios[by.groups[row] as usize];
            match by.usual {
                Some(_) => larger(group, (over(rows[row].error, squares(row), ROW * bar), Of::Row)),
                None => group,
            }
        };
        let of_rows: Vec<Ratio> = (0..rows.len()).into_par_iter().map(of_row).collect();
        let ratio_at = |at: usize| {
            let ratio = of_rows[at / cols];
            let off = number(dtype, got, at) - want[at];
            let square = || squares(at / cols) / cols as f64;
            match by.usual {
                Some(_) => larger(ratio, (over(off * off, square(), ELEMENT * bar), Of::Element)),
                None => ratio,
            }
        };
        let bound = |at: usize, got: f64| (got - want[at]).abs() / ratio_at(at).0;
        let said = |at: usize, _| {
            let group = &groups[by.groups[at / cols] as usize];
            let (count, (ratio, of)) = (group.rows * cols, ratio_at(at));
            let [of_group, of_row] =
                [(group.squares, count), (squares(at / cols), cols)].map(|(sum, n)| (sum / n as f64).sqrt());
            let limit = match of {
                Of::Group => bar,
                Of::Row => ROW * bar,
                Of::Gain => group.gain_limit(bar),
                Of::Element => ELEMENT * bar,
            };
            let found = values::short(ratio * limit);
            let (size, what) = match of {
                Of::Group => (
                    of_group,
                    format!("its group of {count} errs by {found} of what is wanted in root mean square"),
                ),
                Of::Row => (
                    of_row,
                    format!("its row errs by {found} of what is wanted in root mean square"),
                ),
                Of::Gain => {
                    let gain = values::short(group.relative_gain());
                    (
                        of_group,
                        format!("its group of {count} has a gain that is off by {gain}"),
                    )
                }
                Of::Element => (of_row, format!("it errs by {found} of the root mean square of its row")),
            };
            let (pair, limit_text) = (self.pair_text(want[at], got, at), values::short(limit));
            (
                limit * size,
                format!("{pair}; {what}, {limit_text} is allowed{}", values::times(ratio)),
            )
        };
        let mut all = self.near(want, got, true, &bound, &said);
        if all[0].failure.is_none() {
            all[0] = self.narrowed(want, got, all[0].clone());
        }
        all
    }

    /// Fails an f32 output if more than half of its numbers are representable in bfloat16 although the expected ones are not. By
    /// chance, only 1 in 65,536 f32 numbers is. The RMS bound cannot detect bfloat16 results, because it is wide enough for
    /// bfloat16 operands.
    fn narrowed(&self, want: &[f64], got: &[u8], right: Measured) -> Measured {
        if self.dtype != Dtype::F32 {
            return right;
        }
        let narrow = |x: f64| (x as f32).to_bits().trailing_zeros() >= 16;
        let of_f32 = |at: &usize| want[*at].is_finite() && !narrow(want[*at]);
        let bad = |at: usize| of_f32(&at) && number(self.dtype, got, at) != 0.0 && narrow(number(self.dtype, got, at));
        let wide = (0..want.len()).into_par_iter().filter(of_f32).count();
        let count = (0..want.len()).into_par_iter().filter(|at| bad(*at)).count();
        if wide < 16 || 2 * count <= wide {
            return right;
        }
        self.first_wrong(right, &bad, &|at| self.kinds(want[at], got, at), |at| WorstElement {
            at,
            want: want[at],
            got: number(self.dtype, got, at),
            bound: None,
            text: format!(
                "{} (the first), a number of bfloat16",
                self.pair_text(want[at], got, at)
            ),
        })
    }
}
