//! Writes `report.html`: a single self-contained page.

use askama::Template;

use super::figures::{self, Content, Section};
use super::overview::Row;
use super::recipes::{Candidate, Gate, Group};
use super::verdicts::Check;
use super::worst::{self, Place};
use super::{Summarized, failures};
use ulplab_core::list::grouped;
use ulplab_run::run::invocation::quoted;
use ulplab_run::run::verdict::Status;

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    /// The run limited to the recipes that the page shows; `whole` has all recipes.
    run: &'a Summarized<'a>,
    whole: &'a Summarized<'a>,
    /// Failed checks, grouped by rule.
    failed: Vec<Vec<&'a Check<'a>>>,
    /// Gates and controls (gates that a known bad recipe must meet) that could not be checked, grouped by rule and reason.
    unjudged: Vec<Vec<&'a Check<'a>>>,
    /// Passed checks, grouped by rule.
    passed: Vec<Vec<&'a Check<'a>>>,
    places: Vec<Place<'a>>,
    groups: Vec<(&'static str, Vec<&'a Row<'a>>)>,
    sections: Vec<Section>,
}

impl Page<'_> {
    /// Returns a sentence about the recipes that the page leaves out; `None` if the page shows all recipes.
    fn partial(&self) -> Option<String> {
        let (shown, all) = (self.run.candidates.len(), self.whole.candidates.len());
        (shown < all).then(|| {
            format!(
                "This page shows {shown} of {all} recipes: those that fail, then the first of the others in the order of the overview. \
                 The verdict counts all of them, and summary.parquet and junit.xml have them all."
            )
        })
    }

    /// Returns the HTML anchor of the element at which a recipe has its largest error; `None` if the page shows no such element.
    fn anchor(&self, recipe: &str) -> Option<String> {
        let at = self.places.iter().position(|place| place.record.recipe == recipe)?;
        Some(format!("worst-{at}"))
    }

    /// True if the page shows the list of passed checks unfolded: if no check failed, and at most 20 passed.
    fn short(&self) -> bool {
        self.failed.is_empty() && self.passed.iter().map(Vec::len).sum::<usize>() <= 20
    }

    /// Returns the command that runs the experiment again.
    fn command(&self) -> String {
        let manifest = &self.run.run.manifest;
        let checkout = match manifest.commit.as_deref() {
            Some(commit) => format!("git checkout {}\n", quoted(commit.trim_end_matches('+'))),
            None => String::new(),
        };
        checkout + &manifest.invocation.command(manifest.experiment.seed)
    }

    /// Returns the experiment file; if it is large, only its beginning.
    fn file(&self) -> String {
        let text = toml::to_string_pretty(&self.run.run.manifest.experiment);
        let mut text = text.unwrap_or_else(|error| format!("# cannot be written: {error}"));
        if text.len() > LARGEST_FILE {
            let end = text[..text.floor_char_boundary(LARGEST_FILE)].rfind('\n').unwrap_or(0);
            text.truncate(end);
            text.push_str("\n# The rest is left out here; run.json has the whole experiment.\n");
        }
        text
    }
}

/// Groups the checks with one of `statuses` by the text that `says` returns, so that the page shows a text only once. Groups are
/// in the order of their first check.
fn grouped_by<'a>(
    run: &'a Summarized,
    statuses: &[Status],
    says: impl Fn(&Check) -> String,
) -> Vec<Vec<&'a Check<'a>>> {
    let checks = run.checks_of(statuses).into_iter();
    let groups = grouped(checks.map(|check| (says(check), check)));
    groups.into_iter().map(|(_, checks)| checks).collect()
}

/// Largest number of recipes on the page: nobody reads more, and browsers show larger pages slowly.
const MOST_RECIPES: usize = 500;
/// Largest size of the page in bytes.
const LARGEST: usize = 5_000_000;
/// Largest size of the experiment file in the page, in bytes.
const LARGEST_FILE: usize = 500_000;

/// Returns the page. It uses no outside resource and no script. It shows as many recipes as fit, and states if recipes are left
/// out.
pub fn html(run: &Summarized) -> String {
    let mut most = MOST_RECIPES;
    loop {
        let shown = first(run.candidates, most);
        let page = match shown.len() == run.candidates.len() {
            true => page(run, run),
            false => page(&run.only(&shown), run),
        };
        if page.len() <= LARGEST || shown.len() <= 1 {
            return page;
        }
        most = shown.len() / 2;
    }
}

/// Selects at most `most` candidates: failing candidates, then the first of the others. Keeps the order of candidates.
fn first<'a>(candidates: &[Candidate<'a>], most: usize) -> Vec<Candidate<'a>> {
    let mut places: Vec<usize> = (0..candidates.len()).collect();
    places.sort_by_key(|at| !matches!(candidates[*at].gate, Gate::Fail(_)));
    places.truncate(most);
    places.sort_unstable();
    places.into_iter().map(|at| candidates[at].clone()).collect()
}

/// Returns the page of `run`, which contains all or some recipes of `whole`.
fn page(run: &Summarized, whole: &Summarized) -> String {
    let groups = [
        ("", Group::Reference),
        ("Formats", Group::Plain),
        ("Narrowed", Group::Narrowed),
        ("Kernels", Group::Kernels),
        ("Noise controls", Group::Noise),
    ];
    let rows = |group| {
        let rows = run.overview.rows.iter();
        rows.filter(|row| row.candidate.group == group).collect::<Vec<_>>()
    };
    let mut groups: Vec<(&str, Vec<&Row>)> = groups.map(|(title, group)| (title, rows(group))).into();
    groups.retain(|group| !group.1.is_empty());
    if let [(title, _)] = &mut groups[..] {
        *title = "";
    }
    let rule = |check: &Check| format!("{:?}", check.verdict.rule);
    let reason = |check: &Check| format!("{}\0{}\0{}", rule(check), check.verdict.message, check.label());
    let page = Page {
        run,
        whole,
        failed: grouped_by(run, &[Status::Fail], rule),
        unjudged: grouped_by(run, &[Status::NotJudged, Status::NotForDevice], reason),
        passed: grouped_by(run, &[Status::Pass], rule),
        places: worst::places(run.run, run.candidates),
        groups,
        sections: figures::sections(run),
    };
    let html = page.render().expect("the template has no fallible part");
    ulplab_core::text::lines(&html)
}
