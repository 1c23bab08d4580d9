//! Reads TOML. Error messages give file, line and the nearest valid name.

use std::path::Path;

use serde::de::DeserializeOwned;

use ulplab_core::error::did_you_mean;
use ulplab_core::{Error, Result};

/// Reads `text`, the contents of `file`, as a `T`. If the types have `deny_unknown_fields`, an unknown key is an error.
pub fn parse_toml<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = error.span().map(|span| span.start);
        at_byte(file, text, start, &explain_beside(&error, &[]))
    })
}

/// Returns an error about a file, with the number of the line that contains the byte offset `byte`; without a line if `byte` is
/// `None`.
pub fn at_byte(file: &Path, text: &str, byte: Option<usize>, message: &str) -> Error {
    match byte.and_then(|byte| text.get(..byte)) {
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            Error::config(file, format!("line {line}: {message}"))
        }
        None => Error::config(file, message),
    }
}

/// Returns the parser's message, with the nearest valid name for an unknown name. `others` are further valid names that the
/// parser does not know.
pub fn explain_beside(error: &toml::de::Error, others: &[&str]) -> String {
    let mut message = in_words(error.message().trim_end());
    let near = suggestion(&message, others);
    if message.starts_with("unknown field") {
        others.iter().for_each(|other| message += &format!(", `{other}`"));
    }
    message + &near
}

/// Returns `; did you mean 'b'?` with the valid name nearest to the unknown one, for serde's messages such as "unknown field `a`,
/// expected one of `b`, `c`". `others` are further valid names. Returns an empty text for other messages.
pub fn suggestion(message: &str, others: &[&str]) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(wrong) if message.starts_with("unknown ") => did_you_mean(wrong, quoted.chain(others.iter().copied())),
        _ => String::new(),
    }
}

/// Replaces the Rust type names in serde's messages, such as "invalid type: string \"a\", expected usize", by words.
fn in_words(message: &str) -> String {
    let plain = message.strip_prefix("invalid type: ");
    let plain = plain.or_else(|| message.strip_prefix("invalid value: "));
    let Some((found, kind)) = plain.and_then(|plain| plain.rsplit_once(", expected ")) else {
        return message.into();
    };
    let kind = match kind {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number, 0 or more",
        "isize" | "i64" | "i32" | "i16" | "i8" => "a whole number",
        "f64" | "f32" => "a number",
        "a sequence" => "an array",
        "a map" => "a table",
        other => other,
    };
    format!("found {found}, expected {kind}")
}
