//! Verdicts of rules on a run, as data; `gate` makes them.

use serde::{Deserialize, Serialize};

use crate::experiment::Rule;
use ulplab_core::error::Exit;
use ulplab_core::record::Failure;

/// The verdict of a rule on one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The rule holds on everything that was planned.
    Pass,
    Fail,
    /// The rule does not fail on the measurements, but they are not enough to pass.
    NotJudged,
    /// The recipe cannot run on this device, so that another run must judge it.
    NotForDevice,
}

impl Status {
    /// The word that tables show.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotJudged => "NOT JUDGED",
            Self::NotForDevice => "NOT FOR THIS DEVICE",
        }
    }
}

/// One rule judged on one recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub rule: Rule,
    pub recipe: String,
    pub status: Status,
    /// The statistic the bound is compared with, the worst over layers and sites; NaN if there is none.
    #[serde(with = "ulplab_core::record::nullable")]
    pub value: f64,
    /// Site the value is from, without the layer.
    pub site: Option<String>,
    /// Layer the value is from.
    pub layer: Option<u32>,
    /// Window the value is from (of kernels the case), if it is from one: a least or a greatest value.
    pub window: Option<String>,
    /// Windows behind the value.
    pub windows: u32,
    /// A sentence: the measurement, its place and the bound; or why the rule could not be judged.
    pub message: String,
    /// The failures of the rule, if any.
    #[serde(default)]
    pub failures: Failures,
}

impl Verdict {
    pub fn passes(&self) -> bool {
        self.status == Status::Pass
    }

    pub fn fails(&self) -> bool {
        self.status == Status::Fail
    }

    /// The consequence of a control that was measured and fails.
    pub fn consequence(&self) -> Option<&'static str> {
        let control = self.rule.control && self.fails() && !self.value.is_nan();
        control.then_some(
            "the recipe is known to be bad, and the run does not measure it as bad: it cannot tell bad from good, so what passes with \
             the control may be bad, too",
        )
    }
}

/// Measurements that a rule does not admit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Failures of the worst cells, cell by cell.
    pub worst: Vec<FailedMeasurement>,
    /// Number of cells with failures.
    pub cells: usize,
}

/// A measurement that a rule does not admit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedMeasurement {
    pub cell: String,
    /// The window; of kernels, the case.
    pub window: String,
    pub layer: Option<u32>,
    pub site: String,
    #[serde(with = "ulplab_core::record::nullable")]
    pub value: f64,
    /// Number of elements behind it; for `violations`, the number of elements that were checked.
    #[serde(default)]
    pub n: u64,
    #[serde(flatten)]
    pub failure: Failure,
}

impl Failures {
    /// Number of cells that are not shown.
    pub fn more(&self) -> usize {
        let mut shown: Vec<&str> = self.worst.iter().map(|failed| failed.cell.as_str()).collect();
        shown.dedup();
        self.cells - shown.len()
    }
}

/// The verdict of a run, and the exit code of the commands that judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that the experiment plans was measured, and every rule that it states holds.
    Pass,
    Fail,
    /// Cells are missing, so the run cannot be judged.
    Incomplete,
    /// No rule was judged.
    NotJudged,
    /// All judged gates hold, but something was not selected or could not be judged.
    PartlyJudged,
}

impl Outcome {
    /// `complete`: every selected cell was measured. `whole`: every planned cell was selected. A control that holds shows that a
    /// measurement can fail; it judges nothing, so it is not a pass.
    pub fn from_verdicts(verdicts: &[Verdict], complete: bool, whole: bool) -> Self {
        let judges = |verdict: &&Verdict| !(verdict.rule.control && verdict.passes());
        let statuses: Vec<Status> = verdicts.iter().filter(judges).map(|verdict| verdict.status).collect();
        Self::from_statuses(&statuses, complete, whole)
    }

    /// As [`from_verdicts`](Self::from_verdicts), from statuses of verdicts of any kind.
    pub fn from_statuses(statuses: &[Status], complete: bool, whole: bool) -> Self {
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

    /// Its name, the class of its colours in a page, their code in a terminal (green, red or yellow), and its exit code.
    fn row(self) -> (&'static str, &'static str, u8, Exit) {
        match self {
            Self::Pass => ("PASS", "pass", 32, Exit::Pass),
            Self::Fail => ("FAIL", "fail", 31, Exit::GateFailed),
            Self::Incomplete => ("INCOMPLETE", "open", 33, Exit::Incomplete),
            Self::NotJudged => ("NOT JUDGED", "open", 33, Exit::NotJudged),
            Self::PartlyJudged => ("PARTLY JUDGED", "open", 33, Exit::NotJudged),
        }
    }

    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Class of its colours in a page.
    pub fn tone(self) -> &'static str {
        self.row().1
    }

    /// The terminal's colour of its name: green, red or yellow.
    pub fn colour(self) -> u8 {
        self.row().2
    }

    /// Exit code of a timing run, which fails only if a kernel fails or if the run is incomplete.
    pub fn exit_of_bench(self) -> Exit {
        match self {
            Self::Fail | Self::Incomplete => self.exit(),
            Self::Pass | Self::NotJudged | Self::PartlyJudged => Exit::Pass,
        }
    }

    pub fn exit(self) -> Exit {
        self.row().3
    }
}
