//! Digests of a case (inputs of one test): of the inputs of kernels, and of the judgement of outputs (expected values, bounds
//! and verdicts). The verdicts are those on correct outputs and on a fixed series of wrong outputs, called the ladder.
//!
//! Two versions of the checking code with the same digest give the same verdict on every output of the ladder. The ladder is a
//! sample of all possible outputs. For each output of the operation, the ladder has changed bits, exchanged rows, elements
//! replaced with NaN, zeros and neighbouring codes, and errors just inside and just outside the bounds. Simulated kernels also
//! change inputs, the guard bytes around outputs, and the outputs of second runs.

use safetensors::Dtype;
use ulplab_core::error::Result;
use ulplab_operations::ops::checks::{Band, Differing, GUARD_BYTE, Repeated};
use ulplab_operations::ops::guards::{self, GUARD, Guarded};
use ulplab_operations::ops::judge::{Judge, Measured, POISON_BYTE, Rms, Rule};
use ulplab_operations::ops::{Buffer, Case, Outputs, Problem, Role, Scalar};

use super::Digest;
use crate::studies::kernels::power::outputs::{FOLLOWED, right_after, right_bytes, stored, without_metrics};

/// Returns two digests of a case: of the kernels' inputs, and of the verdicts on outputs. Set `whole` if a check of outputs runs
/// a whole model and is slow: then only one wrong output is checked. If `guarded` is true, the checks around a kernel (guard
/// bytes, second run, …) are also run on simulated kernels with faults.
pub fn of(case: &Case, mut problem: Problem, whole: bool, guarded: bool) -> [String; 2] {
    problem.judges.iter_mut().for_each(without_metrics);
    let mut given = Digest::default();
    inputs(&mut given, case, &problem);
    let mut answers = Digest::default();
    let right = right_after(&problem, if whole { 0 } else { FOLLOWED });
    for judge in &problem.judges {
        requirement(&mut answers, judge);
        match &judge.rule {
            Rule::Parts(parts) => {
                for part in parts(&right) {
                    requirement(&mut answers, &part.judge);
                    verdict(&mut answers, &part.judge.measure(&part.outputs));
                    if !whole {
                        ladder(&mut answers, &part.judge);
                    }
                }
                // Check all parts together after each change of an output, because the expected values of other parts may depend
                // on the output.
                let names: Vec<&str> = right.0.iter().map(|(name, _)| *name).collect();
                for name in names.iter().take(if whole { 1 } else { names.len() }) {
                    let mut wrong = right.clone();
                    let outputs = wrong.0.iter_mut().filter(|(output, _)| output == name);
                    outputs.for_each(|(_, bytes)| flip(bytes));
                    verdict(&mut answers, &judge.measure(&wrong));
                }
            }
            _ => ladder(&mut answers, judge),
        }
    }
    if guarded {
        for fault in FAULTS {
            let kernel = Scripted {
                case,
                problem: &problem,
                right: &right,
                fault,
            };
            match guards::judged(&kernel, true) {
                Ok(checked) => verdict(&mut answers, &checked.measured),
                Err(error) => drop(answers.text(error.to_string())),
            }
        }
    }
    [given.finish(), answers.finish()]
}

/// Adds a kernel's inputs to the digest: sizes, keys, buffers and scalars. Then adds the sizes and buffers of two variations of
/// the case: with some rows only, and with repeated rows.
fn inputs(digest: &mut Digest, case: &Case, problem: &Problem) {
    digest.text(format!("{:?}", case.inputs)).count(case.keys.len());
    for (key, value) in &case.keys {
        digest.text(key).text(value);
    }
    sizes(digest, case);
    buffers(digest, &problem.buffers);
    digest.count(problem.scalars.len());
    for (name, scalar) in &problem.scalars {
        digest.text(name);
        match scalar {
            Scalar::I64(x) => digest.text("i64").bytes(&x.to_le_bytes()),
            Scalar::F32(x) => digest.text("f32").bytes(&x.to_le_bytes()),
        };
    }
    digest.count(problem.runs).count(usize::from(problem.large));
    let picked = problem.batch.as_ref().and_then(|batch| {
        let (name, axis) = batch.buffers.first()?;
        let buffer = problem.buffers.iter().find(|buffer| buffer.name == *name)?;
        let last = buffer.shape[*axis].checked_sub(1)?;
        problem.of_rows(case, &[last, 0, last])
    });
    for (case, problem) in picked.iter().chain(&problem.repeated(case, 3)) {
        sizes(digest, case);
        buffers(digest, &problem.buffers);
    }
    digest.count(problem.times_to_large().unwrap_or(0));
}

fn sizes(digest: &mut Digest, case: &Case) {
    digest.count(case.dims.len());
    for (name, size) in &case.dims {
        digest.text(name).bytes(&size.to_le_bytes());
    }
}

