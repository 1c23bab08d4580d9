//! What GPU kernels compute: the cases, inputs, expected outputs and error bounds of every operation. Nothing here depends
//! on CUDA; `backend::cuda` runs the variants in `kernels/<op>.cu` and returns the bytes of their outputs.
//!
//! To add an operation, write a file here with an [`Op`], a line in [`OPS`], and `kernels/<op>.cu`. To add a variant, edit
//! only the `.cu`.

mod batch;
pub mod blocks;
pub mod call;
pub mod checks;
mod compressor;
pub mod data;
mod delta_decode;
mod delta_handover;
mod delta_prefill;
mod dequantize;
mod diagonal_ssm;
mod drawn;
mod experts;
pub mod fp4_gemm;
pub mod fp8_gemm;
pub mod grid;
pub mod guards;
mod hyper_head;
mod index_records;
mod index_scores;
pub mod judge;
mod linear;
mod mhc_post;
pub mod mhc_pre;
pub mod moe_fp4;
mod parameters;
mod quantize;
pub mod record_attention;
mod record_read;
mod record_write;
mod rmsnorm;
mod rmsnorm_quantize;
mod rope;
mod router;
pub mod sample;
mod scale_layout;
pub mod slots;
mod sparse_attention;
mod state_transpose;
pub mod stored;
pub mod sums;
mod swiglu;
mod swiglu_quantize;
mod top_k;
mod wgmma;

use safetensors::Dtype;

use crate::expected::OPERATIONS;
pub use batch::{Batch, MOST_REPEATED, MOST_WITH_SCRATCH, problem_with};
pub use data::{Data, Rows, Sites};
use judge::{Judge, Measured};
pub use parameters::{MOST_ELEMENTS, Parameters, Range, lasting};

/// All operations of this package.
pub const OPS: &[&dyn Op] = &[
    &compressor::Compressor,
    &delta_decode::DeltaDecode,
    &delta_handover::DeltaHandover,
    &delta_prefill::DeltaPrefill,
    &dequantize::Dequantize,
    &diagonal_ssm::DiagonalSsmOp,
    &experts::ExpertsOp,
    &fp4_gemm::Fp4Gemm,
    &fp8_gemm::Fp8Gemm,
    &hyper_head::HyperHeadOp,
    &index_records::IndexRecords,
    &index_scores::IndexScores,
    &linear::Linear,
    &mhc_post::MhcPost,
    &mhc_pre::MhcPre,
    &moe_fp4::MoeFp4,
    &quantize::Quantize,
    &record_attention::RecordAttention,
    &record_read::RecordRead,
    &record_write::RecordWrite,
    &rmsnorm::RmsNorm,
    &rmsnorm_quantize::RmsNormQuantize,
    &rope::Rope,
    &router::Router,
    &sample::Sample,
    &scale_layout::ScaleLayout,
    &sparse_attention::SparseAttention,
    &state_transpose::StateTranspose,
    &swiglu::SwiGlu,
    &swiglu_quantize::SwiGluQuantize,
    &top_k::TopK,
    &wgmma::Wgmma,
];

/// An operation that kernels implement.
pub trait Op: Sync {
    /// Name of the operation: the stem of its file in `kernels/`.
    fn name(&self) -> &'static str;

    /// One line that says what it computes.
    fn doc(&self) -> &'static str;

    /// The cases on which its variants run.
    fn cases(&self) -> Vec<Case>;

    /// The parameters of cases that users may add; `None` if users cannot add cases.
    fn parameters(&self) -> Option<Parameters> {
        None
    }

