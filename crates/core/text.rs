//! Prepares text for output: replaces hidden characters in names and file contents, and formats numbers with few digits.

/// Character that replaces a hidden character (see [`hidden`]).
pub const REPLACEMENT: char = '\u{fffd}';

pub use reference::tensorfile::{hidden, shown};

/// Replaces the hidden characters of a text, except line ends and tabs, and turns CRLF into LF.
pub fn lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.replace(|c| hidden(c) && c != '\n' && c != '\t', "\u{fffd}")
}

/// Formats a number with the fewest digits that parse back to the same number; from 10⁶ on with an exponent.
pub fn number(x: f64) -> String {
    match x.abs() {
        1e6.. => format!("{x:e}"),
        _ => x.to_string(),
    }
}
