//! What cases of a user's may say of an operation.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::Case;

/// Elements that a tensor of a user's case may have: more are a slip.
pub const MOST_ELEMENTS: usize = 1 << 32;

/// What a case of a user's must or may set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Sizes: a case gives them, or its tensors fix them.
    pub sizes: Vec<String>,
    /// Keys that a case chooses a value of, with the values there are.
    pub keys: Vec<(String, Vec<String>)>,
    /// Numbers that a case may give.
    pub scalars: Vec<Range>,
    /// Inputs that may come from a file, with their shapes: expressions over sizes.
    pub tensors: Vec<(String, Vec<String>)>,
}

/// A number that a case may give, and between what it must lie for the operation's bounds to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub name: String,
    pub least: f64,
    pub most: f64,
    /// What it is if a case does not say; `None` if the operation knows.
    pub default: Option<f64>,
}

impl Parameters {
    /// Sizes and keys; the values of a key are those that it has in the cases.
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

    pub fn scalar(mut self, name: &str, [least, most]: [f64; 2]) -> Self {
        self.scalars.push(Range {
            name: name.into(),
            least,
            most,
            default: None,
        });
        self
    }

    /// An input that may come from a file, with the expressions of its shape.
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

/// A name that lives as long as the process. Cases and buffers of shipped operations are named by the program's text; names
/// from an experiment's file are few, and kept once each.
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
