//! Operations of GPU kernels: the cases, inputs, expected outputs and error bounds of each. Nothing here depends on CUDA;
//! `backend::cuda` runs the variants in `kernels/<op>.cu` and returns the bytes of their outputs.
//!
//! To add an operation, write a file here with a [`KernelOp`], a line in [`OPS`], and `kernels/<op>.cu`. To add a variant, edit
//! only the `.cu`.

mod batch;
pub mod blocks;
mod buffer;
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
mod edges;
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
mod routed;
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

use std::fmt;

use safetensors::Dtype;
use serde::{Serialize, Serializer};

use crate::expected::OPERATIONS;
pub use batch::{Batch, MOST_REPEATED, MOST_WITH_SCRATCH};
pub use buffer::{Buffer, Outputs, Role};
pub use data::{Data, Rows, Sites};
use grid::Grid;
use judge::{Judge, Measured, Rule};
pub use parameters::{MOST_ELEMENTS, Parameters, Range, lasting};

/// All operations of this package.
pub const OPS: &[&dyn Op] = &[
    &compressor::COMPRESSOR,
    &delta_decode::DELTA_DECODE,
    &delta_handover::DELTA_HANDOVER,
    &delta_prefill::DELTA_PREFILL,
    &dequantize::DEQUANTIZE,
    &diagonal_ssm::DIAGONAL_SSM,
    &experts::EXPERTS,
    &fp4_gemm::FP4_GEMM,
    &fp8_gemm::FP8_GEMM,
    &hyper_head::HYPER_HEAD,
    &index_records::INDEX_RECORDS,
    &index_scores::INDEX_SCORES,
    &linear::LINEAR,
    &mhc_post::MHC_POST,
    &mhc_pre::MHC_PRE,
    &moe_fp4::MOE_FP4,
    &quantize::QUANTIZE,
    &record_attention::RECORD_ATTENTION,
    &record_read::RECORD_READ,
    &record_write::RECORD_WRITE,
    &rmsnorm::RMSNORM,
    &rmsnorm_quantize::RMSNORM_QUANTIZE,
    &rope::ROPE,
    &router::ROUTER,
    &sample::SAMPLE,
    &scale_layout::SCALE_LAYOUT,
    &sparse_attention::SPARSE_ATTENTION,
    &state_transpose::STATE_TRANSPOSE,
    &swiglu::SWIGLU,
    &swiglu_quantize::SWIGLU_QUANTIZE,
    &top_k::TOP_K,
    &wgmma::WGMMA,
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

    /// True if sums of products are defined to the bit, so that a kernel may state another accumulator ([`sums`]).
    fn defines_sums(&self) -> bool {
        false
    }

    /// Inputs and judgements of a case. They depend only on the case and on `data`.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String>;
}

/// An operation as data; the fields are those of [`Op`].
struct KernelOp {
    name: &'static str,
    doc: &'static str,
    cases: fn() -> Vec<Case>,
    parameters: Option<fn() -> Parameters>,
    check: fn(&Case) -> Result<(), String>,
    defines_sums: bool,
    problem: fn(&Case, &Data) -> Result<Problem, String>,
}

impl KernelOp {
    /// An operation without cases; users cannot add any.
    const NONE: Self = Self {
        name: "",
        doc: "",
        cases: Vec::new,
        parameters: None,
        check: |_| Ok(()),
        defines_sums: false,
        problem: |_, _| Err("the operation has no problems".into()),
    };
}

impl Op for KernelOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn cases(&self) -> Vec<Case> {
        (self.cases)()
    }

    fn parameters(&self) -> Option<Parameters> {
        self.parameters.map(|parameters| parameters())
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        (self.check)(case)
    }

    fn defines_sums(&self) -> bool {
        self.defines_sums
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        // All cases of an operation have the same sizes and keys.
        let cases = (self.cases)();
        let known = cases.first().ok_or("the operation has no cases")?;
        let mut sizes = known.dims.iter().filter(|(name, _)| case.size(name).is_none());
        let mut keys = known.keys.iter().filter(|(name, _)| case.word(name).is_none());
        let missing = sizes.next().map(|(name, _)| ("size", name));
        match missing.or_else(|| keys.next().map(|(name, _)| ("key", name))) {
            Some((kind, name)) => Err(format!(
                "case '{}' of {}: {kind} '{name}' is missing",
                case.name, self.name
            )),
            None => (self.problem)(case, data),
        }
    }
}

