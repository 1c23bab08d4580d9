//! Makes the outputs of a correct kernel from the expected values of an operation, stores faults in these outputs, and checks
//! if the faults are noticed.

use std::ops::Deref;
use std::sync::Arc;

use safetensors::Dtype;
use ulplab_core::formats::GlobalScale;
use ulplab_core::metrics::VIOLATIONS;
use ulplab_core::random::{gaussian, stream};
use ulplab_operations::ops::data::float_bytes;
use ulplab_operations::ops::judge::{Judge, Measured, Part, Rms, Rule, number};
use ulplab_operations::ops::{Buffer, Outputs, Problem, Role};

use super::faults::Numbers;

/// Largest number of rounds in the search for correct outputs whose expected values depend on other outputs. Each round replaces
/// the outputs with their expected values, which may change other expected values.
pub const FOLLOWED: usize = 64;

/// An output (or a part of an output), with functions that store a fault in it and check it. A part is checked separately,
/// because its expected values depend on the rest of the outputs.
pub struct Judged<'a> {
    /// Name of the output or of the part.
    pub name: &'static str,
    /// Kinds of the comparisons that the output must pass.
    pub rule: String,
    /// Type of the output's elements.
    pub dtype: Dtype,
    /// True if the output is compared bit by bit.
    pub bits: bool,
    /// The expected numbers. `None` if bits are compared, or if all numbers are zero or not finite.
    pub numbers: Option<Numbers>,
    /// The bytes that a correct kernel writes, by the name of the output.
    right: Outputs,
    store: Box<dyn Fn(&[f64]) -> Outputs + 'a>,
    refuses: Box<dyn Fn(&Outputs) -> bool + 'a>,
}

impl<'a> Judged<'a> {
    /// Builds a [`Judged`] from the check of an output; `rule` lists the kinds of all comparisons that the output must pass.
    /// `None` if the check expects no particular values.
    fn new(
        judge: impl Deref<Target = Judge> + 'a,
        rule: String,
        refuses: impl Fn(&Outputs) -> bool + 'a,
    ) -> Option<Self> {
        Some(Self {
            name: judge.output,
            rule,
            dtype: judge.dtype,
            bits: matches!(judge.rule, Rule::Equal { .. }),
            numbers: numbers(&judge),
            right: right_bytes(&judge)?,
            store: Box::new(move |values| stored(&judge, values)),
            refuses: Box::new(refuses),
        })
    }

    /// True if the check rejects outputs in which these numbers replace the correct ones.
    pub fn refuses(&self, numbers: &[f64]) -> bool {
        (self.refuses)(&(self.store)(numbers))
    }

    /// True if the check rejects the outputs of a correct kernel.
    pub fn refuses_right(&self) -> bool {
        (self.refuses)(&self.right)
    }

    /// True if the check rejects a flip of the lowest bit of one element near the middle; `None` if all elements are NaN.
    pub fn refuses_a_bit(&self) -> Option<bool> {
        let mut wrong = self.right.clone();
        let (_, bytes) = wrong.0.iter_mut().find(|(name, _)| *name == self.name)?;
        let size = self.dtype.bitsize() / 8;
        let (middle, end) = (bytes.len() / size / 2, bytes.len() / size);
        // Skip NaNs: the check may accept a NaN with any payload.
        let mut elements = (middle..end).chain(0..middle);
        let at = elements.find(|at| !number(self.dtype, bytes, *at).is_nan())?;
        bytes[at * size] ^= 1;
        Some((self.refuses)(&wrong))
    }
}

