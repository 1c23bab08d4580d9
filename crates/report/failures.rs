//! Text lines for the failures of a check.

use ulplab_run::run::verdict::Failures;

/// Text about one failed measurement.
pub struct Line<'a> {
    /// Name of the input window of the measurement; for kernels, name of the test case.
    pub window: &'a str,
    pub message: &'a str,
    /// Reason for the bound; empty if it is the same as on the line before.
    pub why: &'a str,
}

/// Returns a line for each failure that is shown, grouped by cell (one recipe on one window or case).
pub fn lines(failures: &Failures) -> Vec<Line<'_>> {
    let mut last = "";
    let lines = failures.worst.iter().map(|failed| {
        let why = failed.failure.why.as_str();
        let fresh = why != last;
        last = why;
        Line {
            window: &failed.window,
            message: &failed.failure.message,
            why: if fresh { why } else { "" },
        }
    });
    lines.collect()
}

/// Returns a sentence with the number of failing cells that are not shown; `None` if all are shown.
pub fn more(failures: &Failures) -> Option<String> {
    match failures.more() {
        0 => None,
        1 => Some("one more cell fails".into()),
        more => Some(format!("{more} more cells fail")),
    }
}

/// Returns all failures as plain text.
pub fn text(failures: &Failures) -> String {
    let mut text = String::new();
    for Line { window, message, why } in lines(failures) {
        text += &format!("{window}: {message}\n");
        if !why.is_empty() {
            text += &format!("  because: {why}\n");
        }
    }
    text.extend(more(failures).map(|more| more + "\n"));
    text
}
