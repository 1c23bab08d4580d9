//! Operations on tensors that a user has: what they give in f64, and how far a right kernel may be from it.
//!
//! The error that an output may have has two parts. One is that of the computation, and each operation's file derives it from
//! the values that appear on the way ([`Output::error`]); the other is half a spacing of the type that is stored
//! ([`half_spacing`]). There is no number that somebody chose: an operation runs on numbers that carry their error (`near.rs`);
//! `docs/error-models.md` has the reasons. What is moved or chosen must be equal (`Output.exact`).
//!
//! Every operation also knows faults ([`Fault`]): other things that a kernel computes by mistake, many of them the right operation of
//! changed inputs (`change.rs`). A result that is not what is expected is compared with each of them, and is named if it is one of them.
//!
//! To add an operation, write a file with an [`Operation`] and a line in [`OPERATIONS`].

mod attention;
mod call;
mod causal_conv1d;
mod change;
mod compressor;
mod diagonal_ssm;
pub mod draw;
pub mod drift;
mod gated_delta;
mod hyper_head;
mod index_scores;
mod judge;
mod layernorm;
mod matmul;
pub mod mean_error;
mod mhc_post;
mod mhc_pre;
mod moe;
mod near;
mod paging;
mod rmsnorm;
mod rope;
pub mod routing;
mod sample;
mod scaled;
mod shape;
mod silu_and_mul;
mod softmax;
mod sparse_attention;
pub(crate) mod spread;
mod state_transpose;
mod streams;
pub mod sum;
mod top_k;

use safetensors::Dtype;

pub use call::{Call, Given, Tensor};
pub use judge::{Judged, Likeness, Refused, judge};
pub(crate) use judge::{crowded, settle};
use near::Near;
pub use shape::Shapes;
pub(crate) use sum::Terms;

use ulplab_core::error::did_you_mean;

/// The operations of this package.
pub const OPERATIONS: &[&Operation] = &[
    &attention::ATTENTION,
    &causal_conv1d::CAUSAL_CONV1D,
    &compressor::COMPRESSOR,
    &diagonal_ssm::DIAGONAL_SSM,
    &gated_delta::GATED_DELTA,
    &hyper_head::HYPER_HEAD,
    &index_scores::INDEX_SCORES,
    &layernorm::LAYERNORM,
    &matmul::MATMUL,
    &mhc_post::MHC_POST,
    &mhc_pre::MHC_PRE,
    &moe::MOE,
    &rmsnorm::RMSNORM,
    &rope::ROPE,
    &sample::SAMPLE,
    &silu_and_mul::SILU_AND_MUL,
    &softmax::SOFTMAX,
    &sparse_attention::SPARSE_ATTENTION,
    &state_transpose::STATE_TRANSPOSE,
    &top_k::TOP_K,
];

/// An operation that is computed from a user's tensors.
pub struct Operation {
    /// Its name, e.g. `rmsnorm`.
    pub name: &'static str,
    /// One line that says what it computes.
    pub doc: &'static str,
    /// Tensors and numbers that it takes.
    pub takes: &'static [Takes],
    /// Faults that kernels have.
    pub faults: &'static [Fault],
    /// Cases with drawn inputs, on which other programs are judged; none of an operation that has cases of its own for kernels.
    pub cases: Option<&'static draw::Cases>,
    /// True if there are kernels that run on these cases: `kernels/NAME.cu`.
    pub kernels: bool,
    /// Its rows, if it computes each of them independently of the others, and without sums of products: tensor cores truncate, which
    /// leans.
    pub rows: Option<Rows>,
    /// Classes of modules that compute it, as recordings of calls name them, with their package or without: its tensors that must be given
    /// are their arguments, in order; what else it takes are parameters and attributes of that name.
    pub modules: &'static [&'static str],
    /// Its outputs.
    pub compute: fn(&Call) -> Result<Vec<Output>, String>,
}

