//! Adds hints at the cause of wrong elements to failure messages; verdicts do not change. A hint is a relation that holds for
//! all wrong elements: each equals its expected value with the sign flipped, or the expected value in another column or row. If
//! no relation holds, the elements far outside their bounds are described separately: elements just outside would hide the
//! pattern of the others.

use ulplab_core::metrics::VIOLATIONS;
use ulplab_operations::ops::judge::{Judge, Measured, Rule, number, pattern};
use ulplab_operations::ops::{Outputs, Problem};

/// Smallest number of telling elements for which a relation is reported; if fewer elements are wrong, all must be telling. A
/// wrong element is telling if its expected value differs clearly from the value that the relation predicts.
const TELLING: usize = 4;
/// Smallest difference between the expected value and the predicted value that counts as clear, as a multiple of the bound.
const CLEAR: f64 = 16.0;
/// An element is far outside if its error is at least `FAR` times its bound, and just outside if its error is less than `JUST`
/// times its bound.
const FAR: f64 = 10.0;
const JUST: f64 = 2.0;
/// Largest number of elements of an output that is examined. The examination of a larger output would take longer than the run.
const MOST: usize = 1 << 26;

/// Extends the failure messages about outputs: appends the relation that all wrong elements of an output share, or else the
/// pattern of the elements far outside their bounds.
pub fn relate(problem: &Problem, outputs: &Outputs, measured: &mut [Measured]) {
    for measured in measured.iter_mut().filter(|measured| measured.metric == &VIOLATIONS) {
        let mut judges = problem.judges.iter().filter(|judge| judge.output == measured.output);
        let (Some(judge), None, Some(failure)) = (judges.next(), judges.next(), &mut measured.failure) else {
            continue;
        };
        let Some(elements) = WrongElements::new(judge, outputs, measured.value) else {
            continue;
        };
        let relation = elements.relation();
        let relation = relation.filter(|relation| !failure.pattern.ends_with(relation));
        let more = relation.map(|relation| format!(", {relation}"));
        if let Some(more) = more.or_else(|| elements.far(judge, &failure.pattern)) {
            for text in [&mut failure.pattern, &mut failure.message] {
                text.push_str(&more);
            }
        }
    }
}

/// An output and the indices of its wrong elements.
struct WrongElements {
    rows: usize,
    cols: usize,
    want: Vec<f64>,
    got: Vec<f64>,
    bounds: Vec<f64>,
    wrong: Vec<usize>,
}

impl WrongElements {
    /// Finds the wrong elements of an output that failed its check. Returns `None` if the check does not compare elements,
    /// compares only some rows, or compares more than [`MOST`] elements. Also returns `None` if the check reported another
    /// number of wrong elements (`count`).
    fn new(judge: &Judge, outputs: &Outputs, count: f64) -> Option<Self> {
        let len: usize = judge.shape.iter().product();
        let by_elements = matches!(judge.rule, Rule::Equal { .. } | Rule::Within { .. });
        if !by_elements || judge.rows.is_some() || len > MOST {
            return None;
        }
        let (_, bytes) = outputs.0.iter().find(|(name, _)| *name == judge.output)?;
        let want: Vec<f64> = (0..len).map(|at| judge.want(at)).collect::<Option<_>>()?;
        let got: Vec<f64> = (0..len).map(|at| number(judge.dtype, bytes, at)).collect();
        let bounds = judge.bounds()?;
        let right = |at: &usize| near(got[*at], want[*at], bounds[*at]) || want[*at].is_nan() && got[*at].is_nan();
        let wrong: Vec<usize> = (0..len).filter(|at| !right(at)).collect();
        let cols = judge.shape.last().copied().unwrap_or(1).max(1);
        // A check that compares bits also counts differences in -0 and in NaN payloads. A relation between numbers cannot explain
        // these differences, so such an output is skipped.
        (wrong.len() as f64 == count).then_some(Self {
            rows: if judge.shape.len() == 2 { len / cols } else { 1 },
            cols,
            want,
            got,
            bounds,
            wrong,
        })
    }

    fn relation(&self) -> Option<String> {
        if self.fits(|at| Some((at, -1.0))) {
            return Some("with the sign flipped".into());
        }
        if let Some([a, b]) = self.two_rows() {
            let other = |at: usize| if at / self.cols == a { b } else { a };
            if self.fits(|at| Some((other(at) * self.cols + at % self.cols, 1.0))) {
                return Some(format!("rows {a} and {b} are exchanged"));
            }
        }
        match self.wrong.len() {
            ..TELLING => None,
            _ => self.columns().or_else(|| self.other_rows()),
        }
    }

