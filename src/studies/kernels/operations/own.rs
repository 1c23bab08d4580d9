//! An operation that the user defines: its inputs and outputs, and the program that computes the expected values.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicBool;

use safetensors::Dtype;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::case::shape_of;
use super::draw::Values;
use crate::backend::program::TIMEOUT;
use crate::studies::parse::is_name;
use ulplab_core::error::{did_you_mean, refuse};
use ulplab_operations::ops::data::{DTYPES, dtype_named};
use ulplab_operations::ops::judge::is_number;
use ulplab_operations::ops::{Case, Data, Op, Parameters, Problem, Range, lasting};

/// Names that sizes, numbers and tensors must not have: keys of every case, and metadata of a problem's file.
const RESERVED: [&str; 7] = ["op", "name", "inputs", "tensors", "timed", "case", "outputs"];

/// Largest `timeout`, in seconds: one day. A larger value is refused as a mistake.
const MOST_SECONDS: f64 = 86_400.0;

/// An operation of the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnOp {
    pub name: String,
    /// Its description, in one line.
    pub doc: String,
    /// Names of the sizes that shapes are made of; each case says how large they are.
    pub sizes: Vec<String>,
    /// Further numbers for programs; a case may override them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scalars: BTreeMap<String, f64>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    /// The program that computes the outputs in f64, and its first arguments; the paths of two files come behind them.
    pub reference: Vec<String>,
    /// Patterns of further files that the reference depends on, relative to the folder of the experiment file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
    /// Seconds that the reference may take for a case.
    #[serde(default = "timeout")]
    pub timeout: f64,
}

/// A tensor that candidates and the reference read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    pub name: String,
    /// `f32`, `bf16`, …; the `dtype` of the case, if absent.
    pub dtype: Option<String>,
    /// Sizes, numbers, or expressions over sizes.
    pub shape: Vec<Size>,
    /// Its random content, unless the case has a file.
    #[serde(default)]
    pub values: Values,
}

/// A tensor that candidates write, and how near to the reference it must be. One of `equal` and `bound` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    pub name: String,
    /// `f32`, `bf16`, …; the `dtype` of the case, if absent.
    pub dtype: Option<String>,
    /// Sizes, numbers, or expressions over sizes.
    pub shape: Vec<Size>,
    /// The bits must be those that the reference writes, which writes this output in its own type.
    #[serde(default)]
    pub equal: bool,
    pub bound: Option<Bound>,
    /// Why this near is near enough.
    pub why: String,
}

/// Bound of the distance of an output y from the reference's, its own rounding included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Bound {
    /// So many times |y|, and
    pub relative: f64,
    /// so much more.
    pub absolute: f64,
    /// As the reference says for each element, in an output `<name>.bound`.
    pub by_reference: bool,
}

/// A size in a shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Size {
    Whole(u64),
    Expression(String),
}

/// Returns the default of the key `timeout`, in seconds.
pub fn timeout() -> f64 {
    TIMEOUT
}

/// Checks that a timeout is above 0 and at most `MOST_SECONDS`.
pub fn check_timeout(seconds: f64) -> Result<(), String> {
    let why = format_args!("timeout = {seconds}, expected seconds above 0, at most {MOST_SECONDS}");
    refuse(!(seconds > 0.0 && seconds <= MOST_SECONDS), why)
}

/// Returns a shape as the texts of its expressions.
pub fn expressions(shape: &[Size]) -> Vec<String> {
    let text = |size: &Size| match size {
        Size::Whole(size) => size.to_string(),
        Size::Expression(text) => text.clone(),
    };
    shape.iter().map(text).collect()
}

impl OwnOp {
    /// Checks everything in the definition that does not depend on cases.
    pub fn check_definition(&self) -> Result<(), String> {
        let why = "its name holds more than letters, digits, '_' and '-'";
        refuse(!is_name(&self.name, "_-"), why)?;
        refuse(self.inputs.is_empty(), "inputs is empty")?;
        refuse(self.outputs.is_empty(), "outputs is empty")?;
        refuse(self.reference.is_empty(), "reference is empty")?;
        check_timeout(self.timeout)?;
        self.check_names()?;
        for (name, value) in &self.scalars {
            refuse(
                !value.is_finite(),
                format_args!("scalars: {name} = {value} is not finite"),
            )?;
        }
        for input in &self.inputs {
            let dtype = input.dtype.as_deref().map(known_dtype).transpose()?;
            let wrong = |why| format!("input '{}': {why}", input.name);
            input.values.check(dtype).map_err(wrong)?;
        }
        for output in &self.outputs {
            let dtype = output.dtype.as_deref().map(known_dtype).transpose()?;
            let checked = output.check().and_then(|()| output.check_type(dtype));
            checked.map_err(|why| format!("output '{}': {why}", output.name))?;
        }
        Ok(())
    }

    /// Checks that every name is an identifier, and that no name is used twice.
    fn check_names(&self) -> Result<(), String> {
        let names = self.sizes.iter().chain(self.scalars.keys());
        let names = names.chain(self.inputs.iter().map(|input| &input.name));
        let names = names.chain(self.outputs.iter().map(|output| &output.name));
        let mut seen: HashSet<&str> = RESERVED.into_iter().chain(["dtype"]).collect();
        for name in names {
            let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let why = format_args!("'{name}' is not a name: a letter, then letters, digits and '_'");
            refuse(!word || !name.starts_with(|c: char| c.is_ascii_alphabetic()), why)?;
            refuse(!seen.insert(name), format_args!("the name '{name}' is taken"))?;
        }
        Ok(())
    }
}