    /// Checks requirements on a user's case beyond its [`Parameters`]; the error says what is wrong.
    fn check(&self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    /// Whether rows of the case are repeated until addresses are large, besides those of the first case that has its keys: because
    /// other buffers are large then.
    fn also_large(&self, _case: &Case) -> bool {
        false
    }

    /// Whether sums of products are defined to the bit, so that a kernel may state another accumulator ([`sums`]).
    fn defines_sums(&self) -> bool {
        false
    }

    /// Inputs and judgements of a case. They depend only on the case and on `data`.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String>;
}

/// A set of sizes and keys, and the kind of inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Unique within the operation, e.g. `bf16.t16384`; parts are joined by dots, without slashes.
    pub name: String,
    /// The replacements of `{key}` in a variant's entry point, e.g. `("T", "bf16")`.
    pub keys: Vec<(&'static str, String)>,
    /// Named sizes. The launch expressions of a variant use them, and they are passed as `int` to arguments of the same
    /// name.
    pub dims: Vec<(&'static str, i64)>,
    /// How the inputs are filled.
    pub inputs: Inputs,
    /// Whether kernels are timed on it, because its size makes the time informative.
    pub timed: bool,
}

/// The source of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// N(0, 1), with some channels and rows of other magnitudes where that matters.
    Random,
    /// Edge values: ties, subnormals, ±0, NaN, infinities, blocks of zeros, one large element, as far as the operation
    /// allows them.
    Edges,
    /// Activations at a site of the model, from all layers that have it.
    Site(&'static str),
    /// The weights of the model.
    Weights,
    /// The tensors of a user's file, by the names of buffers; buffers that the file lacks are random.
    File(&'static str),
}

impl Inputs {
    /// Whether the model is needed to make them.
    pub fn need_model(self) -> bool {
        matches!(self, Self::Site(_) | Self::Weights)
    }
}

impl Case {
    /// The size with this name.
    ///
    /// # Panics
    /// If the case has no such size: its operation is expected to define it.
    pub fn dim(&self, name: &str) -> usize {
        let found = self.dims.iter().find(|(dim, _)| *dim == name);
        found
            .map(|(_, size)| *size as usize)
            .unwrap_or_else(|| panic!("case {} has no size {name}", self.name))
    }

    /// The value of an optional number, or `otherwise` if the case does not set it.
    pub fn number(&self, name: &str, otherwise: f32) -> f32 {
        let set = self.keys.iter().find(|(key, _)| *key == name);
        set.and_then(|(_, value)| value.parse().ok()).unwrap_or(otherwise)
    }

    /// The value of a key.
    ///
    /// # Panics
    /// If the case has no such key.
    pub fn key(&self, name: &str) -> &str {
        let found = self.keys.iter().find(|(key, _)| *key == name);
        found
            .map(|(_, value)| value.as_str())
            .unwrap_or_else(|| panic!("case {} has no key {name}", self.name))
    }
}

/// Everything that is needed to run a kernel once and to judge its outputs.
pub struct Problem {
    /// The buffers, which a variant's arguments name.
    pub buffers: Vec<Buffer>,
    /// Arguments other than buffers and sizes.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// The least number of bytes that must move: each input is read once, each output is written once.
    pub bytes: u64,
    /// Operations of matrix products; 0 if there are none.
    pub flops: u64,
    /// The judgements of outputs.
    pub judges: Vec<Judge>,
    /// The rows that do not depend on each other, if there are such.
    pub batch: Option<Batch>,
    /// How often the kernel is run, one run after the other, before its outputs are judged: buffers that are changed in place
    /// go on from run to run.
    pub runs: usize,
    /// Whether it is also run with its rows repeated until addresses are large.
    pub large: bool,
}

impl Problem {
    /// A problem without scalars and matrix products. Every buffer moves once, except `amax`: four bytes that some formats do
    /// not read.
    pub fn new(buffers: Vec<Buffer>, judges: Vec<Judge>) -> Self {
        let moved = buffers.iter().filter(|buffer| buffer.name != "amax");
        Self {
            bytes: moved.map(|buffer| buffer.size() as u64).sum(),
            buffers,
            scalars: Vec::new(),
            flops: 0,
            judges,
            batch: None,
            runs: 1,
            large: false,
        }
    }

    /// Measures outputs by all judgements.
    pub fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        judge::judge(&self.judges, outputs)
    }
}

/// An argument of a kernel that is passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A 32-bit signed integer.
    I32(i32),
    /// A 64-bit signed integer.
    I64(i64),
    /// A single-precision float.
    F32(f32),
}

/// An array in device memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name in the arguments of variants, e.g. `x`.
    pub name: &'static str,
    /// Whether kernels read or write it.
    pub role: Role,
    /// Type of the elements; packed codes are bytes.
    pub dtype: Dtype,
    /// Shape in elements of `dtype`.
    pub shape: Vec<usize>,
    /// The contents before the run, little-endian; empty for outputs. They repeat if the buffer is larger.
    pub bytes: Vec<u8>,
}

