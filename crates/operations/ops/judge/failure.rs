//! Descriptions of wrong elements.

use super::values;
use super::values::KINDS;
use super::{Judge, Measured, pattern};
use ulplab_core::record::{Failure, Worst};

/// Elements, some of which are wrong.
pub(super) struct Elements<'a> {
    pub judge: &'a Judge,
    pub count: usize,
    pub bad: &'a (dyn Fn(usize) -> bool + Sync),
    /// The [`KINDS`] of a wrong element, as a bit set.
    pub kinds: &'a (dyn Fn(usize) -> u16 + Sync),
}

/// The worst element, and the text that follows its name.
pub(super) struct WorstElement {
    pub at: usize,
    pub want: f64,
    pub got: f64,
    pub bound: Option<f64>,
    pub text: String,
}

impl Elements<'_> {
    /// Adds a failure to the measurement.
    pub fn failed(&self, measured: Measured, said: WorstElement) -> Measured {
        let judge = self.judge;
        let worst = Worst {
            index: judge.index(said.at),
            want: said.want,
            got: said.got,
        };
        let found = pattern::find(&judge.shape, judge.rows.is_some(), self.bad, self.kinds);
        let kind = KINDS.iter().find(|(kind, _)| found.kinds & kind != 0);
        let all = judge.shape.iter().product();
        let pattern = match kind {
            Some((_, kind)) => format!("{}, {kind}", found.place),
            None => found.place,
        };
        let message = format!(
            "{}{}: {}; {} of {} wrong, {pattern}",
            judge.output,
            place(&worst.index),
            said.text,
            values::count(self.count),
            values::count(all),
        );
        Measured {
            value: self.count as f64,
            failure: Some(Box::new(Failure {
                message,
                worst: Some(worst.clone()),
                bound: said.bound,
                why: judge.why.to_string(),
                pattern,
            })),
            worst: Some(worst),
            ..measured
        }
    }
}

/// An index as written after a name: `[91,7167]`.
fn place(index: &[u64]) -> String {
    let numbers: Vec<String> = index.iter().map(u64::to_string).collect();
    format!("[{}]", numbers.join(","))
}
