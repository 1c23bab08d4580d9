//! Text lines for the failures of a check.

use ulplab_run::run::verdict::Failures;

/// A measurement that violates a rule.
pub struct Line<'a> {
    /// Window of the measurement; for kernels, the case.
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

/// Describes the number of further failing cells; `None` if there are none.
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
