use ulplab::metrics::{Decided, Decisions, History, Metric};

fn decided(open: bool, bank: u8, margins: [f64; 2]) -> Decided {
    Decided { open, bank, margins }
}

/// Values of all metrics of decisions, in their order.
fn measured(margin: f64, pairs: &[(Decided, Decided)]) -> [Option<f64>; 5] {
    let mut decisions = Decisions::new(margin);
    pairs.iter().for_each(|(want, got)| decisions.add(*want, *got));
    let names = [
        "gate_agreement",
        "bank_agreement",
        "flip_margin",
        "flip_margin_max",
        "flips_outside",
    ];
    names.map(|name| Metric::find(name).unwrap().measure(&decisions))
}

#[test]
fn a_bank_counts_where_both_gates_are_open() {
    let pairs = [
        (decided(true, 1, [0.5, 0.1]), decided(true, 1, [9.0, 9.0])),
        (decided(true, 1, [0.5, 0.1]), decided(true, 2, [9.0, 9.0])),
        (decided(true, 1, [0.3, 0.1]), decided(false, 2, [9.0, 9.0])),
        (decided(false, 1, [0.2, 0.1]), decided(true, 1, [9.0, 9.0])),
        (decided(false, 1, [0.2, 0.1]), decided(false, 3, [9.0, 9.0])),
    ];
    // Overturned: 0.1 of a bank, 0.3 and 0.2 of gates.
    assert_eq!(
        measured(0.15, &pairs),
        [Some(0.6), Some(0.5), Some(0.2), Some(0.3), Some(2.0)]
    );
    assert_eq!(measured(0.3, &pairs)[4], Some(0.0));
    assert_eq!(measured(0.0, &pairs)[4], Some(3.0));
}

#[test]
fn nothing_flipped_nothing_open_nothing_there() {
    let shut = decided(false, 0, [1.0, 1.0]);
    assert_eq!(
        measured(0.0, &[(shut, shut)]),
        [Some(1.0), None, Some(0.0), Some(0.0), Some(0.0)]
    );
    assert_eq!(measured(0.0, &[]), [None; 5]);
}

#[test]
fn a_reference_that_is_not_finite_judges_nothing() {
    let want = decided(true, 0, [f64::NAN, 1.0]);
    assert!(measured(0.0, &[(want, want)]).into_iter().flatten().all(f64::is_nan));
    // A candidate's margins are not read.
    let (want, got) = (
        decided(true, 0, [1.0, 1.0]),
        decided(true, 0, [f64::NAN, f64::INFINITY]),
    );
    assert_eq!(measured(0.0, &[(want, got)])[0], Some(1.0));
}

#[test]
fn histories() {
    let measure = |name: &str, history: History| Metric::find(name).unwrap().measure(&history);
    let history = History {
        cores: 8,
        same: 6,
        lanes: 4,
    };
    assert_eq!(measure("same_history", history), Some(0.75));
    assert_eq!(measure("lane_distance", history), Some(0.5));
    assert_eq!(measure("same_history", History::default()), None);
}