impl Op for OwnOp {
    fn name(&self) -> &'static str {
        lasting(&self.name)
    }

    fn doc(&self) -> &'static str {
        lasting(&self.doc)
    }

    /// Returns no cases: all cases of the operation are in the experiment file.
    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }

    /// Returns the keys that a case of the operation must or may have.
    fn parameters(&self) -> Option<Parameters> {
        let dtypes = || DTYPES.iter().map(|(name, _)| name.to_string()).collect();
        let scalar = |(name, value): (&String, &f64)| Range {
            name: name.clone(),
            least: f64::MIN,
            most: f64::MAX,
            default: Some(*value),
        };
        // A case must give `dtype` if some tensor has no type of its own.
        let stated = self.inputs.iter().map(|input| &input.dtype);
        let mut stated = stated.chain(self.outputs.iter().map(|output| &output.dtype));
        let left = stated.any(Option::is_none);
        let tensor = |input: &Input| (input.name.clone(), expressions(&input.shape));
        Some(Parameters {
            sizes: self.sizes.clone(),
            keys: Vec::from_iter(left.then(|| ("dtype".to_string(), dtypes()))),
            scalars: self.scalars.iter().map(scalar).collect(),
            tensors: self.inputs.iter().map(tensor).collect(),
            free: false,
        })
    }

    /// Checks the types of the inputs and the shapes of the outputs in a case.
    fn check(&self, case: &Case) -> Result<(), String> {
        for input in &self.inputs {
            let wrong = |why| format!("input '{}': {why}", input.name);
            input.values.check(Some(type_of(&input.dtype, case))).map_err(wrong)?;
        }
        let mut outputs = self.outputs.iter();
        outputs.try_for_each(|output| {
            let wrong = |why| format!("output '{}': {why}", output.name);
            output.check_type(Some(type_of(&output.dtype, case))).map_err(wrong)?;
            shape_of(&output.name, &expressions(&output.shape), case).map(drop)
        })
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let problem = self.problem_until(case, data, &AtomicBool::new(false));
        problem.map_err(|why| why.to_string())
    }
}

impl Output {
    /// Checks that the bound, if there is one, makes sense for numbers of this type.
    fn check_type(&self, dtype: Option<Dtype>) -> Result<(), String> {
        let (Some(dtype), Some(bound)) = (dtype, self.bound) else {
            return Ok(());
        };
        let why = format_args!("{dtype} is compared bit by bit only: expected equal = true in place of bound");
        refuse(!(is_number(dtype) || dtype == Dtype::U8), why)?;
        let (absolute, most) = (bound.absolute, largest(dtype));
        let expected = format!("expected less than {most:e}, the largest number of {dtype}");
        let why = format_args!("bound: absolute = {absolute:e}, {expected}: nothing could fail it");
        refuse(absolute.is_nan() || absolute >= most, why)
    }

    fn check(&self) -> Result<(), String> {
        let reason = !self.why.trim().is_empty();
        refuse(!reason, "why is empty, expected the reason of its bound")?;
        let Some(bound) = self.bound else {
            let expected = "expected equal = true or bound = { relative = …, absolute = … }";
            return refuse(
                !self.equal,
                format_args!("neither equal nor bound is given, {expected}"),
            );
        };
        let (relative, absolute) = (bound.relative, bound.absolute);
        refuse(self.equal, "equal and bound are both given, expected one of them")?;
        let right = (0.0..1.0).contains(&relative) && absolute >= 0.0 && absolute.is_finite();
        let expected = "expected 0 <= relative < 1 and a finite absolute >= 0";
        refuse(
            !right,
            format_args!("bound: relative = {relative}, absolute = {absolute}, {expected}"),
        )?;
        let some = relative > 0.0 || absolute > 0.0;
        refuse(bound.by_reference && some, "bound: by_reference stands alone")?;
        let why = "bound: relative and absolute are 0; equal = true compares bits";
        refuse(!bound.by_reference && !some, why)
    }
}

/// Returns the largest finite number of a type that has bounds. A bound this large is refused, since no number near 0 could
/// exceed it.
pub fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => f32::MAX.into(),
        Dtype::BF16 => half::bf16::MAX.into(),
        Dtype::F16 => half::f16::MAX.into(),
        Dtype::I64 => i64::MAX as f64,
        Dtype::I32 => i32::MAX.into(),
        Dtype::U8 => u8::MAX.into(),
        _ => f64::MAX,
    }
}

fn known_dtype(name: &str) -> Result<Dtype, String> {
    dtype_named(name).ok_or_else(|| {
        let names = || DTYPES.iter().map(|(name, _)| *name);
        let hint = did_you_mean(name, names());
        let all = names().collect::<Vec<_>>().join(", ");
        format!("dtype = '{name}', expected one of {all}{hint}")
    })
}

/// Returns the type of a tensor in a case.
///
/// # Panics
/// If the type is unknown, which the check of the operation excludes.
pub fn type_of(stated: &Option<String>, case: &Case) -> Dtype {
    let name = stated.as_deref().unwrap_or_else(|| case.key("dtype"));
    dtype_named(name).expect("types are checked")
}