/// The rows of an operation that computes each of them independently of the others.
pub struct Rows {
    /// The inputs that have a row for each row of the output.
    pub inputs: &'static [&'static str],
    /// True if the first dimension counts rows; else all dimensions but the last do.
    pub first_dimension: bool,
    /// Lean of the exponentials' errors in one direction over the values of a row, in units of roundoff.
    pub leaning: fn(&[f64]) -> f64,
}

/// Something that an operation takes.
pub struct Takes {
    /// Its name in calls.
    pub name: &'static str,
    /// Kind of the argument.
    pub kind: Kind,
    /// Its shape or meaning, in a line.
    pub doc: &'static str,
}

/// Arguments of an operation, a row each: name, kind and description.
#[macro_export]
macro_rules! takes {
    ($($name:ident $kind:ident $(($value:expr))?: $doc:literal;)*) => {
        &[$($crate::expected::Takes {
            name: stringify!($name),
            kind: $crate::expected::Kind::$kind $(($value))?,
            doc: $doc,
        }),*]
    };
}
pub use takes;

/// The kinds of what operations take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A tensor that must be given.
    Tensor,
    /// A tensor that may be left out.
    Optional,
    /// A number, and what it is if it is not given; NaN if the operation then works it out.
    Number(f64),
    /// One of these words; the first if none is given.
    Word(&'static [&'static str]),
}

/// Something that a kernel computes by mistake.
pub struct Fault {
    /// Its name, e.g. `no_variance`.
    pub name: &'static str,
    /// Description of the fault, as words that follow "looks like".
    pub doc: &'static str,
    /// Optional argument without which the fault changes nothing.
    pub needs: Option<&'static str>,
    /// The change of a call with which the right operation gives what the fault gives; none if the operation itself computes it.
    pub change: Option<fn(&mut Call)>,
}

/// Faults of an operation, a row each: name, what must be given for it to change anything, description, and the change of the call.
#[macro_export]
macro_rules! faults {
    ($($name:ident $(of $needs:ident)?: $doc:literal $(=> $change:expr)?;)*) => {
        &[$($crate::expected::Fault {
            name: stringify!($name),
            doc: $doc,
            needs: $crate::expected::faults!(@some $(stringify!($needs))?),
            change: $crate::expected::faults!(@some $($change)?),
        }),*]
    };
    (@some $given:expr) => { Some($given) };
    (@some) => { None };
}
pub use faults;

/// An output in f64.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Its name, e.g. `y`.
    pub name: &'static str,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub value: Vec<f64>,
    /// Error of each element of a right kernel, before it is rounded to the stored type.
    pub error: Vec<f64>,
    /// Standard deviations of the part of each error that comes from independent roundings and dominates it; empty without such a
    /// part.
    pub spread: Vec<f64>,
    /// Other things that parts of it may be, where what decides between them is closer than a right kernel's error.
    pub others: Vec<Other>,
    /// Elements that are chosen from several numbers.
    pub choices: Vec<Choice>,
    /// True if the elements must be equal: to the bit, except for NaN payloads.
    pub exact: bool,
}

/// Elements that may have other values: all of them together.
#[derive(Clone, Debug)]
pub struct Other {
    /// The first element.
    pub start: usize,
    /// The elements from there.
    pub value: Vec<f64>,
    /// Error of each element.
    pub error: Vec<f64>,
}

/// Elements that are some of several numbers, in any order, each of them at most once: tied indices.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The first element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// Values that they are chosen from, in ascending order.
    pub of: Vec<f64>,
}

impl Output {
    /// An output that is one thing only.
    pub fn new(name: &'static str, shape: Vec<usize>, value: Vec<f64>, error: Vec<f64>) -> Self {
        Self {
            name,
            shape,
            value,
            error,
            ..Self::default()
        }
    }

    /// An output of numbers with errors. What is infinite or NaN meets only itself.
    fn of(name: &'static str, shape: Vec<usize>, numbers: impl IntoIterator<Item = Near>) -> Self {
        // Infinite if it is unknown.
        let error = |x: Near| match x.error() {
            _ if !x.value().is_finite() => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error,
        };
        let (value, error) = numbers.into_iter().map(|x| (x.value(), error(x))).unzip();
        Self::new(name, shape, value, error)
    }

