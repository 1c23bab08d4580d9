//! Checks for every kernel: intact guard bands around its buffers, unchanged inputs, and the same output bytes in a second run.

use rayon::prelude::*;

use super::judge::{Judge, Measured};
use super::{Buffer, Outputs, Problem};
use ulplab_core::metrics::VIOLATIONS;
use ulplab_core::record::Failure;

/// The byte that fills guard bands.
pub const GUARD_BYTE: u8 = 0xc3;

/// Guard bytes before or after a buffer, read back after the kernel ran.
pub struct Band {
    /// Name of the guarded buffer, which may be the scratch buffer.
    pub of: String,
    /// True if the bytes follow the buffer; otherwise they precede it.
    pub behind: bool,
    /// Bytes of the band after the run. Every byte that still equals [`GUARD_BYTE`] was not overwritten.
    pub bytes: Vec<u8>,
}

/// Result of a run whose rows are repeated until addresses exceed 32 bits.
pub struct Repeated {
    /// Number of rows of the run, including repetitions.
    pub rows: usize,
    /// Number of output bytes that were compared.
    pub bytes: u64,
    /// Outputs in which a repeated row differs from the same row of the small batch.
    pub differing: Vec<Differing>,
    /// Guard bands after the run.
    pub bands: Vec<Band>,
}

/// Wrong bytes of one output.
pub struct Differing {
    /// Name of the output.
    pub output: &'static str,
    /// Number of wrong bytes.
    pub count: u64,
    /// Byte offset of the first wrong byte.
    pub first: u64,
    /// Number of bytes per row.
    pub row: u64,
}

/// Counts the bytes in which repeated rows differ from the same rows of the small batch.
pub fn large(repeated: &Repeated) -> Measured {
    let rows = repeated.rows;
    let outputs = repeated.differing.iter().map(|found| {
        let (output, count, first) = (found.output, found.count, found.first);
        let at = format!("the first at byte {first}, in row {}", first / found.row.max(1));
        (count as usize, format!("{count} bytes of '{output}', {at}"))
    });
    let guards = repeated.bands.iter().filter_map(Band::touched);
    let guards = guards.map(|(count, said)| (count, format!("guard bytes: {said}")));
    let why = "a row must have the same bytes where addresses, or numbers of elements or rows, pass 32 bits";
    counted("large", outputs.chain(guards), repeated.bytes as usize, why, |_| {
        format!("with {rows} rows, outputs differ from those of a small batch")
    })
}

/// Counts the guard bytes that the kernel overwrote.
pub fn guards(bands: &[Band]) -> Measured {
    let all = bands.iter().map(|band| band.bytes.len()).sum();
    let touched = bands.iter().filter_map(Band::touched);
    let why = "a kernel must write only to its own buffers";
    counted("guards", touched, all, why, |count| {
        format!("{count} bytes were written outside of the buffers")
    })
}

/// Makes one measurement of all wrong bytes. `found` has pairs of a number of wrong bytes and a description of their location;
/// `of` is the number of checked bytes.
fn counted(
    site: &'static str,
    found: impl Iterator<Item = (usize, String)>,
    of: usize,
    why: &str,
    what: impl FnOnce(usize) -> String,
) -> Measured {
    let (counts, said): (Vec<usize>, Vec<String>) = found.unzip();
    let (count, said) = (counts.iter().sum(), said.join("; "));
    violations(site, count, of, || Failure {
        message: format!("{site}: {}: {said}", what(count)),
        bound: Some(0.0),
        why: why.into(),
        pattern: said.clone(),
        ..Failure::default()
    })
}

impl Band {
    /// Number of overwritten bytes, and a description of their location; `None` if the band is intact.
    fn touched(&self) -> Option<(usize, String)> {
        let wrong = |byte: &u8| *byte != GUARD_BYTE;
        let first = self.bytes.iter().position(wrong)?;
        let last = self.bytes.iter().rposition(wrong)?;
        let count = self.bytes.iter().filter(|byte| wrong(byte)).count();
        let place = match self.behind {
            true => format!("behind '{}', {first} to {last} bytes after its end", self.of),
            false => {
                let [first, last] = [first, last].map(|at| self.bytes.len() - at);
                format!("before '{}', {first} to {last} bytes ahead of its start", self.of)
            }
        };
        Some((count, format!("{count} {place}")))
    }
}

/// Counts the input bytes that the kernel changed. Each input comes with its bytes after the run.
pub fn inputs(inputs: &[(&Buffer, Vec<u8>)]) -> Measured {
    let pairs = inputs
        .iter()
        .map(|(buffer, now)| (*buffer, &buffer.bytes[..], &now[..]));
    let why = "a kernel must not change its inputs";
    changed("inputs", pairs, "an input was changed", why)
}

