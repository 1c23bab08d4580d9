//! Mistakes in an experiment file, with their places.

use std::fmt;

use ulplab_core::error::Error;

/// A step from the root of a file to one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    /// 0-based place in an array, e.g. of `[[recipe]]`.
    Index(usize),
}

/// A mistake, and the path of the wrong value, such as the eighth recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// From the root of the file; a step that the file lacks is a key that is missing.
    pub path: Vec<Step>,
    pub message: String,
}

impl Mistake {
    /// A mistake at the value that is being looked at.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: Vec::new(),
            message: message.into(),
        }
    }

    /// A mistake at a key of the value that is being looked at.
    pub fn at(key: &str, message: impl Into<String>) -> Self {
        Self::new(message).in_key(key)
    }

    /// Refuses the value at a key, if it is wrong.
    ///
    /// # Errors
    /// The mistake.
    pub fn refuse(wrong: bool, key: &str, message: impl fmt::Display) -> Result<(), Self> {
        if wrong {
            Err(Self::at(key, message.to_string()))
        } else {
            Ok(())
        }
    }

    /// The same, seen from the table that has the value under `key`.
    pub fn in_key(mut self, key: &str) -> Self {
        self.path.insert(0, Step::Key(key.into()));
        self
    }

    /// The same, seen from the file whose array of tables `[[key]]` has the value at `index`.
    pub fn within(mut self, key: &str, index: usize) -> Self {
        self.path.splice(0..0, [Step::Key(key.into()), Step::Index(index)]);
        self
    }

    /// The same, with who it is about before the message.
    pub fn of(mut self, who: impl fmt::Display) -> Self {
        self.message = format!("{who}: {}", self.message);
        self
    }

    /// A mistake in a recipe, seen from the file, where this recipe is number `index`.
    pub fn in_recipe(self, name: &str, index: usize) -> Self {
        self.of(format!("recipe '{name}'")).within("recipe", index)
    }

    /// The mistake without its place in a file.
    pub fn usage(self) -> Error {
        Error::Usage(self.message)
    }

    /// The key of the file in which it is.
    pub fn root(&self) -> Option<&str> {
        match self.path.first()? {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        }
    }
}
