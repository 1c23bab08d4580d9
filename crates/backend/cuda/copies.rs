//! Copies a problem (the buffers of a test case) to device memory, and puts the addresses of this memory into launch arguments.

use std::rc::Rc;

use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::checks::GUARD_BYTE;
use ulplab_operations::ops::guards::GUARD;
use ulplab_operations::ops::{Buffer, Case, Problem, Scalar};

use super::device::{Argument, Device, Memory};
use super::matmul::Operands;
use super::plan::{Launches, Named, Plan, Scratch, Step, Turn, Work};

/// Device memory for all buffers and scratch of a run, and the launches that use this memory.
pub(super) struct ProblemCopy {
    pub buffers: Vec<Rc<Memory>>,
    pub scratch: Vec<Rc<Memory>>,
    pub prepare: Vec<Turn<LaunchInputs>>,
    pub launches: Vec<Turn<LaunchInputs>>,
}

/// Existing device memory, with its contents, that a new copy of a problem uses instead of new memory. The lists have one entry
/// for each buffer and for each scratch of the problem, in order; `None` allocates new memory.
#[derive(Default)]
pub(super) struct Reused {
    pub buffers: Vec<Option<Rc<Memory>>>,
    pub scratch: Vec<Option<Rc<Memory>>>,
}

impl Reused {
    /// Returns the existing memory for the buffer with index `at`, if any.
    pub fn buffer(&self, at: usize) -> Option<&Rc<Memory>> {
        self.buffers.get(at)?.as_ref()
    }
}

/// Arguments of a launch.
pub(super) enum LaunchInputs {
    /// Two versions of a kernel's arguments. A tap is an output that only the correctness check reads: the first version, for
    /// timing, has null pointers for taps; the second version, for the check, has their addresses.
    Arguments([Vec<Argument>; 2]),
    Operands(Operands),
}

impl ProblemCopy {
    /// Number of device bytes for a copy of the problem, guard bands included.
    pub fn bytes(problem: &Problem, plan: &Plan) -> usize {
        let buffers = problem.buffers.iter().map(Buffer::size);
        let scratch = plan.scratch.iter().map(Scratch::size);
        buffers.chain(scratch).map(|bytes| bytes + 2 * GUARD).sum()
    }

    /// Allocates memory between guard bands, except where memory is reused, and sets the addresses of this memory in the
    /// arguments of the launches.
    pub fn new(device: &Device, case: &Case, problem: &Problem, plan: &Plan, reused: &Reused) -> Result<Self> {
        let guarded = |len: usize, reused: Option<&Rc<Memory>>| {
            if let Some(memory) = reused {
                return Ok(Rc::clone(memory));
            }
            let memory = device.memory(len + 2 * GUARD)?;
            device.fill(&memory, 0, memory.len, GUARD_BYTE)?;
            Ok(Rc::new(memory))
        };
        let buffers = problem.buffers.iter().enumerate();
        let buffers = buffers.map(|(at, buffer)| guarded(buffer.size(), reused.buffer(at)));
        let scratch = plan.scratch.iter().enumerate();
        let scratch = scratch.map(|(at, scratch)| {
            let reused = reused.scratch.get(at).and_then(Option::as_ref);
            guarded(scratch.size(), reused)
        });
        let mut set = Self {
            buffers: buffers.collect::<Result<_>>()?,
            scratch: scratch.collect::<Result<_>>()?,
            prepare: Vec::new(),
            launches: Vec::new(),
        };
        let names = Names { case, problem, plan };
        let bound = |launches: &Launches| {
            let turns = launches.turns.iter().map(|turn| {
                let step = turn.step;
                let arguments = names.on(&set, &launches.steps[step], &turn.arguments)?;
                Ok(Turn { step, arguments })
            });
            turns.collect::<Result<Vec<_>>>()
        };
        (set.prepare, set.launches) = (bound(&plan.prepare)?, bound(&plan.run)?);
        Ok(set)
    }
}