/// Returns all outputs, and parts of outputs, that the checks of a case compare with expected values.
pub fn judged(problem: &mut Problem) -> Vec<Judged<'_>> {
    problem.judges.iter_mut().for_each(without_metrics);
    let problem = &*problem;
    let right = right_after(problem, FOLLOWED);
    let mut all: Vec<Judged> = Vec::new();
    for judge in &problem.judges {
        match &judge.rule {
            Rule::Parts(parts) => {
                let whole = Some((judge, &right)).filter(|_| !wrong(&judge.measure(&right)));
                let parts = parts(&right).into_iter();
                all.extend(parts.filter_map(|part| of_part(problem, part, whole)));
            }
            _ if all.iter().any(|other| other.name == judge.output) => {}
            _ => {
                let judges = problem.judges.iter().filter(|other| other.output == judge.output);
                all.extend(of_judges(judges.collect()));
            }
        }
    }
    all
}

/// Builds a [`Judged`] from all checks of one output; `None` if the checks expect no particular values.
fn of_judges(judges: Vec<&Judge>) -> Option<Judged<'_>> {
    let first = judges[0];
    let kinds: Vec<&str> = judges.iter().map(|judge| judge.kind()).collect();
    Judged::new(first, kinds.join(", "), move |outputs| {
        judges.iter().any(|judge| wrong(&judge.measure(outputs)))
    })
}

