//! Runs a variant on a problem (the buffers of a test case), and checks for writes outside its outputs.

mod timed;

use std::collections::BTreeSet;
use std::rc::Rc;

use super::copies::{LaunchInputs, ProblemCopy, Reused};
use super::device::{Device, Function, Memory};
use super::header::Variant;
use super::matmul::Matmul;
use super::plan::{Plan, Step, Turn, Work};
use super::session::{Bench, Kernels, Session};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::checks::{Band, Differing, Repeated, failures};
use ulplab_operations::ops::guards::{self, Checked, GUARD, Guarded};
use ulplab_operations::ops::judge::{Measured, POISON_BYTE};
use ulplab_operations::ops::{Batch, Buffer, Case, MOST_WITH_SCRATCH, Outputs, Problem, Role};

/// A variant that is loaded on the device, with the buffers of a test case in device memory, ready to be run.
pub struct Running<'a> {
    session: &'a Session<'a>,
    device: &'a Device,
    problem: &'a Problem,
    case: &'a Case,
    kernels: &'a Kernels<'a>,
    variant: &'a Variant,
    plan: Plan,
    /// Loaded kernel or matrix product of each step: first the list for the preparing launches, then the list for the run.
    loaded: [Vec<Loaded<'a>>; 2],
    set: ProblemCopy,
}

/// The loaded kernel or the matrix product of a step.
enum Loaded<'a> {
    Kernel(Function),
    Matmul(Matmul<'a>),
}

impl<'a> Running<'a> {
    /// Loads a variant, and copies a problem to the device. Buffers with reused memory keep the contents of that memory.
    pub(super) fn new(bench: Bench<'a>, variant: &'a Variant, plan: Plan, reused: &Reused) -> Result<Self> {
        let Bench { kernels, case, problem } = bench;
        let (session, device) = (kernels.session, kernels.session.device);
        let load = |step: &Step| Loaded::new(device, kernels, step);
        let load = |steps: &[Step]| steps.iter().map(load).collect::<Result<Vec<_>>>();
        let (_room, _turn) = (device.room(ProblemCopy::bytes(problem, &plan))?, device.turns.shared());
        let mut running = Self {
            session,
            device,
            problem,
            case,
            loaded: [load(&plan.prepare.steps)?, load(&plan.run.steps)?],
            set: ProblemCopy::new(device, case, problem, &plan, reused)?,
            kernels,
            variant,
            plan,
        };
        for (at, (buffer, memory)) in problem.buffers.iter().zip(&running.set.buffers).enumerate() {
            if reused.buffer(at).is_none() {
                device.write_repeated(memory, GUARD, &buffer.bytes, buffer.size())?;
            }
        }
        running.tune()?;
        Ok(running)
    }

    /// Selects the fastest algorithm of each matrix product of a run. The timings use arbitrary memory contents.
    fn tune(&mut self) -> Result<()> {
        for (step, loaded) in self.loaded[1].iter_mut().enumerate() {
            let first = self.set.launches.iter().find(|turn| turn.step == step);
            if let (Loaded::Matmul(matmul), Some(LaunchInputs::Operands(operands))) =
                (loaded, first.map(|turn| &turn.arguments))
            {
                matmul.tune(&self.session.watch, operands)?;
            }
        }
        Ok(())
    }

    /// Enqueues all launches except taps, which only store intermediate values for the correctness check.
    pub fn launch(&self) -> Result<()> {
        self.launch_on(&self.set, false)
    }

    /// Runs the preparing launches and waits for their results, as a model loader does. Without the wait, a launch that may start
    /// before the previous launch has ended could read incomplete results.
    fn prepare(&self, set: &ProblemCopy) -> Result<()> {
        let mut turns = set.prepare.iter();
        turns.try_for_each(|turn| self.put(&self.plan.prepare.steps, &self.loaded[0], turn, false))?;
        if set.prepare.is_empty() {
            Ok(())
        } else {
            self.device.wait()
        }
    }

    fn launch_on(&self, set: &ProblemCopy, taps: bool) -> Result<()> {
        self.launch_some(set, taps, |_| true)
    }

    /// Clears scratch where required, and enqueues the launches for which `kept` returns true. Enqueues taps only if `taps` is
    /// true.
    fn launch_some(&self, set: &ProblemCopy, taps: bool, kept: impl Fn(&Turn<LaunchInputs>) -> bool) -> Result<()> {
        let scratch = self.plan.scratch.iter().zip(&set.scratch);
        for (scratch, memory) in scratch.filter(|(scratch, _)| scratch.zero) {
            self.device.fill(memory, GUARD, scratch.bytes, 0)?;
        }
        let steps = &self.plan.run.steps;
        let kept = |turn: &&Turn<LaunchInputs>| kept(turn) && (taps || !steps[turn.step].tap);
        let mut turns = set.launches.iter().filter(kept);
        turns.try_for_each(|turn| self.put(steps, &self.loaded[1], turn, taps))
    }

