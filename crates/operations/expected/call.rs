//! Arguments of a call of an operation, and checks of these arguments.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use safetensors::Dtype;

use super::{Kind, Operation};
use ulplab_core::error::did_you_mean;

/// A user's tensor, converted to f64. A scalar has no dimensions.
pub type Tensor = reference::Tensor<f64>;

/// An argument of an operation.
#[derive(Clone, Debug)]
pub enum Given {
    /// A tensor.
    Tensor(Tensor),
    /// A number; a boolean is the number 0 (false) or 1 (true).
    Number(f64),
    /// A word, such as the name of a layout; the operation lists the allowed words.
    Word(String),
}

/// A call of an operation: its arguments, and the types in which a kernel computes and stores.
#[derive(Clone, Debug)]
pub struct Call {
    operation: &'static Operation,
    pub(super) given: BTreeMap<String, Given>,
    /// Unit roundoff of the type in which kernels compute.
    pub u: f64,
    /// Type of the outputs. The argument `cast` makes kernels also round intermediate results to this type.
    pub dtype: Dtype,
    /// Name of the fault (known mistake of kernels) that the call simulates; `None` if the call simulates a correct kernel.
    pub fault: Option<&'static str>,
}

impl Call {
    /// Creates a call with these arguments by name, for kernels that compute in f32.
    ///
    /// # Errors
    /// Returns an error if an argument is unknown or of the wrong kind, or if a required tensor is missing.
    pub fn new(operation: &'static Operation, given: BTreeMap<String, Given>, dtype: Dtype) -> Result<Self, String> {
        let name = operation.name;
        let takes = || operation.takes.iter().map(|takes| takes.name);
        for key in given.keys() {
            if !takes().any(|takes| takes == key) {
                let (hint, all) = (did_you_mean(key, takes()), takes().collect::<Vec<_>>().join(", "));
                return Err(format!("{name} takes no '{key}'{hint}; it takes {all}"));
            }
        }
        for takes in operation.takes {
            let found = given.get(takes.name);
            let expected = match (takes.kind, found) {
                (Kind::Tensor, None) => return Err(format!("{name}: '{}' ({}) is missing", takes.name, takes.doc)),
                (_, None) | (Kind::Tensor | Kind::Optional, Some(Given::Tensor(_))) => continue,
                (Kind::Number(_), Some(Given::Number(number))) if number.is_finite() => continue,
                (Kind::Word(words), Some(Given::Word(word))) if words.contains(&&word[..]) => continue,
                (Kind::Word(words), _) => format!("one of '{}'", words.join("', '")),
                (Kind::Number(_), _) => "a finite number".into(),
                (Kind::Tensor | Kind::Optional, _) => "a tensor".into(),
            };
            let found = match found {
                Some(Given::Word(word)) => format!("'{word}'"),
                Some(Given::Number(number)) => number.to_string(),
                _ => "a tensor".into(),
            };
            return Err(format!("{name}: '{}' is {found}, expected {expected}", takes.name));
        }
        Ok(Self {
            operation,
            given,
            u: super::half_spacing(Dtype::F32, 1.0),
            dtype,
            fault: None,
        })
    }

