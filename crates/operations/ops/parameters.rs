//! Parameters of an operation that a user's test case may set: sizes, named settings, numbers and input tensors.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::Case;
use ulplab_core::list::distinct;

/// Maximum number of elements of a tensor in a user's case. A larger number is rejected as a mistake.
pub const MOST_ELEMENTS: usize = 1 << 32;

/// Parameters that a user's case must or may set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Names of sizes. A case sets the value of a size, or its tensors' shapes determine the value.
    pub sizes: Vec<String>,
    /// Names of keys (settings such as `dtype`), each with its allowed values.
    pub keys: Vec<(String, Vec<String>)>,
    /// Optional numbers.
    pub scalars: Vec<Range>,
    /// Inputs that may come from a file, with their shapes as expressions of sizes. An empty shape means that the shape also
    /// depends on keys.
    pub tensors: Vec<(String, Vec<String>)>,
    /// True if a case may combine any values of keys (named settings), and may omit keys. The default of a key is its first
    /// value.
    pub free: bool,
}

/// Optional number, with the range in which the operation's error bounds hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// Name of the number, e.g. `eps`.
    pub name: String,
    /// Smallest allowed value.
    pub least: f64,
    /// Largest allowed value.
    pub most: f64,
    /// Default value; `None` if the operation computes the default.
    pub default: Option<f64>,
}

impl Parameters {
    /// Creates parameters with these sizes and keys (named settings). The allowed values of a key are the values that occur in
    /// `cases`.
    pub fn new(cases: &[Case], sizes: &[&str], keys: &[&str]) -> Self {
        let values = |key: &&str| {
            let values = distinct(cases.iter().map(|case| case.key(key).to_string()));
            (key.to_string(), values)
        };
        Self {
            sizes: sizes.iter().map(ToString::to_string).collect(),
            keys: keys.iter().map(values).collect(),
            ..Self::default()
        }
    }

    /// Adds an optional number in the range `least` to `most`, without a default.
    pub fn scalar(mut self, name: &str, [least, most]: [f64; 2]) -> Self {
        self.scalars.push(Range {
            name: name.into(),
            least,
            most,
            default: None,
        });
        self
    }

    /// Adds an input that may come from a file; `shape` has one expression per dimension.
    pub fn tensor(mut self, name: &str, shape: &[&str]) -> Self {
        let shape = shape.iter().map(ToString::to_string).collect();
        self.tensors.push((name.into(), shape));
        self
    }

    /// Names of all sizes, keys and numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let sizes = self.sizes.iter().map(String::as_str);
        let keys = self.keys.iter().map(|(name, _)| name.as_str());
        sizes
            .chain(keys)
            .chain(self.scalars.iter().map(|scalar| scalar.name.as_str()))
    }
}

/// Returns the name with a static lifetime. Leaks the memory of every new name, but only once; users' files have few names.
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
