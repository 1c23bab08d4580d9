//! Operations that GPU kernels implement. Each operation has test cases (sets of sizes and settings), with inputs, expected
//! outputs and error bounds. Nothing here depends on CUDA: `backend::cuda` runs the variants (implementations) in
//! `kernels/<op>.cu` and returns the bytes of their outputs.
//!
//! To add an operation, write a file here with a [`KernelOp`], add a line to [`OPS`], and write `kernels/<op>.cu`. To add a
//! variant, edit only the `.cu` file.

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

    /// One line that says what the operation computes.
    fn doc(&self) -> &'static str;

    /// The cases on which the variants of the operation are tested.
    fn cases(&self) -> Vec<Case>;

    /// Parameters of the cases that users may add; `None` if users cannot add cases.
    fn parameters(&self) -> Option<Parameters> {
        None
    }

    /// Checks requirements on a user's case beyond its [`Parameters`].
    ///
    /// # Errors
    /// Returns a message that says what is wrong.
    fn check(&self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    /// True if the operation defines its sums of products to the bit, and outputs must have these bits. For a kernel that
    /// declares another accumulator ([`sums`]), error bounds are checked instead.
    fn defines_sums(&self) -> bool {
        false
    }

    /// Makes the inputs of a case and the checks of its outputs. The result depends only on the case and on `data`.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String>;
}

/// Implementation of [`Op`] as plain data, with one field per method.
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
    /// Defaults for all fields: the operation has no cases, and users cannot add cases.
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
        // All cases of an operation set the same sizes and keys (named settings). So compare `case` with the first of them.
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

