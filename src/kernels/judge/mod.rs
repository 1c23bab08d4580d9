//! How outputs are judged: bit for bit, within a bound that has a reason, in root mean square, or as bytes that numbers within
//! a bound can have.
//!
//! A judgement is data, so that what is wanted, how far off it may be and why can be shown before anything is run.

mod admissible;
mod failure;
mod pattern;
mod tensors;
mod values;

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use super::Outputs;
use crate::formats::Format;
use crate::metrics::{BOUND_RATIO, Metric, Pair, VIOLATIONS, measure_all};
use crate::record::{Failure, Worst};
use failure::{Elements, Said};
pub use tensors::Tensor;
pub use values::{POISON_BYTE, is_number, number};

/// How an output is judged, and why so.
pub struct Judge {
    /// The output, or a part of it: site of the records.
    pub output: &'static str,
    pub dtype: Dtype,
    /// Of the elements.
    pub shape: Vec<usize>,
    /// Where its rows lie in the output, if it is some of them.
    pub rows: Option<Vec<usize>>,
    pub rule: Rule,
    /// Where the bound comes from.
    pub why: Cow<'static, str>,
}

/// Largest error of an element: of its index and of what is wanted there. Below 0, its bits must be those that are wanted.
pub type Bound = Box<dyn Fn(usize, f64) -> f64 + Send + Sync>;

/// What makes elements right.
pub enum Rule {
    /// They have the bits that are wanted. In the columns `any_nan` of the last dimension, a NaN stands for any other.
    Equal { want: Vec<u8>, any_nan: Range<usize> },
    /// They are within a bound of what is wanted; NaN meets NaN, infinities their like. The usual metrics are taken too, if
    /// `metrics` says so.
    Within {
        want: Vec<f64>,
        bound: Bound,
        metrics: bool,
    },
    /// They are finite, and errors are, in root mean square over a group of rows, at most `bar` times what is wanted. A
    /// group of zeros must be zeros.
    Rms {
        want: Vec<f64>,
        /// Which group a row, of the last dimension, is in.
        groups: Vec<u32>,
        /// What is added to the squares of what is wanted of each group.
        added: Vec<f64>,
        bar: f64,
    },
    /// They are codes in `data`, under scales in `scale`, that numbers within a bound of what is wanted can have; see
    /// [`admissible`].
    Admissible {
        format: Box<Format>,
        /// Elements of a block.
        width: usize,
        /// The f32 above the block scales; not read where there is none.
        above: f32,
        want: Vec<f64>,
        bound: Bound,
    },
    /// They are finite.
    Finite,
    /// What is wanted depends on what was found: outputs are taken apart, and the parts are judged.
    Parts(Box<dyn Fn(&Outputs) -> Vec<Part> + Send + Sync>),
}

/// A part of outputs, and how it is judged.
pub struct Part {
    pub judge: Judge,
    pub outputs: Outputs,
}

/// What is said of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub output: &'static str,
    pub metric: &'static Metric,
    pub value: f64,
    /// Elements behind it.
    pub n: u64,
    pub worst: Option<Worst>,
    /// What is wrong, if anything is.
    pub failure: Option<Box<Failure>>,
}

/// What all judgements say of outputs.
pub fn judge(judges: &[Judge], outputs: &Outputs) -> Vec<Measured> {
    judges.iter().flat_map(|judge| judge.of(outputs)).collect()
}

