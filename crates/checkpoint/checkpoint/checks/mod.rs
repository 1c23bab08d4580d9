//! Checks of a quantized checkpoint. Each check tests one condition, and reports faults or doubts as findings.

pub mod files;
pub mod fused;
pub mod names;
pub mod promises;
pub mod scales;
pub mod source;
pub mod values;
pub mod whole;

use std::collections::BTreeSet;

use ulplab_core::tensorfile::Flaw;

/// A check of a checkpoint. It reports findings (faults or doubts) of one kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the check in outputs.
    pub name: &'static str,
    /// Severity of all findings of this check.
    pub severity: Severity,
    /// Documentation: the condition that the check tests, and the reason for its limit.
    pub doc: &'static str,
}

/// Effect of a finding on the verdict about the whole checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The checkpoint may be right, but a person should look at it.
    Warning,
    /// A tensor or configuration key could not be checked; the checkpoint then does not pass.
    NotJudged,
    /// The checkpoint is wrong.
    Error,
}

impl Severity {
    const fn check(self, name: &'static str, doc: &'static str) -> Check {
        let severity = self;
        Check { name, severity, doc }
    }

    /// Name of the severity in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::NotJudged => "not judged",
            Self::Error => "error",
        }
    }
}

/// A fault or doubt that a check reports.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check that reports this finding.
    pub check: &'static Check,
    /// The tensor, file or key that the finding is about.
    pub subject: String,
    /// Name of the matrix that the tensor belongs to; empty for a file or key.
    pub matrix: String,
    /// Text or number that was found.
    pub found: String,
    /// Text or number that was expected.
    pub expected: String,
}

/// All checks, in the order of the documentation.
pub const CHECKS: &[&Check] = &[
    &files::FILES,
    &files::CONFIGURATION,
    &files::CONVENTION,
    &names::MISSING_PART,
    &whole::MISSING_TENSOR,
    &names::LEFT_OVER,
    &names::SHAPE,
    &names::STATED_FORMAT,
    &names::IGNORED_QUANTIZED,
    &names::UNQUANTIZED,
    &promises::MISSING_INPUT_SCALE,
    &promises::MISSING_KV_SCALE,
    &promises::NO_KV_SCALE,
    &scales::NONFINITE_SCALE,
    &scales::NEGATIVE_SCALE,
    &scales::ZERO_SCALE,
    &scales::EXPONENT_AS_NUMBER,
    &scales::INVERTED_SCALE,
    &scales::MAGNITUDE,
    &fused::FUSED_GLOBAL,
    &fused::FUSED_TENSOR_SCALE,
    &values::NAN_CODE,
    &values::NONFINITE,
    &values::SATURATED,
    &values::DEAD_BLOCKS,
    &values::DEAD_MATRIX,
    &values::ZERO_POINT,
    &values::OFF_CENTRE,
    &values::GROUP_INDEX,
    &whole::DEAD_TENSOR,
    &source::NO_SOURCE,
    &whole::PLAIN_DIFFERS,
    &source::FOLDED,
    &source::CODE_ORDER,
    &source::TRANSPOSED,
    &source::LOW_SQNR,
    &source::PART_OFF,
];

/// Removes findings that only follow from other findings. For a matrix without its scales or zero points, removes findings about
/// its format, gain (ratio of output to input magnitude) and SQNR. For a matrix with NaN, removes the finding that its SQNR is
/// NaN. If an inverted scale or a missing tensor was reported twice, removes the second report.
pub fn leave_out_consequences(findings: &mut Vec<Finding>) {
    let of = |checks: &[&Check]| -> BTreeSet<String> {
        let found = findings.iter().filter(|finding| finding.is_of(checks));
        found.map(|finding| finding.matrix.clone()).collect()
    };
    let broken = of(&[&names::MISSING_PART]);
    let nan = of(&[&scales::NONFINITE_SCALE, &values::NAN_CODE, &values::NONFINITE]);
    let size = [
        &names::STATED_FORMAT,
        &scales::INVERTED_SCALE,
        &scales::MAGNITUDE,
        &source::LOW_SQNR,
        &source::PART_OFF,
        &source::FOLDED,
    ];
    let twice = [&scales::INVERTED_SCALE, &whole::MISSING_TENSOR];
    let mut seen = BTreeSet::new();
    findings.retain(|finding| {
        let consequence = broken.contains(&finding.matrix) && finding.is_of(&size)
            || nan.contains(&finding.matrix) && finding.is_of(&[&source::LOW_SQNR]) && finding.found.contains("NaN");
        let again = finding.is_of(&twice) && !seen.insert((finding.check.name, finding.subject.clone()));
        !consequence && !again
    });
}

impl Finding {
    /// True if one of these checks reported the finding.
    pub fn is_of(&self, checks: &[&Check]) -> bool {
        checks.iter().any(|check| check.name == self.check.name)
    }

    /// Converts a flaw of a file, or of a tensor that belongs to `matrix`, into a finding; `matrix` is empty for a file.
    pub fn of_flaw(check: &'static Check, flaw: &Flaw, matrix: &str) -> Self {
        Self::new(check, (&flaw.subject, matrix), &flaw.found, &flaw.expected)
    }

    /// Creates a finding about `subject` (a tensor, file or key). `matrix` is the matrix that a tensor belongs to, or empty.
    pub fn new(
        check: &'static Check,
        (subject, matrix): (&str, &str),
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            check,
            subject: subject.into(),
            matrix: matrix.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}
