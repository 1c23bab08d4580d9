//! Runs a variant with delays at its synchronisations, and compares the outputs with those of a run without.

use std::collections::BTreeSet;

use super::{Loaded, Running};
use crate::cuda::delays::{self, Pattern, SITES};
use crate::cuda::plan::Work;
use ulplab_core::error::Result;
use ulplab_operations::ops::judge::Measured;
use ulplab_operations::ops::{Outputs, checks, guards};

/// Largest number of sites that are tried one by one after outputs have differed, and tries of each.
const MOST_TRIED: usize = 64;
const TRIES: u32 = 3;
/// Largest number of sites that a message names.
const MOST_NAMED: usize = 4;

impl Running<'_> {
    /// Runs the variant with delays, and counts the bytes that differ from `outputs`, those of a run without delays. A run that
    /// reaches a site for which `known` has no entry is repeated with `seeds` patterns; else one pattern is run. Adds the reached
    /// sites to `known`. Returns `None` if the variant synchronises nowhere.
    pub fn delayed(&mut self, outputs: &Outputs, seeds: u32, known: &mut BTreeSet<u32>) -> Result<Option<Measured>> {
        self.load(true)?;
        let measured = self.with_delays(outputs, seeds, known);
        self.load(false)?;
        measured
    }

    /// Exchanges the functions of all launches for those of the build with delays, or of the build without.
    fn load(&mut self, delays: bool) -> Result<()> {
        let steps = [&self.plan.prepare.steps, &self.plan.run.steps];
        for (steps, loaded) in steps.into_iter().zip(&mut self.loaded) {
            for (step, loaded) in steps.iter().zip(loaded) {
                if let (Work::Kernel { entry, shape, .. }, Loaded::Kernel(function)) = (&step.work, loaded) {
                    *function = self.kernels.function(entry, delays)?;
                    self.device.prepare(function, shape)?;
                }
            }
        }
        Ok(())
    }

    fn with_delays(&self, outputs: &Outputs, seeds: u32, known: &mut BTreeSet<u32>) -> Result<Option<Measured>> {
        let table = self.device.memory(4 * SITES)?;
        self.device.fill(&table, 0, table.len, 0)?;
        let recording = Pattern::of(1).recording(table.address);
        let mut measured = self.compared(outputs, &recording, "with the delays of seed 1")?;
        let reached = delays::reached(&self.device.read(&table, 0, table.len)?);
        if reached.is_empty() {
            return Ok(None);
        }
        let last = if reached.is_subset(known) { 1 } else { seeds };
        for seed in 2..=last {
            if measured.failure.is_some() {
                break;
            }
            measured = self.compared(outputs, &Pattern::of(seed), &format!("with the delays of seed {seed}"))?;
        }
        if let Some(failure) = &mut measured.failure {
            failure.message += &self.culprits(outputs, &reached)?;
        }
        known.extend(reached);
        Ok(Some(measured))
    }

    /// Runs the variant with a pattern of delays. Counts the bytes that differ; of a nondeterministic variant, the violations.
    fn compared(&self, outputs: &Outputs, pattern: &Pattern, of: &str) -> Result<Measured> {
        self.kernels.set_delays(pattern)?;
        let delayed = guards::outputs(self)?;
        let mut measured = match self.variant.nondeterministic {
            None => checks::rerun(self.problem, outputs, &delayed),
            Some(_) => {
                let judged = self.problem.judge(&delayed);
                let wrong = checks::failures(&judged).next().cloned();
                wrong.unwrap_or_else(|| checks::rerun(self.problem, &delayed, &delayed))
            }
        };
        measured.output = "delays";
        if let Some(failure) = &mut measured.failure {
            failure.message = format!("{of}: {}", failure.message);
            failure.why = "warps may be late at any synchronisation, and must give the same bytes".into();
        }
        Ok(measured)
    }

    /// Returns the end of a message that names the sites whose delays alone change the outputs.
    fn culprits(&self, outputs: &Outputs, reached: &BTreeSet<u32>) -> Result<String> {
        let names = self.kernels.sites();
        let mut alone = Vec::new();
        for site in reached.iter().take(MOST_TRIED) {
            for seed in 0..TRIES {
                let found = self.compared(outputs, &Pattern::at(*site, seed), "")?;
                if found.failure.is_some() {
                    alone.push(names.get(site).map_or("an unknown place", String::as_str));
                    break;
                }
            }
        }
        alone.truncate(MOST_NAMED);
        Ok(match alone.is_empty() {
            true => "; no delay at one place alone changes them".into(),
            false => format!("; a delay at {} alone changes them", alone.join(", or at ")),
        })
    }
}
