//! Text that others wrote, as it is shown.

use ulplab_core::text::{hidden, lines, shown};

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
