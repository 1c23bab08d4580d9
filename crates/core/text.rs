//! Names and texts from files, as they may be shown.

/// Stands for a character that is not shown.
pub const REPLACEMENT: char = '\u{fffd}';

/// True if a character moves the cursor, begins a line, changes the direction of text, or has no width: in a name from a file
/// it would let the file write what looks like the program's own words.
pub fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            // Zero-width characters and marks of direction; separators of lines; embeddings and overrides; isolates.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A name, a label or another text of one line from a file, for people and for the logs of CI: without hidden characters, and not
/// one that begins as a command to GitHub Actions does.
pub fn shown(text: &str) -> String {
    let mut text = text.replace(hidden, "\u{fffd}");
    if text.trim_start().starts_with("::") {
        text = text.replacen(':', "\u{fffd}", 1);
    }
    text
}

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
