//! A variant run on a problem, with everything that shows it writing where or what it should not.

use rayon::prelude::*;

use super::device::{Argument, Device, Function, Memory, Module};
use super::plan::{Plan, Step};
use super::time::{Spread, Stopwatch, Times};
use crate::error::{Error, Result};
use crate::kernels::judge::Measured;
use crate::kernels::{Buffer, Case, Outputs, Problem, Role, Scalar};

/// Bytes before and behind every buffer; a multiple of any alignment a kernel may assume.
const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xc3;
/// What outputs hold before the first and the second run. As numbers they are neither zero nor NaN.
const POISONS: [u8; 2] = [0xa5, 0x5a];

/// Most copies of a problem that are made to time it.
const MOST_SETS: usize = 128;

/// A problem on the device, ready to be run.
pub struct Running<'a> {
    device: &'a Device,
    problem: &'a Problem,
    case: &'a Case,
    plan: &'a Plan,
    set: Set<'a>,
}

/// Memory of everything a run reads and writes, and the launches on it.
struct Set<'a> {
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    launches: Vec<(Function, &'a Step, Vec<Argument>)>,
}

/// What a run showed.
pub struct Checked {
    pub outputs: Outputs,
    /// Of guard bands, inputs and the second run: `violations` in bytes.
    pub measured: Vec<Measured>,
}

impl<'a> Running<'a> {
    pub fn new(
        device: &'a Device,
        module: &Module,
        case: &'a Case,
        problem: &'a Problem,
        plan: &'a Plan,
    ) -> Result<Self> {
        let function = |step: &Step| {
            let function = module.function(&step.entry)?;
            device.prepare(function, &step.shape)?;
            Ok(function)
        };
        let functions = plan.steps.iter().map(function).collect::<Result<Vec<_>>>()?;
        let running = Self {
            device,
            problem,
            case,
            plan,
            set: Set::new(device, case, problem, plan, &functions)?,
        };
        for (buffer, memory) in problem.buffers.iter().zip(&running.set.buffers) {
            device.write(memory, GUARD, &buffer.bytes)?;
        }
        Ok(running)
    }

    /// Puts all launches into the stream.
    pub fn launch(&self) -> Result<()> {
        self.launch_on(&self.set)
    }

    fn launch_on(&self, set: &Set) -> Result<()> {
        for ((_, bytes, zero), memory) in self.plan.scratch.iter().zip(&set.scratch) {
            if *zero {
                self.device.fill(memory, GUARD, *bytes, 0)?;
            }
        }
        for (function, step, arguments) in &set.launches {
            self.device.launch(*function, &step.shape, arguments)?;
        }
        Ok(())
    }

    /// How long it takes.
    pub fn time(&self, watch: &Stopwatch) -> Result<Times> {
        let mut times = watch.time(&|| self.launch())?;
        times.rotated = self.rotated(watch)?;
        Ok(times)
    }

    /// On so many copies of all memory, one after the other, that none of it is in the second-level cache when its turn
    /// comes; none where that would take too many.
    fn rotated(&self, watch: &Stopwatch) -> Result<Option<Spread>> {
        let bytes: usize = self.set.buffers.iter().map(|memory| memory.len - 2 * GUARD).sum();
        let sets = (3 * self.device.l2).div_ceil(bytes.max(1));
        if sets > MOST_SETS {
            return Ok(None);
        }
        let functions: Vec<Function> = self.set.launches.iter().map(|(function, ..)| *function).collect();
        let more = (1..sets).map(|_| {
            let set = Set::new(self.device, self.case, self.problem, self.plan, &functions)?;
            for (from, to) in self.set.buffers.iter().zip(&set.buffers) {
                self.device.copy(from, to, from.len)?;
            }
            Ok(set)
        });
        let more = more.collect::<Result<Vec<_>>>()?;
        let works = std::iter::once(&self.set).chain(&more);
        let works: Vec<_> = works.map(|set| move || self.launch_on(set)).collect();
        watch.replayed(&works)
    }

    /// Runs twice, poisoned differently, and looks at every byte around and in the buffers.
    pub fn check(&self, deterministic: bool) -> Result<Checked> {
        let first = self.outputs()?;
        let mut measured = vec![self.guards()?, self.inputs()?];
        if deterministic {
            measured.push(rerun(&first, &self.poisoned(POISONS[1])?));
        }
        Ok(Checked {
            outputs: first,
            measured,
        })
    }

    /// What one run leaves in the buffers that it writes.
    pub fn outputs(&self) -> Result<Outputs> {
        self.poisoned(POISONS[0])
    }

