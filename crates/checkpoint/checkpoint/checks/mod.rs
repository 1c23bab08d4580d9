//! Checks, and their findings.

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

/// A kind of finding.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name in outputs.
    pub name: &'static str,
    /// The meaning of its findings.
    pub severity: Severity,
    /// The thing that it looks at, and the reason for its limit.
    pub doc: &'static str,
}

/// The meaning of a finding for the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The checkpoint may be right, and a person should look.
    Warning,
    /// A part could not be judged, so that the checkpoint does not pass.
    NotJudged,
    /// The checkpoint is wrong.
    Error,
}

impl Severity {
    /// Its name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::NotJudged => "not judged",
            Self::Error => "error",
        }
    }
}

/// Something that a check noticed.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check.
    pub check: &'static Check,
    /// The tensor, file or key.
    pub subject: String,
    /// The matrix that the subject is a part of, by its name; empty for a file or key.
    pub matrix: String,
    /// The text or the number in the file.
    pub found: String,
    /// The text or the number that it should have.
    pub expected: String,
}

const fn check(severity: Severity, name: &'static str, doc: &'static str) -> Check {
    Check { name, severity, doc }
}

const fn error(name: &'static str, doc: &'static str) -> Check {
    check(Severity::Error, name, doc)
}

const fn warning(name: &'static str, doc: &'static str) -> Check {
    check(Severity::Warning, name, doc)
}

const fn not_judged(name: &'static str, doc: &'static str) -> Check {
    check(Severity::NotJudged, name, doc)
}

/// All checks, in the order of the document.
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

/// Leaves out findings that follow from others: of a matrix that is read without a part, what its size says; of one with NaN, its distance
/// from the source; and a cause or a tensor that two checks name.
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
    /// True if it is of one of these checks.
    pub fn is_of(&self, checks: &[&Check]) -> bool {
        checks.iter().any(|check| check.name == self.check.name)
    }

    /// A finding about a flaw of a file or of a tensor of a matrix.
    pub fn of_flaw(check: &'static Check, flaw: &Flaw, matrix: &str) -> Self {
        Self::new(check, (&flaw.subject, matrix), &flaw.found, &flaw.expected)
    }

    /// A finding about a tensor of a matrix.
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