    /// Enqueues one launch of the plan.
    fn put(&self, steps: &[Step], loaded: &[Loaded], turn: &Turn<LaunchInputs>, taps: bool) -> Result<()> {
        let named = |error: Error| match error {
            Error::Setup(why) => Error::Setup(format!("'{}': {why}", steps[turn.step].name)),
            other => other,
        };
        let put = match (&steps[turn.step].work, &loaded[turn.step], &turn.arguments) {
            (Work::Kernel { shape, .. }, Loaded::Kernel(function), LaunchInputs::Arguments(arguments)) => {
                self.device.launch(function, shape, &arguments[usize::from(taps)])
            }
            (_, Loaded::Matmul(matmul), LaunchInputs::Operands(operands)) => matmul.launch(operands),
            _ => unreachable!("made of the same step"),
        };
        put.map_err(named)
    }

    /// Runs the variant. Returns its outputs, the results of the memory checks, and the comparison of the outputs with the
    /// reference.
    pub fn judged(&self) -> Result<Checked> {
        guards::judged(self, self.variant.nondeterministic.is_none())
    }

    /// Checks the variant, so that wrong kernels are not timed. Returns an error that names the first failed check.
    pub fn right(&self, name: &str) -> Result<()> {
        let checked = self.judged()?;
        let said = |wrong: &Measured| match &wrong.failure {
            Some(failure) => failure.message.clone(),
            None => format!("{} violations in '{}'", wrong.value, wrong.output),
        };
        match failures(&checked.measured).next().map(said) {
            None => Ok(()),
            Some(said) => {
                let case = &self.case.name;
                let why = format!("{name} is wrong on case '{case}': {said}; wrong kernels are not timed");
                Err(Error::Usage(why))
            }
        }
    }

    /// Fills outputs and scratch with the byte `poison`, restores in-place buffers, and runs the preparing launches.
    fn begin(&self, poison: u8) -> Result<()> {
        let device = self.device;
        for (buffer, memory) in self.problem.buffers.iter().zip(&self.set.buffers) {
            match buffer.role {
                Role::In => {}
                Role::Out => device.fill(memory, GUARD, buffer.size(), poison)?,
                Role::InOut => device.write_repeated(memory, GUARD, &buffer.bytes, buffer.size())?,
            }
        }
        for (scratch, memory) in self.plan.scratch.iter().zip(&self.set.scratch) {
            let mut parts = 0..scratch.parts;
            parts.try_for_each(|part| device.fill(memory, GUARD + scratch.place(part), scratch.bytes, poison))?;
        }
        self.prepare(&self.set)
    }

    /// Returns the contents of the output and in-place buffers for which `wanted` is true.
    fn written(&self, wanted: impl Fn(&Buffer) -> bool) -> Result<Outputs> {
        let written = self.problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
        let written = written.filter(|buffer| wanted(buffer));
        let read = |buffer: &Buffer| Ok((buffer.name, self.read(buffer)?));
        written.map(read).collect::<Result<Vec<_>>>().map(Outputs)
    }

    /// Resets outputs and scratch, captures the launches as a CUDA graph, and replays the graph once for each run of the problem.
    /// Returns the microseconds of all replays; `None` if the launches cannot be captured.
    fn replay_runs(&self, poison: u8) -> Result<Option<f64>> {
        self.begin(poison)?;
        let Some(graph) = self.session.watch.capture(&|| self.launch())? else {
            return Ok(None);
        };
        let runs = || (0..self.problem.runs).try_for_each(|_| graph.launch(self.device));
        self.device.wait()?;
        self.session.watch.span(runs).map(Some)
    }

    /// Finds device memory to share when the rows of the problem are repeated: returns the memory that already holds `buffer`.
    /// `None` unless the buffer is an input that all rows share, such as weights.
    fn shared_by_rows(&self, buffer: &Buffer) -> Option<Rc<Memory>> {
        let batch = self.problem.batch.as_ref()?;
        if buffer.role != Role::In || batch.buffers.iter().any(|(name, _)| *name == buffer.name) {
            return None;
        }
        let mut memories = self.problem.buffers.iter().zip(&self.set.buffers);
        let same = |own: &Buffer| own.name == buffer.name && own.role == Role::In && own.shape == buffer.shape;
        let (_, memory) = memories.find(|(own, _)| same(own))?;
        Some(Rc::clone(memory))
    }

