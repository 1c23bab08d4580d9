//! Operations on a user's tensors, with expected results in f64 and the largest error of a correct kernel.
//!
//! The error bound of an output has two parts. The first is the error of the computation ([`Output::error`]), which each
//! operation's file derives from its intermediate values. The second is the rounding of the output to the type in which it is
//! stored: half a spacing ([`half_spacing`]). No tolerance is chosen by hand: an operation runs on numbers that carry their error
//! bound (`near.rs`). `docs/error-models.md` has the reasons. Outputs that an operation only copies or selects must be equal bit
//! for bit (`Output.exact`).
//!
//! Every operation also lists faults ([`Fault`]): results that kernels compute by mistake. Many faults are the correct operation
//! on changed inputs (`change.rs`). A wrong result is compared with each fault, and the message names the faults that match.
//!
//! To add an operation, write a file with an [`Operation`] and add a line to [`OPERATIONS`].

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
pub mod local;
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

/// All operations of this package.
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

/// An operation on a user's tensors.
pub struct Operation {
    /// Name of the operation, e.g. `rmsnorm`.
    pub name: &'static str,
    /// One line that says what the operation computes.
    pub doc: &'static str,
    /// Arguments of the operation.
    pub takes: &'static [Takes],
    /// Known faults of kernels for this operation: wrong results that kernels compute by mistake.
    pub faults: &'static [Fault],
    /// Test cases with random inputs, on which kernels in any language are tested; `None` if a file in the folder `ops` defines
    /// test cases for this operation.
    pub cases: Option<&'static draw::Cases>,
    /// True if `kernels/NAME.cu` has kernels that run on the cases in `cases`.
    pub kernels: bool,
    /// Rows for a check of the mean error; `None` unless the operation computes each row of its output independently and without
    /// sums of products. Tensor cores truncate sums of products, so the mean error of such sums is not 0.
    pub rows: Option<Rows>,
    /// Class names of the PyTorch modules that compute this operation. Recordings of calls have these names with or without the
    /// package. The module's arguments are the required tensors, in order. Each other argument of the operation has the value of
    /// the module's parameter or attribute of the same name.
    pub modules: &'static [&'static str],
    /// Computes the expected outputs of a call, with error bounds.
    pub compute: fn(&Call) -> Result<Vec<Output>, String>,
}

/// Rows of an operation that computes each row independently.
pub struct Rows {
    /// Names of the inputs that have one row per row of the output.
    pub inputs: &'static [&'static str],
    /// True if a row consists of all elements at one index of the first dimension; false if it consists of the elements along the
    /// last dimension.
    pub first_dimension: bool,
    /// Returns a bound of the systematic error that the exponentials of an output row cause, in units of roundoff. The argument
    /// is the row's expected values. A systematic error may have the same direction in all elements.
    pub leaning: fn(&[f64]) -> f64,
}

/// Description of an argument that an operation takes.
pub struct Takes {
    /// Name of the argument in calls.
    pub name: &'static str,
    /// Kind of the argument.
    pub kind: Kind,
    /// Shape or meaning of the argument, in one line.
    pub doc: &'static str,
}

/// Lists the arguments of an operation, one per row: name, kind and description.
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

/// Kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A required tensor.
    Tensor,
    /// An optional tensor.
    Optional,
    /// A number with its default; a default of NaN means that the operation computes the default.
    Number(f64),
    /// One of these words; the first is the default.
    Word(&'static [&'static str]),
}

/// A mistake that kernels make.
pub struct Fault {
    /// Name of the fault, e.g. `no_variance`.
    pub name: &'static str,
    /// Description of the fault, as words that follow "looks like".
    pub doc: &'static str,
    /// Optional argument without which the fault changes nothing.
    pub needs: Option<&'static str>,
    /// Function that changes a call's arguments so that the correct operation gives the result of the fault; `None` if
    /// [`Operation::compute`] implements the fault.
    pub change: Option<fn(&mut Call)>,
}

/// Lists the faults of an operation, one per row: name, the argument without which the fault changes nothing, description, and
/// change.
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

/// Expected output in f64, with error bounds.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Name of the output, e.g. `y`.
    pub name: &'static str,
    /// Sizes of the dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub value: Vec<f64>,
    /// Error bound of each element before it is rounded to the stored type.
    pub error: Vec<f64>,
    /// Standard deviation of each element's error, if independent roundings dominate the error; empty otherwise.
    pub spread: Vec<f64>,
    /// Alternative values of some ranges, which are also admissible: rounding errors may change a decision (such as a top-k).
    pub others: Vec<Other>,
    /// Ranges whose elements may be any of several numbers, for example the indices of tied scores.
    pub choices: Vec<Choice>,
    /// True if the elements must be equal bit for bit, except for NaN payloads.
    pub exact: bool,
}

