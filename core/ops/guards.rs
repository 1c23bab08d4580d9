//! What is checked of any kernel, whatever it computes: that it writes all of its outputs, nothing else, and the same when it
//! is run again. It is part of the judgement of every operation, and so of its digest.

use super::checks;
use super::checks::Band;
use super::judge::{Measured, POISON_BYTE};
use super::{Buffer, Outputs, Problem, Role};
use crate::error::Result;

/// Bytes before and behind every buffer; a multiple of any alignment a kernel may assume.
pub const GUARD: usize = 4096;
/// What outputs and scratch hold before the first and the second run. As numbers they are neither zero nor NaN.
const POISONS: [u8; 2] = [POISON_BYTE, 0x5a];

/// A kernel with its memory on a device.
pub trait Guarded {
    fn problem(&self) -> &Problem;

    /// Fills outputs and scratch with a byte, restores what is changed in place, and runs once; what is left in the buffers
    /// that are written.
    fn run(&self, poison: u8) -> Result<Outputs>;

    /// The bands of [`GUARD`] bytes before and behind every buffer, inputs and scratch included.
    fn bands(&self) -> Result<Vec<Band>>;

    /// What a buffer holds now.
    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>>;
}

/// What a run showed.
pub struct Checked {
    pub outputs: Outputs,
    /// The `violations` in bytes of guard bands, inputs and the second run.
    pub measured: Vec<Measured>,
}

/// What one run leaves in the buffers that are written.
pub fn outputs(kernel: &impl Guarded) -> Result<Outputs> {
    kernel.run(POISONS[0])
}

/// Runs a kernel, twice and poisoned differently if it is deterministic, and looks at every byte around and in the buffers.
pub fn check(kernel: &impl Guarded, deterministic: bool) -> Result<Checked> {
    let first = outputs(kernel)?;
    let second = deterministic.then(|| kernel.run(POISONS[1])).transpose()?;
    let problem = kernel.problem();
    let inputs = problem.buffers.iter().filter(|buffer| buffer.role == Role::In);
    let inputs: Vec<_> = inputs
        .map(|buffer| Ok((buffer, kernel.read(buffer)?)))
        .collect::<Result<_>>()?;
    let mut measured = vec![checks::guards(&kernel.bands()?), checks::inputs(&inputs)];
    measured.extend(second.map(|second| checks::rerun(problem, &first, &second)));
    Ok(Checked {
        outputs: first,
        measured,
    })
}

/// What it leaves, and all that the checks and the judgements of its outputs say.
pub fn judged(kernel: &impl Guarded, deterministic: bool) -> Result<Checked> {
    let Checked { outputs, mut measured } = check(kernel, deterministic)?;
    measured.extend(kernel.problem().judge(&outputs));
    Ok(Checked { outputs, measured })
}
