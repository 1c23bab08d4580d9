//! Text that a model reads.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Mistake;

/// A piece of text fed to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name of a text in `datasets/manifest.toml`, or the path of a text file.
    pub text: String,
    /// First byte.
    #[serde(default)]
    pub offset: usize,
}

impl Window {
    /// `alice@4096`. A path is named by its file without the extension; every character other than letters, digits, `_` and
    /// `-` becomes `_`.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.text).file_stem().unwrap_or_default().to_string_lossy();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "_-".contains(c) {
                c
            } else {
                '_'
            }
        };
        format!("{}@{}", stem.chars().map(plain).collect::<String>(), self.offset)
    }
}

/// The model of an experiment and the text that it reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading<'a> {
    /// Name of a checkpoint in `datasets/manifest.toml`, or the path of a folder with `config.json` and safetensors.
    pub model: Option<&'a str>,
    /// Tokens in each window.
    pub tokens: usize,
    pub windows: &'a [Window],
}

impl<'a> Reading<'a> {
    pub fn new(model: Option<&'a str>, tokens: usize, windows: &'a [Window]) -> Self {
        Self { model, tokens, windows }
    }

    /// Checks the windows themselves.
    pub fn check(&self) -> Result<(), Mistake> {
        if self.windows.is_empty() && self.tokens > 0 {
            let message = "tokens is the length of windows of text, and no [[window]] is given";
            return Err(Mistake::at("tokens", message));
        }
        if !self.windows.is_empty() && self.tokens < 2 {
            let message = format!("tokens = {}: a window needs at least 2", self.tokens);
            return Err(Mistake::at("tokens", message));
        }
        for (at, window) in self.windows.iter().enumerate() {
            if self.windows[..at].iter().any(|other| other.name() == window.name()) {
                let message = format!("window '{}' is given twice", window.name());
                return Err(Mistake::at("text", message).within("window", at));
            }
        }
        Ok(())
    }
}