/// Alternative values of a range of elements. An output may have all of these values, or none of them.
#[derive(Clone, Debug)]
pub struct Other {
    /// Index of the first element.
    pub start: usize,
    /// Alternative values, starting at `start`.
    pub value: Vec<f64>,
    /// Error bound of each alternative value.
    pub error: Vec<f64>,
}

/// Range whose elements may be any of several numbers, in any order, but each number at most once; for example the indices of
/// tied scores.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Index of the first element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// Numbers from which the elements are chosen, in ascending order.
    pub of: Vec<f64>,
}

impl Output {
    /// Creates an output without alternatives.
    pub fn new(name: &'static str, shape: Vec<usize>, value: Vec<f64>, error: Vec<f64>) -> Self {
        Self {
            name,
            shape,
            value,
            error,
            ..Self::default()
        }
    }

    /// Creates an output from numbers with error bounds. A kernel must return the same infinity where a number is infinite, and
    /// NaN where it is NaN.
    fn of(name: &'static str, shape: Vec<usize>, numbers: impl IntoIterator<Item = Near>) -> Self {
        // Replace an unknown error bound (NaN) by infinity.
        let error = |x: Near| match x.error() {
            _ if !x.value().is_finite() => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error,
        };
        let (value, error) = numbers.into_iter().map(|x| (x.value(), error(x))).unzip();
        Self::new(name, shape, value, error)
    }

    /// Creates an output whose elements must be equal bit for bit, except for NaN payloads.
    pub fn exact(name: &'static str, shape: Vec<usize>, value: Vec<f64>) -> Self {
        let error = vec![0.0; value.len()];
        Self {
            exact: true,
            ..Self::new(name, shape, value, error)
        }
    }

    /// Replaces each element by infinity if every value within the element's error bound overflows in `dtype`.
    pub(crate) fn overflow(&mut self, dtype: Dtype) {
        let exact = self.exact;
        for (value, error) in self.value.iter_mut().zip(&self.error) {
            if !exact && value.is_finite() && value.abs() - error >= overflow(dtype) {
                *value = f64::INFINITY.copysign(*value);
            }
        }
    }

    /// Error bounds of all elements after they are stored as `dtype`.
    pub fn bounds(&self, dtype: Dtype) -> Vec<f64> {
        if self.exact {
            return vec![0.0; self.value.len()];
        }
        let elements = self.value.iter().zip(&self.error);
        elements.map(|(value, error)| bound(dtype, *value, *error)).collect()
    }
}

/// Error bound of an element that is stored as `dtype`. The bound includes the smallest normal f32, because fast exponentials and
/// compiler options may flush subnormal numbers to zero.
pub fn bound(dtype: Dtype, value: f64, error: f64) -> f64 {
    error + half_spacing(dtype, value.abs() + error) + f64::from(f32::MIN_POSITIVE)
}

/// Smallest magnitude that rounds to infinity in this type; infinity if the type has no such magnitude.
pub(crate) fn overflow(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 65_520.0,
        Dtype::BF16 => (2.0 - 2f64.powi(-8)) * 2f64.powi(127),
        Dtype::F32 => (2.0 - 2f64.powi(-24)) * 2f64.powi(127),
        _ => f64::INFINITY,
    }
}

/// Half the spacing of a type's numbers near `x`: the largest error of rounding to nearest. It is 0 for types of integers.
pub fn half_spacing(dtype: Dtype, x: f64) -> f64 {
    // Number of bits of the significand, including the leading bit, and exponent of the smallest normal number.
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

/// Rounds to the nearest number of a type, ties to even; infinity if the number overflows.
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
    /// Defaults for all fields: no arguments and no outputs.
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

    /// Finds an operation of this package by name.
    ///
    /// # Errors
    /// Returns an error with the most similar name if the name is unknown.
    pub fn find(name: &str) -> Result<&'static Self, String> {
        Self::among(OPERATIONS, name)
    }

    /// Finds one of the operations `all` by name.
    ///
    /// # Errors
    /// Returns an error with the most similar name if the name is unknown.
    pub fn among(all: &[&'static Self], name: &str) -> Result<&'static Self, String> {
        let found = all.iter().copied().find(|operation| operation.name == name);
        found.ok_or_else(|| {
            let names = || all.iter().map(|operation| operation.name);
            let (hint, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
            format!("no operation '{name}'{hint}; there are {all}")
        })
    }
}
