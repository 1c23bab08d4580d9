//! Terminal, Markdown, JUnit and HTML.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::shown as report;
use super::shown::{Outcome, study, texts};
use quick_junit::{NonSuccessKind, TestCaseStatus};
use ulplab::run::Run;
use ulplab::run::verdict::{Status, Verdict};

use super::synthetic::{self, HOSTILE};

static SMALL: LazyLock<Run> = LazyLock::new(synthetic::small);

#[test]
fn terminal_at_120_and_80_columns() {
    for (width, name) in [(120, "terminal_120"), (80, "terminal_80")] {
        let text = report::terminal(&SMALL, width, false);
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
            assert!(!line.contains('\u{1b}'), "a recipe's name moves the cursor: {line:?}");
        }
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn terminal_fits_any_width() {
    for width in [0, 10, 40, 60, 100] {
        let text = report::terminal(&SMALL, width, false);
        assert!(text.contains("v4_fp8") && text.contains("FAIL"), "{width}:\n{text}");
    }
}

#[test]
fn colour_only_when_asked() {
    let coloured = report::terminal(&SMALL, 120, true);
    assert!(coloured.contains("\x1b[31mFAIL\x1b[0m") && coloured.contains("\x1b[32mPASS 2 gates\x1b[0m"));
    let plain = coloured
        .replace("\x1b[31m", "")
        .replace("\x1b[32m", "")
        .replace("\x1b[0m", "");
    assert_eq!(plain, report::terminal(&SMALL, 120, false));
}

#[test]
fn columns_without_numbers_are_left_out() {
    let mut run = SMALL.clone();
    run.summaries
        .retain(|summary| summary.metric != "recall" && summary.site != "logits");
    let text = report::terminal(&run, 120, false);
    for gone in ["recall", "KL", "top-1", "nats"] {
        assert!(!text.contains(gone), "{gone} in\n{text}");
    }
    assert!(text.contains("stored"));
}

#[test]
fn markdown_snapshot() {
    insta::assert_snapshot!(report::markdown(&SMALL));
}

#[test]
fn markdown_stays_below_the_limit_of_a_step_summary() {
    let mut run = SMALL.clone();
    let verdict = run
        .verdicts
        .iter()
        .find(|verdict| verdict.fails())
        .expect("a failure")
        .clone();
    // 2,000 rows of more than 500 bytes are over a megabyte, of failed checks and of passed ones: both tables are cut, each at its limit.
    for n in 0..4000 {
        let mut verdict = verdict.clone();
        verdict.rule.why = "because <of> ".repeat(40) + &n.to_string();
        verdict.status = if n % 2 == 0 { Status::Pass } else { Status::Fail };
        run.verdicts.push(verdict);
    }
    run.manifest.data = (0..5000).map(|n| (format!("file {n}"), "ab".repeat(32))).collect();
    run.manifest.experiment.head.question = "why? ".repeat(100_000);
    let text = report::markdown(&run);
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
    assert!(text.len() > 1 << 19, "{} bytes: cut more than needed", text.len());
    assert_eq!(text.matches("rows are left out").count(), 3, "failed, passed, data");
    assert!(
        text.contains("### Recipes"),
        "the overview is there whatever the checks"
    );
    let failures = run.verdicts.iter().filter(|verdict| verdict.fails()).count();
    assert!(text.contains(&format!("{failures} fail")) && text.contains(&format!("of these {failures} rows")));
}

#[test]
fn junit_snapshot() {
    insta::assert_snapshot!(report::junit(&SMALL));
}

#[test]
fn junit_parses_whatever_the_names() {
    let mut run = SMALL.clone();
    run.manifest.experiment.head.question = "\u{0}\u{ffff}]]>".into();
    run.manifest.device = "a\u{0}b\u{fffe}".into();
    run.manifest.seconds = f64::NAN;
    for verdict in &mut run.verdicts {
        verdict.message = "\u{1b}[31m<\u{8}&\u{ffff}>]]>".into();
    }
    let parsed = quick_junit::Report::deserialize_from_str(&report::junit(&run)).expect("well-formed XML");
    let cases = &parsed.test_suites[0].test_cases;
    let failed = cases.iter().filter_map(|case| match &case.status {
        TestCaseStatus::NonSuccess {
            kind: NonSuccessKind::Failure,
            ty,
            message,
            ..
        } => Some((ty, message)),
        _ => None,
    });
    for (ty, message) in failed {
        assert_eq!(ty.as_ref().map(|ty| ty.as_str()), Some("gate"));
        assert_eq!(
            message.as_ref().map(|message| message.as_str()),
            Some("\u{fffd}[31m<\u{fffd}&>]]>")
        );
    }
    assert!(
        cases
            .iter()
            .any(|case| case.classname.as_ref().is_some_and(|name| name.contains("<b>&\"'|`x`")))
    );
}

#[test]
fn an_incomplete_run_passes_nowhere() {
    let mut run = SMALL.clone();
    run.verdicts.retain(Verdict::passes);
    assert_eq!(report::tally(&run).outcome, Outcome::Pass);
    let cell = run.manifest.cells[0].clone();
    run.records.retain(|record| record.cell != cell);
    run.manifest.complete = false;
    assert_eq!(
        (report::tally(&run).outcome, report::tally(&run).missing),
        (Outcome::Incomplete, 1)
    );
    let junit = quick_junit::Report::deserialize_from_str(&report::junit(&run)).expect("well-formed XML");
    assert_eq!(junit.errors, 1);
    for (name, text) in written(&run) {
        assert!(name == "junit" || text.contains("INCOMPLETE"), "{name}");
        assert!(text.contains("1 cell missing"), "{name}");
    }
}

#[test]
fn a_run_without_gates_is_not_judged() {
    let mut run = SMALL.clone();
    run.verdicts.clear();
    assert_eq!(
        report::tally(&run).line(),
        "NOT JUDGED: 0 checks pass, 0 fail; no gate binds 6 recipes"
    );
    assert!(report::html(&run).contains("nothing was judged"));
}

#[test]
fn an_empty_run_has_all_reports() {
    let mut run = SMALL.clone();
    (run.records, run.summaries, run.verdicts) = (vec![], vec![], vec![]);
    (run.manifest.recipes, run.manifest.cells, run.manifest.complete) = (vec![], vec![], false);
    for (name, text) in written(&run) {
        assert!(!text.is_empty(), "{name}");
    }
}

/// The same counts everywhere, in the forms each report has for them.
#[test]
fn all_reports_count_alike() {
    for run in [&*SMALL, &synthetic::large()] {
        let tally = report::tally(run);
        assert!(tally.pass > 0 && tally.fail > 0 && tally.unbound > 0, "{tally:?}");
        let texts = written(run);
        for name in ["html", "markdown", "text"] {
            assert!(texts[name].contains(&tally.counts()), "{name}: no '{}'", tally.counts());
        }
        let tags = |mark: &str| {
            texts["html"]
                .split("id=\"overview\"")
                .next()
                .expect("gates")
                .matches(mark)
                .count()
        };
        assert_eq!((tags("✓ PASS"), tags("✕ FAIL")), (tally.pass, tally.fail));
        let junit = quick_junit::Report::deserialize_from_str(&texts["junit"]).expect("well-formed XML");
        let suite = &junit.test_suites[0];
        assert_eq!((suite.failures, suite.skipped), (tally.fail, tally.unbound));
        assert_eq!(suite.tests, tally.pass + tally.fail + tally.unbound);
    }
}

#[test]
fn html_is_one_inert_page() {
    let run = synthetic::large();
    let html = report::html(&run);
    assert!(html.len() < 2 << 20, "{} bytes", html.len());
    let lower = html.to_lowercase();
    let loads = [
        "<script",
        "http:",
        "https:",
        "src=",
        "<link",
        "@import",
        "url(",
        "javascript:",
        "<iframe",
        " onload=",
    ];
    for outside in loads {
        assert!(!lower.contains(outside), "{outside}");
    }
    assert!(html.contains("<title>") && html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
    for recipe in &run.manifest.recipes {
        assert!(
            html.contains(&format!(">{}<", recipe.name)),
            "{} is nowhere",
            recipe.name
        );
    }
    assert!(
        !html.contains("NaN\"") && !html.contains("MNaN") && !html.contains("LNaN"),
        "a coordinate is NaN"
    );
    keep("report.html", &html);
}

#[test]
fn html_shows_hostile_names_and_runs_none() {
    let html = report::html(&SMALL);
    assert!(!html.contains("<b>"), "a recipe's name became markup");
    assert!(html.contains("&lt;b&gt;&amp;&quot;") || html.contains("&#60;b&#62;&#38;&#34;"));
    let chart = html
        .split("id=\"layers\"")
        .nth(1)
        .expect("the section of errors by layer");
    assert!(chart.contains(": NaN in layer 17"), "NaN is drawn as such");
    assert!(HOSTILE.contains('\u{1b}') && !html.contains('\u{1b}'));
    balanced(&html);
    keep("hostile.html", &html);
}

/// For people to look at, in `target/tmp`.
fn keep(name: &str, html: &str) {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(path, html).expect("a writable target folder");
}

/// Every element that is opened is closed, in order (void elements aside).
fn balanced(html: &str) {
    let void = ["meta", "br", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let body = html.split_once("</style>").expect("a style sheet").1;
    open.extend(["html", "head"]);
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a closed tag");
        let name = tag
            .trim_start_matches('/')
            .split_whitespace()
            .next()
            .expect("a name")
            .trim_end_matches('/');
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') && !void.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn written(run: &Run) -> HashMap<&'static str, String> {
    let texts = texts(run, &*study(run)).into_iter();
    texts.map(|(report, text)| (report.name, text)).collect()
}