    /// Describes the location of the elements far outside their bounds, and counts the elements just outside. `None` if this adds
    /// nothing: none or all of the wrong elements are far outside, or `of_all`, the text about all wrong elements, already names
    /// the location.
    fn far(&self, judge: &Judge, of_all: &str) -> Option<String> {
        let ratio = |at: usize| match (self.got[at] - self.want[at]).abs() / self.bounds[at] {
            ratio if ratio.is_nan() => f64::INFINITY,
            ratio => ratio,
        };
        let mut is_far = vec![false; self.want.len()];
        self.wrong.iter().for_each(|at| is_far[*at] = ratio(*at) >= FAR);
        let far = is_far.iter().filter(|far| **far).count();
        let just = self.wrong.iter().filter(|at| ratio(**at) < JUST).count();
        if far == 0 || far == self.wrong.len() {
            return None;
        }
        let not_finite = |at: usize| u16::from(!self.got[at].is_finite());
        let (place, kinds) = pattern::find(&judge.shape, false, &|at| is_far[at], &not_finite);
        let kind = if kinds == 1 { ", NaN or infinite" } else { "" };
        let hint = match just {
            0 => String::new(),
            just => format!("; {just} less than {JUST} times: the bound may be too tight for these"),
        };
        let told = !of_all.starts_with(&place);
        told.then(|| format!("; {far} of them {FAR} times outside or more, {place}{kind}{hint}"))
    }

    /// True if a relation explains all wrong elements. `source` maps the index of a wrong element to another index and a sign.
    /// The wrong element must equal the expected value at that other index, times the sign, within the bound. To exclude chance,
    /// enough of these values must differ clearly from the elements' own expected values.
    fn fits(&self, source: impl Fn(usize) -> Option<(usize, f64)>) -> bool {
        let mut telling = 0;
        let all = self.wrong.iter().all(|&at| {
            let Some((from, sign)) = source(at) else { return false };
            let (value, bound) = (sign * self.want[from], self.bounds[from]);
            telling += usize::from((value - self.want[at]).abs() > CLEAR * bound.max(self.bounds[at]));
            value.is_finite() && near(self.got[at], value, bound)
        });
        all && telling >= TELLING.min(self.wrong.len()) && self.is_varied()
    }

    /// True if there is only one wrong element, or if the wrong elements have different magnitudes. Wrong elements that all have
    /// one magnitude, e.g. a constant, are not explained by a relation to other elements.
    fn is_varied(&self) -> bool {
        let first = self.wrong.first().map(|at| self.got[*at].abs());
        self.wrong.len() == 1 || self.wrong.iter().any(|at| Some(self.got[*at].abs()) != first)
    }

    /// Returns the two rows with wrong elements, if there are exactly two.
    fn two_rows(&self) -> Option<[usize; 2]> {
        let mut rows: Vec<usize> = self.wrong.iter().map(|at| at / self.cols).collect();
        rows.dedup();
        <[usize; 2]>::try_from(rows).ok().filter(|_| self.rows > 1)
    }

    /// Returns a text if all wrong elements equal the expected values of another column. Tries the nearest columns first.
    fn columns(&self) -> Option<String> {
        for shift in 1..self.cols {
            for (side, forward) in [("left", false), ("right", true)] {
                let step = if forward { shift } else { self.cols - shift };
                let place = |at: usize| (at % self.cols + step, at / self.cols * self.cols);
                let around = |at: usize| {
                    let (col, row) = place(at);
                    Some((row + col % self.cols, 1.0))
                };
                if !self.fits(around) {
                    continue;
                }
                let beyond = |at: &usize| (place(*at).0 >= self.cols) == forward;
                let around = match self.wrong.iter().any(beyond) {
                    true => ", around the end of its row",
                    false => "",
                };
                let plural = if shift == 1 { "" } else { "s" };
                let place = format!("{shift} column{plural} to its {side}{around}");
                return Some(format!("each equal to the expected value {place}"));
            }
        }
        None
    }

    /// Returns a text if all wrong elements equal the expected values of another row. Tries the nearest rows first.
    fn other_rows(&self) -> Option<String> {
        for shift in 1..self.rows {
            let far = shift * self.cols;
            let side = if self.fits(|at| Some((at.checked_sub(far)?, 1.0))) {
                "above"
            } else if self.fits(|at| Some((at + far, 1.0)).filter(|(from, _)| *from < self.want.len())) {
                "below"
            } else {
                continue;
            };
            let plural = if shift == 1 { "" } else { "s" };
            return Some(format!("each equal to the expected value {shift} row{plural} {side}"));
        }
        None
    }
}

fn near(got: f64, want: f64, bound: f64) -> bool {
    got == want || (got - want).abs() <= bound
}
