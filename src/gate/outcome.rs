//! What a whole run comes to.

use super::{Status, Verdict};
use ulplab_core::error::Exit;

/// What a run comes to, and the exit code of the commands that judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that the experiment plans was measured, and every rule that it states holds.
    Pass,
    Fail,
    /// Cells are missing, so that nothing can be said of the whole.
    Incomplete,
    /// No rule was judged.
    NotJudged,
    /// What was judged holds, but something was not selected or could not be judged.
    PartlyJudged,
}

impl Outcome {
    /// `complete`: every selected cell was measured. `whole`: every planned cell was selected.
    pub fn of(verdicts: &[Verdict], complete: bool, whole: bool) -> Self {
        let statuses: Vec<Status> = verdicts.iter().map(|verdict| verdict.status).collect();
        Self::of_statuses(&statuses, complete, whole)
    }

    /// As [`of`](Self::of), of verdicts of any kind.
    pub fn of_statuses(statuses: &[Status], complete: bool, whole: bool) -> Self {
        let any = |status| statuses.contains(&status);
        if any(Status::Fail) {
            Self::Fail
        } else if !complete {
            Self::Incomplete
        } else if !any(Status::Pass) {
            Self::NotJudged
        } else if !whole || any(Status::NotJudged) {
            Self::PartlyJudged
        } else {
            Self::Pass
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Incomplete => "INCOMPLETE",
            Self::NotJudged => "NOT JUDGED",
            Self::PartlyJudged => "PARTLY JUDGED",
        }
    }

    /// Of a bench: it fails only if a kernel fails, or if it was not run to its end.
    pub fn exit_of_bench(self) -> Exit {
        match self {
            Self::Fail | Self::Incomplete => self.exit(),
            Self::Pass | Self::NotJudged | Self::PartlyJudged => Exit::Pass,
        }
    }

    pub fn exit(self) -> Exit {
        match self {
            Self::Pass => Exit::Pass,
            Self::Fail => Exit::GateFailed,
            Self::Incomplete => Exit::Incomplete,
            Self::NotJudged | Self::PartlyJudged => Exit::NotJudged,
        }
    }
}
