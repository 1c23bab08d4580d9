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

/// Sums that measure errors.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Squares of expected values.
    want: f64,
    /// Squares of errors.
    error: f64,
    /// Errors times expected values.
    gain: f64,
}

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

impl Sums {
    fn add(self, other: Self) -> Self {
        Self {
            want: self.want + other.want,
            error: self.error + other.error,
            gain: self.gain + other.gain,
        }
    }
}

/// Sums over a group.
struct Group {
    sums: Sums,
    /// The sum of squares of its rows, to which errors are relative.
    squares: f64,
    /// The squares of the rows' sums.
    fourths: f64,
    rows: usize,
}

impl Group {
    fn new(added: f64) -> Self {
        Self {
            sums: Sums::default(),
            squares: added,
            fourths: 0.0,
            rows: 0,
        }
    }

    fn add(&mut self, row: Sums, squares: f64) {
        self.sums = self.sums.add(row);
        self.squares += squares;
        self.fourths += squares * squares;
        self.rows += 1;
    }

    /// The relative amount by which the numbers are too large or too small together.
    fn gain(&self) -> f64 {
        (self.sums.gain / self.squares).abs()
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
            let pairs = want.iter().zip(row * cols..);
            pairs.fold(Sums::default(), |sums, (want, at)| {
                let off = number(dtype, got, at) - want;
                sums.add(Sums {
                    want: want * want,
                    error: off * off,
                    gain: off * want,
                })
            })
        };
        let rows: Vec<Sums> = want.par_chunks(cols).enumerate().map(of_row).collect();
        // The squares of a row, or of an average row in its place.
        let squares = |row: usize| {
            by.usual.as_ref().map_or(rows[row].want, |usual| {
                let usual = usual[row].max(SMALL * SMALL) * cols as f64;
                rows[row].want.max(usual)
            })
        };
        let mut groups: Vec<Group> = by.added.iter().map(|added| Group::new(*added)).collect();
        for (row, group) in by.groups.iter().enumerate() {
            groups[*group as usize].add(rows[row], squares(row));
        }
        let of_group = |group: &Group| {
            let whole = (over(group.sums.error, group.squares, bar), Of::Group);
            match by.usual {
                Some(_) => larger(whole, (group.gain() / group.gain_limit(bar), Of::Gain)),
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
            let count = group.rows * cols;
            let [of_group, of_row] =
                [(group.squares, count), (squares(at / cols), cols)].map(|(sum, n)| (sum / n as f64).sqrt());
            let short = values::short;
            let (ratio, of) = ratio_at(at);
            let of_rms = |what: &str, limit: f64| {
                let found = short(ratio * limit);
                format!(
                    "{what} errs by {found} of what is wanted in root mean square, {} is allowed",
                    short(limit)
                )
            };
            let (allowed, what) = match of {
                Of::Group => (bar * of_group, of_rms(&format!("its group of {count}"), bar)),
                Of::Row => (ROW * bar * of_row, of_rms("its row", ROW * bar)),
                Of::Gain => {
                    let limit = group.gain_limit(bar);
                    let text = format!(
                        "its group of {count} has a gain that is off by {}, {} is allowed",
                        short(group.gain()),
                        short(limit)
                    );
                    (limit * of_group, text)
                }
                Of::Element => {
                    let limit = ELEMENT * bar;
                    let text = format!(
                        "it errs by {} of the root mean square of its row, {} is allowed",
                        short(ratio * limit),
                        short(limit)
                    );
                    (limit * of_row, text)
                }
            };
            (
                allowed,
                format!("{}; {what}{}", self.pair_text(want[at], got, at), values::times(ratio)),
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
