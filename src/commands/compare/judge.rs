//! Compares one tensor of the reference with one tensor of the candidate.

use safetensors::Dtype;

use super::gates::Gate;
use crate::gate::NONFINITE;
use crate::run::verdict::Status;
use ulplab_core::metrics::{Eval, Logits, Metric, Pair, unravel};
use ulplab_core::record::Worst;
use ulplab_core::tensorfile::{Kind, Tensor};
use ulplab_core::vacuous::vacuous_between;

/// The result of comparing two tensors.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pub want: Tensor<'a>,
    pub got: Tensor<'a>,
    /// Number of NaN and infinite elements in each tensor.
    pub nonfinite: [u64; 2],
    /// Values of the metrics that are defined for these tensors; empty unless both are floating-point tensors.
    pub metrics: Vec<(&'static Metric, f64)>,
    /// The element with the largest error, or the first element that is finite in only one tensor.
    pub worst: Option<Worst>,
    pub exact: Option<IntegerDifferences>,
    pub gates: Vec<GateResult<'a>>,
    /// Gates that test nothing, since they pass for all numbers of these types; one sentence each.
    pub idle: Vec<String>,
    /// Failures, one sentence each. The comparison passes if there are none.
    pub failures: Vec<String>,
}

/// The reason why a tensor is not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unjudged {
    /// The tensors differ, and no gate bounds the difference.
    NoGate,
    /// The tensors have no elements.
    Empty,
    /// Every element is NaN or infinite in both tensors.
    NotFinite,
}

/// The differences of two tensors of integers.
#[derive(Debug, Default)]
pub(super) struct IntegerDifferences {
    pub mismatches: u64,
    /// Index of the first mismatch, and both values.
    pub first: Option<(Vec<u64>, i128, i128)>,
}

/// A gate and its result.
#[derive(Debug)]
pub(super) struct GateResult<'a> {
    pub gate: &'a Gate,
    /// Value of the metric; `None` if it is not defined.
    pub value: Option<f64>,
    pub pass: bool,
}

impl<'a> Comparison<'a> {
    pub fn new(want: Tensor<'a>, got: Tensor<'a>, metrics: &[&'static Metric], gates: &[&'a Gate]) -> Self {
        let mut comparison = Self {
            want,
            got,
            nonfinite: [0, 0],
            metrics: Vec::new(),
            worst: None,
            exact: None,
            gates: Vec::new(),
            idle: Vec::new(),
            failures: Vec::new(),
        };
        if want.shape != got.shape {
            comparison
                .failures
                .push(format!("shape: want {:?}, got {:?}", want.shape, got.shape));
        } else if want.kind() != got.kind() {
            comparison.failures.push(format!(
                "type: want {}, got {}: one is exact, the other is not",
                want.dtype, got.dtype
            ));
        } else if want.kind() == Kind::Exact {
            comparison.judge_exact();
        } else {
            comparison.judge_real(metrics, gates);
        }
        comparison
    }

    /// Returns the reason why a comparison without failures does not count as a pass: the tensors have no elements, or no finite
    /// elements, or they differ and no gate bounds the difference. `None` if the comparison passes or fails.
    pub fn unjudged(&self) -> Option<Unjudged> {
        let elements = self.want.shape.iter().product::<usize>() as u64;
        let equal = self.worst.as_ref().is_none_or(|worst| worst.want == worst.got);
        // A gate on the metric `nonfinite` bounds only the number of non-finite elements: it does not judge the differences.
        let bounds_numbers = |judged: &GateResult| judged.gate.metric.name != NONFINITE;
        match () {
            () if !self.failures.is_empty() => None,
            () if elements == 0 => Some(Unjudged::Empty),
            () if self.exact.is_some() => None,
            () if self.nonfinite[0] == elements => Some(Unjudged::NotFinite),
            () if !self.gates.iter().any(bounds_numbers) && !equal => Some(Unjudged::NoGate),
            () => None,
        }
    }

    pub fn status(&self) -> Status {
        match (self.failures.is_empty(), self.unjudged()) {
            (false, _) => Status::Fail,
            (true, None) => Status::Pass,
            (true, Some(_)) => Status::NotJudged,
        }
    }

