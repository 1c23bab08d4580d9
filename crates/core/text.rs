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

#[cfg(test)]
mod tests {
    use super::*;

    /// Also of this kind: a carriage return, a next-line U+0085, a group of `##[`, tags U+E0041.
    #[test]
    fn a_name_stays_on_its_line_and_in_its_direction() {
        for name in [
            "w\nPASS: 9 tensors passed",
            "w\rPASS",
            "w\u{85}PASS",
            "w\u{2028}PASS",
            "w\tPASS",
            "w\u{1b}[2J",
            "w\u{202e}SSAP",
            "w\u{2066}a\u{2069}",
            "w\u{200f}a",
            "w\u{61c}a",
            "w\u{200b}a",
            "w\u{feff}a",
            "w\u{e0041}a",
        ] {
            let clean = shown(name);
            assert!(
                clean.starts_with("w\u{fffd}") && !clean.contains(hidden),
                "{name:?}: {clean:?}"
            );
        }
        assert_eq!(shown("::error file=x::y"), "\u{fffd}:error file=x::y");
        assert_eq!(shown("  ::error::y"), "  \u{fffd}:error::y");
        for name in ["layers.0.größe", "權重", "a b", "a::b", ":a", "🙂"] {
            assert_eq!(shown(name), name);
        }
        assert_eq!(lines("a\tb\nc\u{202e}\r"), "a\tb\nc\u{fffd}\u{fffd}");
    }
}
