//! Checks for every kernel. A kernel must write all of its outputs and nothing else. A second run, a replay as a CUDA graph, and
//! a run on other batches of the rows must give the same bytes. The hash that identifies the checks of an operation includes this
//! file, because these checks apply to every operation.

use super::checks;
use super::checks::{Band, Repeated};
use super::judge::{Measured, POISON_BYTE};
use super::{Buffer, Outputs, Problem, Role};
use ulplab_core::error::Result;

/// Size in bytes of the guard band before and after every buffer: a multiple of any alignment that a kernel may assume.
pub const GUARD: usize = 4096;
/// The bytes that fill outputs and scratch: one before the first run, the other before the second run. A float that consists of
/// either byte is neither zero nor NaN.
const POISONS: [u8; 2] = [POISON_BYTE, 0x5a];

/// A kernel whose buffers are allocated on a device.
pub trait Guarded {
    /// The problem that the kernel solves; it lists the buffers.
    fn problem(&self) -> &Problem;

    /// Fills outputs and scratch with the byte `poison`, restores in-place buffers, runs the kernel [`Problem::runs`] times, and
    /// returns the contents of all buffers that the kernel writes.
    fn run(&self, poison: u8) -> Result<Outputs>;

    /// Same as [`Guarded::run`], but each run replays one CUDA graph. The graph omits launches that only store intermediate
    /// values for the checks, and the result omits their outputs. Returns `None` if the kernel cannot be captured in a graph.
    fn replayed(&self, poison: u8) -> Result<Option<Outputs>>;

    /// Runs the kernel on a batch of these rows of the problem. `None` if the kernel does not support such a batch.
    fn on_rows(&self, rows: &[usize]) -> Result<Option<Outputs>>;

    /// Runs the kernel with all rows repeated `times` times, or fewer times if the kernel does not support so many rows or memory
    /// is too small. Returns the differences from `outputs`, the outputs of the problem without repetition; `None` if the kernel
    /// does not support such a batch.
    fn repeated(&self, times: usize, outputs: &Outputs) -> Result<Option<Repeated>>;

    /// Reads the guard bands of [`GUARD`] bytes before and after every buffer, including inputs and scratch.
    fn bands(&self) -> Result<Vec<Band>>;

    /// Reads the current contents of a buffer.
    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>>;
}

/// Outputs of the first run, and results of all checks.
pub struct Checked {
    /// The outputs of the first run.
    pub outputs: Outputs,
    /// Number of `violations` of each check: guard bands, inputs, second run, graph, batches. [`judged`] also adds metrics of
    /// outputs.
    pub measured: Vec<Measured>,
}

/// Runs the kernel once and returns its outputs, without checks.
pub fn outputs(kernel: &impl Guarded) -> Result<Outputs> {
    kernel.run(POISONS[0])
}

/// Limit of the total size of a problem's buffers, in bytes. Larger problems skip the checks with a CUDA graph and with other
/// batches, because these checks find the same faults on small problems.
const MOST_CHECKED: usize = 256 << 20;
/// Numbers of rows of the batches that [`batches`] tries.
const BATCHES: [usize; 7] = [1, 2, 7, 8, 33, 64, 128];

/// Runs a kernel, and checks guard bands and inputs. A deterministic kernel runs again with another poison byte, and must give
/// the same outputs. If the problem is small, it is also replayed as a graph and, if rows are independent, runs on other batches:
/// a row must have the same outputs at any position in a batch.
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

/// Runs a kernel on batches of other sizes, with rows in reversed order. Batches larger than the problem repeat rows. Returns
/// the measurement of the first batch that differs, or of the last batch if none differs.
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

/// Runs a kernel, and makes the checks of [`check`] and the checks of its outputs. If all checks pass and the case is large, the
/// kernel also runs with rows repeated until addresses exceed 32 bits: every repetition of a row must have the same outputs.
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
