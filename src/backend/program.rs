//! A program in any language as a variant of an operation: it reads a problem from one file and writes what it computes to
//! another.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::backend::cuda::guards::{Checked, rerun};
use crate::error::did_you_mean;
use crate::kernels::{Buffer, Case, Outputs, Problem, Role, Scalar};
use crate::tensorfile::{Metadata, Slot, TensorFile, write_safetensors};

/// A program, called with the paths of its inputs and of its outputs behind `run`.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    pub op: &'a str,
    pub run: &'a [String],
}

/// Lines of a program's stderr that are shown when it fails.
const TAIL: usize = 20;

impl Program<'_> {
    /// What it leaves of a problem, and the microseconds it says that took; twice, where both must be the same. The error
    /// says what went wrong, with the end of its stderr.
    pub fn check(&self, case: &Case, problem: &Problem, deterministic: bool) -> Result<(Checked, Option<f64>), String> {
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let [inputs, outputs] = ["inputs", "outputs"].map(|name| folder.path().join(format!("{name}.safetensors")));
        self.write(&inputs, case, problem)?;
        let (first, us) = self.once(&inputs, &outputs, problem)?;
        let mut measured = Vec::new();
        if deterministic {
            std::fs::remove_file(&outputs).map_err(|error| format!("{}: {error}", outputs.display()))?;
            measured.push(rerun(&first, &self.once(&inputs, &outputs, problem)?.0));
        }
        let checked = Checked {
            outputs: first,
            measured,
        };
        Ok((checked, us))
    }

    /// The inputs; sizes, keys and scalars in the metadata, and what is to be written.
    fn write(&self, file: &Path, case: &Case, problem: &Problem) -> Result<(), String> {
        let given: Vec<&Buffer> = problem
            .buffers
            .iter()
            .filter(|buffer| buffer.role != Role::Out)
            .collect();
        let slot = |buffer: &&Buffer| Slot {
            name: buffer.name.into(),
            dtype: buffer.dtype,
            shape: buffer.shape.clone(),
        };
        let wanted =
            written(problem).map(|buffer| json!({"name": buffer.name, "dtype": buffer.dtype, "shape": buffer.shape}));
        let wanted = serde_json::Value::from_iter(wanted).to_string();
        let whole = [
            ("op", self.op.to_string()),
            ("case", case.name.clone()),
            ("outputs", wanted),
        ];
        let dims = case.dims.iter().map(|(name, size)| (*name, size.to_string()));
        let scalars = problem.scalars.iter().map(|(name, scalar)| {
            let text = match scalar {
                Scalar::I32(value) => value.to_string(),
                Scalar::I64(value) => value.to_string(),
                Scalar::F32(value) => value.to_string(),
            };
            (*name, text)
        });
        let all = whole
            .into_iter()
            .chain(dims)
            .chain(case.keys.iter().cloned())
            .chain(scalars);
        let metadata: Metadata = all.map(|(name, text)| (name.to_string(), text)).collect();
        write_safetensors(file, given.iter().map(slot).collect(), &metadata, |writer| {
            given
                .iter()
                .try_for_each(|buffer| writer.put(buffer.name, &buffer.bytes))
        })
        .map_err(|error| error.to_string())
    }

    fn once(&self, inputs: &Path, outputs: &Path, problem: &Problem) -> Result<(Outputs, Option<f64>), String> {
        let [program, arguments @ ..] = self.run else {
            return Err("no program is given".into());
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(inputs).arg(outputs).stdin(Stdio::null());
        let ran = command
            .output()
            .map_err(|error| format!("cannot start '{program}': {error}"))?;
        let failed = |what: String| {
            let text = String::from_utf8_lossy(&ran.stderr);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
            let tail = if tail.is_empty() {
                "it wrote nothing to stderr".into()
            } else {
                format!("its stderr ends:\n  {tail}")
            };
            format!("'{}' {what}; {tail}", self.run.join(" "))
        };
        if !ran.status.success() {
            return Err(failed(format!("ended with {}", ran.status)));
        }
        let bytes = std::fs::read(outputs).map_err(|error| failed(format!("left no outputs.safetensors: {error}")))?;
        let file =
            TensorFile::from_bytes(outputs, bytes).map_err(|error| failed(format!("left no safetensors: {error}")))?;
        read(&file, problem).map_err(|what| failed(format!("left {what}")))
    }
}

/// What a kernel of the problem writes.
fn written(problem: &Problem) -> impl Iterator<Item = &Buffer> {
    problem.buffers.iter().filter(|buffer| buffer.role != Role::In)
}

/// The outputs of a problem, and nothing else.
fn read(file: &TensorFile, problem: &Problem) -> Result<(Outputs, Option<f64>), String> {
    let names = || written(problem).map(|buffer| buffer.name);
    if let Some(other) = file.tensors().find(|tensor| !names().any(|name| name == tensor.name)) {
        return Err(format!(
            "'{}', which is no output{}",
            other.name,
            did_you_mean(other.name, names())
        ));
    }
    let outputs = written(problem).map(|buffer| {
        let name = buffer.name;
        let found = file.get(name).ok_or_else(|| format!("no output '{name}'"))?;
        if (found.dtype, found.shape) != (buffer.dtype, &buffer.shape[..]) {
            let (dtype, shape) = (found.dtype, found.shape);
            return Err(format!(
                "'{name}' as {dtype} {shape:?}, expected {} {:?}",
                buffer.dtype, buffer.shape
            ));
        }
        Ok((name, found.bytes.to_vec()))
    });
    let outputs = outputs.collect::<Result<_, String>>()?;
    let us = file.metadata().get("us").map(|text| match text.parse::<f64>() {
        Ok(us) if us.is_finite() && us > 0.0 => Ok(us),
        _ => Err(format!("us = '{text}' in the metadata, expected microseconds above 0")),
    });
    Ok((Outputs(outputs), us.transpose()?))
}
