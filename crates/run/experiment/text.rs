//! Text that a model reads.

use std::path::Path;

use rand_chacha::rand_core::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::Mistake;
use crate::dataset::{Manifest as Datasets, Tokenizer, Tokens};
use crate::json::is_default;
use ulplab_core::error::Result;
use ulplab_core::random::stream;

/// A piece of text fed to the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name of a text in `datasets/manifest.toml`, or the path of a text file.
    pub text: String,
    /// Byte offset of the window's start in the text. With a tokenizer, the window begins at the next whole character.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offset: usize,
    /// In place of `offset`: number of a random sample. The experiment's seed and this number determine the window's first byte;
    /// each first byte is equally likely.
    pub draw: Option<usize>,
    /// Number of windows at random first bytes. Same as a list of windows with `draw` = 1, 2, … up to this number.
    pub draws: Option<usize>,
}

/// Deserializes windows. Expands a window with `draws` into one window for each draw.
pub fn written_out<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<Window>, D::Error> {
    let windows = Vec::<Window>::deserialize(deserializer)?;
    let mut all = Vec::new();
    for window in windows {
        match window.draws {
            None => all.push(window),
            Some(draws) if (1..=MOST_DRAWS).contains(&draws) && window.draw.is_none() => {
                all.extend((1..=draws).map(|draw| Window {
                    draw: Some(draw),
                    draws: None,
                    ..window.clone()
                }));
            }
            Some(draws) => {
                let message = format!("draws = {draws}: expected 1 to {MOST_DRAWS}, and no 'draw' next to it");
                return Err(serde::de::Error::custom(message));
            }
        }
    }
    Ok(all)
}

/// Largest number of random samples (draws) of a text, or of the inputs of a case. A larger number in an experiment is rejected
/// as a mistake.
pub const MOST_DRAWS: usize = 1 << 16;

impl Window {
    /// Returns the window's name: `alice@4096` for an offset, or `alice~3` for the third random sample (`draw`). A path is
    /// shortened to its file name without the extension; every character other than letters, digits, `_` and `-` becomes `_`.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.text).file_stem().unwrap_or_default().to_string_lossy();
        let other = |c: char| !c.is_ascii_alphanumeric() && !"_-".contains(c);
        let stem = stem.replace(other, "_");
        match self.draw {
            Some(draw) => format!("{stem}~{draw}"),
            None => format!("{stem}@{}", self.offset),
        }
    }

    /// Reads `tokens` tokens of the window's text, from the window's first byte on.
    ///
    /// # Errors
    /// Returns the errors of [`Tokenizer::window`].
    pub fn read(&self, datasets: &Datasets, tokenizer: &Tokenizer, seed: u64, tokens: usize) -> Result<Tokens> {
        let offset = match self.draw {
            None => self.offset,
            Some(draw) => {
                // If the text is too short, reading the window below fails.
                let places = tokenizer.places(datasets, &self.text, tokens)?;
                let word = stream(seed, &format!("window {draw} of {}", self.text)).next_u64();
                // Uniform in 0..places, with a bias below places / 2^64.
                ((u128::from(word) * u128::from(places)) >> 64) as usize
            }
        };
        tokenizer.window(datasets, &self.text, offset, tokens)
    }
}

/// The model of an experiment and the text that it reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading<'a> {
    /// Name of a checkpoint in `datasets/manifest.toml`, or the path of a folder with `config.json` and safetensors.
    pub model: Option<&'a str>,
    /// Tokens in each window.
    pub tokens: usize,
    /// True if windows may have more tokens than the model was trained on; `None` if the experiment has no such option.
    pub beyond_trained: Option<bool>,
    pub windows: &'a [Window],
}

impl<'a> Reading<'a> {
    pub fn new(model: Option<&'a str>, tokens: usize, windows: &'a [Window]) -> Self {
        Self {
            model,
            tokens,
            beyond_trained: None,
            windows,
        }
    }

    /// Formats the length of a window, with a remark if it may exceed the trained length.
    pub fn length(&self) -> String {
        let beyond = self.beyond_trained == Some(true);
        format!(
            "{} tokens{}",
            self.tokens,
            if beyond { " (beyond_trained)" } else { "" }
        )
    }

    /// Checks the lengths, offsets and names of the windows.
    pub fn check(&self) -> std::result::Result<(), Mistake> {
        let message = "tokens is the length of windows of text, and no [[window]] is given";
        Mistake::refuse(self.windows.is_empty() && self.tokens > 0, "tokens", message)?;
        let message = format_args!("tokens = {}: a window needs at least 2", self.tokens);
        Mistake::refuse(!self.windows.is_empty() && self.tokens < 2, "tokens", message)?;
        for (at, window) in self.windows.iter().enumerate() {
            if window.draw.is_some() && window.offset > 0 {
                let message = "a window has an 'offset' or is drawn, not both";
                return Err(Mistake::at("offset", message).within("window", at));
            }
            if self.windows[..at].iter().any(|other| other.name() == window.name()) {
                let message = format!("window '{}' is given twice", window.name());
                return Err(Mistake::at("text", message).within("window", at));
            }
        }
        Ok(())
    }
}