    fn poisoned(&self, poison: u8) -> Result<Outputs> {
        let device = self.device;
        for (buffer, memory) in self.problem.buffers.iter().zip(&self.set.buffers) {
            match buffer.role {
                Role::In => {}
                Role::Out => device.fill(memory, GUARD, buffer.size(), poison)?,
                Role::InOut => device.write(memory, GUARD, &buffer.bytes)?,
            }
        }
        for ((_, bytes, _), memory) in self.plan.scratch.iter().zip(&self.set.scratch) {
            device.fill(memory, GUARD, *bytes, poison)?;
        }
        self.launch()?;
        let written = self
            .problem
            .buffers
            .iter()
            .zip(&self.set.buffers)
            .filter(|(buffer, _)| buffer.role != Role::In);
        let read = |(buffer, memory): (&Buffer, &Memory)| Ok((buffer.name, device.read(memory, GUARD, buffer.size())?));
        written.map(read).collect::<Result<Vec<_>>>().map(Outputs)
    }

    /// Bytes around buffers that changed.
    fn guards(&self) -> Result<Measured> {
        let (mut changed, mut all) = (0, 0);
        for memory in self.set.buffers.iter().chain(&self.set.scratch) {
            for at in [0, memory.len - GUARD] {
                let band = self.device.read(memory, at, GUARD)?;
                changed += band.iter().filter(|byte| **byte != GUARD_BYTE).count();
                all += GUARD;
            }
        }
        Ok(violations("guards", changed, all))
    }

    /// Bytes of inputs that changed.
    fn inputs(&self) -> Result<Measured> {
        let (mut changed, mut all) = (0, 0);
        for (buffer, memory) in self.problem.buffers.iter().zip(&self.set.buffers) {
            if buffer.role == Role::In {
                changed += differing(&buffer.bytes, &self.device.read(memory, GUARD, buffer.bytes.len())?);
                all += buffer.bytes.len();
            }
        }
        Ok(violations("inputs", changed, all))
    }
}

impl<'a> Set<'a> {
    /// Memory between guard bands, and launches with its addresses.
    fn new(device: &Device, case: &Case, problem: &Problem, plan: &'a Plan, functions: &[Function]) -> Result<Self> {
        let guarded = |len: usize| {
            let memory = device.memory(len + 2 * GUARD)?;
            device.fill(&memory, 0, memory.len, GUARD_BYTE)?;
            Ok(memory)
        };
        let buffers = problem.buffers.iter().map(|buffer| guarded(buffer.size()));
        let scratch = plan.scratch.iter().map(|(_, bytes, _)| guarded(*bytes));
        let mut set = Self {
            buffers: buffers.collect::<Result<_>>()?,
            scratch: scratch.collect::<Result<_>>()?,
            launches: Vec::new(),
        };
        for (step, function) in plan.steps.iter().zip(functions) {
            let arguments = step
                .arguments
                .iter()
                .map(|name| set.argument(name, case, problem, plan));
            let arguments = arguments.collect::<Result<_>>()?;
            set.launches.push((*function, step, arguments));
        }
        Ok(set)
    }

    fn argument(&self, name: &str, case: &Case, problem: &Problem, plan: &Plan) -> Result<Argument> {
        let address = |memory: &Memory| Argument::Wide(memory.address + GUARD as u64);
        let buffer = problem.buffers.iter().position(|buffer| buffer.name == name);
        let scratch = plan.scratch.iter().position(|(scratch, ..)| scratch == name);
        let scalar = problem.scalars.iter().find(|(scalar, _)| *scalar == name);
        let dim = case.dims.iter().find(|(dim, _)| *dim == name);
        match (buffer, scratch, scalar, dim) {
            (Some(at), ..) => Ok(address(&self.buffers[at])),
            (_, Some(at), ..) => Ok(address(&self.scratch[at])),
            (_, _, Some((_, scalar)), _) => Ok(match *scalar {
                Scalar::I32(value) => Argument::Narrow(value.cast_unsigned()),
                Scalar::I64(value) => Argument::Wide(value.cast_unsigned()),
                Scalar::F32(value) => Argument::Narrow(value.to_bits()),
            }),
            (_, _, _, Some((_, size))) => {
                let size = i32::try_from(*size).map_err(|_| Error::Usage(format!("size {name} = {size} is no int")))?;
                Ok(Argument::Narrow(size.cast_unsigned()))
            }
            _ => Err(Error::Usage(format!(
                "argument '{name}' is no buffer, scratch, scalar or size of the operation"
            ))),
        }
    }
}

/// Bytes in which two runs differ.
pub fn rerun(first: &Outputs, second: &Outputs) -> Measured {
    let pairs = first.0.iter().zip(&second.0);
    let differ = pairs.map(|((_, a), (_, b))| differing(a, b)).sum();
    let all = first.0.iter().map(|(_, bytes)| bytes.len()).sum();
    violations("rerun", differ, all)
}

fn differing(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.par_chunks(1 << 16).zip(b.par_chunks(1 << 16));
    chunks
        .map(|(a, b)| {
            if a == b {
                0
            } else {
                a.iter().zip(b).filter(|(a, b)| a != b).count()
            }
        })
        .sum()
}

fn violations(output: &'static str, count: usize, of: usize) -> Measured {
    Measured {
        output,
        metric: "violations",
        value: count as f64,
        n: of as u64,
        worst: None,
    }
}