/// A set of sizes and keys, and the kind of inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Case {
    /// Unique within the operation, e.g. `bf16.t16384`; parts are joined by dots, without slashes.
    pub name: String,
    /// Named sizes. The launch expressions of a variant use them, and they are passed as `int` to arguments of the same
    /// name.
    #[serde(rename = "sizes")]
    pub dims: Vec<(&'static str, i64)>,
    /// The replacements of `{key}` in a variant's entry point, e.g. `("T", "bf16")`.
    pub keys: Vec<(&'static str, String)>,
    /// The source of the inputs.
    pub inputs: Inputs,
    /// True if kernels are timed on it, because its size makes the time informative.
    pub timed: bool,
    /// True if kernels also run with its rows repeated past 2³² elements.
    #[serde(skip)]
    pub large: bool,
}

/// The source of the inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inputs {
    /// N(0, 1), with some channels and rows of other magnitudes where that matters.
    #[default]
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

impl fmt::Display for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Edges => "edges",
            Self::Weights => "weights of the model",
            Self::Site(source) | Self::File(source) => source,
        })
    }
}

impl Serialize for Inputs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Inputs {
    /// True if the model is needed to make them.
    pub fn need_model(self) -> bool {
        matches!(self, Self::Site(_) | Self::Weights)
    }
}

impl Case {
    /// The size with this name; `None` if the case has no such size.
    pub fn size(&self, name: &str) -> Option<i64> {
        let found = self.dims.iter().find(|(dim, _)| *dim == name);
        found.map(|(_, size)| *size)
    }

    /// The value of a key; `None` if the case has no such key.
    pub fn word(&self, name: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The size with this name.
    ///
    /// # Panics
    /// If the case has no such size: its operation is expected to define it.
    pub fn dim(&self, name: &str) -> usize {
        let size = self.size(name);
        size.unwrap_or_else(|| panic!("case {} has no size {name}", self.name)) as usize
    }

    /// The sizes with these names.
    ///
    /// # Panics
    /// If the case lacks one: its operation is expected to define it.
    pub fn sizes<const N: usize>(&self, names: [&str; N]) -> [usize; N] {
        names.map(|name| self.dim(name))
    }

    /// The type of floats that a key names: bfloat16, or f32.
    pub(crate) fn float_type(&self, key: &str) -> Dtype {
        match self.key(key) {
            "bf16" => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    /// The value of an optional number, or `otherwise` if the case does not set it.
    pub fn number(&self, name: &str, otherwise: f32) -> f32 {
        let set = self.word(name).and_then(|value| value.parse().ok());
        set.unwrap_or(otherwise)
    }

    /// The value of a key.
    ///
    /// # Panics
    /// If the case has no such key.
    pub fn key(&self, name: &str) -> &str {
        let value = self.word(name);
        value.unwrap_or_else(|| panic!("case {} has no key {name}", self.name))
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
    /// The rows that do not depend on each other; `None` if all rows do.
    pub batch: Option<Batch>,
    /// The number of runs, one after the other, before outputs are judged: buffers that are changed in place keep their contents from
    /// run to run.
    pub runs: usize,
    /// True if kernels also run with its rows repeated past 2³² elements ([`Case::large`]).
    pub large: bool,
}

impl Problem {
    /// A problem without scalars and matrix products. Judged outputs that are not among the buffers follow them. Every buffer moves
    /// once, except `amax`: four bytes that some formats do not read.
    pub fn new(mut buffers: Vec<Buffer>, judges: Vec<Judge>) -> Self {
        for judge in judges.iter().filter(|judge| !matches!(judge.rule, Rule::Parts(_))) {
            if buffers.iter().all(|buffer| buffer.name != judge.output) {
                buffers.push(Buffer::output(judge.output, judge.dtype, &judge.shape));
            }
        }
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
    /// A 64-bit signed integer.
    I64(i64),
    /// A single-precision float.
    F32(f32),
}

/// Operations on a user's tensors that have cases, on which programs can be judged, too.
pub fn of_tensors() -> impl Iterator<Item = &'static dyn Op> {
    let with_cases = OPERATIONS.iter().filter(|operation| operation.cases.is_some());
    with_cases.map(|operation| operation as &dyn Op)
}

/// The case of an operation called `name`; the error names the nearest.
///
/// # Errors
/// If the operation has no such case.
pub fn case(op: &dyn Op, name: &str) -> Result<Case, String> {
    let cases = op.cases();
    let found = cases.iter().find(|case| case.name == name).cloned();
    found.ok_or_else(|| {
        let hint = ulplab_core::error::did_you_mean(name, cases.iter().map(|case| case.name.as_str()));
        format!("{} has no case '{name}'{hint}", op.name())
    })
}

/// Inputs and judgements of a case.
///
/// # Errors
/// If the operation cannot make the inputs.
pub fn problem_with(op: &dyn Op, case: &Case, data: &Data) -> Result<Problem, String> {
    Ok(Problem {
        large: case.large,
        ..op.problem(case, data)?
    })
}

/// Inputs and judgements of a case that needs no model.
///
/// # Errors
/// If the case needs activations of a model, or the operation cannot make the inputs.
pub fn problem(op: &dyn Op, case: &Case) -> Result<Problem, String> {
    let none = |pattern: &str| {
        Err(format!(
            "case '{}' needs activations of a model, at {pattern}: choose another",
            case.name
        ))
    };
    problem_with(op, case, &Data::new(0, &none))
}
