//! Timing of a whole run and of each of its launches.

use std::rc::Rc;

use safetensors::Dtype;

use super::Running;
use crate::cuda::copies::{LaunchInputs, ProblemCopy, Reused};
use crate::cuda::device::Memory;
use crate::cuda::folded::PART;
use crate::cuda::plan::Turn;
use crate::cuda::time::{Replay, Spread, Times};
use ulplab_core::error::Result;
use ulplab_operations::ops::guards::GUARD;

/// Times of one step. The launches of a step are equal except for their arguments.
pub struct LaunchTimes {
    /// Time of one launch in a CUDA graph that has only launches of this step, on the memory of the run.
    pub alone: Option<Spread>,
    /// Same as `alone`, but with all data in the L2 cache: all addresses of a large buffer map to the same few megabytes.
    pub cached: Option<Spread>,
    /// Microseconds that all launches of this step add to a run: the time of a whole run minus the time of a run without them.
    /// `None` if the run has no other step.
    pub added: Option<f64>,
}

/// Largest number of copies of a problem's buffers that are made to time runs with cold memory.
const MOST_SETS: usize = 128;

impl Running<'_> {
    /// Times each step of the plan except taps. A whole run precedes each measurement, because a launch that works in place
    /// changes its input each time it runs.
    pub fn trace(&self) -> Result<Vec<LaunchTimes>> {
        let _turn = self.device.turns.alone();
        let cached = self.cached()?;
        let alone = |set: &ProblemCopy, step: usize| {
            let turns = set.launches.iter().filter(|turn| turn.step == step);
            let works = turns.map(|turn| move || self.put(&self.plan.run.steps, &self.loaded[1], turn, false));
            self.launch_on(set, false)?;
            self.session.watch.replayed(&works.collect::<Vec<_>>())
        };
        let steps = (0..self.plan.run.steps.len()).filter(|step| !self.plan.run.steps[*step].tap);
        let steps: Vec<usize> = steps.collect();
        let whole = match steps.len() {
            1 => None,
            _ => self.without(None)?,
        };
        let times = |step: &usize| {
            let own = alone(&self.set, *step)?;
            let from_cache = cached.as_ref().map(|set| alone(set, *step)).transpose()?;
            let added = |whole: &Spread| {
                let others = self.without(Some(*step))?;
                Ok(others.map(|others| whole.median - others.median))
            };
            Ok(LaunchTimes {
                alone: own,
                cached: from_cache.unwrap_or(own),
                added: whole.as_ref().map_or(Ok(None), added)?,
            })
        };
        steps.iter().map(times).collect()
    }

    /// Times a graph of many runs, without the launches of the step `left_out`; `None` leaves out no launch.
    fn without(&self, left_out: Option<usize>) -> Result<Option<Spread>> {
        self.launch()?;
        let kept = |turn: &Turn<LaunchInputs>| Some(turn.step) != left_out;
        let works = [|| self.launch_some(&self.set, false, kept)];
        self.session.watch.replayed(&works)
    }

    /// Times the run in all ways that [`Times`] lists.
    pub fn time(&self) -> Result<Times> {
        let _turn = self.device.turns.alone();
        self.prepare(&self.set)?;
        let mut times = self.session.watch.time(&|| self.launch())?;
        times.rotated = match self.sets() {
            // The buffers are at least three times as large as the L2 cache, so `graph` already measures cold memory.
            1 => times.graph,
            sets => self.rotated(sets)?,
        };
        times.cached = match self.cached()? {
            // All buffers fit in the L2 cache, so `graph` already measures cached data.
            None => times.graph,
            Some(set) => self.session.watch.replayed(&[|| self.launch_on(&set, false)])?,
        };
        Ok(times)
    }

    /// Size in bytes of all buffers, without guard bands.
    fn bytes(&self) -> usize {
        self.set.buffers.iter().map(|memory| memory.len - 2 * GUARD).sum()
    }

    /// Number of copies of all buffers to use in rotation. Between two uses of a copy, the other copies evict it from the L2
    /// cache.
    fn sets(&self) -> usize {
        (3 * self.device.l2).div_ceil(self.bytes().max(1))
    }

    /// Copies the problem to memory that fits in the L2 cache; `None` if the original fits. In the copy, all addresses of a large
    /// buffer map to one small part of memory. The same holds for large scratch buffers that preparing launches fill. Integer
    /// buffers stay whole, since they may hold indices. Other scratch buffers stay whole, since thread blocks may synchronize
    /// through them.
    fn cached(&self) -> Result<Option<ProblemCopy>> {
        if self.bytes() <= self.device.l2 / 2 {
            return Ok(None);
        }
        let part = |from: &Memory| {
            let to = self.device.folded(from.len)?;
            self.device.copy(from, &to, from.len.min(PART))?;
            Ok(Some(Rc::new(to)))
        };
        let buffers = self.problem.buffers.iter().zip(&self.set.buffers);
        let buffers = buffers.map(|(buffer, memory)| {
            let numbers = ![Dtype::I32, Dtype::I64, Dtype::U32, Dtype::U64].contains(&buffer.dtype);
            match memory.len > 2 * PART {
                true if numbers => part(memory),
                true => Ok(Some(Rc::clone(memory))),
                false => Ok(None),
            }
        });
        let scratch = self.plan.scratch.iter().zip(&self.set.scratch);
        let scratch = scratch.map(|(scratch, memory)| {
            let whole = memory.len <= 2 * PART || !self.plan.is_prepared(&scratch.name);
            if whole { Ok(None) } else { part(memory) }
        });
        let reused = Reused {
            buffers: buffers.collect::<Result<_>>()?,
            scratch: scratch.collect::<Result<_>>()?,
        };
        self.copied(&reused).map(Some)
    }

    /// Copies the contents of all buffers, except those with reused memory, and runs the preparing launches.
    fn copied(&self, reused: &Reused) -> Result<ProblemCopy> {
        let set = ProblemCopy::new(self.device, self.case, self.problem, &self.plan, reused)?;
        for (at, (from, to)) in self.set.buffers.iter().zip(&set.buffers).enumerate() {
            if reused.buffer(at).is_none() {
                self.device.copy(from, to, from.len)?;
            }
        }
        self.prepare(&set)?;
        Ok(set)
    }

    /// Times runs that use `sets` copies of the buffers in rotation; `None` if more than [`MOST_SETS`] copies are needed.
    fn rotated(&self, sets: usize) -> Result<Option<Spread>> {
        if sets > MOST_SETS {
            return Ok(None);
        }
        let more = (1..sets).map(|_| self.copied(&Reused::default()));
        let more = more.collect::<Result<Vec<_>>>()?;
        let works = std::iter::once(&self.set).chain(&more);
        let works: Vec<_> = works.map(|set| move || self.launch_on(set, false)).collect();
        self.session.watch.replayed(&works)
    }

    /// Captures a graph of many runs, ready to be timed; `None` if the launches cannot be captured.
    pub fn replay(&self) -> Result<Option<Replay<'_>>> {
        self.prepare(&self.set)?;
        self.session.watch.replay(&[|| self.launch()])
    }
}
