//! `compare` as people meet it, and the files it reads.

#[path = "compare/command.rs"]
mod command;
#[path = "compare/false_pass.rs"]
mod false_pass;
#[path = "compare/files.rs"]
mod files;
#[path = "compare/mistakes.rs"]
mod mistakes;
#[path = "compare/values.rs"]
mod values;

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::serialize;
use ulplab::Exit;
use ulplab::commands::compare::{CompareArgs, run_to};

use crate::array::{Array, f32s, raw};

fn i64s(shape: &[usize], values: &[i64]) -> Array {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    raw(Dtype::I64, shape, &bytes)
}

/// The bytes of a safetensors file, by the crate that defines the format.
fn safetensors(tensors: &[(&str, Array)]) -> Vec<u8> {
    serialize(tensors.iter().map(|(name, array)| (*name, array)), None).unwrap()
}

/// A folder with two files, and a way to compare them.
struct Bench {
    folder: tempfile::TempDir,
    args: CompareArgs,
}

impl Bench {
    fn new(want: &[(&str, Array)], got: &[(&str, Array)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = Self {
            folder,
            args: CompareArgs::default(),
        };
        bench.args.want = bench.write("want.safetensors", &safetensors(want));
        bench.args.got = bench.write("got.safetensors", &safetensors(got));
        bench
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn metrics(mut self, metrics: &[&str]) -> Self {
        self.args.metrics = metrics.iter().map(|&metric| metric.into()).collect();
        self
    }

    fn gates(mut self, gates: &[&str]) -> Self {
        self.args.gates = gates.iter().map(|&gate| gate.into()).collect();
        self
    }

    /// The exit code and what was printed.
    #[track_caller]
    fn run(&self) -> (Exit, String) {
        let mut out = Vec::new();
        let exit = run_to(&self.args, &mut out).unwrap();
        (exit, String::from_utf8(out).unwrap())
    }

    /// The same as JSON records.
    #[track_caller]
    fn json(&self) -> (Exit, Vec<serde_json::Value>) {
        let mut out = Vec::new();
        let exit = run_to(
            &CompareArgs {
                json: true,
                ..self.args.clone()
            },
            &mut out,
        )
        .unwrap();
        let out = String::from_utf8(out).unwrap();
        (
            exit,
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        )
    }

    /// The error and its exit code, without the folder's name.
    #[track_caller]
    fn error(&self) -> (Exit, String) {
        let mut out = Vec::new();
        let error = run_to(&self.args, &mut out).unwrap_err();
        assert!(out.is_empty(), "an error prints nothing to standard output");
        let folder = format!("{}/", self.path().display());
        (error.exit(), error.to_string().replace(&folder, ""))
    }
}
