//! Notes on measurements of formats.

use ulplab::commands::dev::bench::Timing;
use ulplab::commands::dev::bench::formats::{Figure, busy};

#[test]
fn a_busy_machine_is_named() {
    let figure = |max| Figure {
        name: "ulplab".into(),
        format: "mxfp4".into(),
        what: "quantize".into(),
        rows: 1,
        cols: 1,
        time: Timing {
            median: 1.5,
            min: 1.0,
            max,
        },
    };
    assert_eq!(busy(&[figure(2.0), figure(3.0)], Some(14.0)), None);
    let note = busy(&[figure(2.0), figure(40.0)], Some(14.0)).expect("a note");
    assert!(note.contains("busy, with a load average of 14.0"), "{note}");
    assert!(note.contains("mxfp4 quantize took 40.0 times"), "{note}");
    assert!(busy(&[figure(40.0)], None).is_some() && busy(&[], None).is_none());
}