fn buffers(digest: &mut Digest, buffers: &[Buffer]) {
    digest.count(buffers.len());
    for buffer in buffers {
        let role = match buffer.role {
            Role::In => "in",
            Role::Out => "out",
            Role::InOut => "in_out",
        };
        digest.text(buffer.name).text(role).text(buffer.dtype.to_string());
        digest.counts(&buffer.shape).bytes(&buffer.bytes);
    }
}

/// Adds the requirement on an output to the digest: its expected numbers or bits, and the bound of every element.
fn requirement(digest: &mut Digest, judge: &Judge) {
    digest.text(judge.output).text(judge.dtype.to_string());
    digest.counts(&judge.shape);
    digest.counts(judge.rows.as_deref().unwrap_or_default());
    digest.text(judge.kind());
    match &judge.rule {
        Rule::Equal { want, any_nan, also } => {
            let others = [any_nan.start, any_nan.end, usize::from(also.is_some())];
            digest.bytes(want).counts(&others);
        }
        Rule::Within { want, bound, .. } => {
            let bounds = (0..want.len()).map(|at| bound(at, want[at]));
            digest.numbers(want.iter().copied()).numbers(bounds);
        }
        Rule::Rms(rms) => {
            digest.numbers(rms.want.iter().copied());
            digest.numbers(rms.added.iter().copied());
            digest.numbers(rms.usual.iter().flatten().copied().collect::<Vec<_>>().into_iter());
            digest.counts(&rms.groups.iter().map(|group| *group as usize).collect::<Vec<_>>());
            digest.numbers(std::iter::once(rms.bar));
        }
        Rule::Admissible {
            format,
            width,
            above,
            want,
            bound,
        } => {
            let bounds = (0..want.len()).map(|at| bound(at, want[at]));
            digest.text(format.to_string()).count(*width);
            digest.bytes(&above.to_le_bytes());
            digest.numbers(want.iter().copied()).numbers(bounds);
        }
        Rule::Finite | Rule::Parts(_) => {}
    }
}

/// Adds verdicts to the digest: the value of each metric, and the index of the worst element.
pub fn verdict(digest: &mut Digest, measured: &[Measured]) {
    digest.count(measured.len());
    for measured in measured {
        digest.text(measured.output).text(measured.metric.name);
        digest.numbers(std::iter::once(measured.value));
        digest.count(measured.n as usize);
        let worst = measured.worst.iter().flat_map(|worst| &worst.index);
        digest.counts(&worst.map(|at| *at as usize).collect::<Vec<_>>());
        digest.count(usize::from(measured.failure.is_some()));
    }
}

/// Adds to the digest the verdicts on correct outputs and on the ladder (a fixed series of wrong outputs). The ladder is short,
/// because each verdict takes as long as the check of a kernel. Most outputs of the ladder differ in every element from the
/// correct output. A check that skips elements then reports fewer wrong elements, so that the digest changes.
pub fn ladder(digest: &mut Digest, judge: &Judge) {
    let Some(right) = right_bytes(judge).or_else(|| finite(judge)) else {
        return;
    };
    let mut say = |outputs: &Outputs| verdict(digest, &judge.measure(outputs));
    say(&right);
    for (at, (_, bytes)) in right.0.iter().enumerate() {
        // Change quantized outputs byte by byte: they consist of codes and scales, whose elements have different sizes.
        let dtype = if right.0.len() == 1 { judge.dtype } else { Dtype::U8 };
        let size = (dtype.bitsize() / 8).max(1);
        let count = bytes.len() / size;
        if count == 0 {
            continue;
        }
        let mut with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut wrong = right.clone();
            change(&mut wrong.0[at].1);
            say(&wrong);
        };
        let low_bit = |bytes: &mut [u8]| bytes.iter_mut().step_by(size).for_each(|byte| *byte ^= 1);
        let sign = |bytes: &mut [u8]| {
            let high = bytes.iter_mut().skip(size - 1).step_by(size);
            high.for_each(|byte| *byte ^= 0x80);
        };
        with(&|bytes| low_bit(bytes));
        with(&|bytes| sign(bytes));
        with(&|bytes| bytes.fill(0));
        with(&|bytes| bytes.fill(0xff));
        let row = judge.shape.last().copied().unwrap_or(1) * size;
        if row > 0 && bytes.len() >= 2 * row {
            with(&|bytes| bytes.rotate_left(row));
        }
        for element in [0, count / 2, count - 1] {
            with(&|bytes| low_bit(&mut bytes[element * size..][..size]));
        }
        // One output with three changes: a NaN, a negative zero, and two exchanged elements.
        with(&|bytes| {
            bytes[..size].fill(0xff);
            bytes[(count - 1) * size..].fill(0);
            sign(&mut bytes[(count - 1) * size..]);
            for (one, other) in (0..size).zip(count / 2 * size..) {
                bytes.swap(one, other);
            }
        });
    }
    near(judge, &mut say);
}

