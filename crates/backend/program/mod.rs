//! Runs a program in any language as a variant of an operation: the program reads a problem from one file and writes its outputs
//! to another file.

mod process;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use process::{Limits, Server, ServerError, run_once};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use ulplab_core::error::{did_you_mean, refuse};
use ulplab_core::input;
use ulplab_core::tensorfile::{Metadata, Slot, TensorFile, write_safetensors};
use ulplab_operations::ops::checks::rerun;
use ulplab_operations::ops::guards::Checked;
use ulplab_operations::ops::{Buffer, Case, Outputs, Problem, Role, Scalar};

/// Start of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The program is started once for every run. The paths of the input file and of the output file follow its arguments.
    #[default]
    Once,
    /// The program is started once for all runs. It reads the paths of each run from its stdin.
    Serve,
}

/// Default timeout of one run of a program, in seconds.
pub const TIMEOUT: f64 = 300.0;

/// Limit on the bytes read from an output file, as a multiple of the expected size: enough to report a wrong type or shape.
/// [`HEADER`] more bytes are read for the file's header.
const READ: u64 = 8;
const HEADER: u64 = 1 << 20;

/// Outputs of a run, and its time in microseconds if the program reports it.
type Ran = (Outputs, Option<f64>);

/// Failure of a program that left no valid outputs.
#[derive(Debug)]
pub struct ProgramFailure {
    /// Error message, with the end of the program's stderr.
    pub why: String,
    /// Content of the file that the program wrote in place of valid outputs, if it can be read.
    pub left: Option<Vec<u8>>,
}

/// A program, and its running process if the mode is [`Mode::Serve`].
pub struct Program<'a> {
    op: &'a str,
    run: &'a [String],
    mode: Mode,
    limits: Limits<'a>,
    server: RefCell<Option<Server>>,
}

impl<'a> Program<'a> {
    /// Describes a program without starting it. `timeout` is in seconds; the program is killed as soon as `stop` turns true.
    pub fn new(op: &'a str, run: &'a [String], mode: Mode, timeout: f64, stop: &'a AtomicBool) -> Self {
        let timeout = Duration::from_secs_f64(timeout);
        Self {
            op,
            run,
            mode,
            limits: Limits { timeout, stop },
            server: RefCell::new(None),
        }
    }

    /// Runs the program on a problem. If `deterministic`, runs it a second time, and requires equal outputs of both runs. Returns
    /// the outputs, and the microseconds if the program reports them. The error has the end of the program's stderr.
    pub fn check(
        &self,
        case: &Case,
        problem: &Problem,
        deterministic: bool,
    ) -> Result<(Checked, Option<f64>), ProgramFailure> {
        let runs = self.runs(case, problem, if deterministic { 2 } else { 1 })?;
        let mut runs = runs.into_iter();
        let (outputs, us) = runs.next().expect("it ran");
        let measured = runs.map(|(second, _)| rerun(problem, &outputs, &second)).collect();
        Ok((Checked { outputs, measured }, us))
    }

    /// Runs the program once on a problem, and returns the program's outputs.
    pub fn outputs(&self, case: &Case, problem: &Problem) -> Result<Outputs, String> {
        let runs = self.runs(case, problem, 1).map_err(|failed| failed.why)?;
        Ok(runs.into_iter().next().expect("it ran").0)
    }

    /// Runs the program `count` times on the same problem.
    fn runs(&self, case: &Case, problem: &Problem, count: usize) -> Result<Vec<Ran>, ProgramFailure> {
        let failed = |why| ProgramFailure { why, left: None };
        let folder = tempfile::tempdir().map_err(|error| failed(format!("no temporary folder: {error}")))?;
        let inputs = folder.path().join("inputs.safetensors");
        write_inputs(&inputs, self.op, case, problem).map_err(|error| failed(error.to_string()))?;
        let outputs = folder.path().join("outputs.safetensors");
        let run = |_| {
            // Delete the outputs of an earlier run: they must not be taken for outputs of this run.
            if outputs.exists() {
                std::fs::remove_file(&outputs).map_err(|error| failed(format!("{}: {error}", outputs.display())))?;
            }
            self.once(&inputs, &outputs, problem).map_err(|why| ProgramFailure {
                why: format!("'{}' {why}", self.run.join(" ")),
                left: input::bytes_up_to(&outputs, most(problem)).ok().and_then(Result::ok),
            })
        };
        (0..count).map(run).collect()
    }

