//! Checks outputs of kernels: bit for bit, within derived error bounds, by root-mean-square errors, or as codes that result from
//! quantizing numbers within a bound.
//!
//! A check is plain data. So its expected values, bounds and reasons can be shown before a kernel runs.

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

/// Check of one output: the requirement that the output must meet, with the reason.
pub struct Judge {
    /// Name of the output, or of a part of it. Stored measurements have this name as their site.
    pub output: &'static str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape in elements.
    pub shape: Vec<usize>,
    /// Indices of the checked rows in the whole output; `None` if all rows are checked.
    pub rows: Option<Vec<usize>>,
    /// The requirement.
    pub rule: Rule,
    /// Reason for the bound; messages show it.
    pub why: Cow<'static, str>,
    /// True if unequal bits are only counted ([`UNEQUAL`]) and never fail, because another check decides whether the output
    /// passes.
    pub fact: bool,
}

/// Function of an element's index and expected value. Returns the largest allowed error of the element. A negative result means
/// that the bits must be equal.
pub type Bound = Box<dyn Fn(usize, f64) -> f64 + Send + Sync>;

/// Function that decides about an element whose bytes differ from the expected bytes: takes its index and its bytes, and returns
/// true if these bytes are also admissible.
pub type Also = Box<dyn Fn(usize, &[u8]) -> bool + Send + Sync>;

/// Function that checks all values of an output together and returns descriptions of faults; empty if there are none.
pub type Together = Box<dyn Fn(&[f64]) -> Vec<String> + Send + Sync>;

/// Condition under which an output passes the check.
pub enum Rule {
    /// Each element has the expected bits, or other bits that `also` accepts. In the columns `any_nan` of the last dimension, any
    /// NaN equals any other NaN.
    Equal {
        /// Expected bytes.
        want: Vec<u8>,
        /// Range of columns in which any NaN equals any other NaN.
        any_nan: Range<usize>,
        /// Test that accepts other bytes, for arithmetic that may be rounded in more than one way.
        also: Option<Also>,
    },
    /// Each element is within its bound of the expected value. An expected NaN must be NaN, and an expected infinity must be the
    /// same infinity.
    Within {
        /// Expected values.
        want: Vec<f64>,
        /// Largest allowed error of each element.
        bound: Bound,
        /// True if the usual metrics, such as the signal-to-noise ratio, are also computed.
        metrics: bool,
        /// Check of all errors together; `None` if there is no such check.
        together: Option<Together>,
    },
    /// All elements are finite. For each group of rows, the root-mean-square (RMS) error is at most `bar` times the RMS of the
    /// expected values; if all expected values of a group are zero, its outputs must be zero. An f32 output must not be rounded
    /// to bfloat16.
    Rms(Rms),
    /// Output `data` holds codes and output `scale` holds scales of a block format. They pass if some numbers within the bound of
    /// the expected values quantize to these codes and scales; see [`admissible`].
    Admissible {
        /// Block format of codes and scales.
        format: Box<Format>,
        /// Elements per block.
        width: usize,
        /// Global f32 scale of the tensor; ignored by formats without a global scale.
        above: f32,
        /// Expected numbers before quantization, `[rows, cols]`.
        want: Vec<f64>,
        /// Largest allowed error of each number before quantization.
        bound: Bound,
    },
    /// All elements are finite.
    Finite,
    /// The expected values depend on the outputs. The function splits the outputs into parts, each with its own check.
    Parts(Box<dyn Fn(&Outputs) -> Vec<Part> + Send + Sync>),
}

impl Rule {
    /// Expected values as numbers; `None` if a rule compares bits or has no expected values.
    pub fn numbers(&self) -> Option<&[f64]> {
        match self {
            Self::Within { want, .. } | Self::Rms(Rms { want, .. }) | Self::Admissible { want, .. } => Some(want),
            Self::Equal { .. } | Self::Finite | Self::Parts(_) => None,
        }
    }
}

/// Part of the outputs, with the check that it must pass.
pub struct Part {
    /// The check of the part.
    pub judge: Judge,
    /// Bytes of the part, stored under the output name of `judge`.
    pub outputs: Outputs,
}

/// Value of one metric of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the measured output, or of a check such as `guards`.
    pub output: &'static str,
    /// Metric that was measured.
    pub metric: &'static Metric,
    /// Value of the metric, in the metric's unit.
    pub value: f64,
    /// Number of elements measured.
    pub n: u64,
    /// Element with the largest error; `None` if the metric has none.
    pub worst: Option<Worst>,
    /// Description of the failure; `None` if the output passed.
    pub failure: Option<Box<Failure>>,
}

