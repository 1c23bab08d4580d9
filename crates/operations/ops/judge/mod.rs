//! Judgements of outputs: bit for bit, within a derived bound, in root mean square, or as codes that numbers within a
//! bound can have.
//!
//! A judgement is data: expected values, bounds and reasons can be shown before anything runs.

mod admissible;
mod elements;
mod failure;
pub mod pattern;
mod rms;
mod tensors;
mod values;

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;
use reference::Bounded;
use safetensors::Dtype;

use super::Outputs;
use crate::expected::half_spacing;
pub use rms::Rms;
pub use tensors::{Tensor, write};
use ulplab_core::formats::Format;
use ulplab_core::metrics::{Metric, UNEQUAL};
use ulplab_core::record::{Failure, Worst};
pub use values::{POISON_BYTE, is_number, number, numbers};

/// The requirement on an output, with its reason.
pub struct Judge {
    /// The output, or a part of it; becomes the site of the records.
    pub output: &'static str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The shape of the elements.
    pub shape: Vec<usize>,
    /// The judged rows of the output; `None` if all are.
    pub rows: Option<Vec<usize>>,
    /// The requirement.
    pub rule: Rule,
    /// The reason for the bound.
    pub why: Cow<'static, str>,
    /// True if unequal bits are only counted ([`UNEQUAL`]): another judgement decides if the output is right.
    pub fact: bool,
}

/// The largest allowed error of an element, given its index and its expected value. If it is negative, the bits must equal
/// the expected ones.
pub type Bound = Box<dyn Fn(usize, f64) -> f64 + Send + Sync>;

/// A test of the bytes of an element, given its index: true if they are right although they are not the expected ones.
pub type Also = Box<dyn Fn(usize, &[u8]) -> bool + Send + Sync>;

/// The faults that all numbers of an output have together, in words; empty if they have none.
pub type Together = Box<dyn Fn(&[f64]) -> Vec<String> + Send + Sync>;

/// The condition under which elements are right.
pub enum Rule {
    /// They have the expected bits, or others that `also` admits. In the columns `any_nan` of the last dimension, any NaN matches any
    /// other.
    Equal {
        /// The expected bytes.
        want: Vec<u8>,
        /// Columns in which NaN payloads do not matter.
        any_nan: Range<usize>,
        /// A test for other right bytes, where arithmetic may be rounded in more than one way.
        also: Option<Also>,
    },
    /// They are within a bound of the expected values; NaN must meet NaN, and an infinity the same infinity. The usual
    /// metrics are computed only if `metrics` is set.
    Within {
        /// The expected values.
        want: Vec<f64>,
        /// The largest error of each element.
        bound: Bound,
        /// True if the usual metrics are computed.
        metrics: bool,
        /// The faults of all errors together, in words.
        together: Option<Together>,
    },
    /// They are finite, and the root-mean-square error over a group of rows is at most `bar` times the root mean square of
    /// the expected values. A group that should be zero must be zero. Numbers of an f32 output are not rounded to bfloat16.
    Rms(Rms),
    /// The output `data` holds codes, and `scale` holds scales. Both are right if some numbers within the bound of the expected
    /// values quantize to them; see [`admissible`].
    Admissible {
        /// The format of codes and scales.
        format: Box<Format>,
        /// Elements per block.
        width: usize,
        /// The f32 global scale above the block scales; ignored by formats without one.
        above: f32,
        /// The numbers before quantization, `[rows, cols]`.
        want: Vec<f64>,
        /// The largest error of each of these numbers.
        bound: Bound,
    },
    /// They are finite.
    Finite,
    /// The expected values depend on the outputs: the outputs are split into parts, and each part is judged.
    Parts(Box<dyn Fn(&Outputs) -> Vec<Part> + Send + Sync>),
}

impl Rule {
    /// The expected numbers; `None` if bits are compared, or if nothing in particular is expected.
    pub fn numbers(&self) -> Option<&[f64]> {
        match self {
            Self::Within { want, .. } | Self::Rms(Rms { want, .. }) | Self::Admissible { want, .. } => Some(want),
            Self::Equal { .. } | Self::Finite | Self::Parts(_) => None,
        }
    }
}

/// A part of outputs, with its judgement.
pub struct Part {
    /// The judgement of the part.
    pub judge: Judge,
    /// The bytes of the part, under the name of the judge's output.
    pub outputs: Outputs,
}

