//! Windows that are read in several calls.

use std::num::NonZeroUsize;

use ulplab::studies::model::Calls;

#[test]
fn calls_read_every_token_once() {
    let even = Calls::Even(NonZeroUsize::new(3).unwrap());
    assert_eq!(even.of(8, "w"), [3, 3, 2]);
    let drawn = |number, window| Calls::Drawn { seed: 1, number }.of(500, window);
    for other in [drawn(2, "w"), drawn(1, "v")] {
        assert_eq!(other.iter().sum::<usize>(), 500);
        assert_ne!(other, drawn(1, "w"));
    }
    assert_eq!(drawn(1, "w"), drawn(1, "w"));
}
