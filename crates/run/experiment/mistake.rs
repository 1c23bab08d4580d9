//! Mistakes in an experiment file, each with the path of the wrong value.

use std::fmt;

use ulplab_core::error::Error;

/// A step from the root of a file to one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    /// 0-based index in an array, such as `[[recipe]]`.
    Index(usize),
}

/// A mistake in an experiment file: a message, and the path of the wrong value, such as the eighth recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Path from the root of the file to the wrong value. The path of a missing key ends in steps that the file does not have.
    pub path: Vec<Step>,
    pub message: String,
}

impl Mistake {
    /// Creates a mistake with an empty path. Callers prepend steps to the path by [`in_key`](Self::in_key) and
    /// [`within`](Self::within).
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: Vec::new(),
            message: message.into(),
        }
    }

    /// Creates a mistake at a key of the table that is being checked.
    pub fn at(key: &str, message: impl Into<String>) -> Self {
        Self::new(message).in_key(key)
    }

    /// Rejects the value at `key` if `wrong` is true.
    ///
    /// # Errors
    /// Returns a mistake with this key and message if `wrong` is true.
    pub fn refuse(wrong: bool, key: &str, message: impl fmt::Display) -> Result<(), Self> {
        if wrong {
            Err(Self::at(key, message.to_string()))
        } else {
            Ok(())
        }
    }

    /// Prepends `key` to the path: the caller's table has the value under `key`.
    pub fn in_key(mut self, key: &str) -> Self {
        self.path.insert(0, Step::Key(key.into()));
        self
    }

    /// Calls `make` for each item of the array `key`. If `make` returns a mistake, adds `key` and the index of the item to the
    /// mistake's path.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub fn each<'a, T, R>(key: &str, items: &'a [T], make: impl Fn(&'a T) -> Result<R, Self>) -> Result<Vec<R>, Self> {
        let one = |(at, item)| make(item).map_err(|mistake| mistake.within(key, at));
        items.iter().enumerate().map(one).collect()
    }

    /// Prepends `key` and `index` to the path: the value is element `index` of the array of tables `[[key]]`.
    pub fn within(mut self, key: &str, index: usize) -> Self {
        self.path.splice(0..0, [Step::Key(key.into()), Step::Index(index)]);
        self
    }

    /// Puts the subject of the mistake and a colon before the message.
    pub fn of(mut self, who: impl fmt::Display) -> Self {
        self.message = format!("{who}: {}", self.message);
        self
    }

    /// Converts a mistake in a recipe to a mistake in the file, where the recipe has the index `index`.
    pub fn in_recipe(self, name: &str, index: usize) -> Self {
        self.of(format!("recipe '{name}'")).within("recipe", index)
    }

    /// Returns the mistake as a usage error that gives only the message, without file and line.
    pub fn usage(self) -> Error {
        Error::Usage(self.message)
    }

    /// Returns the root key of the file that contains the mistake.
    pub fn root(&self) -> Option<&str> {
        match self.path.first()? {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        }
    }
}
