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

/// Reserved names, which sizes, numbers and tensors must not have: keys of every case, and metadata of a problem's file.
const RESERVED: [&str; 7] = ["op", "name", "inputs", "tensors", "timed", "case", "outputs"];

/// Largest `timeout`, in seconds: one day. A larger value is refused as a mistake.
const MOST_SECONDS: f64 = 86_400.0;

/// An operation that the user defines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnOp {
    pub name: String,
    /// Description of the operation, in one line.
    pub doc: String,
    /// Names of the sizes that shapes use; each case gives their values.
    pub sizes: Vec<String>,
    /// Further numbers that programs read, by name; a case may override them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scalars: BTreeMap<String, f64>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    /// Program that computes the outputs in f64, and its arguments. The paths of the input file and of the output file follow.
    pub reference: Vec<String>,
    /// Patterns of further files that the reference depends on, relative to the folder of the experiment file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
    /// Timeout of the reference in seconds, for one case.
    #[serde(default = "timeout")]
    pub timeout: f64,
}

/// An input tensor, read by the candidates and the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    pub name: String,
    /// Type of the elements: `f32`, `bf16`, …; if absent, the `dtype` of the case.
    pub dtype: Option<String>,
    /// Dimensions, each a size, a number or an expression over sizes.
    pub shape: Vec<Size>,
    /// Random values of the tensor, unless the case's file has the tensor.
    #[serde(default)]
    pub values: Values,
}

/// An output tensor that candidates write, and its permitted distance from the reference. One of `equal` and `bound` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    pub name: String,
    /// Type of the elements: `f32`, `bf16`, …; if absent, the `dtype` of the case.
    pub dtype: Option<String>,
    /// Dimensions, each a size, a number or an expression over sizes.
    pub shape: Vec<Size>,
    /// True if the bits must equal the reference's. The reference then writes this output in the output's type.
    #[serde(default)]
    pub equal: bool,
    pub bound: Option<Bound>,
    /// Reason why an output within the bound is correct.
    pub why: String,
}

/// Largest permitted distance of an output element from the reference's y, rounding to the output's type included: `relative` ·
/// |y| + `absolute`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Bound {
    /// Factor of |y|, at least 0 and below 1.
    pub relative: f64,
    /// Permitted distance where y is 0.
    pub absolute: f64,
    /// True if the reference writes the bound of each element to an output `<name>.bound`. `relative` and `absolute` are then 0.
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
        // A case must state `dtype` if the operation's definition leaves out the type of a tensor.
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

    /// Checks the definition for one case: the types of the inputs, and the types and shapes of the outputs.
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
    /// Returns an error if the output has a bound that no check can use: outputs of this type can only be compared bit by bit, or
    /// no number of this type exceeds the bound.
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

/// Returns the largest finite number of an output type. An absolute bound this large is refused: where 0 is expected, no output
/// could exceed the bound.
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

/// Returns the type of a tensor in a case: `stated`, or else the value of the case's key `dtype`.
///
/// # Panics
/// Panics if the type is unknown, which the check of the operation excludes.
pub fn type_of(stated: &Option<String>, case: &Case) -> Dtype {
    let name = stated.as_deref().unwrap_or_else(|| case.key("dtype"));
    dtype_named(name).expect("types are checked")
}