    /// Captures the launches as a CUDA graph, and replays the graph once for each run of the problem. Returns the outputs, and
    /// the time of all replays in seconds.
    pub fn generated(&self) -> Result<(Outputs, f64)> {
        let _turn = self.device.turns.alone();
        let us = self.replay_runs(0)?;
        let us = us.ok_or_else(|| Error::Setup("the launches cannot be captured as a graph".into()))?;
        Ok((self.written(|_| true)?, us / 1e6))
    }

    /// Returns the problem with all rows repeated `times` times, and its plan; `None` if the rows of the problem cannot be
    /// repeated, or if the variant does not support so many rows.
    fn with_repeated(&self, times: usize) -> Result<Option<(Case, Problem, Plan)>> {
        let Some((case, problem)) = self.problem.repeated(self.case, times).filter(|_| times > 0) else {
            return Ok(None);
        };
        let plan = Plan::new(self.variant, &case, self.device.sms).map_err(Error::Usage)?;
        Ok(plan.map(|plan| (case, problem, plan)))
    }

    /// Returns the problem with all rows repeated `times` times, to test addresses of more than 32 bits. Repeats the rows less
    /// often if the variant supports fewer rows, and halves the number while buffers and scratch take too much memory. Returns
    /// `None` if the rows cannot be repeated, or if the variant supports so few rows that no buffer needs more than 32 bits for
    /// its addresses.
    fn most_repeated(&self, times: usize) -> Result<Option<(Case, Problem, Plan)>> {
        let (mut taken, mut refused, mut next) = (0, times + 1, times);
        while taken + 1 < refused {
            match self.with_repeated(next)? {
                Some(_) => taken = next,
                None => refused = next,
            }
            next = taken.midpoint(refused);
        }
        let fewer = taken < times;
        loop {
            let found = self.with_repeated(taken)?;
            let found = found.filter(|(_, problem, _)| !fewer || problem.passes_32_bits());
            let bytes = |(_, problem, plan): &(Case, Problem, Plan)| ProblemCopy::bytes(problem, plan);
            let size = found.as_ref().map_or(0, bytes);
            if size <= MOST_WITH_SCRATCH || taken <= 1 {
                return Ok(found);
            }
            taken /= 2;
        }
    }

    /// Compares the outputs of a run on repeated rows with `outputs`, the outputs of a run on the original rows. Both ranges of
    /// an output, rows and padding ([`Batch::parts`]), must be exact repetitions. Also reads the guard bands.
    fn differing(&self, outputs: &Outputs, (batch, rows): (&Batch, usize)) -> Result<Repeated> {
        let (mut differing, mut bytes) = (Vec::new(), 0);
        let memories = self.problem.buffers.iter().zip(&self.set.buffers);
        for (buffer, memory) in memories.filter(|(buffer, _)| buffer.role != Role::In) {
            let (want, size) = (outputs.get(buffer.name), buffer.size());
            let times = size / want.len().max(1);
            for part in batch.parts(buffer.name, want.len()) {
                let begin = part.start * times;
                let found = self.differing_part(memory, &want[part], begin, times)?;
                differing.extend(found.map(|(first, count)| Differing {
                    output: buffer.name,
                    count,
                    first: begin as u64 + first,
                    row: (size / rows) as u64,
                }));
            }
            bytes += size as u64;
        }
        Ok(Repeated {
            rows,
            bytes,
            differing,
            bands: self.bands()?,
        })
    }

    /// Compares the bytes from `begin` on with `times` repetitions of `want`. Returns the offset from `begin` of the first
    /// different byte, and the number of different bytes.
    fn differing_part(&self, memory: &Memory, want: &[u8], begin: usize, times: usize) -> Result<Option<(u64, u64)>> {
        let first = self.device.read(memory, GUARD + begin, want.len())?;
        let wrong = |at: &usize| first[*at] != want[*at];
        if let Some(first) = (0..want.len()).find(wrong) {
            return Ok(Some((first as u64, (0..want.len()).filter(wrong).count() as u64)));
        }
        let repeats = self.session.repeats()?;
        repeats.differing(self.device, (memory, GUARD + begin), want.len(), want.len() * times)
    }

    /// Runs the variant once, and returns its outputs without checks.
    pub fn outputs(&self) -> Result<Outputs> {
        guards::outputs(self)
    }
}

