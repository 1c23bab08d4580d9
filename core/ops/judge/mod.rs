//! How outputs are judged: bit for bit, within a bound that has a reason, in root mean square, or as bytes that numbers within
//! a bound can have.
//!
//! A judgement is data, so that what is wanted, how far off it may be and why can be shown before anything is run.

mod admissible;
mod elements;
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
use crate::metrics::Metric;
use crate::record::{Failure, Worst};
pub use tensors::Tensor;
pub use values::{POISON_BYTE, is_number, number};

/// How an output is judged, and why so.
pub struct Judge {
    /// The output, or a part of it: site of the records.
    pub output: &'static str,
    pub dtype: Dtype,
    /// The shape of the elements.
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
    judges.iter().flat_map(|judge| judge.measure(outputs)).collect()
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
    pub fn measure(&self, outputs: &Outputs) -> Vec<Measured> {
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
                .flat_map(|part| part.judge.measure(&part.outputs))
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

    /// Where an element is, in the output's own shape.
    fn index(&self, at: usize) -> Vec<u64> {
        let mut index = crate::metrics::unravel(at, &self.shape);
        if let (Some(rows), Some(first)) = (&self.rows, index.first_mut()) {
            *first = rows[*first as usize] as u64;
        }
        index
    }
}

/// Half an ulp of f32, relative: 2^-24.
pub const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// By how much a number may err that errs by `error` before it is rounded to bfloat16: by half a step more, which is at most
/// 2^-8 of the number, or half the least.
pub fn bf16_error(y: f64, error: f64) -> f64 {
    let unit = 2f64.powi(-8);
    error * (1.0 + unit) + (unit * y.abs()).max(2f64.powi(-134))
}