impl Judge {
    fn new(output: &'static str, dtype: Dtype, shape: &[usize], rule: Rule, why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            output,
            dtype,
            shape: shape.into(),
            rows: None,
            rule,
            why: why.into(),
        }
    }

    /// Bits must be those of `want`.
    pub fn equal(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<u8>,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let rule = Rule::Equal { want, any_nan: 0..0 };
        Self::new(output, dtype, shape, rule, why)
    }

    /// Numbers must be within a bound of `want`.
    pub fn within(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<f64>,
        bound: impl Fn(usize, f64) -> f64 + Send + Sync + 'static,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let rule = Rule::Within {
            want,
            bound: Box::new(bound),
            metrics: true,
        };
        Self::new(output, dtype, shape, rule, why)
    }

    /// Groups of rows must be within `bar` of `want` in root mean square, relative to it.
    pub fn rms(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<f64>,
        (groups, added): (Vec<u32>, Vec<f64>),
        bar: f64,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let rule = Rule::Rms {
            want,
            groups,
            added,
            bar,
        };
        Self::new(output, dtype, shape, rule, why)
    }

    /// Codes `data` and scales `scale`, in blocks of `width` of a row, must be such as numbers `[rows, cols]` within a bound
    /// of `want` have.
    pub fn admissible(
        (format, width, above): (Format, usize, f32),
        cols: usize,
        want: Vec<f64>,
        bound: impl Fn(usize, f64) -> f64 + Send + Sync + 'static,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let shape = [want.len() / cols.max(1), cols];
        let rule = Rule::Admissible {
            format: Box::new(format),
            width,
            above,
            want,
            bound: Box::new(bound),
        };
        Self::new("data", Dtype::U8, &shape, rule, why)
    }

    /// Numbers must be finite.
    pub fn finite(output: &'static str, dtype: Dtype, shape: &[usize], why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(output, dtype, shape, Rule::Finite, why)
    }

    /// `parts` says how, once outputs are there.
    pub fn parts(
        output: &'static str,
        parts: impl Fn(&Outputs) -> Vec<Part> + Send + Sync + 'static,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(output, Dtype::U8, &[], Rule::Parts(Box::new(parts)), why)
    }

    /// In these columns of the last dimension, a NaN stands for any other: which one comes of arithmetic is not defined.
    pub fn any_nan(mut self, columns: Range<usize>) -> Self {
        if let Rule::Equal { any_nan, .. } = &mut self.rule {
            *any_nan = columns;
        }
        self
    }

    /// Takes no metrics besides: of hundreds of millions of numbers no more is asked.
    pub fn without_metrics(mut self) -> Self {
        if let Rule::Within { metrics, .. } = &mut self.rule {
            *metrics = false;
        }
        self
    }

    /// It is of these rows of the output.
    pub fn of_rows(mut self, rows: Vec<usize>) -> Self {
        self.rows = Some(rows);
        self
    }

    /// The part that these bytes are, judged by it.
    pub fn on(self, bytes: Vec<u8>) -> Part {
        let outputs = Outputs(vec![(self.output, bytes)]);
        Part { judge: self, outputs }
    }

    /// What it says of outputs: `violations` first, the elements that are wrong; then, of numbers, the largest error over its
    /// bound (`bound_ratio`) and the usual metrics.
    ///
    /// # Panics
    /// When an output is not there, or has another size.
    pub fn of(&self, outputs: &Outputs) -> Vec<Measured> {
        match &self.rule {
            Rule::Equal { want, any_nan } => vec![self.equal_of(want, any_nan, outputs.get(self.output))],
            Rule::Within { want, bound, metrics } => {
                let got = outputs.get(self.output);
                self.near(
                    want,
                    got,
                    *metrics,
                    &|at, _| bound(at, want[at]),
                    &self.by_bound(bound, want, got),
                )
            }
            Rule::Rms {
                want,
                groups,
                added,
                bar,
            } => self.rms_of(want, (groups, added, *bar), outputs.get(self.output)),
            Rule::Admissible { .. } => self.admissible_of(outputs.get("data"), outputs.get("scale")),
            Rule::Finite => vec![self.finite_of(outputs.get(self.output))],
            Rule::Parts(parts) => parts(outputs)
                .iter()
                .flat_map(|part| part.judge.of(&part.outputs))
                .collect(),
        }
    }

    /// What is wanted of an element: a number, or a code as one.
    pub fn want(&self, at: usize) -> Option<f64> {
        match &self.rule {
            Rule::Equal { want, .. } => Some(number(self.dtype, want, at)),
            Rule::Within { want, .. } | Rule::Rms { want, .. } | Rule::Admissible { want, .. } => Some(want[at]),
            Rule::Finite | Rule::Parts(_) => None,
        }
    }

    /// How far off an element may be: 0 where bits are compared, of groups what each may be off in root mean square.
    pub fn bounds(&self) -> Option<Vec<f64>> {
        match &self.rule {
            Rule::Equal { .. } => Some(vec![0.0; self.shape.iter().product()]),
            Rule::Within { want, bound, .. } | Rule::Admissible { want, bound, .. } => {
                let bounds = want.par_iter().enumerate();
                Some(bounds.map(|(at, want)| bound(at, *want).max(0.0)).collect())
            }
            Rule::Rms {
                want,
                groups,
                added,
                bar,
            } => {
                let cols = self.cols();
                let mut sums: Vec<(f64, usize)> = added.iter().map(|added| (*added, 0)).collect();
                for (row, group) in want.chunks(cols).zip(groups) {
                    let (sum, count) = &mut sums[*group as usize];
                    *sum += row.iter().map(|x| x * x).sum::<f64>();
                    *count += cols;
                }
                let each = |group: &u32| {
                    let (sum, count) = sums[*group as usize];
                    std::iter::repeat_n(bar * (sum / count as f64).sqrt(), cols)
                };
                Some(groups.iter().flat_map(each).collect())
            }
            Rule::Finite | Rule::Parts(_) => None,
        }
    }

    fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    fn measured(&self, metric: &'static Metric, value: f64) -> Measured {
        Measured {
            output: self.output,
            metric,
            value,
            n: self.shape.iter().product::<usize>() as u64,
            worst: None,
            failure: None,
        }
    }

    fn equal_of(&self, want: &[u8], any_nan: &Range<usize>, got: &[u8]) -> Measured {
        assert_eq!(want.len(), got.len(), "bytes of '{}'", self.output);
        let right = self.measured(&VIOLATIONS, 0.0);
        if want == got {
            return right;
        }
        let (dtype, size, cols) = (self.dtype, self.dtype.bitsize() / 8, self.cols());
        let differs = |at: usize| {
            let bytes = at * size..(at + 1) * size;
            let nan = || number(dtype, want, at).is_nan() && number(dtype, got, at).is_nan();
            want[bytes.clone()] != got[bytes] && !(any_nan.contains(&(at % cols)) && nan())
        };
        let count = (0..want.len() / size).into_par_iter().filter(|at| differs(*at)).count();
        let Some(first) = (0..want.len() / size).find(|at| differs(*at)) else {
            return right;
        };
        let elements = Elements {
            judge: self,
            count,
            bad: &differs,
            kinds: &|at| {
                values::kinds(dtype, [number(dtype, want, at), number(dtype, got, at)], got, at)
                    | values::neighbours(dtype, values::bits(dtype, want, at), values::bits(dtype, got, at))
            },
        };
        let said = Said {
            at: first,
            want: number(dtype, want, first),
            got: number(dtype, got, first),
            bound: Some(0.0),
            text: format!(
                "{} (the first), bits must be equal",
                values::both(dtype, values::bits(dtype, want, first), values::bits(dtype, got, first))
            ),
        };
        elements.failed(right, said)
    }

    /// What is said of elements that are wrong if an error is larger than a bound.
    fn by_bound<'a>(
        &'a self,
        bound: &'a Bound,
        want: &'a [f64],
        got: &'a [u8],
    ) -> impl Fn(usize, f64) -> (f64, String) + 'a {
        move |at, ratio| match bound(at, want[at]) {
            below if below < 0.0 => (
                0.0,
                format!("{}, its bits must be as they were", self.pair_text(want[at], got, at)),
            ),
            bound => (
                bound,
                format!(
                    "{}, bound {}{}",
                    self.pair_text(want[at], got, at),
                    values::short(bound),
                    values::times(ratio)
                ),
            ),
        }
    }

    fn pair_text(&self, want: f64, got: &[u8], at: usize) -> String {
        let got = number(self.dtype, got, at);
        let [want, got] = values::apart(want, got);
        format!("want {want}, got {got}")
    }

    /// Elements beyond their bound (`violations`), the largest error over its bound (`bound_ratio`), and the usual metrics. NaN
    /// must meet NaN and infinities their like, or the ratio is infinite. `said` is of the worst element and its ratio: its
    /// bound as shown, and what is said of it.
    fn near(
        &self,
        want: &[f64],
        got: &[u8],
        metrics: bool,
        bound: &(dyn Fn(usize, f64) -> f64 + Sync),
        said: &dyn Fn(usize, f64) -> (f64, String),
    ) -> Vec<Measured> {
        let (dtype, size) = (self.dtype, self.dtype.bitsize() / 8);
        assert_eq!(want.len() * size, got.len(), "bytes of '{}'", self.output);
        let ratio = |at: usize| {
            let (want, got_at) = (want[at], number(dtype, got, at));
            match bound(at, got_at) {
                bound if bound < 0.0 => match values::stored(dtype, want) == values::bits(dtype, got, at) {
                    true => 0.0,
                    false => f64::INFINITY,
                },
                _ if want.is_nan() && got_at.is_nan() || want == got_at => 0.0,
                _ if !want.is_finite() || !got_at.is_finite() => f64::INFINITY,
                bound => over((got_at - want).abs(), bound),
            }
        };
        let found = (0..want.len()).into_par_iter().map(|at| {
            let ratio = ratio(at);
            (usize::from(ratio > 1.0), ratio, at)
        });
        let (beyond, worst, at) = found.reduce(
            || (0, 0.0, usize::MAX),
            |a, b| {
                let (_, ratio, at) = if b.1 > a.1 || (b.1 == a.1 && b.2 < a.2) { b } else { a };
                (a.0 + b.0, ratio, at)
            },
        );
        let worst_place = (at < want.len()).then(|| Worst {
            index: self.index(at),
            want: want[at],
            got: number(dtype, got, at),
        });
        let mut all = [&VIOLATIONS, &BOUND_RATIO].map(|metric| Measured {
            worst: worst_place.clone(),
            ..self.measured(metric, worst)
        });
        all[0].value = beyond as f64;
        if beyond > 0 {
            let (bound, text) = said(at, worst);
            let elements = Elements {
                judge: self,
                count: beyond,
                bad: &|at| ratio(at) > 1.0,
                kinds: &|at| values::kinds(dtype, [want[at], number(dtype, got, at)], got, at),
            };
            let said = Said {
                at,
                want: want[at],
                got: number(dtype, got, at),
                bound: Some(bound),
                text,
            };
            all[0] = elements.failed(all[0].clone(), said);
        }
        let mut all = Vec::from(all);
        if metrics {
            let pair = Pair::new(want, &values::numbers(dtype, got));
            all.extend(measure_all(&pair).map(|(metric, value)| self.measured(metric, value)));
        }
        all
    }

    fn rms_of(&self, want: &[f64], (groups, added, bar): (&[u32], &[f64], f64), got: &[u8]) -> Vec<Measured> {
        let (dtype, cols) = (self.dtype, self.cols());
        let of_row = |(row, want): (usize, &[f64])| {
            let pairs = want.iter().zip(row * cols..);
            pairs.fold([0.0; 2], |[wanted, error], (want, at)| {
                let off = number(dtype, got, at) - want;
                [wanted + want * want, error + off * off]
            })
        };
        let rows: Vec<[f64; 2]> = want.par_chunks(cols).enumerate().map(of_row).collect();
        let mut sums: Vec<[f64; 2]> = added.iter().map(|added| [*added, 0.0]).collect();
        for (group, of_row) in groups.iter().zip(&rows) {
            let sums = &mut sums[*group as usize];
            sums[0] += of_row[0];
            sums[1] += of_row[1];
        }
        // NaN counts as beyond: nothing may be wanted that is not finite.
        let ratio = |[want, error]: &[f64; 2]| match error / want {
            _ if *error == 0.0 => 0.0,
            ratio if ratio.is_nan() => f64::INFINITY,
            ratio => ratio.sqrt() / bar,
        };
        let ratios: Vec<f64> = sums.iter().map(ratio).collect();
        let ratio_at = |at: usize| ratios[groups[at / cols] as usize];
        let bound = |at: usize, got: f64| (got - want[at]).abs() / ratio_at(at);
        let said = |at: usize, _| {
            let group = groups[at / cols] as usize;
            let count = groups.iter().filter(|other| **other == group as u32).count() * cols;
            let allowed = bar * (sums[group][0] / count as f64).sqrt();
            let text = format!(
                "{}; its group of {count} errs by {} of what is wanted in root mean square, {} is allowed{}",
                self.pair_text(want[at], got, at),
                values::short(ratios[group] * bar),
                values::short(bar),
                values::times(ratios[group])
            );
            (allowed, text)
        };
        self.near(want, got, true, &bound, &said)
    }

    fn finite_of(&self, got: &[u8]) -> Measured {
        let dtype = self.dtype;
        let infinite = |at: usize| !number(dtype, got, at).is_finite();
        let len = got.len() * 8 / dtype.bitsize();
        let count = (0..len).into_par_iter().filter(|at| infinite(*at)).count();
        let right = self.measured(&VIOLATIONS, 0.0);
        let Some(first) = (0..len).find(|at| infinite(*at)) else {
            return right;
        };
        let elements = Elements {
            judge: self,
            count,
            bad: &infinite,
            kinds: &|at| values::kinds(dtype, [1.0, number(dtype, got, at)], got, at),
        };
        let value = number(dtype, got, first);
        let said = Said {
            at: first,
            want: f64::NAN,
            got: value,
            bound: None,
            text: format!("got {} (the first), a finite number is wanted", values::plain(value)),
        };
        elements.failed(right, said)
    }

    /// Where an element is, in the output's own shape.
    fn index(&self, at: usize) -> Vec<u64> {
        let mut index = crate::metrics::unravel(at, &self.shape);
        if let (Some(rows), Some(first)) = (&self.rows, index.first_mut()) {
            *first = rows[*first as usize] as u64;
        }
        index
    }
}

/// By how much a number may err that errs by `error` before it is rounded to bfloat16: by half a step more, which is at most
/// 2^-8 of the number, or half the least.
pub fn bf16_error(y: f64, error: f64) -> f64 {
    let unit = 2f64.powi(-8);
    error * (1.0 + unit) + (unit * y.abs()).max(2f64.powi(-134))
}

/// An error, which is not zero, as a multiple of its bound. A bound that is NaN admits nothing.
fn over(error: f64, bound: f64) -> f64 {
    match error / bound {
        ratio if ratio.is_nan() => f64::INFINITY,
        ratio => ratio,
    }
}
