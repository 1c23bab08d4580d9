//! Replaces operations of the reference implementation by kernels while a whole model runs.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use reference::ops::hyper_connection::{HyperConnection, Mixing};
use reference::ops::rope::Rope;
use reference::{Operations, Plain, Tensor};
use safetensors::Dtype;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::data::{f32_values, float_bytes};
use super::record_write::ROPE;
use super::{Buffer, Case, Outputs, Problem, Scalar};
use ulplab_core::formats::{KvRecord, PAGE};

/// Names of the operations that a kernel can replace in a model. The last two write and read records of a KV cache.
pub const CALLED: [&str; 6] = ["mhc_pre", "rmsnorm", "rope", "swiglu", "record_write", "record_read"];

/// Type of the tensors that kernels read and write. The weights of norms and of mixing are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// f32.
    #[default]
    F32,
    /// bfloat16; values are rounded to nearest even when they are stored.
    Bf16,
}

/// An operation to run, with its inputs.
pub struct Call {
    /// Name of the operation, one of [`CALLED`].
    pub op: &'static str,
    /// Sizes of the call, and its keys (settings such as the element type).
    pub case: Case,
    /// Buffers and scalars of the call. The problem has no checks of its outputs.
    pub problem: Problem,
}

/// Executes calls of operations, on a GPU or elsewhere.
pub trait Runner: Send + Sync {
    /// Names of the operations that this runner computes.
    fn ops(&self) -> &[String];

    /// Runs a call and returns its outputs.
    ///
    /// # Errors
    /// Returns the reason if the call could not run.
    fn run(&self, call: Call) -> Result<Outputs, String>;
}

/// Computes operations of a model by kernels if the [`Runner`] supports them, else by the reference. After the first error, only
/// the reference computes: check [`StandIn::failure`] after the model has run.
pub struct StandIn {
    runner: Box<dyn Runner>,
    dtype: Type,
    seen: Mutex<CallLog>,
}

/// Record of the calls so far: the operations that kernels have computed, and the first error.
#[derive(Default)]
struct CallLog {
    answered: HashSet<&'static str>,
    /// Message of the first error.
    failure: Option<String>,
}

impl Type {
    /// True if the type is f32.
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Name of the type in test cases, and the matching element type.
    fn stored(self) -> (&'static str, Dtype) {
        match self {
            Self::F32 => ("f32", Dtype::F32),
            Self::Bf16 => ("bf16", Dtype::BF16),
        }
    }
}

/// Reads an output of type bfloat16 or f32 as f32.
fn values(outputs: &Outputs, name: &str, dtype: Dtype) -> Vec<f32> {
    f32_values(outputs.get(name), dtype)
}