/// Counts the bytes in which two runs of a problem differ.
pub fn rerun(problem: &Problem, first: &Outputs, second: &Outputs) -> Measured {
    let why = "two runs on the same inputs must give the same bytes, unless the variant says why they may differ \
         (`nondeterministic`)";
    let pairs = pairs(problem, first, second);
    changed("rerun", pairs, "a second run left other bytes", why)
}

/// Counts the bytes in which replays of a CUDA graph differ from single launches of the same kernels.
pub fn graph(problem: &Problem, first: &Outputs, replayed: &Outputs) -> Measured {
    let why = "a graph has the same launches in the same order, and must give the same bytes";
    let pairs = pairs(problem, first, replayed);
    changed("graph", pairs, "replays of a graph left other bytes", why)
}

/// A buffer with its expected bytes and its new bytes.
type Change<'a> = (&'a Buffer, &'a [u8], &'a [u8]);

fn pairs<'a>(problem: &'a Problem, first: &'a Outputs, second: &'a Outputs) -> impl Iterator<Item = Change<'a>> {
    second.0.iter().filter_map(|(name, bytes)| {
        let buffer = problem.buffers.iter().find(|buffer| buffer.name == *name)?;
        Some((buffer, first.get(name), &bytes[..]))
    })
}

/// Counts the bytes of rows that change if a kernel runs on another batch. `first` has the outputs of the whole problem,
/// `batched` those of the batch, which consists of the rows with the indices `rows`.
pub fn batch(problem: &Problem, rows: &[usize], first: &Outputs, batched: &Outputs) -> Measured {
    let written = first.0.iter().filter_map(|(name, bytes)| {
        let buffer = problem.buffers.iter().find(|buffer| buffer.name == *name)?;
        let batch = problem.batch.as_ref()?;
        batch.rows_in(buffer)?;
        let (shape, bytes) = batch.picked(buffer, bytes, rows);
        let buffer = buffer.clone();
        Some((Buffer { shape, ..buffer }, bytes))
    });
    let expected: Vec<(Buffer, Vec<u8>)> = written.collect();
    let pairs = expected
        .iter()
        .map(|(buffer, bytes)| (buffer, &bytes[..], batched.get(buffer.name)));
    let (count, first) = (rows.len(), rows[0]);
    let many = if count == 1 { "row" } else { "rows" };
    let what = format!("in a batch of {count} {many}, beginning with row {first}, outputs differ");
    let why = "a row must have the same bytes in any batch and at any place of it";
    changed("batch", pairs, &what, why)
}

/// Counts the bytes that changed, and describes the first element that changed.
fn changed<'a>(site: &'static str, pairs: impl Iterator<Item = Change<'a>>, what: &str, why: &'static str) -> Measured {
    let (mut count, mut all, mut first) = (0, 0, None);
    for (buffer, before, now) in pairs {
        let differ = differing(before, now);
        (count, all) = (count + differ, all + before.len());
        if differ > 0 {
            first = first.or(Some((buffer, before, now)));
        }
    }
    violations(site, count, all, || {
        let (buffer, before, now) = first.expect("some byte differs");
        let judge = Judge::equal(buffer.name, buffer.dtype, &buffer.shape, before.to_vec(), why);
        let said = judge.measure(&Outputs(vec![(buffer.name, now.to_vec())]));
        let failure = said.into_iter().find_map(|measured| measured.failure);
        let failure = *failure.expect("some element differs");
        Failure {
            message: format!("{what}: {}", failure.message),
            ..failure
        }
    })
}

fn differing(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.par_chunks(1 << 16).zip(b.par_chunks(1 << 16));
    let different = chunks.filter(|(a, b)| a != b);
    different
        .map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a != b).count())
        .sum()
}

fn violations(output: &'static str, count: usize, of: usize, failure: impl FnOnce() -> Failure) -> Measured {
    let failure = (count > 0).then(|| Box::new(failure()));
    Measured {
        output,
        metric: &VIOLATIONS,
        value: count as f64,
        n: of as u64,
        worst: failure.as_ref().and_then(|failure| failure.worst.clone()),
        failure,
    }
}

/// Selects the measurements of failed checks: the metric is `violations`, and its value is not 0.
pub fn failures(measured: &[Measured]) -> impl Iterator<Item = &Measured> {
    measured
        .iter()
        .filter(|measured| measured.metric == &VIOLATIONS && measured.value != 0.0)
}