    /// The operation of this call.
    pub fn operation(&self) -> &'static Operation {
        self.operation
    }

    /// Copies the call, but sets its fault to `fault`. If `word` is a pair of a name and a value, also sets this word argument.
    #[must_use]
    pub fn with(&self, fault: Option<&'static str>, word: Option<(&str, &str)>) -> Self {
        let mut other = self.clone();
        other.fault = fault;
        let faults = self.operation.faults.iter().filter(|known| fault == Some(known.name));
        for change in faults.filter_map(|fault| fault.change) {
            change(&mut other);
        }
        if let Some((name, word)) = word {
            other.given.insert(name.into(), Given::Word(word.into()));
        }
        other
    }

    /// Returns true if the call has the argument `name`.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Returns true if the call simulates the fault (known mistake of kernels) `fault`.
    pub fn is(&self, fault: &str) -> bool {
        self.fault == Some(fault)
    }

    /// Returns `wrong` if the call simulates the fault (known mistake of kernels) `fault`, else `right`.
    pub(super) fn pick<T>(&self, fault: &str, wrong: T, right: T) -> T {
        if self.is(fault) { wrong } else { right }
    }

    /// Returns the tensor `name`; `None` if the call does not have it.
    pub fn optional(&self, name: &str) -> Option<&Tensor> {
        match self.given.get(name) {
            Some(Given::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// Returns a required tensor; [`Call::new`] has checked that the call has all required tensors.
    ///
    /// # Panics
    /// Panics if the tensor is optional and not given.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.optional(name).unwrap_or_else(|| panic!("'{name}' is required"))
    }

    /// Kind of an argument that the operation takes; `None` if the name is unknown.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        let takes = self.operation.takes.iter().find(|takes| takes.name == name);
        takes.map(|takes| takes.kind)
    }

    /// Returns the value of the number argument `name`, or its default if the call does not have it.
    pub fn number(&self, name: &str) -> f64 {
        match (self.given.get(name), self.kind(name)) {
            (Some(Given::Number(number)), _) => *number,
            (_, Some(Kind::Number(default))) => default,
            _ => f64::NAN,
        }
    }

    /// Returns the value of an integer argument, which must be within `range`. `words` describes the range in the error message.
    ///
    /// # Errors
    /// Returns an error if the number is missing, not an integer, or outside of the range.
    pub fn count(&self, name: &str, range: RangeInclusive<usize>, words: &str) -> Result<usize, String> {
        let number = self.number(name);
        if number.fract() == 0.0 && range.contains(&(number as usize)) && number >= 0.0 {
            return Ok(number as usize);
        }
        let missing = number.is_nan();
        let found = if missing { "missing".into() } else { number.to_string() };
        let operation = self.operation.name;
        Err(format!(
            "{operation}: '{name}' is {found}, expected a whole number {words}"
        ))
    }

    /// Checks that the number argument `name` is not negative.
    ///
    /// # Errors
    /// Returns an error that names the number if it is negative.
    pub(super) fn expect_not_negative(&self, name: &str) -> Result<(), String> {
        let (operation, number) = (self.operation.name, self.number(name));
        let wrong = (number < 0.0).then(|| format!("{operation}: {name} = {number}, expected 0 or more"));
        wrong.map_or(Ok(()), Err)
    }

    /// Factor of the scores (or queries): the number argument `scale`, or 1/√dim if the call does not have it.
    pub(super) fn scale(&self, dim: usize) -> f64 {
        match self.number("scale") {
            scale if scale.is_nan() => (dim as f64).sqrt().recip(),
            scale => scale,
        }
    }

    /// Returns true if the number argument `name` is not 0.
    pub fn flag(&self, name: &str) -> bool {
        self.number(name) != 0.0
    }

    /// Value of a word argument, or its default: the first of its allowed values.
    pub fn word(&self, name: &str) -> &str {
        match (self.given.get(name), self.kind(name)) {
            (Some(Given::Word(word)), _) => word,
            (_, Some(Kind::Word(words))) => words[0],
            _ => "",
        }
    }

    /// Element type that a word argument names; `None` for `f32`, whose results need no further rounding.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        match self.word(name) {
            "bf16" => Some(Dtype::BF16),
            "f16" => Some(Dtype::F16),
            "e4m3" => Some(Dtype::F8_E4M3),
            _ => None,
        }
    }

    /// Checks that all elements of a tensor, if the call has it, are integers from `least` to `most`.
    ///
    /// # Errors
    /// Returns an error that names the tensor, the first wrong element, and the range.
    pub fn expect_whole(&self, name: &str, least: f64, most: f64) -> Result<(), String> {
        let fits = |x: &&f64| x.fract() == 0.0 && (least..=most).contains(*x);
        let data = self.optional(name).map(|tensor| &tensor.data[..]);
        let (operation, other) = (self.operation.name, data.into_iter().flatten().find(|x| !fits(x)));
        let wrong =
            other.map(|x| format!("{operation}: '{name}' has {x}, expected whole numbers from {least} to {most}"));
        wrong.map_or(Ok(()), Err)
    }

    /// Checks that a tensor, if the call has it, has this shape.
    ///
    /// # Errors
    /// Returns an error that names the tensor, its shape and the expected shape.
    pub fn expect(&self, name: &str, expected: &[usize]) -> Result<(), String> {
        let fits = self.optional(name).is_none_or(|tensor| tensor.shape == expected);
        self.require(fits, name, format_args!("{expected:?}"))
    }

    /// Checks the condition `fits` on a tensor's shape; `expected` describes the condition.
    ///
    /// # Errors
    /// Returns an error that names the tensor, its shape and the condition.
    pub fn require(&self, fits: bool, name: &str, expected: impl Display) -> Result<(), String> {
        if fits {
            return Ok(());
        }
        let (operation, found) = (self.operation.name, &self.tensor(name).shape);
        Err(format!("{operation}: '{name}' is {found:?}, expected {expected}"))
    }
}