impl Call {
    /// Creates a call with these keys (settings such as `dtype`), sizes, buffers and scalars.
    pub fn new(
        op: &'static str,
        keys: &[(&'static str, &str)],
        dims: &[(&'static str, usize)],
        buffers: Vec<Buffer>,
        scalars: &[(&'static str, f32)],
    ) -> Self {
        let scalars = scalars.iter().map(|(name, value)| (*name, Scalar::F32(*value)));
        Self {
            op,
            case: Case {
                name: "call".into(),
                keys: keys.iter().map(|(key, value)| (*key, value.to_string())).collect(),
                dims: dims.iter().map(|(dim, size)| (*dim, *size as i64)).collect(),
                ..Case::default()
            },
            problem: Problem {
                scalars: scalars.collect(),
                ..Problem::new(buffers, Vec::new())
            },
        }
    }
}

impl StandIn {
    /// Creates a stand-in for the reference: `runner` computes the operations that it supports, on tensors of type `dtype`.
    pub fn new(runner: Box<dyn Runner>, dtype: Type) -> Self {
        Self {
            runner,
            dtype,
            seen: Mutex::default(),
        }
    }

    /// The first error, or a message if the runner supports an operation that the model never called; `None` if all went well.
    pub fn failure(&self) -> Option<String> {
        let seen = self.seen();
        let unused = self.runner.ops().iter().find(|op| !seen.answered.contains(op.as_str()));
        let unused = || unused.map(|op| format!("{op}: kernels are named for it, but the model never called it"));
        seen.failure.clone().or_else(unused)
    }

    fn seen(&self) -> MutexGuard<'_, CallLog> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takes(&self, op: &str) -> bool {
        self.runner.ops().iter().any(|other| other == op)
    }

    /// Runs the call and returns its outputs. Returns `None` if the runner does not support the operation, or if this or an
    /// earlier call has failed.
    fn run(&self, op: &'static str, call: impl FnOnce() -> Call) -> Option<Outputs> {
        if !self.takes(op) || self.seen().failure.is_some() {
            return None;
        }
        match self.runner.run(call()) {
            Ok(outputs) => {
                self.seen().answered.insert(op);
                Some(outputs)
            }
            Err(why) => {
                self.seen().failure.get_or_insert(format!("{op}: {why}"));
                None
            }
        }
    }

    /// Runs rows `[rows, record.dim]` through a KV cache: writes them as bf16 into pages, in order, and reads them back into `x`.
    /// Returns true if the runner has written and read them.
    pub fn store(&self, record: &KvRecord, x: &mut [f32]) -> bool {
        if !["record_write", "record_read"].iter().all(|op| self.takes(op)) {
            return false;
        }
        let rows = x.len() / record.dim;
        let page_shape = [rows.div_ceil(PAGE), record.page_stride(PAGE)];
        let slots = || Buffer::integers("slots", 8, 0..rows as i64);
        let dims = [("T", rows), ("C", record.dim), ("slot_bytes", 8)];
        let write = || {
            let buffers = vec![
                Buffer::bf16("x", &[rows, record.dim], x),
                // The kernels ignore the next three buffers unless the call's setting `form` is `normed`.
                Buffer::f32("weight", &[record.dim], &vec![1.0; record.dim]),
                Buffer::integers("positions", 8, vec![0; rows]),
                Buffer::f32("cos_sin", &[1, ROPE / 2, 2], &[1.0, 0.0].repeat(ROPE / 2)),
                slots(),
                Buffer::in_place("pages", Dtype::U8, &page_shape, vec![0; page_shape.iter().product()]),
            ];
            let keys = [("record", record.name), ("form", "raw")];
            Call::new("record_write", &keys, &dims, buffers, &[("eps", 0.0)])
        };
        let written = self.run("record_write", write);
        let read = written.and_then(|written| {
            self.run("record_read", || {
                let buffers = vec![
                    Buffer::input("pages", Dtype::U8, &page_shape, written.get("pages").to_vec()),
                    slots(),
                    Buffer::output("out", Dtype::F32, &[rows, record.dim]),
                ];
                let dims = [&dims[..], &[("out_bytes", 4)]].concat();
                let keys = [("record", record.name), ("out", "f32")];
                Call::new("record_read", &keys, &dims, buffers, &[])
            })
        });
        if let Some(read) = &read {
            x.copy_from_slice(&values(read, "out", Dtype::F32));
        }
        read.is_some()
    }
}

impl Operations<f32> for StandIn {
    fn rmsnorm(&self, x: &mut Tensor<f32>, weight: Option<&[f32]>, eps: f32) {
        let (cols, (name, dtype)) = (x.cols(), self.dtype.stored());
        let rows = x.data.len() / cols;
        let call = || {
            let weight = weight.map_or_else(|| vec![1.0; cols], <[f32]>::to_vec);
            let buffers = vec![
                Buffer::floats("x", dtype, &[rows, cols], &x.data),
                Buffer::f32("weight", &[cols], &weight),
                Buffer::output("y", dtype, &[rows, cols]),
            ];
            let dims = [("T", rows), ("C", cols), ("S", dtype.bitsize() / 8)];
            Call::new("rmsnorm", &[("dtype", name)], &dims, buffers, &[("eps", eps)])
        };
        match self.run("rmsnorm", call) {
            Some(outputs) => x.data = values(&outputs, "y", dtype),
            None => Plain.rmsnorm(x, weight, eps),
        }
    }

    fn rope(
        &self,
        rope: &Rope<f32>,
        x: &mut Tensor<f32>,
        heads: usize,
        position: &(dyn Fn(usize) -> usize + Sync),
        inverse: bool,
    ) {
        let (channels, (name, dtype)) = (x.cols(), self.dtype.stored());
        let tokens = x.data.len() / (heads * channels);
        let call = || {
            let turns = (0..tokens).flat_map(|token| rope.turns(position(token)).iter().copied());
            let (cos, sin): (Vec<f32>, Vec<f32>) = turns.unzip();
            let pairs = cos.len() / tokens;
            let shape = [tokens, heads, channels];
            let buffers = vec![
                Buffer::in_place("x", dtype, &shape, float_bytes(dtype, &x.data)),
                Buffer::f32("cos", &[tokens, pairs], &cos),
                Buffer::f32("sin", &[tokens, pairs], &sin),
            ];
            let keys = [
                ("dtype", name),
                ("direction", if inverse { "inverse" } else { "forward" }),
            ];
            let [turned, size] = [2 * pairs, dtype.bitsize() / 8];
            let dims = [
                ("T", tokens),
                ("H", heads),
                ("D", channels),
                ("R", turned),
                ("size", size),
            ];
            Call::new("rope", &keys, &dims, buffers, &[])
        };
        match self.run("rope", call) {
            Some(outputs) => x.data = values(&outputs, "x", dtype),
            None => Plain.rope(rope, x, heads, position, inverse),
        }
    }

    /// Runs the mHC pre-block. The residual streams and the normed input are always bf16, even if the other tensors are f32.
    fn mhc_pre(
        &self,
        mixer: &HyperConnection<f32>,
        x: &Tensor<f32>,
        weight: &[f32],
        eps: f32,
    ) -> (Tensor<f32>, Mixing<f32>) {
        let (tokens, streams, channels) = (x.shape[0], mixer.streams, x.cols());
        let call = || {
            let buffers = vec![
                Buffer::bf16("x", &x.shape, &x.data),
                Buffer::f32("fn", &mixer.projection.shape, &mixer.projection.data),
                Buffer::f32("base", &[mixer.base.len()], &mixer.base),
                Buffer::f32("scale", &[3], &mixer.scale),
                Buffer::f32("weight", &[channels], weight),
                Buffer::output("y", Dtype::BF16, &[tokens, channels]),
                Buffer::output("post", Dtype::F32, &[tokens, streams]),
                Buffer::output("comb", Dtype::F32, &[tokens, streams, streams]),
            ];
            let scalars = [("norm_eps", mixer.norm_eps), ("eps", mixer.eps)];
            let dims = [("T", tokens), ("C", channels), ("size", 2)];
            Call::new("mhc_pre", &[("dtype", "bf16")], &dims, buffers, &scalars)
        };
        let Some(outputs) = self.run("mhc_pre", call) else {
            return Plain.mhc_pre(mixer, x, weight, eps);
        };
        let mixing = Mixing {
            post: Tensor::new([tokens, streams], values(&outputs, "post", Dtype::F32)),
            comb: Tensor::new([tokens, streams, streams], values(&outputs, "comb", Dtype::F32)),
        };
        (
            Tensor::new([tokens, channels], values(&outputs, "y", Dtype::BF16)),
            mixing,
        )
    }

    fn swiglu(&self, gate_up: &[f32], inner: usize, limit: f32) -> Vec<f32> {
        let (rows, (name, dtype)) = (gate_up.len() / (2 * inner), self.dtype.stored());
        let call = || {
            let buffers = vec![
                Buffer::floats("gate_up", dtype, &[rows, 2 * inner], gate_up),
                Buffer::output("y", dtype, &[rows, inner]),
            ];
            let dims = [("T", rows), ("C", inner)];
            let keys = [("dtype", name)];
            Call::new("swiglu", &keys, &dims, buffers, &[("limit", limit)])
        };
        match self.run("swiglu", call) {
            Some(outputs) => values(&outputs, "y", dtype),
            None => Plain.swiglu(gate_up, inner, limit),
        }
    }
}
