//! Verdicts of rules (gates and controls) on a run, as data. The module `gate` computes these verdicts.

use serde::Serialize;

use crate::experiment::Rule;
use ulplab_core::error::Exit;
use ulplab_core::record::Failure;

// Reports list verdicts in the derived order.
/// Status of a rule on one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Fail,
    /// The rule does not fail on the measurements, but too few measurements exist for a pass.
    NotJudged,
    /// The recipe cannot run on this device: only a run on another device can judge the rule.
    NotForDevice,
    /// The rule holds on all planned cells.
    Pass,
}

impl Status {
    /// Returns the text that tables show for the status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotJudged => "NOT JUDGED",
            Self::NotForDevice => "NOT FOR THIS DEVICE",
        }
    }
}

/// Verdict of one rule on one recipe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub rule: Rule,
    pub recipe: String,
    pub status: Status,
    /// Value of the statistic that is compared with the bound: the worst value over layers and sites; NaN if nothing was
    /// measured.
    #[serde(with = "ulplab_core::record::nullable")]
    pub value: f64,
    /// Site of the value, without the layer.
    pub site: Option<String>,
    /// Layer of the value.
    pub layer: Option<u32>,
    /// Window of the value (for kernels, the case); `None` unless the value is a minimum or maximum, which comes from one window.
    pub window: Option<String>,
    /// Number of windows that the value is computed from.
    pub windows: u32,
    /// A sentence: the measurement, its layer and site, and the bound; or the reason why the rule was not judged.
    pub message: String,
    /// The failures of the rule, if any.
    pub failures: Failures,
}

impl Verdict {
    pub fn passes(&self) -> bool {
        self.status == Status::Pass
    }

    pub fn fails(&self) -> bool {
        self.status == Status::Fail
    }

    /// Explains a failed control: the run cannot tell bad from good. `None` unless the rule is a control that was measured and
    /// failed.
    pub fn consequence(&self) -> Option<&'static str> {
        let control = self.rule.control && self.fails() && !self.value.is_nan();
        control.then_some(
            "the recipe is known to be bad, and the run does not measure it as bad: it cannot tell bad from good, so what passes with \
             the control may be bad, too",
        )
    }
}

/// Measurements that violate a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Failures {
    /// Failed measurements of the worst cells, grouped by cell.
    pub worst: Vec<FailedMeasurement>,
    /// Number of cells with failures.
    pub cells: usize,
}

/// A measurement that violates a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedMeasurement {
    pub cell: String,
    /// Window of the measurement; for kernels, the case.
    pub window: String,
    pub layer: Option<u32>,
    pub site: String,
    #[serde(with = "ulplab_core::record::nullable")]
    pub value: f64,
    /// Number of elements that the value is computed from; for `violations`, the number of checked elements.
    pub n: u64,
    #[serde(flatten)]
    pub failure: Failure,
}

impl Failures {
    /// Returns the number of failed cells that are not shown.
    pub fn more(&self) -> usize {
        let mut shown: Vec<&str> = self.worst.iter().map(|failed| failed.cell.as_str()).collect();
        shown.dedup();
        self.cells - shown.len()
    }
}

/// Outcome of a run, which decides the exit code of the commands that judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All planned cells were measured, and every rule holds. Rules on recipes for other devices do not count.
    Pass,
    Fail,
    /// Cells are missing, so the run cannot be judged.
    Incomplete,
    /// No rule was judged.
    NotJudged,
    /// All judged gates hold, but some cells were not selected or some rules could not be judged.
    PartlyJudged,
}

impl Outcome {
    /// Derives the outcome from verdicts. `complete` is true if every selected cell was measured, and `whole` is true if every
    /// planned cell was selected. A control that holds is not counted, because it only shows that a measurement can fail.
    pub fn from_verdicts(verdicts: &[Verdict], complete: bool, whole: bool) -> Self {
        let judges = |verdict: &&Verdict| !(verdict.rule.control && verdict.passes());
        let statuses: Vec<Status> = verdicts.iter().filter(judges).map(|verdict| verdict.status).collect();
        Self::from_statuses(&statuses, complete, whole)
    }

    /// Same as [`from_verdicts`](Self::from_verdicts), but takes statuses instead of verdicts. The caller leaves out the statuses
    /// of controls that hold.
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

    /// Returns the name, the CSS class in a page, the colour code in a terminal (green, red or yellow), and the exit code.
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

    /// Returns the CSS class of the outcome's colours in a page.
    pub fn tone(self) -> &'static str {
        self.row().1
    }

    /// Returns the terminal's colour code of the name: green, red or yellow.
    pub fn colour(self) -> u8 {
        self.row().2
    }

    /// Returns the exit code of a timing run. A rule that was not judged does not fail a timing run: only a failed kernel or an
    /// incomplete run does.
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
