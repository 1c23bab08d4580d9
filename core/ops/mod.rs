//! What GPU kernels compute: of every operation its cases, inputs, expected outputs and how near is near enough. Nothing
//! here knows of CUDA; `backend::cuda` runs the variants in `kernels/<op>.cu` and hands back the bytes they left.
//!
//! To add an operation: a file here with an [`Op`], a line in [`OPS`], and `kernels/<op>.cu`. To add a variant: edit the
//! `.cu` alone.

mod blocks;
pub mod call;
pub mod checks;
pub mod data;
mod delta_decode;
mod delta_handover;
mod delta_prefill;
mod dequantize;
mod diagonal_ssm;
mod grid;
pub mod guards;
pub mod judge;
mod mhc_pre;
mod parameters;
mod quantize;
mod record_read;
mod record_write;
mod rmsnorm;
mod rmsnorm_quantize;
mod rope;
mod scale_layout;
mod slots;
mod state_transpose;
pub mod swap_ffn;
mod swiglu;
mod swiglu_quantize;

use safetensors::Dtype;

pub use data::{Data, Rows, Sites};
use judge::{Judge, Measured};
pub use parameters::{MOST_ELEMENTS, Parameters, Range, lasting};

/// Every operation there is.
pub const OPS: &[&dyn Op] = &[
    &delta_decode::DeltaDecode,
    &delta_handover::DeltaHandover,
    &delta_prefill::DeltaPrefill,
    &dequantize::Dequantize,
    &diagonal_ssm::DiagonalSsmOp,
    &mhc_pre::MhcPre,
    &quantize::Quantize,
    &record_read::RecordRead,
    &record_write::RecordWrite,
    &rmsnorm::RmsNorm,
    &rmsnorm_quantize::RmsNormQuantize,
    &rope::Rope,
    &scale_layout::ScaleLayout,
    &state_transpose::StateTranspose,
    &swap_ffn::SwapFfn,
    &swiglu::SwiGlu,
    &swiglu_quantize::SwiGluQuantize,
];

/// An operation that kernels are written for.
pub trait Op: Sync {
    /// Stem of its file in `kernels/`.
    fn name(&self) -> &'static str;

    /// What it computes, in a line.
    fn doc(&self) -> &'static str;

    /// What its variants are tried on.
    fn cases(&self) -> Vec<Case>;

    /// What a case of a user's may say; `None` if users cannot make cases.
    fn parameters(&self) -> Option<Parameters> {
        None
    }

    /// What is wrong with a case of a user's besides what its [`Parameters`] say.
    fn check(&self, _case: &Case) -> Result<(), String> {
        Ok(())
    }

    /// Inputs and the judgement of outputs of a case. The same case gives the same problem, whatever else is run.
    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String>;
}

