//! The parameters that a user's case may set.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::Case;

/// The most elements that a tensor of a user's case may have; a larger size is taken for a mistake.
pub const MOST_ELEMENTS: usize = 1 << 32;

/// The parameters of a user's case: which ones are required and which are optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Sizes. Each is set by the case or by the shapes of its tensors.
    pub sizes: Vec<String>,
    /// Keys, each with its allowed values.
    pub keys: Vec<(String, Vec<String>)>,
    /// Optional numbers.
    pub scalars: Vec<Range>,
    /// Inputs that may come from a file, with their shapes as expressions of sizes; an empty shape depends on keys, too.
    pub tensors: Vec<(String, Vec<String>)>,
    /// True if cases may combine any values of keys, and omit keys; the first value is the default.
    pub free: bool,
}

/// An optional number, with the range in which the operation's error bounds hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// Name of the number, e.g. `eps`.
    pub name: String,
    /// The smallest allowed value.
    pub least: f64,
    /// The largest allowed value.
    pub most: f64,
    /// The value if a case does not set it; `None` if the operation chooses.
    pub default: Option<f64>,
}

impl Parameters {
    /// Sizes and keys; the allowed values of a key are those that occur in `cases`.
    pub fn new(cases: &[Case], sizes: &[&str], keys: &[&str]) -> Self {
        let values = |key: &&str| {
            let mut values: Vec<String> = Vec::new();
            for case in cases {
                let value = case.key(key);
                if values.iter().all(|other| other != value) {
                    values.push(value.into());
                }
            }
            (key.to_string(), values)
        };
        Self {
            sizes: sizes.iter().map(ToString::to_string).collect(),
            keys: keys.iter().map(values).collect(),
            ..Self::default()
        }
    }

    /// Adds an optional number from `least` to `most`, without a default.
    pub fn scalar(mut self, name: &str, [least, most]: [f64; 2]) -> Self {
        self.scalars.push(Range {
            name: name.into(),
            least,
            most,
            default: None,
        });
        self
    }

    /// Adds an input that may come from a file; `shape` has an expression for each dimension.
    pub fn tensor(mut self, name: &str, shape: &[&str]) -> Self {
        let shape = shape.iter().map(ToString::to_string).collect();
        self.tensors.push((name.into(), shape));
        self
    }

    /// All names that a case may set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let sizes = self.sizes.iter().map(String::as_str);
        let keys = self.keys.iter().map(|(name, _)| name.as_str());
        sizes
            .chain(keys)
            .chain(self.scalars.iter().map(|scalar| scalar.name.as_str()))
    }
}

/// A name with static lifetime. Names of shipped operations are literals; names from an experiment's file are few, and each
/// is leaked once.
pub fn lasting(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = String::from(name).leak();
    names.insert(kept);
    kept
}