/// Looks up the names of launch arguments: sizes in the case, buffers and scalars in the problem, scratch in the plan.
struct Names<'a> {
    case: &'a Case,
    problem: &'a Problem,
    plan: &'a Plan,
}

impl Names<'_> {
    fn on(&self, set: &ProblemCopy, step: &Step, arguments: &[Named]) -> Result<LaunchInputs> {
        let tapped = arguments.iter().map(|argument| self.argument(set, argument));
        let tapped = tapped.collect::<Result<Vec<_>>>()?;
        if let Work::Matmul(_) = &step.work {
            let address = |(named, argument): (&Named, &Argument)| match argument {
                Argument::Wide(address) => Ok(*address),
                Argument::Narrow(_) => Err(Error::Usage(format!("'{named}' of a matmul is no buffer or scratch"))),
            };
            let addresses = arguments.iter().zip(&tapped).map(address).collect::<Result<Vec<_>>>()?;
            let (matrices, scales) = match addresses[..] {
                [a, b, d] => ([a, b, d], None),
                [a, b, d, of_a, of_b] => ([a, b, d], Some([of_a, of_b])),
                _ => unreachable!("three matrices, and two scales or none"),
            };
            return Ok(LaunchInputs::Operands(Operands { matrices, scales }));
        }
        let mut untapped = tapped.clone();
        for tap in &step.taps {
            untapped[*tap] = Argument::Wide(0);
        }
        Ok(LaunchInputs::Arguments([untapped, tapped]))
    }

    /// Resolves an argument to a number, or to the address of a buffer, of scratch, or of one part of a buffer or scratch.
    fn argument(&self, set: &ProblemCopy, named: &Named) -> Result<Argument> {
        let wrong = |why: String| Error::Usage(format!("argument '{named}': {why}"));
        let int = |value: i64| {
            let narrow = i32::try_from(value);
            let narrow = narrow.map_err(|_| Error::Usage(format!("size {named} = {value} does not fit in an int")))?;
            Ok(Argument::Narrow(narrow.cast_unsigned()))
        };
        let (name, index) = match named {
            Named::Whole(name) => (name, None),
            Named::Part(name, index) => (name, Some(*index)),
            Named::Number(number) => return int(*number),
        };
        let address = |memory: &Memory, place: usize| Argument::Wide(memory.address + (GUARD + place) as u64);
        let within = |index: i64, parts: usize| usize::try_from(index).ok().filter(|at| *at < parts);
        let mut buffers = self.problem.buffers.iter().zip(&set.buffers);
        if let Some((buffer, memory)) = buffers.find(|(buffer, _)| buffer.name == name) {
            let Some(index) = index else {
                return Ok(address(memory, 0));
            };
            let parts = buffer.shape.first().copied().unwrap_or(0);
            let at = within(index, parts).ok_or_else(|| wrong(format!("its shape is {:?}", buffer.shape)))?;
            return Ok(address(memory, buffer.size() / parts * at));
        }
        let mut scratch = self.plan.scratch.iter().zip(&set.scratch);
        if let Some((scratch, memory)) = scratch.find(|(scratch, _)| scratch.name == *name) {
            let at = within(index.unwrap_or(0), scratch.parts);
            let at = at.ok_or_else(|| wrong(format!("it has {} parts", scratch.parts)))?;
            return Ok(address(memory, scratch.place(at)));
        }
        if index.is_some() {
            return Err(wrong("only buffers of the operation and scratch have parts".into()));
        }
        if let Some((_, scalar)) = self.problem.scalars.iter().find(|(scalar, _)| scalar == name) {
            return Ok(match *scalar {
                Scalar::I64(value) => Argument::Wide(value.cast_unsigned()),
                Scalar::F32(value) => Argument::Narrow(value.to_bits()),
            });
        }
        match self.case.dims.iter().find(|(dim, _)| dim == name) {
            Some((_, size)) => int(*size),
            None => Err(wrong(
                "it is not a buffer, scratch, scalar or size of the operation".into(),
            )),
        }
    }
}
