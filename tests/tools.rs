//! `quantize`, `dequantize`, `inspect` and `compare --parity` as people drive them.

#[path = "tools/folders.rs"]
mod folders;
#[path = "tools/inspect.rs"]
mod inspect;
#[path = "tools/mistakes.rs"]
mod mistakes;
#[path = "tools/others.rs"]
mod others;
#[path = "tools/parity.rs"]
mod parity;
#[path = "tools/parity_few.rs"]
mod parity_few;
#[path = "tools/parity_files.rs"]
mod parity_files;
#[path = "tools/quantize.rs"]
mod quantize;
#[path = "tools/stacks.rs"]
mod stacks;

use std::collections::HashMap;
use std::process::Command;

use safetensors::Dtype;
use safetensors::tensor::serialize;
use ulplab::tensorfile::TensorFile;

use crate::array::{Array, f32s, raw};

fn bf16s(shape: &[usize], values: &[f32]) -> Array {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
        .collect();
    raw(Dtype::BF16, shape, &bytes)
}

/// Numbers of both signs and all sizes, no two alike, the same on every run.
fn values(len: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..len)
        .map(|_| (next() + next() + next() - 1.5) * (next() * 4.0).exp2())
        .collect()
}

/// What a command ended in.
struct Done {
    code: i32,
    out: String,
    err: String,
}

/// A folder to work in.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, tensors: &[(&str, Array)]) {
        let metadata = HashMap::from([("made by".to_string(), "a test".to_string())]);
        let bytes = serialize(tensors.iter().map(|(name, array)| (*name, array)), Some(metadata)).unwrap();
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn open(&self, name: &str) -> TensorFile {
        TensorFile::open(self.0.path().join(name)).unwrap()
    }

    fn exists(&self, name: &str) -> bool {
        self.0.path().join(name).exists()
    }

    /// Files and nothing else, as temporary ones are.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs `ulplab` in the folder.
    fn run(&self, command: &str) -> Done {
        let output = Command::new(env!("CARGO_BIN_EXE_ulplab"))
            .current_dir(self.0.path())
            .args(command.split_whitespace())
            .output()
            .unwrap();
        Done {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn works(&self, command: &str) -> Done {
        let done = self.run(command);
        assert_eq!(done.code, 0, "{command}: {}{}", done.out, done.err);
        done
    }

    /// It must end in that code, with all words in the error.
    #[track_caller]
    fn fails(&self, code: i32, command: &str, words: &[&str]) {
        let done = self.run(command);
        assert_eq!(done.code, code, "{command}: {}{}", done.out, done.err);
        for word in words {
            assert!(done.err.contains(word), "{command}: '{word}' is not in: {}", done.err);
        }
        assert!(!done.err.contains("panicked"), "{}", done.err);
    }

    fn json(&self, command: &str) -> Vec<serde_json::Value> {
        let done = self.run(command);
        assert!(done.err.is_empty(), "{}", done.err);
        done.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
