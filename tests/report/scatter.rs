//! Points of a chart.

use ulplab::report::chart::{Mark, Point, front};

#[test]
fn the_front_is_what_nothing_beats() {
    let point = |name: &str, cost, error| Point {
        name: name.into(),
        slot: 0,
        mark: Mark::Filled,
        cost,
        error,
        detail: String::new(),
    };
    let points = [
        point("worse", 584.0, 0.2),
        point("cheap", 368.0, 0.1),
        point("right", 1024.0, 0.001),
        point("dear", 1024.0, 0.01),
        point("middle", 528.0, 0.02),
    ];
    let names: Vec<_> = front(&points.each_ref()).iter().map(|p| p.name.clone()).collect();
    assert_eq!(names, ["cheap", "middle", "right"]);
}
