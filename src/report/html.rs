//! `report.html`: one page, self-contained.

use askama::Template;

use super::Summarized;
use super::figures::{self, Section};
use super::overview::{Column, Row};
use super::recipes::Group;
use super::verdicts::{Check, Outcome, Tally};
use crate::gate::Status;
use crate::sweep::experiment::Experiment;
use crate::sweep::invocation::quoted;

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    experiment: &'a Experiment,
    outcome: &'static str,
    /// Class of the verdict's colours.
    tone: &'static str,
    tally: Tally,
    smallest: Option<String>,
    setting: String,
    failed: Vec<&'a Check<'a>>,
    unjudged: Vec<&'a Check<'a>>,
    passed: Vec<&'a Check<'a>>,
    unselected: Option<String>,
    columns: &'a [Column],
    groups: Vec<(&'static str, Vec<&'a Row<'a>>)>,
    sections: Vec<Section>,
    facts: Vec<(&'static str, String)>,
    command: String,
    /// The experiment file.
    toml: String,
}

/// The page. It names no outside resource and has no script.
pub fn html(run: &Summarized) -> String {
    let experiment = &run.run.manifest.experiment;
    let groups = [
        ("", Group::Reference),
        ("Formats", Group::Plain),
        ("Narrowed", Group::Narrowed),
        ("Kernels", Group::Kernels),
        ("Noise controls", Group::Noise),
    ];
    let rows = |group| {
        run.overview
            .rows
            .iter()
            .filter(|row| row.candidate.group == group)
            .collect::<Vec<_>>()
    };
    let mut groups: Vec<(&str, Vec<&Row>)> = groups.map(|(title, group)| (title, rows(group))).into();
    groups.retain(|group| !group.1.is_empty());
    if let [(title, _)] = &mut groups[..] {
        *title = "";
    }
    let page = Page {
        experiment,
        outcome: run.tally.outcome().name(),
        tone: match run.tally.outcome() {
            Outcome::Pass => "pass",
            Outcome::Fail => "fail",
            Outcome::Incomplete | Outcome::NotJudged | Outcome::PartlyJudged => "open",
        },
        tally: run.tally.clone(),
        smallest: run.smallest(),
        setting: run.setting(),
        failed: run.checks_of(&[Status::Fail]),
        unjudged: run.checks_of(&[Status::NotJudged, Status::NotForDevice]),
        passed: run.checks_of(&[Status::Pass]),
        unselected: run.unselected(),
        columns: &run.overview.columns,
        groups,
        sections: figures::sections(run),
        facts: run.facts(),
        command: command(run),
        toml: toml::to_string_pretty(experiment).unwrap_or_else(|error| format!("# cannot be written: {error}")),
    };
    let html = page.render().expect("the template has no fallible part");
    html.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// What to type to run it again.
fn command(run: &Summarized) -> String {
    let manifest = &run.run.manifest;
    let checkout = match manifest.commit.as_deref() {
        Some(commit) => format!("git checkout {}\n", quoted(commit.trim_end_matches('+'))),
        None => String::new(),
    };
    checkout + &manifest.invocation.command(manifest.experiment.seed)
}
