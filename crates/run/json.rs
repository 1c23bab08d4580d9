//! JSON output for programs.

use serde::Serialize;

use ulplab_core::error::{Error, Result};

/// Prints a value as JSON, on several lines.
pub fn print(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Usage(error.to_string()))?;
    outln!("{text}");
    Ok(())
}

/// Returns a value as JSON in one line.
pub fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a form in JSON")
}

/// True if a value is its type's default, which files leave out.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Prints a value as JSON if `json` is true, else as the text.
pub fn print_or(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json {
        return print(value);
    }
    out!("{}", text());
    Ok(())
}