/// Applies the checks to the outputs, in order, and returns all measurements.
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

    /// Requires the bits to equal those of `want`.
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

    /// Requires each number to be close to its expected value in `want`: the error must be at most `bound(index, expected
    /// value)`.
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

    /// Requires each number to be close to its expected value in `want`: the error must be at most the number's bound in
    /// `bounds`.
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

    /// Requires each element to be within the error bound of its reference number. If the output is bfloat16, the bound is
    /// enlarged by the rounding to bfloat16.
    ///
    /// # Errors
    /// Returns an error if a finite number has an infinite bound.
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

    /// Requires the root-mean-square error of each group of rows to be at most `bar` times the root mean square of `want` in the
    /// group. The limit is larger if kernels also round intermediate numbers, such as the terms of a sum: `added` holds, for each
    /// group, the sum of the squares of these numbers, which is added to the sum of the squares of `want`.
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

    /// Also limits the errors of single rows and elements, and the gain (common scale error) of each group. `of_rows` has the
    /// typical mean square of each row. If the row itself has smaller values, its errors are compared with the typical mean
    /// square.
    pub fn by_rows(mut self, of_rows: Vec<f64>) -> Self {
        if let Rule::Rms(rms) = &mut self.rule {
            rms.usual = Some(of_rows);
        }
        self
    }

    /// Requires the codes `data` and the scales `scale` to result from quantizing numbers `[rows, cols]` within a bound of
    /// `want`. A block has `width` elements of a row.
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

    /// Requires all numbers to be finite.
    pub fn finite(output: &'static str, dtype: Dtype, shape: &[usize], why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(output, dtype, shape, Rule::Finite, why)
    }

    /// Creates a check that splits the outputs with `parts` and checks each part on its own.
    pub fn parts(
        output: &'static str,
        parts: impl Fn(&Outputs) -> Vec<Part> + Send + Sync + 'static,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(output, Dtype::U8, &[], Rule::Parts(Box::new(parts)), why)
    }

    /// Lets any NaN equal any other NaN in these columns of the last dimension, because arithmetic does not define the bits of a
    /// NaN.
    pub fn any_nan(mut self, columns: Range<usize>) -> Self {
        if let Rule::Equal { any_nan, .. } = &mut self.rule {
            *any_nan = columns;
        }
        self
    }

    /// Also accepts an element with unexpected bytes if `admits` returns true for these bytes.
    pub(crate) fn or(mut self, admits: impl Fn(usize, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        if let Rule::Equal { also, .. } = &mut self.rule {
            *also = Some(Box::new(admits));
        }
        self
    }

    /// Turns off the usual metrics, which are slow for hundreds of millions of numbers.
    pub fn without_metrics(mut self) -> Self {
        if let Rule::Within { metrics, .. } = &mut self.rule {
            *metrics = false;
        }
        self
    }

    /// Adds a check of all errors together, which runs after each element was found within its bound.
    pub(crate) fn together(mut self, found: impl Fn(&[f64]) -> Vec<String> + Send + Sync + 'static) -> Self {
        if let Rule::Within { together, .. } = &mut self.rule {
            *together = Some(Box::new(found));
        }
        self
    }

    /// Changes the check so that it never fails: elements with unexpected bits are only counted.
    pub(crate) fn only_fact(mut self) -> Self {
        self.fact = true;
        self
    }

    /// Sets the indices of the rows that this check covers. The indices count rows of the whole output.
    pub fn of_rows(mut self, rows: Vec<usize>) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Creates a part from this check and the bytes of the part.
    pub fn on(self, bytes: Vec<u8>) -> Part {
        let outputs = Outputs(vec![(self.output, bytes)]);
        Part { judge: self, outputs }
    }

    /// Creates a part from this check and the whole output of the same name.
    ///
    /// # Panics
    /// Panics if there is no output of this name.
    pub fn of(self, outputs: &Outputs) -> Part {
        let bytes = outputs.get(self.output).to_vec();
        self.on(bytes)
    }

    /// Applies the check to the outputs. The first metric is `violations`, the number of wrong elements. For numeric rules,
    /// `bound_ratio` (the largest ratio of error to bound) and the usual metrics follow.
    ///
    /// # Panics
    /// Panics if an output is missing or has an unexpected size.
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

    /// Expected value of an element as a number: for types that messages show as codes, this number is the code. `None` if there
    /// are no expected values.
    pub fn want(&self, at: usize) -> Option<f64> {
        match &self.rule {
            Rule::Equal { want, .. } => Some(number(self.dtype, want, at)),
            rule => Some(rule.numbers()?[at]),
        }
    }

    /// Error bounds of all elements: 0 if bits are compared; for RMS checks, the allowed RMS error of the element's group. `None`
    /// if there are no expected values.
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

    /// Returns the multi-dimensional index, in the whole output, of the checked element `at`.
    fn index(&self, at: usize) -> Vec<u64> {
        let mut index = ulplab_core::metrics::unravel(at, &self.shape);
        if let (Some(rows), Some(first)) = (&self.rows, index.first_mut()) {
            *first = rows[*first as usize] as u64;
        }
        index
    }
}

/// Unit roundoff of f32, 2^-24: half the spacing of f32 numbers at 1.
pub const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// Error bound of a number y after rounding to bfloat16, if the error before is at most `error`. The rounding adds half a spacing
/// at the largest magnitude that the number can have.
pub fn bf16_error(y: f64, error: f64) -> f64 {
    error + half_spacing(Dtype::BF16, y.abs() + error)
}

/// Error bound of a number y after it is stored as `dtype` (bfloat16 or f32), if the error before is at most `error`.
pub(crate) fn stored_error(dtype: Dtype, y: f64, error: f64) -> f64 {
    match dtype {
        Dtype::BF16 => bf16_error(y, error),
        _ => error,
    }
}