/// One test case of an operation: sizes, keys (named settings, such as the element type), and the source of the inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Case {
    /// Name, unique within the operation, e.g. `bf16.t16384`. Its parts are joined by dots; it has no slashes.
    pub name: String,
    /// Named sizes. Expressions in a variant's launch, such as the grid size, use these names. A kernel argument with the name of
    /// a size receives the size as an `int`.
    #[serde(rename = "sizes")]
    pub dims: Vec<(&'static str, i64)>,
    /// Keys (named settings) with their values, e.g. `("dtype", "bf16")`. In the name of a variant's entry point, `{dtype}` is
    /// replaced by this value.
    pub keys: Vec<(&'static str, String)>,
    /// Source of the inputs.
    pub inputs: Inputs,
    /// True if kernels are timed on this case.
    pub timed: bool,
    /// True if kernels also run with the rows of this case repeated past 2³² elements.
    #[serde(skip)]
    pub large: bool,
}

/// Source of the inputs of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inputs {
    /// Draws from N(0, 1). For some operations, some channels and rows have other magnitudes.
    #[default]
    Random,
    /// Edge values that the operation allows: ties, subnormals, ±0, NaN, infinities, blocks of zeros, one large element.
    Edges,
    /// Activations at a site of the model, from all layers that have the site.
    Site(&'static str),
    /// Weights of the model.
    Weights,
    /// Tensors of the user's file, by buffer names. Buffers that are not in the file are random.
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
    /// True if these inputs come from a model.
    pub fn need_model(self) -> bool {
        matches!(self, Self::Site(_) | Self::Weights)
    }
}

impl Case {
    /// Value of a size; `None` if the case has no such size.
    pub fn size(&self, name: &str) -> Option<i64> {
        let found = self.dims.iter().find(|(dim, _)| *dim == name);
        found.map(|(_, size)| *size)
    }

    /// Value of a key (a named setting); `None` if the case has no such key.
    pub fn word(&self, name: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Value of a size.
    ///
    /// # Panics
    /// Panics if the case has no such size: every case of an operation must define its sizes.
    pub fn dim(&self, name: &str) -> usize {
        let size = self.size(name);
        size.unwrap_or_else(|| panic!("case {} has no size {name}", self.name)) as usize
    }

    /// Values of several sizes.
    ///
    /// # Panics
    /// Panics if the case lacks one of the sizes: every case of an operation must define its sizes.
    pub fn sizes<const N: usize>(&self, names: [&str; N]) -> [usize; N] {
        names.map(|name| self.dim(name))
    }

    /// Float type that a key (named setting) of the case states: bfloat16 for `bf16`, else f32.
    pub(crate) fn float_type(&self, key: &str) -> Dtype {
        match self.key(key) {
            "bf16" => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    /// Value of an optional number; `otherwise` if the case does not set the number.
    pub fn number(&self, name: &str, otherwise: f32) -> f32 {
        let set = self.word(name).and_then(|value| value.parse().ok());
        set.unwrap_or(otherwise)
    }

    /// Value of a key (a named setting).
    ///
    /// # Panics
    /// Panics if the case has no such key.
    pub fn key(&self, name: &str) -> &str {
        let value = self.word(name);
        value.unwrap_or_else(|| panic!("case {} has no key {name}", self.name))
    }
}

/// All data for one run of a kernel and for the checks of its outputs.
pub struct Problem {
    /// Buffers in device memory. Kernel arguments refer to buffers by name.
    pub buffers: Vec<Buffer>,
    /// Scalar arguments, other than sizes.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// Minimum memory traffic in bytes, if each input is read once and each output is written once.
    pub bytes: u64,
    /// Number of floating-point operations of matrix products; 0 if there are none.
    pub flops: u64,
    /// Checks of the outputs.
    pub judges: Vec<Judge>,
    /// Batch of independent rows; `None` if the rows depend on each other.
    pub batch: Option<Batch>,
    /// Number of times that a kernel runs before its outputs are checked. In-place buffers keep their contents from run to run.
    pub runs: usize,
    /// True if kernels also run with the rows of the problem repeated past 2³² elements ([`Case::large`]).
    pub large: bool,
}

impl Problem {
    /// Creates a problem without scalars and matrix products. Adds an output buffer for each check whose output is not in
    /// `buffers`. As memory traffic, every buffer counts once, except `amax`: some formats do not read its four bytes.
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

    /// Applies all checks to the outputs and returns their measurements.
    pub fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        judge::judge(&self.judges, outputs)
    }
}

/// Kernel argument that is passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A 64-bit signed integer.
    I64(i64),
    /// A single-precision float.
    F32(f32),
}

/// Iterates over the entries of [`OPERATIONS`] that have test cases with random inputs.
pub fn of_tensors() -> impl Iterator<Item = &'static dyn Op> {
    let with_cases = OPERATIONS.iter().filter(|operation| operation.cases.is_some());
    with_cases.map(|operation| operation as &dyn Op)
}

/// Finds a case of an operation by name.
///
/// # Errors
/// Returns an error with the most similar names if the operation has no such case.
pub fn case(op: &dyn Op, name: &str) -> Result<Case, String> {
    let cases = op.cases();
    let found = cases.iter().find(|case| case.name == name).cloned();
    found.ok_or_else(|| {
        let hint = ulplab_core::error::did_you_mean(name, cases.iter().map(|case| case.name.as_str()));
        format!("{} has no case '{name}'{hint}", op.name())
    })
}

/// Makes the inputs of a case and the checks of its outputs.
///
/// # Errors
/// Returns an error if the operation cannot make the inputs.
pub fn problem_with(op: &dyn Op, case: &Case, data: &Data) -> Result<Problem, String> {
    Ok(Problem {
        large: case.large,
        ..op.problem(case, data)?
    })
}

/// Makes the inputs and the checks of a case that needs no model.
///
/// # Errors
/// Returns an error if the case needs activations of a model, or if the operation cannot make the inputs.
pub fn problem(op: &dyn Op, case: &Case) -> Result<Problem, String> {
    let none = |pattern: &str| {
        Err(format!(
            "case '{}' needs activations of a model, at {pattern}: choose another",
            case.name
        ))
    };
    problem_with(op, case, &Data::new(0, &none))
}