impl Guarded for Running<'_> {
    fn problem(&self) -> &Problem {
        self.problem
    }

    fn run(&self, poison: u8) -> Result<Outputs> {
        let _turn = self.device.turns.shared();
        self.begin(poison)?;
        (0..self.problem.runs).try_for_each(|_| self.launch_on(&self.set, true))?;
        self.written(|_| true)
    }

    fn replayed(&self, poison: u8) -> Result<Option<Outputs>> {
        let _turn = self.device.turns.shared();
        if self.replay_runs(poison)?.is_none() {
            return Ok(None);
        }
        let kept: BTreeSet<&str> = self.plan.taps().collect();
        let kept = |buffer: &Buffer| buffer.role == Role::Out && kept.contains(buffer.name);
        self.written(|buffer| !kept(buffer)).map(Some)
    }

    fn on_rows(&self, rows: &[usize]) -> Result<Option<Outputs>> {
        if self.variant.varies_with_batch.is_some() {
            return Ok(None);
        }
        let Some((case, problem)) = self.problem.of_rows(self.case, rows) else {
            return Ok(None);
        };
        let plan = Plan::new(self.variant, &case, self.device.sms).map_err(Error::Usage)?;
        // Reuse the memory of inputs that all rows share: in some problems, most memory is weights.
        let shared = problem.buffers.iter().map(|buffer| self.shared_by_rows(buffer));
        let reused = Reused {
            buffers: shared.collect(),
            ..Reused::default()
        };
        let bench = self.kernels.case(&case, &problem);
        let run = |plan| Running::new(bench, self.variant, plan, &reused)?.outputs();
        plan.map(run).transpose()
    }

    fn repeated(&self, times: usize, outputs: &Outputs) -> Result<Option<Repeated>> {
        let batch = self.problem.batch.as_ref();
        let Some(batch) = batch.filter(|_| self.variant.varies_with_batch.is_none()) else {
            return Ok(None);
        };
        let Some((case, problem, plan)) = self.most_repeated(times)? else {
            return Ok(None);
        };
        let bench = self.kernels.case(&case, &problem);
        let running = Running::new(bench, self.variant, plan, &Reused::default())?;
        let _turn = self.device.turns.shared();
        running.begin(POISON_BYTE)?;
        (0..problem.runs).try_for_each(|_| running.launch_on(&running.set, true))?;
        running.differing(outputs, (batch, case.dim(batch.dim))).map(Some)
    }

    fn bands(&self) -> Result<Vec<Band>> {
        let _turn = self.device.turns.shared();
        let buffers = self.problem.buffers.iter().map(|buffer| buffer.name);
        let names = buffers.chain(self.plan.scratch.iter().map(|scratch| scratch.name.as_str()));
        let buffers = self.set.buffers.iter().map(AsRef::as_ref);
        let mut bands = Vec::new();
        let scratch = self.set.scratch.iter().map(AsRef::as_ref);
        for (name, memory) in names.zip(buffers.chain(scratch)) {
            for behind in [false, true] {
                let at = if behind { memory.len - GUARD } else { 0 };
                bands.push(Band {
                    of: name.into(),
                    behind,
                    bytes: self.device.read(memory, at, GUARD)?,
                });
            }
        }
        for (scratch, memory) in self.plan.scratch.iter().zip(&self.set.scratch) {
            for part in 1..scratch.parts {
                let end = scratch.place(part - 1) + scratch.bytes;
                bands.push(Band {
                    of: format!("{}[{}]", scratch.name, part - 1),
                    behind: true,
                    bytes: self.device.read(memory, GUARD + end, scratch.place(part) - end)?,
                });
            }
        }
        Ok(bands)
    }

    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        let _turn = self.device.turns.shared();
        let mut memories = self.problem.buffers.iter().zip(&self.set.buffers);
        let memory = memories.find(|(other, _)| other.name == buffer.name);
        let memory = memory.ok_or_else(|| Error::Usage(format!("'{}' is no buffer of the problem", buffer.name)))?;
        let (period, size) = (buffer.bytes.len(), buffer.size());
        if buffer.role == Role::In && (1..size).contains(&period) {
            // Read back one period only: the first period that differs from the beginning of the buffer, or the beginning if no
            // period differs.
            let repeats = self.session.repeats()?;
            let differing = repeats.differing(self.device, (memory.1, GUARD), period, size)?;
            let at = differing.map_or(0, |(first, _)| first as usize / period * period);
            return self.device.read(memory.1, GUARD + at, period.min(size - at));
        }
        self.device.read(memory.1, GUARD, size)
    }
}

impl<'a> Loaded<'a> {
    fn new(device: &'a Device, kernels: &Kernels, step: &Step) -> Result<Self> {
        match &step.work {
            Work::Kernel { entry, shape, .. } => {
                let function = kernels.function(entry)?;
                device.prepare(&function, shape)?;
                Ok(Self::Kernel(function))
            }
            Work::Matmul(product) => {
                let missing = || Error::Setup(format!("launch '{}': there is no cuBLASLt", step.name));
                Ok(Self::Matmul(Matmul::new(device, *product)?.ok_or_else(missing)?))
            }
        }
    }
}
