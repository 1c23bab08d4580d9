//! Verdicts of replayed capsules.

use ulplab::Exit;
use ulplab::commands::bisect::capsule::{Replayed, verdict};

/// A failure is gone only if the right recipe leaves every bit that it left, and the wrong one the same numbers.
#[test]
fn a_failure_is_gone_only_if_the_right_numbers_are_there() {
    let place = |got_changed: usize, want_changed: usize, max_abs: f64| Replayed {
        place: "logits".into(),
        relative_l2: max_abs,
        cosine: 1.0,
        max_abs,
        got_changed,
        want_changed,
        elements: 9,
    };
    let told = |places: &[Replayed]| verdict(places).1.split(':').next().unwrap_or_default();
    assert_eq!(told(&[place(0, 0, 0.5)]), "STILL THERE");
    assert_eq!(told(&[place(9, 0, 0.0)]), "GONE");
    assert_eq!(told(&[place(9, 0, 0.0), place(9, 1, 0.0)]), "NOT JUDGED");
    assert_eq!(told(&[place(0, 9, 0.0)]), "NOT JUDGED");
    for places in [
        [place(9, 0, 0.0), place(9, 0, 0.1)],
        [place(9, 0, 0.0), place(9, 0, f64::NAN)],
    ] {
        assert_ne!(verdict(&places).0, Exit::Pass);
    }
}
