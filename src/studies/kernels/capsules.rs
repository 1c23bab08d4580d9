//! Capsules: files with a case that a kernel or program fails. A capsule has the inputs, outputs, expected values and bounds.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::draws::Draw;
use crate::backend::program::metadata;
use crate::run::invocation::{Invocation, quoted};
use crate::run::plan::Cell;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Result};
use ulplab_core::record::Failure;
use ulplab_operations::ops::checks::failures;
use ulplab_operations::ops::guards::Checked;
use ulplab_operations::ops::judge::{self, Judge, Measured, Rule, Tensor};
use ulplab_operations::ops::{Buffer, Outputs, Problem, Role};

/// Largest size of a capsule's tensors, in bytes. If the tensors are larger, only rows around the worst element are stored.
pub const LIMIT: usize = 64 << 20;
/// Number of rows that are stored on either side of the worst element.
const AROUND: usize = 8;
/// Inputs of at most this many bytes are stored whole, even if the capsule exceeds [`LIMIT`].
const SMALL: usize = 1 << 20;

/// The result of a kernel or program on a case.
pub enum CellResult<'a> {
    /// Outputs, some of which are wrong.
    Outputs(&'a Checked),
    /// No outputs to compare. `why` is the reason, and `file` is the content of the invalid file that a program wrote.
    Nothing { why: &'a str, file: Option<&'a [u8]> },
}

/// The folder of capsules, and the command line of the run that writes them.
pub struct Capsules {
    pub folder: PathBuf,
    pub invocation: Invocation,
    /// True if the run tries several random inputs (draws) of each case.
    pub several: bool,
}

/// Tensors of a capsule, and descriptions of the left-out data.
#[derive(Default)]
struct Contents<'a> {
    tensors: Vec<Tensor<'a>>,
    left_out: Vec<String>,
}

impl Capsules {
    /// Creates the folder, and checks that files can be written to it, before anything is run.
    pub fn prepare(folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        let probe = tempfile::NamedTempFile::new_in(folder).map_err(Error::io(folder, "write to"))?;
        probe.close().map_err(Error::io(folder, "write to"))
    }

    /// Writes `<folder>/<recipe>.<case>.safetensors`, with inputs `in.NAME`, outputs `got.NAME`, and for all compared outputs the
    /// expected values `want.NAME` and bounds `bound.NAME`. For a part of an output, a number follows NAME.
    /// If a program wrote an invalid file, the file is copied to `<folder>/<recipe>.<case>.left`. If a case fails on several
    /// random inputs, only the first failure is written.
    pub fn keep(&self, cell: &Cell, draw: Draw, left: &CellResult) -> Result<()> {
        let (case, problem, seed) = (draw.case, draw.problem, draw.seed);
        let mut judged = Vec::new();
        let none = Outputs::default();
        let (measured, outputs, parts) = match left {
            CellResult::Outputs(checked) => {
                let parts = parts(&problem.judges, &checked.outputs);
                (&checked.measured[..], &checked.outputs, parts)
            }
            CellResult::Nothing { .. } => (&[][..], &none, Vec::new()),
        };
        for judge in &problem.judges {
            match judge.rule {
                Rule::Parts(_) => judged.extend(parts.iter().map(|part| (&part.judge, Some(&part.outputs)))),
                _ => judged.push((judge, None)),
            }
        }
        let contents = Contents::new(problem, measured, outputs, &judged);
        let messages: Vec<_> = match left {
            CellResult::Outputs(_) => {
                let failures = failures(measured).filter_map(|wrong| wrong.failure.as_deref());
                let message = |failure: &Failure| json!({"message": failure.message, "why": failure.why});
                failures.map(message).collect()
            }
            CellResult::Nothing { why, .. } => vec![json!({"message": why, "why": ""})],
        };
        let op = cell.kernel().0;
        let mut metadata = metadata(op, case, problem);
        let again = format!("{} --keep-failed DIR", self.alone(&cell.id).command(seed));
        let experiment = quoted(&self.invocation.experiment.display().to_string());
        let case = quoted(&case.name);
        let dump = format!("ulplab kernels dump {op} {case} DIR --experiment {experiment} --seed {seed}");
        let more = [
            ("variant", cell.recipe.clone()),
            ("seed", seed.to_string()),
            ("failures", json!(messages).to_string()),
            ("left_out", json!(contents.left_out).to_string()),
            ("again", again),
            ("dump", dump),
        ];
        metadata.extend(more.map(|(name, text)| (name.to_string(), text)));

        let name = name(&cell.recipe, &draw.case.name);
        let file = self.folder.join(format!("{name}.safetensors"));
        judge::write(&file, &contents.tensors, &metadata)?;
        let file = self.folder.join(format!("{name}.left"));
        match left {
            CellResult::Nothing { file: Some(bytes), .. } => write_atomic(&file, |out| out.write_all(bytes)),
            // Remove the `.left` file of an earlier run, because this run left none.
            _ if file.exists() => std::fs::remove_file(&file).map_err(Error::io(&file, "remove")),
            _ => Ok(()),
        }
    }

