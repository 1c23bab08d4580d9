//! Text for output: names and texts from files without hidden characters, and numbers in few digits.

/// Stands for a character that is not shown.
pub const REPLACEMENT: char = '\u{fffd}';

pub use reference::tensorfile::{hidden, shown};

/// A text of several lines, without hidden characters but line ends and tabs.
pub fn lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.replace(|c| hidden(c) && c != '\n' && c != '\t', "\u{fffd}")
}

/// A number in as few digits as read back to it; from 10⁶ on with an exponent.
pub fn number(x: f64) -> String {
    match x.abs() {
        1e6.. => format!("{x:e}"),
        _ => x.to_string(),
    }
}
