//! Times of a run, and of each of its launches.

use std::rc::Rc;

use safetensors::Dtype;

use super::Running;
use crate::cuda::copies::{BoundLaunch, ProblemCopy, Reused};
use crate::cuda::device::Memory;
use crate::cuda::folded::PART;
use crate::cuda::time::{Replay, Spread, Times};
use ulplab_core::error::Result;
use ulplab_operations::ops::guards::GUARD;

/// Times of a launch.
pub struct LaunchTimes {
    /// A turn, as one of many of this launch alone in a graph, on the run's own memory.
    pub alone: Option<Spread>,
    /// The same with all memory in the L2 cache, however large it is.
    pub cached: Option<Spread>,
    /// Microseconds that all its turns add to a run: what is left of a run without them is taken from a whole one. None if there is no
    /// other launch.
    pub added: Option<f64>,
}

/// Most copies of a problem that are made to time it.
const MOST_SETS: usize = 128;

impl Running<'_> {
    /// Times each launch of the plan except taps. A whole run comes before each, since a launch that changes what it reads in
    /// place leaves other numbers the more often it runs.
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

    /// The time of a run, as one of many in a graph, in which all turns of a launch are left out.
    fn without(&self, left_out: Option<usize>) -> Result<Option<Spread>> {
        self.launch()?;
        let kept = |turn: &BoundLaunch| Some(turn.step) != left_out;
        let works = [|| self.launch_some(&self.set, false, kept)];
        self.session.watch.replayed(&works)
    }

    /// Times the run.
    pub fn time(&self) -> Result<Times> {
        let _turn = self.device.turns.alone();
        self.prepare(&self.set)?;
        let mut times = self.session.watch.time(&|| self.launch())?;
        times.rotated = match self.sets() {
            // One set does not fit the cache: it has been measured.
            1 => times.graph,
            sets => self.rotated(sets)?,
        };
        times.cached = match self.cached()? {
            // All of it is in the cache anyway.
            None => times.graph,
            Some(set) => self.session.watch.replayed(&[|| self.launch_on(&set, false)])?,
        };
        Ok(times)
    }

    /// Bytes of all buffers.
    fn bytes(&self) -> usize {
        self.set.buffers.iter().map(|memory| memory.len - 2 * GUARD).sum()
    }

    /// Number of copies of all buffers that are needed so that each copy has left the L2 cache when its turn comes.
    fn sets(&self) -> usize {
        (3 * self.device.l2).div_ceil(self.bytes().max(1))
    }

    /// The launches on memory that lies in the L2 cache: large buffers, and what was prepared of them, are one part of them over and
    /// over. Buffers of integers are whole, since they may say where something is, and so is scratch, by which thread blocks may wait
    /// for each other. None if all of it fits the cache as it is.
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
        let set = ProblemCopy::new(self.device, self.case, self.problem, &self.plan, &reused)?;
        let own = self.set.buffers.iter().zip(&set.buffers).zip(&reused.buffers);
        for ((from, to), _) in own.filter(|(_, reused)| reused.is_none()) {
            self.device.copy(from, to, from.len)?;
        }
        self.prepare(&set)?;
        Ok(Some(set))
    }

    /// Times on that many copies, one after the other; none if they are too many.
    fn rotated(&self, sets: usize) -> Result<Option<Spread>> {
        if sets > MOST_SETS {
            return Ok(None);
        }
        let more = (1..sets).map(|_| {
            let set = ProblemCopy::new(self.device, self.case, self.problem, &self.plan, &Reused::default())?;
            for (from, to) in self.set.buffers.iter().zip(&set.buffers) {
                self.device.copy(from, to, from.len)?;
            }
            self.prepare(&set)?;
            Ok(set)
        });
        let more = more.collect::<Result<Vec<_>>>()?;
        let works = std::iter::once(&self.set).chain(&more);
        let works: Vec<_> = works.map(|set| move || self.launch_on(set, false)).collect();
        self.session.watch.replayed(&works)
    }

    /// A graph of many runs, ready to be timed; none if the launches cannot be captured.
    pub fn replay(&self) -> Result<Option<Replay<'_>>> {
        self.prepare(&self.set)?;
        self.session.watch.replay(&[|| self.launch()])
    }
}
