//! What a kernel or program left of a case that it fails, in a file: inputs, outputs, what was wanted and how far off it may be.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::json;

use super::plan::Cell;
use crate::backend::checks::failures;
use crate::backend::cuda::guards::Checked;
use crate::backend::program::metadata;
use crate::error::{Error, Result};
use crate::kernels::judge::{Judge, Rule, Tensor};
use crate::kernels::{Case, Outputs, Problem, Role};
use crate::tensorfile::{Slot, write_safetensors};

/// Bytes of all tensors of a capsule. Of larger ones, rows around the worst element are kept.
pub const LIMIT: usize = 64 << 20;
/// Rows that are kept on either side of the worst element.
const AROUND: usize = 8;
/// Inputs of at most so many bytes are kept whole, however large the others are.
const SMALL: usize = 1 << 20;

/// Where capsules are written, and what it takes to run a cell again.
pub struct Capsules {
    pub folder: PathBuf,
    pub experiment: PathBuf,
    pub seed: u64,
}

/// Tensors of a capsule, and what had to be left out.
#[derive(Default)]
struct Contents<'a> {
    tensors: Vec<Tensor<'a>>,
    left_out: Vec<String>,
}

impl Capsules {
    /// Writes `<folder>/<recipe>.<case>.safetensors`: `in.NAME` are inputs, `got.NAME` outputs, `want.NAME` what was wanted
    /// and `bound.NAME` how far off it may be, of all outputs that were judged.
    pub fn keep(&self, cell: &Cell, case: &Case, problem: &Problem, checked: &Checked) -> Result<()> {
        let mut judged = Vec::new();
        let parts = parts(&problem.judges, &checked.outputs);
        for judge in &problem.judges {
            match judge.rule {
                Rule::Parts(_) => judged.extend(parts.iter().map(|part| (&part.judge, Some(&part.outputs)))),
                _ => judged.push((judge, None)),
            }
        }
        let contents = Contents::of(problem, checked, &judged);
        let messages: Vec<_> = failures(&checked.measured)
            .filter_map(|wrong| wrong.failure.as_ref())
            .map(|failure| json!({"message": failure.message, "why": failure.why}))
            .collect();
        let mut metadata = metadata(cell.kernel().0, case, problem);
        let again = format!(
            "ulplab sweep {} --only '{}' --seed {} --keep-failed DIR",
            self.experiment.display(),
            cell.id,
            self.seed
        );
        let more = [
            ("variant", cell.recipe.clone()),
            ("seed", self.seed.to_string()),
            ("failures", json!(messages).to_string()),
            ("left_out", json!(contents.left_out).to_string()),
            ("again", again),
        ];
        metadata.extend(more.map(|(name, text)| (name.to_string(), text)));

        std::fs::create_dir_all(&self.folder).map_err(Error::io(&self.folder, "create"))?;
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        };
        let name: String = format!("{}.{}", cell.recipe, case.name).chars().map(plain).collect();
        let tensors = &contents.tensors;
        let slots = tensors.iter().map(|tensor| Slot {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        });
        let file = self.folder.join(format!("{name}.safetensors"));
        write_safetensors(&file, slots.collect(), &metadata, |writer| {
            tensors
                .iter()
                .try_for_each(|tensor| writer.put(&tensor.name, &tensor.bytes))
        })
    }
}

/// The parts that outputs are taken into to be judged.
fn parts(judges: &[Judge], outputs: &Outputs) -> Vec<crate::kernels::judge::Part> {
    let taken = judges.iter().filter_map(|judge| match &judge.rule {
        Rule::Parts(parts) => Some(parts(outputs)),
        _ => None,
    });
    taken.flatten().collect()
}

impl<'a> Contents<'a> {
    fn of(problem: &'a Problem, checked: &'a Checked, judged: &[(&'a Judge, Option<&'a Outputs>)]) -> Self {
        let inputs = problem.buffers.iter().filter(|buffer| buffer.role != Role::Out);
        let outputs = problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
        let wanted: usize = judged
            .iter()
            .map(|(judge, _)| 16 * judge.shape.iter().product::<usize>())
            .sum();
        let all = inputs.clone().map(|buffer| buffer.size()).sum::<usize>()
            + outputs.clone().map(|buffer| buffer.size()).sum::<usize>()
            + wanted;
        let whole = all <= LIMIT;
        let mut contents = Self::default();
        for buffer in inputs {
            if !whole && buffer.size() > SMALL {
                contents
                    .left_out
                    .push(format!("in.{}: {} bytes", buffer.name, buffer.size()));
                continue;
            }
            contents.tensors.push(Tensor {
                name: format!("in.{}", buffer.name),
                dtype: buffer.dtype,
                shape: buffer.shape.clone(),
                bytes: Cow::Borrowed(&buffer.bytes),
            });
        }
        for buffer in outputs {
            let tensor = Tensor {
                name: format!("got.{}", buffer.name),
                dtype: buffer.dtype,
                shape: buffer.shape.clone(),
                bytes: Cow::Borrowed(checked.outputs.get(buffer.name)),
            };
            let rows = (!whole).then(|| around(checked, buffer.name, &buffer.shape, tensor.row_count()));
            contents.push(tensor, rows);
        }
        for (number, (judge, part)) in judged.iter().enumerate() {
            let name = |what: &str| match part {
                Some(_) => format!("{what}.{}.{number}", judge.output),
                None => format!("{what}.{}", judge.output),
            };
            let rows = |count| (!whole).then(|| around(checked, judge.output, &judge.shape, count));
            let found = part.and_then(|outputs| outputs.0.first()).map(|(_, bytes)| Tensor {
                name: String::new(),
                dtype: judge.dtype,
                shape: judge.shape.clone(),
                bytes: Cow::Borrowed(&bytes[..]),
            });
            let found = found
                .filter(|found| found.bytes.len() * 8 == found.dtype.bitsize() * judge.shape.iter().product::<usize>());
            let each = [("want", judge.wanted()), ("bound", judge.bound()), ("part", found)];
            for (what, tensor) in each {
                if let Some(tensor) = tensor {
                    let rows = rows(tensor.row_count());
                    contents.push(
                        Tensor {
                            name: name(what),
                            ..tensor
                        },
                        rows,
                    );
                }
            }
        }
        contents
    }

    /// The tensor, or these rows of it.
    fn push(&mut self, tensor: Tensor<'a>, rows: Option<Range<usize>>) {
        match rows {
            Some(rows) if rows.len() < tensor.row_count() => {
                let (count, Range { start, end }) = (tensor.row_count(), rows);
                self.left_out.push(format!(
                    "{}: all but rows {start} to {} of {count}",
                    tensor.name,
                    end - 1
                ));
                self.tensors.push(tensor.rows(start, end));
            }
            _ => self.tensors.push(tensor),
        }
    }
}

/// Rows around the worst element of an output that is wrong; the first rows of another.
fn around(checked: &Checked, output: &str, shape: &[usize], count: usize) -> Range<usize> {
    let wrong = failures(&checked.measured).find(|wrong| wrong.output == output);
    let worst = wrong.and_then(|wrong| wrong.worst.as_ref());
    let dims = &shape[..shape.len().saturating_sub(1)];
    let row = worst
        .filter(|worst| worst.index.len() == shape.len())
        .map_or(0, |worst| {
            let index = worst.index.iter().zip(dims);
            index.fold(0, |row, (at, size)| row * size + *at as usize)
        });
    row.saturating_sub(AROUND).min(count)..(row + AROUND + 1).min(count)
}
