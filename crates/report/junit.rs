//! Writes `junit.xml` in the JUnit format that CI systems read.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::recipes::{Gate, Group};
use super::verdicts::Check;
use super::{Summarized, failures};
use ulplab_run::run::verdict::{Outcome, Status};

/// Returns one suite with one test case per verdict (one gate on one recipe). Gates that were not checked, and recipes without
/// gates, are skipped tests. If only a part of the run was checked, one more skipped test gives the reason. If measurements are
/// missing, one more test has the status "error".
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
    let mut add = |class: &str, name: &str, status: TestCaseStatus| {
        let mut case = TestCase::new(name, status);
        case.set_classname(clean(class));
        suite.add_test_case(case);
    };
    for candidate in run.candidates {
        if candidate.gate == Gate::Unbound && candidate.group != Group::Reference {
            add(candidate.name, "not judged", skipped("no gate binds this recipe"));
        }
    }
    if !run.tally.complete {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_type("incomplete").set_message(run.tally.line());
        add("run", "every planned cell is measured", status);
    }
    if [Outcome::NotJudged, Outcome::PartlyJudged].contains(&run.tally.outcome) {
        add("run", "the whole run is judged", skipped(&run.tally.line()));
    }
    let mut report = Report::new(clean(&manifest.experiment.name));
    report.add_test_suite(suite);
    report.to_string().expect("writing XML to memory does not fail")
}

fn skipped(why: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(clean(why));
    status
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
        Status::NotJudged | Status::NotForDevice => skipped(&format!("{}: {}", check.label(), verdict.message)),
        Status::Fail => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            let lines = numbers.iter().map(|(name, value)| format!("{name}: {value}\n"));
            let lines: String = lines.collect();
            status.set_type("gate").set_message(clean(&verdict.message));
            let wrong = failures::text(&verdict.failures);
            let follows = verdict.consequence().map_or(String::new(), |text| format!("{text}\n"));
            let text = format!("{lines}why: {}\n{follows}{wrong}", rule.why);
            status.set_description(clean(text.trim_end()));
            status
        }
    };
    let name = format!("{}: {} {}", check.rule, check.statistic, rule.require);
    let mut case = TestCase::new(clean(&name), status);
    case.set_classname(clean(&verdict.recipe));
    for (name, value) in &numbers {
        case.add_property((*name, clean(value).as_str()));
    }
    case
}

/// Removes hidden characters, and characters that XML 1.0 cannot represent; quick-junit removes control characters only.
fn clean(text: &str) -> String {
    ulplab_core::text::lines(text).replace(['\u{fffe}', '\u{ffff}'], "")
}
