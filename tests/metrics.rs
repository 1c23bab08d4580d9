//! Metrics against hand values, naive loops in f64, and their axioms; summaries over windows.

#[path = "metrics/choice.rs"]
mod choice;
#[path = "metrics/decisions.rs"]
mod decisions;
#[path = "metrics/growth.rs"]
mod growth;
#[path = "metrics/list.rs"]
mod list;
#[path = "metrics/logits.rs"]
mod logits;
#[path = "metrics/pair.rs"]
mod pair;
#[path = "metrics/pitfalls.rs"]
mod pitfalls;
#[path = "metrics/summary.rs"]
mod summary;
#[path = "metrics/threshold.rs"]
mod threshold;

use ulplab::metrics::{Evidence, Metric};

/// The value of the metric called `name`.
fn value<E: Evidence>(name: &str, evidence: &E) -> Option<f64> {
    Metric::find(name).unwrap().measure(evidence)
}

#[track_caller]
fn assert_close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance,
        "{found}, expected {expected} ± {tolerance}"
    );
}