    fn judge_exact(&mut self) {
        let (want, got) = (self.want, self.got);
        let mut exact = IntegerDifferences::default();
        for (index, (x, y)) in want.integers().zip(got.integers()).enumerate() {
            if x != y {
                exact.mismatches += 1;
                exact.first.get_or_insert_with(|| (unravel(index, want.shape), x, y));
            }
        }
        if let Some((index, x, y)) = &exact.first {
            let (count, n) = (exact.mismatches, want.shape.iter().product::<usize>());
            let first = format!("first at {index:?}: want {x}, got {y}");
            self.failures.push(format!("{count} of {n} elements differ, {first}"));
        }
        self.exact = Some(exact);
    }

    fn judge_real(&mut self, metrics: &[&'static Metric], gates: &[&'a Gate]) {
        let (want, got) = (self.want, self.got);
        let Some(pair) = pair(&want, &got, metrics) else { return };
        self.nonfinite = [pair.nonfinite_want, pair.nonfinite_got];
        self.worst = pair.worst.map(|worst| worst.in_shape(want.shape));
        if let (false, Some(at)) = (pair.same_nonfinite, &self.worst) {
            let (x, y) = (digits(at.want, want.dtype), digits(at.got, got.dtype));
            let place = format!("differ first at {:?}: want {x}, got {y}", at.index);
            let [want, got] = self.nonfinite;
            self.failures.push(format!(
                "NaN/Inf: {want} elements of the reference, {got} of the candidate; {place}"
            ));
        }
        let logits = metrics.iter().any(|metric| is_of_logits(metric));
        let logits = logits.then(|| logits_of(&want, &got)).flatten();
        let measured = |metric: &Metric| match is_of_logits(metric) {
            true => logits.as_ref().and_then(|logits| metric.measure(logits)),
            false => metric.measure(&pair),
        };
        let values = metrics.iter().filter_map(|&metric| Some((metric, measured(metric)?)));
        self.metrics = values.collect();
        for gate in gates {
            let of_sign = gate.metric.name == "cosine" && want.shape.iter().product::<usize>() == 1;
            let of_sign = of_sign.then(|| "cosine of one element is that of its sign".to_string());
            let of_one = is_of_logits(gate.metric) && want.shape.last().is_none_or(|cols| *cols == 1);
            let of_one = of_one.then(|| format!("{} of rows of one element says nothing", gate.metric.name));
            let between = || vacuous_between(gate.metric.name, gate.bound, [want.dtype, got.dtype]);
            if let Some(why) = of_sign.or(of_one).or_else(between) {
                self.idle.push(why);
                continue;
            }
            let value = measured(gate.metric);
            let pass = value.is_some_and(|value| gate.bound.admits(value));
            if !pass {
                let name = gate.metric.name;
                let found = match value {
                    Some(value) if value.is_nan() => format!("{name} is NaN, not every element is finite"),
                    Some(value) => format!("{name} is {value:?}"),
                    None => format!("{name} is not defined between {} and {}", want.dtype, got.dtype),
                };
                self.failures.push(format!("{found}; gate {}", gate.text));
            }
            self.gates.push(GateResult { gate, value, pass });
        }
    }
}

fn is_of_logits(metric: &Metric) -> bool {
    matches!(metric.eval, Eval::Logits(_))
}

/// Interprets the tensors as logits, for the metrics of logits: the size of the last dimension is the size of the vocabulary.
/// `None` if rows are empty, or an element type is not a floating-point type.
fn logits_of(want: &Tensor, got: &Tensor) -> Option<Logits> {
    let vocabulary = want.shape.last().copied().filter(|size| *size > 0)?;
    Some(Logits::new(&want.to_f64()?, &got.to_f64()?, vocabulary, &[]))
}

/// Formats an element with as many digits as distinguish it from the neighbouring values of its type.
pub(super) fn digits(value: f64, dtype: Dtype) -> String {
    match dtype {
        Dtype::F64 => format!("{value:?}"),
        // Values of all other types came from an f32, so the cast to f32 is exact.
        _ => format!("{:?}", value as f32),
    }
}

/// Returns both tensors in the narrowest type that holds their numbers exactly; `None` if a type is not a real number.
fn pair(want: &Tensor, got: &Tensor, metrics: &[&Metric]) -> Option<Pair> {
    let pair = if [want.dtype, got.dtype].contains(&Dtype::F64) {
        Pair::new(&want.to_f64()?, &got.to_f64()?)
    } else {
        Pair::new(&want.to_f32()?, &got.to_f32()?)
    };
    let ulps = want.dtype == got.dtype && metrics.iter().any(|metric| metric.unit == "ulp");
    Some(match ulps {
        true => pair.with_ulps_of_codes(want.dtype.bitsize() as u32, want.codes(), got.codes()),
        false => pair,
    })
}