/// A measured metric of an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The output that was measured, or the name of a check such as `guards`.
    pub output: &'static str,
    /// The metric.
    pub metric: &'static Metric,
    /// The value, in the unit of the metric.
    pub value: f64,
    /// Number of elements measured.
    pub n: u64,
    /// The element with the largest error, if the metric has one.
    pub worst: Option<Worst>,
    /// The description of the failure, if there is one.
    pub failure: Option<Box<Failure>>,
}

/// Measures outputs by all judgements.
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
            fact: false,
        }
    }

    /// Requires bits to equal those of `want`.
    pub fn equal(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<u8>,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let rule = Rule::Equal {
            want,
            any_nan: 0..0,
            also: None,
        };
        Self::new(output, dtype, shape, rule, why)
    }

    /// Requires numbers to be within a bound of `want`.
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
            together: None,
        };
        Self::new(output, dtype, shape, rule, why)
    }

    /// Requires each number to be within its own bound of `want`.
    pub fn each(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<f64>,
        bounds: Vec<f64>,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::within(output, dtype, shape, want, move |at, _| bounds[at], why)
    }

    /// Requires each element to be within the error bound of its reference number. For a bfloat16 output, the bound also allows
    /// the rounding to bfloat16.
    ///
    /// # Errors
    /// If a finite number has an infinite bound.
    pub fn bounded(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        numbers: &[Bounded],
        why: impl Into<Cow<'static, str>>,
    ) -> Result<Self, String> {
        let want: Vec<f64> = numbers.par_iter().map(|x| x.value()).collect();
        let bounds = numbers.par_iter().map(|x| stored_error(dtype, x.value(), x.error()));
        let bounds: Vec<f64> = bounds.collect();
        if let Some(at) = (0..want.len()).find(|at| want[*at].is_finite() && !bounds[*at].is_finite()) {
            let (index, want, bound) = (ulplab_core::metrics::unravel(at, shape), want[at], bounds[at]);
            return Err(format!(
                "{output}{index:?} is {want:e}, but its error is bounded by {bound} only"
            ));
        }
        Ok(Self::each(output, dtype, shape, want, bounds, why))
    }

    /// Requires the root-mean-square error of each group of rows to be within `bar`, relative to `want`.
    pub fn rms(
        output: &'static str,
        dtype: Dtype,
        shape: &[usize],
        want: Vec<f64>,
        (groups, added): (Vec<u32>, Vec<f64>),
        bar: f64,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        let rule = Rms {
            want,
            groups,
            added,
            usual: None,
            bar,
        };
        Self::new(output, dtype, shape, Rule::Rms(rule), why)
    }

    /// Also judges rows, elements and gains; `of_rows` has the mean square of an average row in the place of each row.
    pub fn by_rows(mut self, of_rows: Vec<f64>) -> Self {
        if let Rule::Rms(rms) = &mut self.rule {
            rms.usual = Some(of_rows);
        }
        self
    }

    /// Requires codes `data` and scales `scale`, in blocks of `width` elements of a row, to be admissible for numbers
    /// `[rows, cols]` within a bound of `want`.
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

    /// Requires numbers to be finite.
    pub fn finite(output: &'static str, dtype: Dtype, shape: &[usize], why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(output, dtype, shape, Rule::Finite, why)
    }

    /// Judges parts that `parts` derives from the outputs.
    pub fn parts(
        output: &'static str,
        parts: impl Fn(&Outputs) -> Vec<Part> + Send + Sync + 'static,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(output, Dtype::U8, &[], Rule::Parts(Box::new(parts)), why)
    }

    /// Lets any NaN match any other in these columns of the last dimension, because arithmetic does not define the bits of
    /// a NaN.
    pub fn any_nan(mut self, columns: Range<usize>) -> Self {
        if let Rule::Equal { any_nan, .. } = &mut self.rule {
            *any_nan = columns;
        }
        self
    }

    /// Admits other bytes of an element than the expected ones: those for which `also` holds.
    pub(crate) fn or(mut self, admits: impl Fn(usize, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        if let Rule::Equal { also, .. } = &mut self.rule {
            *also = Some(Box::new(admits));
        }
        self
    }

    /// Turns off the usual metrics, which would be slow to compute for hundreds of millions of numbers.
    pub fn without_metrics(mut self) -> Self {
        if let Rule::Within { metrics, .. } = &mut self.rule {
            *metrics = false;
        }
        self
    }

    /// Judges all errors together, too, if each is within its bound.
    pub(crate) fn together(mut self, found: impl Fn(&[f64]) -> Vec<String> + Send + Sync + 'static) -> Self {
        if let Rule::Within { together, .. } = &mut self.rule {
            *together = Some(Box::new(found));
        }
        self
    }

    /// Counts other bits than the expected ones without calling them wrong.
    pub(crate) fn only_fact(mut self) -> Self {
        self.fact = true;
        self
    }

    /// Names the rows of the output that these elements are.
    pub fn of_rows(mut self, rows: Vec<usize>) -> Self {
        self.rows = Some(rows);
        self
    }

    /// A part with these bytes and this judgement.
    pub fn on(self, bytes: Vec<u8>) -> Part {
        let outputs = Outputs(vec![(self.output, bytes)]);
        Part { judge: self, outputs }
    }

    /// A part with this judgement, of the output as a kernel has left it.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn of(self, outputs: &Outputs) -> Part {
        let bytes = outputs.get(self.output).to_vec();
        self.on(bytes)
    }

    /// Measures outputs. The first metric is `violations`, the number of wrong elements. For numbers, the largest ratio of
    /// error to bound (`bound_ratio`) and the usual metrics follow.
    ///
    /// # Panics
    /// If an output is missing or has another size.
    pub fn measure(&self, outputs: &Outputs) -> Vec<Measured> {
        match &self.rule {
            Rule::Equal { want, any_nan, also } => {
                let found = self.equal_of(want, any_nan, also.as_ref(), outputs.get(self.output));
                vec![match self.fact {
                    true => self.measured(&UNEQUAL, found.value),
                    false => found,
                }]
            }
            Rule::Within {
                want,
                bound,
                metrics,
                together,
            } => {
                let got = outputs.get(self.output);
                let said = self.by_bound(bound, want, got);
                let mut all = self.near(want, got, *metrics, &|at, _| bound(at, want[at]), &said);
                if let (Some(together), None) = (together, &all[0].failure) {
                    all[0] = self.together_of(together, got, all[0].clone());
                }
                all
            }
            Rule::Rms(rms) => self.rms_of(rms, outputs.get(self.output)),
            Rule::Admissible { .. } => self.admissible_of(outputs.get("data"), outputs.get("scale")),
            Rule::Finite => vec![self.finite_of(outputs.get(self.output))],
            Rule::Parts(parts) => parts(outputs)
                .iter()
                .flat_map(|part| part.judge.measure(&part.outputs))
                .collect(),
        }
    }

    /// The expected value of an element: a number, or a code as a number.
    pub fn want(&self, at: usize) -> Option<f64> {
        match &self.rule {
            Rule::Equal { want, .. } => Some(number(self.dtype, want, at)),
            rule => Some(rule.numbers()?[at]),
        }
    }

    /// The error bounds of all elements: 0 if bits are compared; for groups, the root-mean-square error that is allowed.
    pub fn bounds(&self) -> Option<Vec<f64>> {
        match &self.rule {
            Rule::Equal { .. } => Some(vec![0.0; self.shape.iter().product()]),
            Rule::Within { want, bound, .. } | Rule::Admissible { want, bound, .. } => {
                let bounds = want.par_iter().enumerate();
                Some(bounds.map(|(at, want)| bound(at, *want).max(0.0)).collect())
            }
            Rule::Rms(rms) => {
                let (cols, sums) = (self.cols(), rms.sums(self.cols()));
                let each = |group: &u32| {
                    let (sum, count) = sums[*group as usize];
                    std::iter::repeat_n(rms.bar * (sum / count as f64).sqrt(), cols)
                };
                Some(rms.groups.iter().flat_map(each).collect())
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

    /// The index of an element in the output's own shape.
    fn index(&self, at: usize) -> Vec<u64> {
        let mut index = ulplab_core::metrics::unravel(at, &self.shape);
        if let (Some(rows), Some(first)) = (&self.rows, index.first_mut()) {
            *first = rows[*first as usize] as u64;
        }
        index
    }
}

/// Half an ulp of f32, relative: 2^-24.
pub const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// The error bound of a number after it is rounded to bfloat16, if it errs by at most `error` before: half a step more, of the
/// largest number that it may be.
pub fn bf16_error(y: f64, error: f64) -> f64 {
    error + half_spacing(Dtype::BF16, y.abs() + error)
}

/// The error bound of a number that is stored in a type, bfloat16 or f32, if it errs by at most `error` before.
pub(crate) fn stored_error(dtype: Dtype, y: f64, error: f64) -> f64 {
    match dtype {
        Dtype::BF16 => bf16_error(y, error),
        _ => error,
    }
}
