//! A case of a user's operation as a problem: its inputs, and what the reference program says of them.

use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;

use super::case::shape_of;
use super::draw::{Values, is_real, numbers};
use super::own::{Bound, Output, OwnOp, expressions, type_of};
use crate::backend::program::{Mode, Program};
use crate::error::{Error, Result};
use crate::kernels::judge::{Measured, equal, within};
use crate::kernels::{Buffer, Case, Data, Inputs, Outputs, Problem, lasting};

/// What an output must be.
struct Expected {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    right: Right,
}

enum Right {
    /// These bytes.
    Equal(Vec<u8>),
    /// Within `bounds` of these numbers.
    Within { want: Vec<f64>, bounds: Vec<f64> },
}

impl OwnOp {
    /// Inputs and judgement of a case. The reference program is run once, on the numbers that candidates are given, widened
    /// to f64. If it fails, or what it leaves cannot judge anything, that is an [`Error::Reference`].
    pub fn problem(&self, case: &Case, data: &Data, stop: &AtomicBool) -> Result<Problem> {
        let usage = |why: String| Error::Usage(format!("case '{}' of '{}': {why}", case.name, self.name));
        let mut buffers = self.inputs(case, data).map_err(usage)?;
        let expected = self.expected(case, &buffers, stop)?;
        let output = |expected: &Expected| Buffer::output(expected.name, expected.dtype, &expected.shape);
        buffers.extend(expected.iter().map(output));
        Ok(Problem {
            bytes: buffers.iter().map(|buffer| buffer.size() as u64).sum(),
            buffers,
            scalars: Vec::new(),
            flops: 0,
            judge: Box::new(move |outputs: &Outputs| expected.iter().flat_map(|one| one.judge(outputs)).collect()),
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

    /// What the reference says of inputs.
    fn expected(&self, case: &Case, inputs: &[Buffer], stop: &AtomicBool) -> Result<Vec<Expected>> {
        let failed = |why: String| Error::Reference(format!("case '{}' of '{}': {why}", case.name, self.name));
        let widened: Vec<Buffer> = inputs.iter().map(widened).collect();
        let finite = widened
            .iter()
            .all(|buffer| buffer.dtype != Dtype::F64 || all_finite(&f64s(&buffer.bytes)));
        let mut buffers = widened;
        for output in &self.outputs {
            let shape = shape_of(&output.name, &expressions(&output.shape), case).map_err(failed)?;
            let dtype = if output.equal {
                type_of(&output.dtype, case)
            } else {
                Dtype::F64
            };
            buffers.push(Buffer::output(lasting(&output.name), dtype, &shape));
            if output.bounded_by_reference() {
                buffers.push(Buffer::output(output.bound_name(), Dtype::F64, &shape));
            }
        }
        let problem = Problem {
            buffers,
            scalars: Vec::new(),
            bytes: 0,
            flops: 0,
            judge: Box::new(|_| Vec::new()),
        };
        let program = Program::new(&self.name, &self.reference, Mode::Once, self.timeout, stop);
        let left = program
            .outputs(case, &problem)
            .map_err(|why| match stop.load(Ordering::Relaxed) {
                // Ctrl-C ends the program too: that says nothing of it.
                true => Error::Interrupted,
                false => failed(format!("the reference {why}")),
            })?;
        let expected = |output: &Output| output.expected(case, &left, finite).map_err(failed);
        self.outputs.iter().map(expected).collect()
    }
}

impl Output {
    fn bounded_by_reference(&self) -> bool {
        self.bound.is_some_and(|bound| bound.by_reference)
    }

    fn bound_name(&self) -> &'static str {
        lasting(&format!("{}.bound", self.name))
    }

    /// What the reference left of it, if that can judge. Only NaN and infinities among the inputs excuse others here.
    fn expected(&self, case: &Case, left: &Outputs, finite: bool) -> Result<Expected, String> {
        let name = lasting(&self.name);
        let shape = shape_of(name, &expressions(&self.shape), case)?;
        let dtype = type_of(&self.dtype, case);
        let at = |values: &[f64], wrong: &dyn Fn(f64) -> bool| {
            let at = values.iter().position(|x| wrong(*x))?;
            Some((crate::metrics::unravel(at, &shape), values[at]))
        };
        let right = match self.bound {
            None => Right::Equal(left.get(name).to_vec()),
            Some(Bound { relative, absolute, .. }) => {
                let want = f64s(left.get(name));
                let bounds = match self.bounded_by_reference() {
                    true => f64s(left.get(self.bound_name())),
                    false => want.iter().map(|want| relative * want.abs() + absolute).collect(),
                };
                let unusable = |x: f64| !(x.is_finite() && x >= 0.0);
                if self.bounded_by_reference()
                    && let Some((index, bound)) = at(&bounds, &unusable)
                {
                    let name = self.bound_name();
                    return Err(format!(
                        "the reference left {name}{index:?} = {bound}, expected a finite bound >= 0"
                    ));
                }
                Right::Within { want, bounds }
            }
        };
        let want = match &right {
            Right::Within { want, .. } => want.clone(),
            Right::Equal(bytes) => numbers(name, dtype, &shape, bytes),
        };
        match at(&want, &|x| !x.is_finite()).filter(|_| finite) {
            None => Ok(Expected {
                name,
                dtype,
                shape,
                right,
            }),
            Some((index, x)) => Err(format!("the reference left {name}{index:?} = {x} of finite inputs")),
        }
    }
}

impl Expected {
    fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        let (name, shape, got) = (self.name, &self.shape[..], outputs.get(self.name));
        match &self.right {
            Right::Equal(want) => vec![equal(name, want, got, shape, self.dtype.bitsize() / 8)],
            Right::Within { want, bounds } => {
                let got = numbers(name, self.dtype, shape, got);
                within(name, want, &got, |at| bounds[at], shape)
            }
        }
    }
}

/// Real numbers in f64; integers as they are.
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

fn all_finite(values: &[f64]) -> bool {
    values.iter().all(|x| x.is_finite())
}
