//! Judgements of random errors: by their root mean square over groups and rows, by the largest, and by the gain that they share.

use rayon::prelude::*;
use safetensors::Dtype;

use super::failure::WorstElement;
use super::values::{self, number};
use super::{Judge, Measured};

/// The error of a row in root mean square that is allowed, as a multiple of that of its group. Of emulated kernels that round all operands
/// to bfloat16, rows erred by at most 1.1 times what a group may, and elements by 6.5 times (tests/kernels/delta_rounded.rs).
const ROW: f64 = 2.0;
/// The error of an element that is allowed, as a multiple of that of its group.
const ELEMENT: f64 = 10.0;
/// The error of a gain that is allowed, as a multiple of that of its group over the root of the rows that count: rows err independently of
/// each other, but the large ones decide. Of the same kernels it was 1.4; of 16,384 states after 17 tokens, on a GPU, 2.5, because they
/// have few roundings.
const GAIN: f64 = 4.0;
/// Rows of smaller numbers are judged as if they had numbers of this size, because terms of them are below the smallest normal number.
const SMALL: f64 = 1e-33;

/// The requirement of a judgement by root mean square ([`Rule::Rms`](super::Rule::Rms)).
pub struct Rms {
    /// The expected values.
    pub want: Vec<f64>,
    /// The group of each row of the last dimension.
    pub groups: Vec<u32>,
    /// For each group, a number to add to the expected sum of squares.
    pub added: Vec<f64>,
    /// For each row, the mean square of an average row in its place. If it is given, rows and elements are judged, too, relative to the
    /// larger of it and their own mean square, and so is the gain of each group.
    pub usual: Option<Vec<f64>>,
    /// The largest relative root-mean-square error.
    pub bar: f64,
}

impl Rms {
    /// The sum of squares of each group, with the number that is added to it, and the number of elements.
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

/// A ratio of error to limit, and the part of the error that it measures.
type Ratio = (f64, Of);

/// A part of an error with a limit of its own.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Group,
    Gain,
    Row,
    Element,
}

/// Sums over a row, or over the rows of a group.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Squares of expected values; of a group, those to which errors are relative.
    squares: f64,
    /// Squares of errors.
    error: f64,
    /// Errors times expected values.
    gain: f64,
    /// The squares of the rows' sums of squares.
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

    /// The relative amount by which the numbers are too large or too small together.
    fn relative_gain(&self) -> f64 {
        (self.gain / self.squares).abs()
    }

    /// Its limit. As many rows count as there would be of equal ones.
    fn gain_limit(&self, bar: f64) -> f64 {
        GAIN * bar * self.fourths.sqrt() / self.squares
    }
}

/// The larger ratio, the first of equal ones.
fn larger(a: Ratio, b: Ratio) -> Ratio {
    if b.0 > a.0 { b } else { a }
}

/// The root of error over expected squares as a multiple of a limit. A NaN counts as beyond it, since all expected values are finite.
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
        // The squares of a row, or of an average row in its place.
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

    /// Fails an f32 output if more than half of its numbers are numbers of bfloat16 where the expected ones are not: by
    /// chance one in 65,536 is. A bound wide enough for operands in bfloat16 does not tell whether results are rounded, too.
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
