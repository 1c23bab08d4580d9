//! Describes the wrong elements of an output in the message of a failed check.

use rayon::prelude::*;

use super::pattern::{self, Bad, Kinds};
use super::values;
use super::values::KINDS;
use super::{Judge, Measured};
use ulplab_core::record::{Failure, Worst};

/// The worst element, and the text that follows its index in a message.
pub(super) struct WorstElement {
    pub at: usize,
    pub want: f64,
    pub got: f64,
    pub bound: Option<f64>,
    pub text: String,
}

impl Judge {
    /// Returns a failure if any element is `bad`, else `right` (the measurement of an output that passes). `said` describes the
    /// first bad element.
    pub(super) fn first_wrong(
        &self,
        right: Measured,
        bad: Bad,
        kinds: Kinds,
        said: impl FnOnce(usize) -> WorstElement,
    ) -> Measured {
        let all = 0..right.n as usize;
        let count = all.clone().into_par_iter().filter(|at| bad(*at)).count();
        let Some(first) = { all }.find(|at| bad(*at)) else {
            return right;
        };
        self.failed(right, count, bad, kinds, said(first))
    }

    /// Turns a measurement into a failure: `count` elements are `bad`. `kinds` returns the [`KINDS`] of an element as a bit set,
    /// and `said` describes the worst element.
    pub(super) fn failed(&self, right: Measured, count: usize, bad: Bad, kinds: Kinds, said: WorstElement) -> Measured {
        let worst = Worst {
            index: self.index(said.at),
            want: said.want,
            got: said.got,
        };
        let (place, kinds) = pattern::find(&self.shape, self.rows.is_some(), bad, kinds);
        let kind = KINDS.iter().find(|(kind, _)| kinds & kind != 0);
        let all = self.shape.iter().product();
        let pattern = match kind {
            Some((_, kind)) => format!("{place}, {kind}"),
            None => place,
        };
        let numbers: Vec<String> = worst.index.iter().map(u64::to_string).collect();
        let message = format!(
            "{}[{}]: {}; {} of {} wrong, {pattern}",
            self.output,
            numbers.join(","),
            said.text,
            values::count(count),
            values::count(all),
        );
        Measured {
            value: count as f64,
            failure: Some(Box::new(Failure {
                message,
                worst: Some(worst.clone()),
                bound: said.bound,
                why: self.why.to_string(),
                pattern,
            })),
            worst: Some(worst),
            ..right
        }
    }
}
