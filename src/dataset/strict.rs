//! TOML whose mistakes are reported with file, line and the nearest valid name.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::{Error, Result};
use ulplab_core::error::did_you_mean;

/// Reads `text`, the contents of `file`, as a `T`. With `deny_unknown_fields` on the types, an unknown key is an error.
pub fn parse_toml<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = explain(&error);
        match error.span().and_then(|span| text.get(..span.start)) {
            Some(before) => {
                let line = before.matches('\n').count() + 1;
                Error::config(file, format!("line {line}: {message}"))
            }
            None => Error::config(file, message),
        }
    })
}

/// The parser's message, with the nearest valid name if a name is unknown.
pub fn explain(error: &toml::de::Error) -> String {
    let message = error.message().trim_end();
    message.to_string() + &suggestion(message)
}

/// serde words an unknown name as "unknown field `a`, expected one of `b`, `c`".
fn suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(wrong) if message.starts_with("unknown ") => did_you_mean(wrong, quoted),
        _ => String::new(),
    }
}
