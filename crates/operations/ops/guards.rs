//! Checks that apply to every kernel: it must write all of its outputs and nothing else; a second run, a replay as a graph, and
//! a run on other rows of its batch must give the same bytes. These checks belong to the judgement of every operation, so they are part
//! of its digest.

use super::checks;
use super::checks::{Band, Repeated};
use super::judge::{Measured, POISON_BYTE};
use super::{Buffer, Outputs, Problem, Role};
use ulplab_core::error::Result;

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
    /// as often as the problem says, and returns the contents of the buffers that it writes.
    fn run(&self, poison: u8) -> Result<Outputs>;

    /// Does the same with each run a replay of one graph, without launches that only keep values for the judgement and without their
    /// outputs. `None` if the kernel cannot be captured.
    fn replayed(&self, poison: u8) -> Result<Option<Outputs>>;

    /// The outputs on a batch of these rows of the problem; `None` if the kernel does not take such a batch.
    fn on_rows(&self, rows: &[usize]) -> Result<Option<Outputs>>;

    /// Differences from `outputs`, those of the problem itself, with all rows repeated `times` times, or as often as the kernel takes them
    /// and memory for scratch allows; `None` if the kernel does not take such a batch.
    fn repeated(&self, times: usize, outputs: &Outputs) -> Result<Option<Repeated>>;

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

/// The most bytes in the buffers of a problem that also runs as a graph and in other batches: these checks find the same faults on small
/// problems.
const MOST_CHECKED: usize = 256 << 20;
/// Sizes of further batches for the rows.
const BATCHES: [usize; 7] = [1, 2, 7, 8, 33, 64, 128];

/// Runs a kernel and checks guard bands and inputs. A deterministic kernel is run again, with another poison byte, and replayed
/// as a graph; both must give the same outputs. If the rows of its batch are independent, it is also run on other
/// batches: every row must have the same outputs, wherever it is.
pub fn check(kernel: &impl Guarded, deterministic: bool) -> Result<Checked> {
    let first = outputs(kernel)?;
    let problem = kernel.problem();
    let mut repeated = Vec::new();
    if deterministic {
        repeated.push(checks::rerun(problem, &first, &kernel.run(POISONS[1])?));
    }
    let size: usize = problem.buffers.iter().map(Buffer::size).sum();
    if deterministic && size <= MOST_CHECKED {
        let replayed = kernel.replayed(POISONS[1])?;
        repeated.extend(replayed.map(|replayed| checks::graph(problem, &first, &replayed)));
        repeated.extend(batches(kernel, &first)?);
    }
    let inputs = problem.buffers.iter().filter(|buffer| buffer.role == Role::In);
    let inputs: Vec<_> = inputs
        .map(|buffer| Ok((buffer, kernel.read(buffer)?)))
        .collect::<Result<_>>()?;
    let mut measured = vec![checks::guards(&kernel.bands()?), checks::inputs(&inputs)];
    measured.extend(repeated);
    Ok(Checked {
        outputs: first,
        measured,
    })
}

/// Runs a kernel on batches of other sizes, with rows in reversed order; batches larger than the problem repeat rows. The result is that
/// of the first batch with other bytes.
fn batches(kernel: &impl Guarded, outputs: &Outputs) -> Result<Option<Measured>> {
    let problem = kernel.problem();
    let Some(count) = problem.rows() else {
        return Ok(None);
    };
    let mut measured = None;
    for size in BATCHES {
        let rows: Vec<usize> = (0..size).map(|at| count - 1 - at % count).collect();
        let Some(found) = kernel.on_rows(&rows)? else { continue };
        let found = checks::batch(problem, &rows, outputs, &found);
        let wrong = found.failure.is_some();
        measured = Some(found);
        if wrong {
            break;
        }
    }
    Ok(measured)
}

/// Runs a kernel, checks it as [`check`] does, and judges its outputs. If all is right and the problem is large, the kernel also runs with
/// rows repeated until addresses are large: every row must have the same outputs.
pub fn judged(kernel: &impl Guarded, deterministic: bool) -> Result<Checked> {
    let Checked { outputs, mut measured } = check(kernel, deterministic)?;
    let problem = kernel.problem();
    measured.extend(problem.judge(&outputs));
    let right = checks::failures(&measured).next().is_none();
    if let Some(times) = problem
        .times_to_large()
        .filter(|_| problem.large && deterministic && right)
    {
        let repeated = kernel.repeated(times, &outputs)?;
        measured.extend(repeated.map(|repeated| checks::large(&repeated)));
    }
    Ok(Checked { outputs, measured })
}