/// One set of shapes, types and kind of inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Unique within the operation, e.g. `bf16.t16384`; parts joined by dots, no slashes.
    pub name: String,
    /// What stands for `{key}` in a variant's entry point, e.g. `("T", "bf16")`.
    pub keys: Vec<(&'static str, String)>,
    /// Sizes, known by these names to the launch expressions of a variant and passed as `int` where its arguments name
    /// them.
    pub dims: Vec<(&'static str, i64)>,
    pub inputs: Inputs,
    /// Whether it is large (or small) enough for its time to say something.
    pub timed: bool,
}

/// What fills the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// N(0, 1), with channels and rows of other sizes where that matters.
    Random,
    /// Ties, subnormals, ±0, NaN, infinities, blocks of zeros, one large element, as far as they are allowed there.
    Edges,
    /// What passes at a site of the model, of all layers that have it.
    Site(&'static str),
    /// The tensors of a file of the user's, named as the buffers they fill; what the file lacks is random.
    File(&'static str),
}

impl Case {
    /// A size by its name.
    ///
    /// # Panics
    /// When the case has no such size: the operation made it.
    pub fn dim(&self, name: &str) -> usize {
        let found = self.dims.iter().find(|(dim, _)| *dim == name);
        found
            .map(|(_, size)| *size as usize)
            .unwrap_or_else(|| panic!("case {} has no size {name}", self.name))
    }

    /// A number that a case of a user's may set under this name.
    pub fn number(&self, name: &str, otherwise: f32) -> f32 {
        let set = self.keys.iter().find(|(key, _)| *key == name);
        set.and_then(|(_, value)| value.parse().ok()).unwrap_or(otherwise)
    }

    /// What stands for a key.
    ///
    /// # Panics
    /// When the case has no such key.
    pub fn key(&self, name: &str) -> &str {
        let found = self.keys.iter().find(|(key, _)| *key == name);
        found
            .map(|(_, value)| value.as_str())
            .unwrap_or_else(|| panic!("case {} has no key {name}", self.name))
    }
}

/// Everything to run a kernel on once, and to judge it.
pub struct Problem {
    /// A variant's arguments name them.
    pub buffers: Vec<Buffer>,
    /// Arguments besides buffers and sizes.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// Bytes that must move at least: each input read once, each output written once.
    pub bytes: u64,
    /// Operations of products of matrices, where there are any.
    pub flops: u64,
    /// How outputs are judged.
    pub judges: Vec<Judge>,
}

impl Problem {
    /// What the judgements say of outputs.
    pub fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        judge::judge(&self.judges, outputs)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    I32(i32),
    I64(i64),
    F32(f32),
}

/// An array on the device.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub name: &'static str,
    pub role: Role,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// What it holds before; empty where it is an output only.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Must be unchanged afterwards.
    In,
    /// Every byte must be written.
    Out,
    /// Changed in place.
    InOut,
}

impl Buffer {
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

    /// An input of values as f32.
    pub fn f32(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::F32, shape, data::f32_bytes(values))
    }

    /// An input of values as bfloat16, rounded to nearest even.
    pub fn bf16(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        Self::input(name, Dtype::BF16, shape, data::bf16_bytes(values))
    }

    pub fn output(name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            name,
            role: Role::Out,
            dtype,
            shape: shape.into(),
            bytes: Vec::new(),
        }
    }

    pub fn in_place(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self {
            role: Role::InOut,
            ..Self::input(name, dtype, shape, bytes)
        }
    }

    /// Bytes it takes.
    pub fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// What a kernel left in the buffers that it writes.
#[derive(Clone, Debug, Default)]
pub struct Outputs(pub Vec<(&'static str, Vec<u8>)>);

impl Outputs {
    /// The bytes of a buffer.
    ///
    /// # Panics
    /// When it is not among those that are written.
    pub fn get(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(output, _)| *output == name);
        found
            .map(|(_, bytes)| &bytes[..])
            .unwrap_or_else(|| panic!("no output '{name}'"))
    }
}

/// Operations and the digests of what judges them, made when this was built.
const JUDGEMENTS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/judgements.rs"));

/// Stands for everything that says whether an operation's outputs are right: blake3, in hexadecimal, of its cases, expected
/// outputs and bounds, and of all in this package and `reference` that they come from (`build/judgement.rs`).
///
/// # Panics
/// When the operation is not in [`OPS`], by the name of its module.
pub fn digest(op: &dyn Op) -> &'static str {
    let found = JUDGEMENTS.iter().find(|(name, _)| *name == op.name());
    found.unwrap_or_else(|| panic!("no digest of '{}'", op.name())).1
}

/// The operation called `name`, or an error that names the nearest.
pub fn find(name: &str) -> Result<&'static dyn Op, String> {
    let found = OPS.iter().copied().find(|op| op.name() == name);
    found.ok_or_else(|| {
        let hint = crate::error::did_you_mean(name, OPS.iter().map(|op| op.name()));
        format!("no operation '{name}'{hint}")
    })
}

/// The case of an operation called `name`, or an error that names the nearest.
pub fn case(op: &dyn Op, name: &str) -> Result<Case, String> {
    let cases = op.cases();
    let found = cases.iter().find(|case| case.name == name).cloned();
    found.ok_or_else(|| {
        let hint = crate::error::did_you_mean(name, cases.iter().map(|case| case.name.as_str()));
        format!("{} has no case '{name}'{hint}", op.name())
    })
}

/// Inputs and judgement of a case without a model.
pub fn problem(op: &dyn Op, case: &Case) -> Result<Problem, String> {
    let none = |pattern: &str| {
        Err(format!(
            "case '{}' reads a model, at {pattern}: choose another",
            case.name
        ))
    };
    op.problem(case, &Data::new(0, &none))
}