/// How kernels may access a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The kernel only reads it: it must be unchanged.
    In,
    /// The kernel must write every byte.
    Out,
    /// The kernel changes it in place.
    InOut,
}

impl Buffer {
    /// An input with these contents, little-endian.
    ///
    /// # Panics
    ///
    /// If `bytes` has another length than `shape` and `dtype` require.
    pub fn input(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        let buffer = Self {
            name,
            role: Role::In,
            dtype,
            shape: shape.into(),
            bytes,
        };
        assert_eq!(buffer.bytes.len(), buffer.size(), "bytes of '{name}'");
        buffer
    }

    /// An input of f32 values.
    pub fn f32(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::F32, shape, data::f32_bytes(values))
    }

    /// An input of bfloat16 values, rounded to nearest even.
    pub fn bf16(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::BF16, shape, data::bf16_bytes(values))
    }

    /// An input of values in bfloat16, rounded to nearest even, or in f32.
    pub fn floats(name: &'static str, dtype: Dtype, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, dtype, shape, data::float_bytes(dtype, values))
    }

    /// An output, whose contents before the run do not matter.
    pub fn output(name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            name,
            role: Role::Out,
            dtype,
            shape: shape.into(),
            bytes: Vec::new(),
        }
    }

    /// A buffer that kernels change in place, with its contents before the run.
    ///
    /// # Panics
    ///
    /// If `bytes` has another length than `shape` and `dtype` require.
    pub fn in_place(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self {
            role: Role::InOut,
            ..Self::input(name, dtype, shape, bytes)
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// The contents of the buffers that a kernel writes, after a run.
#[derive(Clone, Debug, Default)]
pub struct Outputs(pub Vec<(&'static str, Vec<u8>)>);

impl Outputs {
    /// The bytes of an output.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn get(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(output, _)| *output == name);
        found
            .map(|(_, bytes)| &bytes[..])
            .unwrap_or_else(|| panic!("no output '{name}'"))
    }
}

/// Operations on a user's tensors that have cases, on which programs can be judged, too.
pub fn of_tensors() -> impl Iterator<Item = &'static dyn Op> {
    let with_cases = OPERATIONS.iter().filter(|operation| operation.cases.is_some());
    with_cases.map(|operation| *operation as &dyn Op)
}

/// The case of an operation called `name`; the error names the nearest.
pub fn case(op: &dyn Op, name: &str) -> Result<Case, String> {
    let cases = op.cases();
    let found = cases.iter().find(|case| case.name == name).cloned();
    found.ok_or_else(|| {
        let hint = ulplab_core::error::did_you_mean(name, cases.iter().map(|case| case.name.as_str()));
        format!("{} has no case '{name}'{hint}", op.name())
    })
}

/// Inputs and judgements of a case that needs no model; a case with activations of a model is an error.
pub fn problem(op: &dyn Op, case: &Case) -> Result<Problem, String> {
    let none = |pattern: &str| {
        Err(format!(
            "case '{}' needs activations of a model, at {pattern}: choose another",
            case.name
        ))
    };
    problem_with(op, case, &Data::new(0, &none))
}