/// Builds a [`Judged`] from a part of the outputs; `None` if the part's check expects no particular values. `whole` has the check
/// of all outputs, and outputs that this check accepts; it is `None` if no such outputs are known. If the part lies in these
/// outputs, a fault is stored there and judged by the check of all outputs, because other expected values may depend on the part.
/// Otherwise only the part is checked.
fn of_part<'a>(problem: &'a Problem, mut part: Part, whole: Option<(&'a Judge, &Outputs)>) -> Option<Judged<'a>> {
    without_metrics(&mut part.judge);
    let own = Arc::new(part.judge);
    let (also, rule) = (own.clone(), own.kind().into());
    match whole.zip(place(&own, problem)) {
        Some(((judge, outputs), place)) => {
            let right = outputs.clone();
            Judged::new(own, rule, move |written| {
                let mut outputs = right.clone();
                written.0.iter().for_each(|(_, bytes)| place.write(&mut outputs, bytes));
                wrong(&judge.measure(&outputs))
            })
        }
        None => Judged::new(own, rule, move |outputs| wrong(&also.measure(outputs))),
    }
}

fn wrong(measured: &[Measured]) -> bool {
    let is_wrong = |found: &Measured| found.metric == &VIOLATIONS && found.value != 0.0;
    measured.iter().any(is_wrong)
}

/// Turns off the metrics that do not affect the verdict.
pub fn without_metrics(judge: &mut Judge) {
    if let Rule::Within { metrics, .. } = &mut judge.rule {
        *metrics = false;
    }
}

/// Returns the numbers that a check expects; `None` if the check compares bits or expects no particular numbers.
fn numbers(judge: &Judge) -> Option<Numbers> {
    let cols = judge.shape.last().copied().unwrap_or(1).max(1);
    let digits = if judge.dtype == Dtype::BF16 { 7 } else { 23 };
    match &judge.rule {
        Rule::Within { want, bound, .. } => {
            let as_it_was = |at: usize| bound(at, want[at]) < 0.0;
            Numbers::new(want.clone(), &as_it_was, cols, digits)
        }
        Rule::Rms(Rms { want, .. }) => Numbers::new(want.clone(), &|_| false, cols, digits),
        // Use the 23 stored significand bits of f32: a kernel computes the values in f32 before it quantizes them.
        Rule::Admissible { want, .. } => Numbers::new(want.clone(), &|_| false, cols, 23),
        Rule::Equal { .. } | Rule::Finite | Rule::Parts(_) => None,
    }
}

/// Returns the bytes that a check expects: the expected values rounded to the type of the output.
pub fn right_bytes(judge: &Judge) -> Option<Outputs> {
    match &judge.rule {
        Rule::Equal { want, .. } => Some(Outputs(vec![(judge.output, want.clone())])),
        Rule::Within { want, .. } | Rule::Rms(Rms { want, .. }) | Rule::Admissible { want, .. } => {
            Some(stored(judge, want))
        }
        Rule::Finite | Rule::Parts(_) => None,
    }
}

/// Converts numbers to the bytes of an output, or to the codes and scales of its format.
pub fn stored(judge: &Judge, values: &[f64]) -> Outputs {
    let narrow: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    Outputs(match &judge.rule {
        Rule::Admissible { format, above, .. } => {
            let encoded = format.encode(&narrow, judge.shape[1], GlobalScale::Stored(&[*above]));
            ["data", "scale"].map(|part| (part, encoded.part(part).to_vec())).into()
        }
        _ => vec![(judge.output, float_bytes(judge.dtype, &narrow))],
    })
}

/// Location of a part of the outputs: name of the output, bytes of a row, and row indices.
struct Place {
    output: &'static str,
    row_bytes: usize,
    /// Indices of the part's rows; `None` for all rows of the output.
    rows: Option<Vec<usize>>,
}

impl Place {
    fn write(&self, outputs: &mut Outputs, bytes: &[u8]) {
        let Some((_, into)) = outputs.0.iter_mut().find(|(name, _)| *name == self.output) else {
            return;
        };
        match &self.rows {
            None => into.copy_from_slice(bytes),
            Some(rows) => {
                for (row, bytes) in rows.iter().zip(bytes.chunks_exact(self.row_bytes)) {
                    into[row * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
                }
            }
        }
    }
}

/// Returns the location of a part. `None` if no output has the part's name, or the part's rows are not rows of the output.
fn place(judge: &Judge, problem: &Problem) -> Option<Place> {
    let mut written = problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
    let buffer = written.find(|buffer| buffer.name == judge.output)?;
    let bytes = judge.shape.iter().product::<usize>() * judge.dtype.bitsize() / 8;
    let row_bytes = bytes / judge.shape.first().copied().unwrap_or(1).max(1);
    let fits = match &judge.rows {
        None => bytes == buffer.size(),
        Some(rows) => row_bytes > 0 && rows.iter().all(|row| (row + 1) * row_bytes <= buffer.size()),
    };
    (fits && judge.dtype == buffer.dtype && bytes > 0).then(|| Place {
        output: judge.output,
        row_bytes,
        rows: judge.rows.clone(),
    })
}

/// Returns the outputs of a correct kernel, as far as they can be determined. If expected values depend on outputs, these outputs
/// begin as random numbers; then up to `rounds` rounds replace them with their expected values.
pub fn right_after(problem: &Problem, rounds: usize) -> Outputs {
    let written = problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
    let mut outputs = Outputs(written.map(|buffer| (buffer.name, before(buffer))).collect());
    let own = problem.judges.iter().filter_map(right_bytes).flat_map(|right| right.0);
    for (name, bytes) in own {
        if let Some((_, into)) = outputs.0.iter_mut().find(|(output, _)| *output == name) {
            *into = bytes;
        }
    }
    for judge in &problem.judges {
        let Rule::Parts(parts) = &judge.rule else { continue };
        for _ in 0..rounds {
            let before = outputs.clone();
            for part in parts(&before) {
                let Some(place) = place(&part.judge, problem) else {
                    continue;
                };
                let right = right_bytes(&part.judge).unwrap_or_default();
                right.0.iter().for_each(|(_, bytes)| place.write(&mut outputs, bytes));
            }
            if outputs.0 == before.0 {
                break;
            }
        }
    }
    outputs
}

/// Returns the initial bytes of an output: the previous content of an in-place output, random numbers of type f32 or bf16, or
/// zeros of other types.
fn before(buffer: &Buffer) -> Vec<u8> {
    match buffer.dtype {
        _ if buffer.role == Role::InOut => buffer.bytes.iter().copied().cycle().take(buffer.size()).collect(),
        Dtype::F32 | Dtype::BF16 => {
            let drawn = gaussian(&mut stream(0, buffer.name), buffer.shape.iter().product());
            float_bytes(buffer.dtype, &drawn)
        }
        _ => vec![0; buffer.size()],
    }
}
