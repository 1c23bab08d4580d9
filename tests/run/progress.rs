//! Lines of a log that say how far a command is.

use std::sync::mpsc;
use std::time::Duration;

use indicatif::ProgressBar;
use ulplab::progress::{Lines, line};

#[test]
fn a_log_says_how_far_it_is_and_how_long_it_takes() {
    let bar = ProgressBar::hidden();
    bar.set_position(3);
    assert_eq!(line(&bar, "cells", 0, Duration::from_secs(5)), "3 cells after 5 s");
    bar.set_length(40);
    // 28 cells were done before: 4 took a minute, and 8 are left.
    bar.set_position(32);
    bar.set_message("a\nPASS: b");
    assert_eq!(
        line(&bar, "cells", 28, Duration::from_secs(60)),
        "32 of 40 cells after 60 s, about 120 s left: a\u{fffd}PASS: b"
    );
    assert_eq!(
        line(&bar, "cells", 32, Duration::from_secs(60)),
        "32 of 40 cells after 60 s: a\u{fffd}PASS: b"
    );
}

#[test]
fn lines_come_until_they_are_dropped() {
    let bar = ProgressBar::hidden();
    let (send, said) = mpsc::channel();
    let lines = Lines::every(Duration::from_millis(10), &bar, "cells", move |line| {
        drop(send.send(line))
    });
    for _ in 0..2 {
        let line = said.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(
            line.starts_with("0 of 0 cells after") || line.starts_with("0 cells after"),
            "{line}"
        );
    }
    drop(lines);
    while said.recv_timeout(Duration::from_secs(20)).is_ok() {}
}