    /// An output that must be equal.
    pub fn exact(name: &'static str, shape: Vec<usize>, value: Vec<f64>) -> Self {
        let error = vec![0.0; value.len()];
        Self {
            exact: true,
            ..Self::new(name, shape, value, error)
        }
    }

    /// Makes elements infinite that surely are too large for a type.
    pub(crate) fn overflow(&mut self, dtype: Dtype) {
        let exact = self.exact;
        for (value, error) in self.value.iter_mut().zip(&self.error) {
            if !exact && value.is_finite() && value.abs() - error >= overflow(dtype) {
                *value = f64::INFINITY.copysign(*value);
            }
        }
    }

    /// Bounds of the errors of all elements, stored in a type.
    pub fn bounds(&self, dtype: Dtype) -> Vec<f64> {
        if self.exact {
            return vec![0.0; self.value.len()];
        }
        let elements = self.value.iter().zip(&self.error);
        elements.map(|(value, error)| bound(dtype, *value, *error)).collect()
    }
}

/// Bound of the error of an element that is stored in a type. Numbers below the normal ones of f32 may be flushed to zero, as fast
/// exponentials and compilers do.
pub fn bound(dtype: Dtype, value: f64, error: f64) -> f64 {
    error + half_spacing(dtype, value.abs() + error) + f64::from(f32::MIN_POSITIVE)
}

/// The magnitude from which rounding to a type gives an infinity; none if it does not.
pub(crate) fn overflow(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 65_520.0,
        Dtype::BF16 => (2.0 - 2f64.powi(-8)) * 2f64.powi(127),
        Dtype::F32 => (2.0 - 2f64.powi(-24)) * 2f64.powi(127),
        _ => f64::INFINITY,
    }
}

/// Half the distance between the numbers of a type around `x`: how far rounding to nearest may move it. 0 for types that are
/// not floating-point numbers.
pub fn half_spacing(dtype: Dtype, x: f64) -> f64 {
    // Bits of the significand, the leading one counted, and exponent of the smallest normal number.
    let (digits, least) = match dtype {
        Dtype::F64 => (53, -1022),
        Dtype::F32 => (24, -126),
        Dtype::BF16 => (8, -126),
        Dtype::F16 => (11, -14),
        Dtype::F8_E4M3 => (4, -6),
        Dtype::F8_E5M2 => (3, -14),
        _ => return 0.0,
    };
    if !x.is_finite() {
        return x.abs();
    }
    let exponent = (((x.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(least);
    2f64.powi(exponent - digits)
}

/// A number rounded to nearest in a type, ties to even; infinite if it is too large for the type.
pub fn rounded(dtype: Dtype, x: f64) -> f64 {
    let step = 2.0 * half_spacing(dtype, x);
    let near = match step > 0.0 && x.is_finite() {
        true => (x / step).round_ties_even() * step,
        false => x,
    };
    match near.abs() >= overflow(dtype) {
        true => f64::INFINITY.copysign(near),
        false => near,
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Operation {
    /// An operation that has nothing and computes nothing.
    pub const NONE: Self = Self {
        name: "",
        doc: "",
        takes: &[],
        faults: &[],
        cases: None,
        kernels: false,
        rows: None,
        modules: &[],
        compute: |_| Ok(Vec::new()),
    };

    /// The operation of this package that is called `name`; the error names the nearest.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn find(name: &str) -> Result<&'static Self, String> {
        Self::among(OPERATIONS, name)
    }

    /// The operation of these that is called `name`; the error names the nearest.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn among(all: &[&'static Self], name: &str) -> Result<&'static Self, String> {
        let found = all.iter().copied().find(|operation| operation.name == name);
        found.ok_or_else(|| {
            let names = || all.iter().map(|operation| operation.name);
            let (hint, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
            format!("no operation '{name}'{hint}; there are {all}")
        })
    }
}