    /// Returns the command line that runs only this cell, on one random input.
    fn alone(&self, cell: &str) -> Invocation {
        let others = |item: &&String| !(self.several && item.trim_start().starts_with("draws"));
        let set = self.invocation.set.iter().filter(others).cloned();
        Invocation {
            set: set.chain(self.several.then(|| "draws=1".into())).collect(),
            only: vec![cell.into()],
            skip: Vec::new(),
            timed: false,
            peers: None,
            ..self.invocation.clone()
        }
    }
}

/// Returns the file name of a cell without extension.
fn name(recipe: &str, case: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    format!("{recipe}.{case}").replace(|c| !plain(c), "_")
}

/// Splits outputs into the parts that are checked separately, because their expected values depend on other outputs.
fn parts(judges: &[Judge], outputs: &Outputs) -> Vec<ulplab_operations::ops::judge::Part> {
    let taken = judges.iter().filter_map(|judge| match &judge.rule {
        Rule::Parts(parts) => Some(parts(outputs)),
        _ => None,
    });
    taken.flatten().collect()
}

impl<'a> Contents<'a> {
    fn new(
        problem: &'a Problem,
        measured: &[Measured],
        left: &'a Outputs,
        judged: &[(&'a Judge, Option<&'a Outputs>)],
    ) -> Self {
        let inputs = problem.buffers.iter().filter(|buffer| buffer.role != Role::Out);
        let outputs = problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
        let outputs = outputs.filter(|buffer| left.0.iter().any(|(name, _)| *name == buffer.name));
        let elements = |judge: &Judge| judge.shape.iter().product::<usize>();
        let wanted = judged.iter().map(|(judge, _)| 16 * elements(judge));
        let sizes = inputs.clone().chain(outputs.clone()).map(Buffer::size);
        let whole = sizes.chain(wanted).sum::<usize>() <= LIMIT;
        let tensor = |what: &str, buffer: &Buffer, bytes: &'a [u8]| Tensor {
            name: format!("{what}.{}", buffer.name),
            dtype: buffer.dtype,
            shape: buffer.shape.clone(),
            bytes: Cow::Borrowed(bytes),
        };
        let mut contents = Self::default();
        for buffer in inputs {
            let (name, size) = (buffer.name, buffer.size());
            match whole || size <= SMALL {
                true => contents.tensors.push(tensor("in", buffer, &buffer.bytes)),
                false => contents.left_out.push(format!("in.{name}: {size} bytes")),
            }
        }
        for buffer in outputs {
            let tensor = tensor("got", buffer, left.get(buffer.name));
            let rows = (!whole).then(|| around(measured, buffer.name, &buffer.shape, tensor.row_count()));
            contents.push(tensor, rows);
        }
        for (number, (judge, part)) in judged.iter().enumerate() {
            let name = |what: &str| match part {
                Some(_) => format!("{what}.{}.{number}", judge.output),
                None => format!("{what}.{}", judge.output),
            };
            let rows = |count| (!whole).then(|| around(measured, judge.output, &judge.shape, count));
            let found = part.and_then(|outputs| outputs.0.first()).map(|(_, bytes)| Tensor {
                name: String::new(),
                dtype: judge.dtype,
                shape: judge.shape.clone(),
                bytes: Cow::Borrowed(&bytes[..]),
            });
            let bits = judge.dtype.bitsize() * elements(judge);
            let found = found.filter(|found| found.bytes.len() * 8 == bits);
            let each = [("want", judge.wanted()), ("bound", judge.bound()), ("part", found)];
            for (what, tensor) in each {
                if let Some(mut tensor) = tensor {
                    tensor.name = name(what);
                    let rows = rows(tensor.row_count());
                    contents.push(tensor, rows);
                }
            }
        }
        contents
    }

    /// Adds a tensor. If `rows` is given, adds only these rows, and a description of the left-out rows.
    fn push(&mut self, tensor: Tensor<'a>, rows: Option<Range<usize>>) {
        match rows {
            Some(rows) if rows.len() < tensor.row_count() => {
                let (name, count, Range { start, end }) = (&tensor.name, tensor.row_count(), rows);
                let what = format!("{name}: all but rows {start} to {} of {count}", end - 1);
                self.left_out.push(what);
                self.tensors.push(tensor.rows(start, end));
            }
            _ => self.tensors.push(tensor),
        }
    }
}

/// Returns the rows around the worst element if the output is wrong, else the first rows.
fn around(measured: &[Measured], output: &str, shape: &[usize], count: usize) -> Range<usize> {
    let wrong = failures(measured).find(|wrong| wrong.output == output);
    let worst = wrong.and_then(|wrong| wrong.worst.as_ref());
    let dims = &shape[..shape.len().saturating_sub(1)];
    let worst = worst.filter(|worst| worst.index.len() == shape.len());
    let index = worst.into_iter().flat_map(|worst| worst.index.iter().zip(dims));
    let row = index.fold(0, |row, (at, size)| row * size + *at as usize);
    row.saturating_sub(AROUND).min(count)..(row + AROUND + 1).min(count)
}
