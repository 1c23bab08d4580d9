//! Checks that apply to every kernel: it must write all of its outputs and nothing else, and a second run must give the
//! same bytes. These checks belong to the judgement of every operation, so they are part of its digest.

use super::checks;
use super::checks::Band;
use super::judge::{Measured, POISON_BYTE};
use super::{Buffer, Outputs, Problem, Role};
use crate::error::Result;

/// Size of a guard band in bytes, before and behind every buffer. It is a multiple of any alignment that a kernel may
/// assume.
pub const GUARD: usize = 4096;
/// The bytes that fill outputs and scratch before the first and the second run. As numbers they are neither zero nor NaN.
const POISONS: [u8; 2] = [POISON_BYTE, 0x5a];

/// A kernel whose buffers are allocated on a device.
pub trait Guarded {
    /// The problem whose buffers the kernel reads and writes.
    fn problem(&self) -> &Problem;

    /// Fills outputs and scratch with the byte `poison`, restores the buffers that are changed in place, runs the kernel
    /// once, and returns the contents of the buffers that it writes.
    fn run(&self, poison: u8) -> Result<Outputs>;

    /// The guard bands of [`GUARD`] bytes before and behind every buffer, inputs and scratch included.
    fn bands(&self) -> Result<Vec<Band>>;

    /// The present contents of a buffer.
    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>>;
}

/// Outputs of a run, and the results of the checks.
pub struct Checked {
    /// The outputs of the first run.
    pub outputs: Outputs,
    /// The metric `violations` for guard bands, inputs and the second run.
    pub measured: Vec<Measured>,
}

/// Runs the kernel once and returns its outputs, without checks.
pub fn outputs(kernel: &impl Guarded) -> Result<Outputs> {
    kernel.run(POISONS[0])
}

/// Runs a kernel and checks guard bands and inputs. A deterministic kernel runs twice, with two different poison bytes, and
/// both runs must give the same outputs.
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

/// Runs a kernel, checks it as [`check`] does, and judges its outputs.
pub fn judged(kernel: &impl Guarded, deterministic: bool) -> Result<Checked> {
    let Checked { outputs, mut measured } = check(kernel, deterministic)?;
    measured.extend(kernel.problem().judge(&outputs));
    Ok(Checked { outputs, measured })
}
