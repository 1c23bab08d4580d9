//! What is checked of any kernel, whatever it computes: that it writes all of its outputs, nothing else, and the same when it
//! is run again. It is part of the judgement of every operation, and so of its digest.

use rayon::prelude::*;

use crate::error::Result;
use crate::kernels::judge::Measured;
use crate::kernels::{Buffer, Outputs, Problem, Role};
use crate::metrics::VIOLATIONS;

/// Bytes before and behind every buffer; a multiple of any alignment a kernel may assume.
pub const GUARD: usize = 4096;
/// What they hold.
pub const GUARD_BYTE: u8 = 0xc3;
/// What outputs and scratch hold before the first and the second run. As numbers they are neither zero nor NaN.
const POISONS: [u8; 2] = [0xa5, 0x5a];

/// A kernel with its memory on a device.
pub trait Guarded {
    fn problem(&self) -> &Problem;

    /// Fills outputs and scratch with a byte, restores what is changed in place, and runs once; what is left in the buffers
    /// that are written.
    fn run(&self, poison: u8) -> Result<Outputs>;

    /// The bands of [`GUARD`] bytes before and behind every buffer, inputs and scratch included.
    fn bands(&self) -> Result<Vec<Vec<u8>>>;

    /// What a buffer holds now.
    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>>;
}

/// What a run showed.
pub struct Checked {
    pub outputs: Outputs,
    /// Of guard bands, inputs and the second run: `violations` in bytes.
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
    let mut measured = vec![guards(&kernel.bands()?), inputs(kernel)?];
    measured.extend(second.map(|second| rerun(&first, &second)));
    Ok(Checked {
        outputs: first,
        measured,
    })
}

/// All that the checks and the judgement of its outputs say.
pub fn judged(kernel: &impl Guarded, deterministic: bool) -> Result<Vec<Measured>> {
    let Checked { outputs, mut measured } = check(kernel, deterministic)?;
    measured.extend((kernel.problem().judge)(&outputs));
    Ok(measured)
}

/// What says that a kernel is wrong.
pub fn failures(measured: &[Measured]) -> impl Iterator<Item = &Measured> {
    measured
        .iter()
        .filter(|measured| measured.metric == &VIOLATIONS && measured.value != 0.0)
}

/// Bytes around buffers that changed.
fn guards(bands: &[Vec<u8>]) -> Measured {
    let bytes = || bands.iter().flatten();
    let changed = bytes().filter(|byte| **byte != GUARD_BYTE).count();
    violations("guards", changed, bytes().count())
}

/// Bytes of inputs that changed.
fn inputs(kernel: &impl Guarded) -> Result<Measured> {
    let (mut changed, mut all) = (0, 0);
    for buffer in kernel.problem().buffers.iter().filter(|buffer| buffer.role == Role::In) {
        changed += differing(&buffer.bytes, &kernel.read(buffer)?);
        all += buffer.bytes.len();
    }
    Ok(violations("inputs", changed, all))
}

/// Bytes in which two runs differ.
pub fn rerun(first: &Outputs, second: &Outputs) -> Measured {
    let pairs = first.0.iter().zip(&second.0);
    let differ = pairs.map(|((_, a), (_, b))| differing(a, b)).sum();
    let all = first.0.iter().map(|(_, bytes)| bytes.len()).sum();
    violations("rerun", differ, all)
}

/// Bytes in which two buffers differ; all that one has more than the other does.
fn differing(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.par_chunks(1 << 16).zip(b.par_chunks(1 << 16));
    let differ = chunks.map(|(a, b)| {
        if a == b {
            0
        } else {
            a.iter().zip(b).filter(|(a, b)| a != b).count()
        }
    });
    differ.sum::<usize>() + a.len().abs_diff(b.len())
}

fn violations(output: &'static str, count: usize, of: usize) -> Measured {
    Measured {
        output,
        metric: &VIOLATIONS,
        value: count as f64,
        n: of as u64,
        worst: None,
    }
}
