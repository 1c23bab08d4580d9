//! Arguments of an operation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use safetensors::Dtype;

use super::{Kind, Operation};
use ulplab_core::error::did_you_mean;

/// A user's tensor in f64.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub data: Vec<f64>,
}

impl Tensor {
    /// Size of the last dimension; 1 of a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The rows, to be changed.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f64]> {
        let cols = self.cols().max(1);
        self.data.chunks_exact_mut(cols)
    }
}

/// Something that is given to an operation.
#[derive(Clone, Debug)]
pub enum Given {
    /// A tensor.
    Tensor(Tensor),
    /// A number; 0 and 1 for false and true.
    Number(f64),
    /// A word.
    Word(String),
}

/// A call of an operation: what is given, and what a kernel may round.
#[derive(Clone, Debug)]
pub struct Call {
    operation: &'static Operation,
    pub(super) given: BTreeMap<String, Given>,
    /// Unit roundoff of the type that kernels compute and add in.
    pub u: f64,
    /// The type that the outputs are stored in, and numbers on the way where `cast` says so.
    pub dtype: Dtype,
    /// The fault that is computed in the place of the operation.
    pub fault: Option<&'static str>,
}

impl Call {
    /// A call with everything that is given by its name, of kernels that compute in f32.
    ///
    /// # Errors
    /// A name that the operation does not take, a tensor that is missing, or something of another kind.
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

    /// The operation that is called.
    pub fn operation(&self) -> &'static Operation {
        self.operation
    }

    /// The same call with a fault, or with another word.
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

    /// Returns whether something is given.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Returns whether this fault is computed.
    pub fn is(&self, fault: &str) -> bool {
        self.fault == Some(fault)
    }

    /// One of two values: the first with this fault, the second without.
    pub(super) fn pick<T>(&self, fault: &str, wrong: T, right: T) -> T {
        if self.is(fault) { wrong } else { right }
    }

    /// A tensor that may be left out.
    pub fn optional(&self, name: &str) -> Option<&Tensor> {
        match self.given.get(name) {
            Some(Given::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// A tensor that must be there, and was found to be there.
    ///
    /// # Panics
    /// If the operation does not say that it must.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.optional(name).unwrap_or_else(|| panic!("'{name}' is required"))
    }

    /// The kind of what the operation takes by that name.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        let takes = self.operation.takes.iter().find(|takes| takes.name == name);
        takes.map(|takes| takes.kind)
    }

    /// A number, or the default.
    pub fn number(&self, name: &str) -> f64 {
        match (self.given.get(name), self.kind(name)) {
            (Some(Given::Number(number)), _) => *number,
            (_, Some(Kind::Number(default))) => default,
            _ => f64::NAN,
        }
    }

    /// A whole number in a range, which the error says in words.
    ///
    /// # Errors
    /// If the number is missing or another one.
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

    /// An error if a number is below 0.
    ///
    /// # Errors
    /// Names the number.
    pub(super) fn expect_not_negative(&self, name: &str) -> Result<(), String> {
        let (operation, number) = (self.operation.name, self.number(name));
        let wrong = (number < 0.0).then(|| format!("{operation}: {name} = {number}, expected 0 or more"));
        wrong.map_or(Ok(()), Err)
    }

    /// The factor of scores, or of queries: 1/√dim if it is not given.
    pub(super) fn scale(&self, dim: usize) -> f64 {
        match self.number("scale") {
            scale if scale.is_nan() => (dim as f64).sqrt().recip(),
            scale => scale,
        }
    }

    /// Returns whether a number is not 0.
    pub fn flag(&self, name: &str) -> bool {
        self.number(name) != 0.0
    }

    /// A word, or the first of those that are possible.
    pub fn word(&self, name: &str) -> &str {
        match (self.given.get(name), self.kind(name)) {
            (Some(Given::Word(word)), _) => word,
            (_, Some(Kind::Word(words))) => words[0],
            _ => "",
        }
    }

    /// The type that a word names; none for `f32`, to which nothing is rounded.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        match self.word(name) {
            "bf16" => Some(Dtype::BF16),
            "f16" => Some(Dtype::F16),
            "e4m3" => Some(Dtype::F8_E4M3),
            _ => None,
        }
    }

    /// An error unless a tensor, if it is given, has whole numbers in this range.
    ///
    /// # Errors
    /// Names the tensor, the first other number, and the range.
    pub fn expect_whole(&self, name: &str, least: f64, most: f64) -> Result<(), String> {
        let fits = |x: &&f64| x.fract() == 0.0 && (least..=most).contains(*x);
        let data = self.optional(name).map(|tensor| &tensor.data[..]);
        let (operation, other) = (self.operation.name, data.into_iter().flatten().find(|x| !fits(x)));
        let wrong =
            other.map(|x| format!("{operation}: '{name}' has {x}, expected whole numbers from {least} to {most}"));
        wrong.map_or(Ok(()), Err)
    }

    /// An error unless a tensor, if it is given, has this shape.
    ///
    /// # Errors
    /// Names the tensor, its shape and the expected one.
    pub fn expect(&self, name: &str, expected: &[usize]) -> Result<(), String> {
        let fits = self.optional(name).is_none_or(|tensor| tensor.shape == expected);
        self.require(fits, name, format_args!("{expected:?}"))
    }

    /// An error unless the shape of a tensor fits, with what is expected in words.
    ///
    /// # Errors
    /// Names the tensor, its shape and what is expected.
    pub fn require(&self, fits: bool, name: &str, expected: impl Display) -> Result<(), String> {
        if fits {
            return Ok(());
        }
        let (operation, found) = (self.operation.name, &self.tensor(name).shape);
        Err(format!("{operation}: '{name}' is {found:?}, expected {expected}"))
    }
}