/// Passes two outputs to `say`: one just inside its bounds, one just outside. Elements deviate upwards and downwards in turn.
fn near(judge: &Judge, say: &mut dyn FnMut(&Outputs)) {
    let want = match &judge.rule {
        Rule::Within { want, .. } | Rule::Admissible { want, .. } | Rule::Rms(Rms { want, .. }) => want,
        _ => return,
    };
    let bounds = judge.bounds().unwrap_or_default();
    for share in [0.99, 1.01] {
        let moved = want.iter().zip(&bounds).enumerate().map(|(at, (x, bound))| {
            let share = if at % 2 == 0 { share } else { -share };
            if *bound > 0.0 { x + share * bound } else { *x }
        });
        say(&stored(judge, &moved.collect::<Vec<_>>()));
    }
}

/// Returns an output of zeros if the check only requires finite numbers, else `None`.
fn finite(judge: &Judge) -> Option<Outputs> {
    let size = judge.shape.iter().product::<usize>() * judge.dtype.bitsize() / 8;
    matches!(judge.rule, Rule::Finite).then(|| Outputs(vec![(judge.output, vec![0; size])]))
}

/// Fault of a simulated kernel: names the run (e.g. the second run) or the data in which a bit is wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    SecondRun,
    Graph,
    Batch,
    Large,
    Guard,
    Input,
}

const FAULTS: [Fault; 7] = {
    use Fault::{Batch, Graph, Guard, Input, Large, None, SecondRun};
    [None, SecondRun, Graph, Batch, Large, Guard, Input]
};

/// A simulated kernel, which computes nothing: it returns the correct outputs, and has one fault.
struct Scripted<'a> {
    case: &'a Case,
    problem: &'a Problem,
    right: &'a Outputs,
    fault: Fault,
}

impl Scripted<'_> {
    /// Returns the correct outputs, with one bit of each output flipped if `fault` is the fault of this kernel.
    fn outputs(&self, fault: Fault) -> Outputs {
        let mut outputs = self.right.clone();
        if self.fault == fault {
            outputs.0.iter_mut().for_each(|(_, bytes)| flip(bytes));
        }
        outputs
    }
}

fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    bytes.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1);
}

impl Guarded for Scripted<'_> {
    fn problem(&self) -> &Problem {
        self.problem
    }

    fn run(&self, poison: u8) -> Result<Outputs> {
        Ok(match poison {
            POISON_BYTE => self.right.clone(),
            _ => self.outputs(Fault::SecondRun),
        })
    }

    fn replayed(&self, _poison: u8) -> Result<Option<Outputs>> {
        Ok(Some(self.outputs(Fault::Graph)))
    }

    fn on_rows(&self, rows: &[usize]) -> Result<Option<Outputs>> {
        // Put the outputs into the buffers of a copy of the problem, because the function that selects rows takes a problem.
        let left = self.outputs(Fault::Batch);
        let buffers = self.problem.buffers.iter().map(|buffer| {
            let written = left.0.iter().find(|(name, _)| *name == buffer.name);
            Buffer {
                bytes: written.map_or(&buffer.bytes, |(_, bytes)| bytes).clone(),
                ..buffer.clone()
            }
        });
        let held = Problem {
            buffers: buffers.collect(),
            scalars: Vec::new(),
            judges: Vec::new(),
            batch: self.problem.batch.clone(),
            ..*self.problem
        };
        let of_rows = held.of_rows(self.case, rows);
        let written = |buffer: &Buffer| buffer.role != Role::In;
        Ok(of_rows.map(|(_, problem)| {
            let buffers = problem.buffers.into_iter().filter(written);
            Outputs(buffers.map(|buffer| (buffer.name, buffer.bytes)).collect())
        }))
    }

    fn repeated(&self, times: usize, outputs: &Outputs) -> Result<Option<Repeated>> {
        let (output, bytes) = &outputs.0[0];
        let differing = Differing {
            output,
            count: 1,
            first: 0,
            row: bytes.len() as u64,
        };
        Ok(Some(Repeated {
            rows: times,
            bytes: bytes.len() as u64,
            differing: Vec::from_iter((self.fault == Fault::Large).then_some(differing)),
            bands: self.bands()?,
        }))
    }

    fn bands(&self) -> Result<Vec<Band>> {
        let band = |buffer: &Buffer, behind: bool| {
            let mut bytes = vec![GUARD_BYTE; GUARD];
            if self.fault == Fault::Guard && behind {
                flip(&mut bytes);
            }
            Band {
                of: buffer.name.into(),
                behind,
                bytes,
            }
        };
        let bands = |buffer| [false, true].map(|behind| band(buffer, behind));
        Ok(self.problem.buffers.iter().flat_map(bands).collect())
    }

    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        let mut bytes = buffer.bytes.clone();
        if self.fault == Fault::Input {
            flip(&mut bytes);
        }
        Ok(bytes)
    }
}
