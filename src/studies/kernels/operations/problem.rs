//! Makes the problem of a case of a user's operation: random or recorded inputs, and outputs that the reference program computes.

use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;

use super::case::shape_of;
use super::draw::{Values, numbers};
use super::own::{Bound, Output, OwnOp, expressions, largest, type_of};
use crate::backend::program::{Mode, Program};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::data::is_real;
use ulplab_operations::ops::judge::Judge;
use ulplab_operations::ops::{Buffer, Case, Data, Inputs, Outputs, Problem, lasting};

impl OwnOp {
    /// Makes the inputs and the expected outputs of a case. Runs the reference program once, on the candidates' inputs widened to
    /// f64. If the program fails, or outputs cannot be checked against its results, the error is [`Error::Reference`].
    pub fn problem_until(&self, case: &Case, data: &Data, stop: &AtomicBool) -> Result<Problem> {
        let usage = |why: String| Error::Usage(format!("case '{}' of '{}': {why}", case.name, self.name));
        let mut buffers = self.inputs(case, data).map_err(usage)?;
        let judges = self.judges(case, &buffers, stop)?;
        let output = |judge: &Judge| Buffer::output(judge.output, judge.dtype, &judge.shape);
        buffers.extend(judges.iter().map(output));
        Ok(Problem {
            bytes: buffers.iter().map(|buffer| buffer.size() as u64).sum(),
            ..Problem::new(buffers, judges)
        })
    }

    fn inputs(&self, case: &Case, data: &Data) -> Result<Vec<Buffer>, String> {
        let input = |input: &super::Input| {
            let (name, dtype) = (lasting(&input.name), type_of(&input.dtype, case));
            let shape = shape_of(name, &expressions(&input.shape), case)?;
            let values = match case.inputs {
                Inputs::Edges if is_real(dtype) => &Values::Edges,
                _ => &input.values,
            };
            let bytes = match data.given(case, name, dtype, &shape)? {
                Some(bytes) => bytes,
                None => values.draw(&format!("{}/{name}", self.name), dtype, &shape, data)?,
            };
            Ok(Buffer::input(name, dtype, &shape, bytes))
        };
        self.inputs.iter().map(input).collect()
    }

    /// Runs the reference, and returns a [`Judge`] for each output.
    fn judges(&self, case: &Case, inputs: &[Buffer], stop: &AtomicBool) -> Result<Vec<Judge>> {
        let failed = |why: String| Error::Reference(format!("case '{}' of '{}': {why}", case.name, self.name));
        let mut buffers: Vec<Buffer> = inputs.iter().map(widened).collect();
        let numbers = |buffer: &Buffer| f64s(&buffer.bytes).into_iter();
        let is_finite = |buffer: &Buffer| buffer.dtype != Dtype::F64 || numbers(buffer).all(f64::is_finite);
        let finite = buffers.iter().all(is_finite);
        for output in &self.outputs {
            let shape = shape_of(&output.name, &expressions(&output.shape), case).map_err(failed)?;
            let dtype = match output.equal {
                true => type_of(&output.dtype, case),
                false => Dtype::F64,
            };
            buffers.push(Buffer::output(lasting(&output.name), dtype, &shape));
            if output.bounded_by_reference() {
                buffers.push(Buffer::output(output.bound_name(), Dtype::F64, &shape));
            }
        }
        let problem = Problem::new(buffers, Vec::new());
        let program = Program::new(&self.name, &self.reference, Mode::Once, self.timeout, stop);
        let left = program.outputs(case, &problem);
        let left = left.map_err(|why| match stop.load(Ordering::Relaxed) {
            // Ctrl-C also ends the program: this is not a failure of the program.
            true => Error::Interrupted,
            false => failed(format!("the reference {why}")),
        })?;
        let judge = |output: &Output| output.judge(case, &left, finite).map_err(failed);
        self.outputs.iter().map(judge).collect()
    }
}

impl Output {
    fn bounded_by_reference(&self) -> bool {
        self.bound.is_some_and(|bound| bound.by_reference)
    }

    fn bound_name(&self) -> &'static str {
        lasting(&format!("{}.bound", self.name))
    }

    /// Makes the check of an output (expected values and bounds) from the reference's results. `finite` is true if all inputs are
    /// finite; then a NaN or infinity in the results is an error.
    fn judge(&self, case: &Case, left: &Outputs, finite: bool) -> Result<Judge, String> {
        let name = lasting(&self.name);
        let shape = shape_of(name, &expressions(&self.shape), case)?;
        let dtype = type_of(&self.dtype, case);
        let at = |values: &[f64], wrong: &dyn Fn(f64) -> bool| {
            let at = values.iter().position(|x| wrong(*x))?;
            Some((ulplab_core::metrics::unravel(at, &shape), values[at]))
        };
        let finite = |want: &[f64]| match at(want, &|x| !x.is_finite()).filter(|_| finite) {
            None => Ok(()),
            Some((index, x)) => Err(format!("the reference left {name}{index:?} = {x} of finite inputs")),
        };
        let Some(Bound { relative, absolute, .. }) = self.bound else {
            let want = left.get(name).to_vec();
            finite(&numbers(name, dtype, &shape, &want))?;
            return Ok(Judge::equal(name, dtype, &shape, want, self.why.clone()));
        };
        let want = f64s(left.get(name));
        finite(&want)?;
        if !self.bounded_by_reference() {
            let bound = move |_, y: f64| relative * y.abs() + absolute;
            return Ok(Judge::within(name, dtype, &shape, want, bound, self.why.clone()));
        }
        let of = self.bound_name();
        let bounds = f64s(left.get(of));
        if let Some((index, bound)) = at(&bounds, &|x| !(x.is_finite() && x >= 0.0)) {
            let left = format!("the reference left {of}{index:?} = {bound}");
            return Err(format!("{left}, expected a finite bound >= 0"));
        }
        let most = largest(dtype);
        if let Some((index, bound)) = at(&bounds, &|x| x >= most) {
            return Err(format!(
                "the reference left {of}{index:?} = {bound:e}, expected less than {most:e}, the largest number of {dtype}: \
                 nothing could fail it"
            ));
        }
        let bound = move |at, _| bounds[at];
        Ok(Judge::within(name, dtype, &shape, want, bound, self.why.clone()))
    }
}

/// Converts real numbers to f64; integers stay unchanged.
fn widened(input: &Buffer) -> Buffer {
    if !is_real(input.dtype) {
        return input.clone();
    }
    let numbers = numbers(input.name, input.dtype, &input.shape, &input.bytes);
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Buffer::input(input.name, Dtype::F64, &input.shape, bytes)
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|x| f64::from_le_bytes(*x)).collect()
}
