//! `junit.xml` in the JUnit form that CI systems read.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::recipes::{Gate, Group};
use super::verdicts::Check;
use super::{Summarized, failures};
use ulplab_run::run::verdict::{Outcome, Status};

/// One suite, one test case for each verdict; what was not judged and a recipe that no gate binds are skipped, and so is the whole run if
/// not all of it was judged; a missing cell is an error.
pub fn junit(run: &Summarized) -> String {
    let manifest = &run.run.manifest;
    let mut suite = TestSuite::new(clean(&manifest.experiment.name));
    if let Ok(time) = Duration::try_from_secs_f64(manifest.seconds) {
        suite.set_time(time);
    }
    for (name, value) in run.facts() {
        suite.add_property((name, clean(&value).as_str()));
    }
    suite.add_test_cases(run.checks.iter().map(judged));
    for candidate in run.candidates {
        if candidate.gate == Gate::Unbound && candidate.group != Group::Reference {
            let mut status = TestCaseStatus::skipped();
            status.set_message("no gate binds this recipe");
            let mut case = TestCase::new("not judged", status);
            case.set_classname(clean(candidate.name));
            suite.add_test_case(case);
        }
    }
    if !run.tally.complete {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_type("incomplete").set_message(run.tally.line());
        let mut case = TestCase::new("every planned cell is measured", status);
        case.set_classname("run");
        suite.add_test_case(case);
    }
    if [Outcome::NotJudged, Outcome::PartlyJudged].contains(&run.tally.outcome()) {
        let mut status = TestCaseStatus::skipped();
        status.set_message(clean(&run.tally.line()));
        let mut case = TestCase::new("the whole run is judged", status);
        case.set_classname("run");
        suite.add_test_case(case);
    }
    let mut report = Report::new(clean(&manifest.experiment.name));
    report.add_test_suite(suite);
    report.to_string().expect("writing XML to memory does not fail")
}

fn judged(check: &Check) -> TestCase {
    let verdict = check.verdict;
    let rule = &verdict.rule;
    let numbers = [
        ("metric", rule.metric.clone()),
        ("value", verdict.value.to_string()),
        ("bound", rule.require.clone()),
        ("layer", check.layer.clone()),
        ("statistic", check.statistic.clone()),
        ("reference's own", check.reference.clone()),
    ];
    let status = match verdict.status {
        Status::Pass => TestCaseStatus::success(),
        Status::NotJudged | Status::NotForDevice => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(clean(&format!("{}: {}", check.label(), verdict.message)));
            status
        }
        Status::Fail => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            let lines = numbers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\n"))
                .collect::<String>();
            status.set_type("gate").set_message(clean(&verdict.message));
            let wrong = failures::text(&verdict.failures);
            let follows = verdict.consequence().map_or(String::new(), |text| format!("{text}\n"));
            let text = format!("{lines}why: {}\n{follows}{wrong}", rule.why);
            status.set_description(clean(text.trim_end()));
            status
        }
    };
    let mut case = TestCase::new(
        clean(&format!("{}: {} {}", check.rule, check.statistic, rule.require)),
        status,
    );
    case.set_classname(clean(&verdict.recipe));
    for (name, value) in &numbers {
        case.add_property((*name, clean(value).as_str()));
    }
    case
}

/// Without hidden characters, and those that XML 1.0 has no way to write; quick-junit strips control characters only.
fn clean(text: &str) -> String {
    ulplab_core::text::lines(text).replace(['\u{fffe}', '\u{ffff}'], "")
}