    fn once(&self, inputs: &Path, outputs: &Path, problem: &Problem) -> Result<Ran, String> {
        let stderr = match self.mode {
            Mode::Once => run_once(self.run, [inputs, outputs], self.limits)?,
            Mode::Serve => self.ask(inputs, outputs)?,
        };
        let left = || {
            refuse(!outputs.exists(), "no outputs.safetensors")?;
            let bytes = input::bytes_up_to(outputs, most(problem));
            let bytes = bytes.map_err(|error| format!("what cannot be read: {error}"))?;
            let expected = expected(problem);
            let large = |size| format!("outputs.safetensors of {size} bytes, expected about {expected}");
            let bytes = bytes.map_err(large)?;
            let file = TensorFile::from_bytes(outputs, bytes);
            read(&file.map_err(|error| format!("no safetensors: {error}"))?, problem)
        };
        left().map_err(|what| format!("left {what}; {stderr}"))
    }

    /// Sends a request to the serving process, and starts the process first if none runs. Returns the end of the process's
    /// stderr.
    fn ask(&self, inputs: &Path, outputs: &Path) -> Result<String, String> {
        let mut server = self.server.borrow_mut();
        let serving = match &mut *server {
            Some(serving) => serving,
            none => none.insert(Server::start(self.run)?),
        };
        match serving.ask([inputs, outputs], self.limits) {
            Ok(stderr) => Ok(stderr),
            Err(ServerError::Answered(why)) => Err(why),
            Err(ServerError::Gone(why)) => {
                *server = None;
                Err(why)
            }
        }
    }
}

/// Writes the inputs of a problem to a safetensors file for a program. The metadata hold sizes, keys, scalars and the list of
/// outputs to write.
pub fn write_inputs(file: &Path, op: &str, case: &Case, problem: &Problem) -> ulplab_core::error::Result<()> {
    let given = || problem.buffers.iter().filter(|buffer| buffer.role != Role::Out);
    let slot = |buffer: &Buffer| Slot::new(buffer.name, buffer.dtype, &buffer.shape[..]);
    let metadata = metadata(op, case, problem);
    write_safetensors(file, given().map(slot).collect(), &metadata, |writer| {
        given().try_for_each(|buffer| writer.put(buffer.name, &buffer.bytes))
    })
}

/// Returns the metadata for a program: operation, case, the list of outputs as JSON, and each size, key and scalar under its own
/// name.
pub fn metadata(op: &str, case: &Case, problem: &Problem) -> Metadata {
    let wanted =
        written(problem).map(|buffer| json!({"name": buffer.name, "dtype": buffer.dtype, "shape": buffer.shape}));
    let wanted = serde_json::Value::from_iter(wanted).to_string();
    let whole = [("op", op.to_string()), ("case", case.name.clone()), ("outputs", wanted)];
    let dims = case.dims.iter().map(|(name, size)| (*name, size.to_string()));
    let scalars = problem.scalars.iter().map(|(name, scalar)| {
        let text = match scalar {
            Scalar::I64(value) => value.to_string(),
            Scalar::F32(value) => value.to_string(),
        };
        (*name, text)
    });
    let keys = case.keys.iter().cloned();
    let all = whole.into_iter().chain(dims).chain(keys).chain(scalars);
    all.map(|(name, text)| (name.to_string(), text)).collect()
}

/// Returns the buffers that the program must write: outputs and in-place buffers.
fn written(problem: &Problem) -> impl Iterator<Item = &Buffer> {
    problem.buffers.iter().filter(|buffer| buffer.role != Role::In)
}

/// Total size in bytes of the buffers that the program must write.
fn expected(problem: &Problem) -> u64 {
    written(problem).map(|buffer| buffer.size() as u64).sum()
}

/// Largest number of bytes to read from an output file, so that a huge file cannot exhaust memory.
fn most(problem: &Problem) -> u64 {
    expected(problem).saturating_mul(READ).saturating_add(HEADER)
}

/// Reads the outputs of a problem from a file, and the time in microseconds from the entry `us` of the file's metadata. Returns
/// an error if the file has a tensor that is not an output.
fn read(file: &TensorFile, problem: &Problem) -> Result<Ran, String> {
    let names = || written(problem).map(|buffer| buffer.name);
    if let Some(other) = file.tensors().find(|tensor| !names().any(|name| name == tensor.name)) {
        let near = did_you_mean(other.name, names());
        return Err(format!("'{}', which is no output{near}", other.name));
    }
    let outputs = written(problem).map(|buffer| {
        let name = buffer.name;
        let found = file.get(name).ok_or_else(|| format!("no output '{name}'"))?;
        if (found.dtype, found.shape) != (buffer.dtype, &buffer.shape[..]) {
            let [found, expected] = [(found.dtype, found.shape), (buffer.dtype, &buffer.shape[..])]
                .map(|(dtype, shape)| format!("{dtype} {shape:?}"));
            return Err(format!("'{name}' as {found}, expected {expected}"));
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
