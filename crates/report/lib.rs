//! Reports of a run: HTML, Markdown, JUnit XML, text. Each report is a pure function of the run, and all show the same numbers.

pub mod cases;
pub mod chart;
pub mod columns;
mod failures;
pub mod figures;
mod findings;
mod html;
pub mod index;
mod junit;
pub mod markdown;
pub mod number;
pub mod overview;
pub mod recipes;
pub mod table;
mod terminal;
mod verdicts;
mod worst;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use ulplab_core::atomic::write_text;
use ulplab_core::error::counted;
use ulplab_core::list::{distinct, grouped};
use ulplab_core::{Error, Result};
use ulplab_run::experiment::Reading;
use ulplab_run::run::loss::{self, Loss};
use ulplab_run::run::verdict::{Status, Verdict};
use ulplab_run::run::{Manifest, Run};

use figures::Section;
use index::Index;
use overview::{Column, Overview};
use recipes::{Candidate, Gate, Group};
use verdicts::Check;
pub use verdicts::{Outcome, Tally};

/// Content of reports that depends on the kind of experiment. The report formats themselves do not depend on it.
pub trait Show {
    /// Returns the model and the text windows that the model reads; empty by default.
    fn reading(&self) -> Reading<'_> {
        Reading::default()
    }

    /// Describes the random inputs of the experiment; `None` (the default) if no inputs are random.
    fn drawn(&self) -> Option<String> {
        None
    }

    /// Returns the columns of the overview. A column without a number in any row is not shown.
    fn columns(&self) -> Vec<Column>;

    /// Returns charts and tables under headings; empty sections are not shown.
    fn sections(&self, run: &Summarized) -> Vec<Section>;

    /// Describes the sort order of the overview's rows.
    fn order(&self, _index: &Index) -> &'static str {
        "in the experiment's order"
    }

    /// Returns the sort key of a recipe, usually its error; recipes are sorted in ascending order. `None` if unknown. The default
    /// is `at`, the index of the recipe in the experiment.
    fn sort_key(&self, _index: &Index, _recipe: &str, at: usize) -> Option<f64> {
        Some(at as f64)
    }

    /// Returns the group of a recipe in the report, and the recipe that it is compared with, if any. `sized(name)` is true if the
    /// size of the cache entries of the recipe `name` is known.
    fn group(&self, _recipe: &str, _sized: &dyn Fn(&str) -> bool) -> (Group, Option<&str>) {
        (Group::Plain, None)
    }

    /// Returns the size of a recipe's weights in 10⁶ bytes; `None` if it rounds no weights.
    fn weight_megabytes(&self, _index: &Index, _recipe: &str) -> Option<f64> {
        None
    }

    /// True if recipes are ranked by size. In that case, only recipes of [`Group::Plain`] have colours, and the report names the
    /// smallest recipe that passes.
    fn ranks_sizes(&self) -> bool {
        false
    }

    /// True if each test case passes or fails by itself; false if gates judge means over input windows.
    fn by_case(&self) -> bool {
        false
    }

    /// Returns the noun for a recipe in messages.
    fn noun(&self) -> &'static str {
        "recipe"
    }
}

/// A report format.
pub struct Report {
    pub name: &'static str,
    /// Name of the report's file in the run's folder.
    pub file: &'static str,
    pub doc: &'static str,
    write: fn(&Summarized) -> String,
}

/// All report formats.
pub const REPORTS: &[Report] = &[
    Report {
        name: "html",
        file: "report.html",
        doc: "everything, with charts, in one page that needs no network and no script",
        write: html::html,
    },
    Report {
        name: "markdown",
        file: "report.md",
        doc: "verdicts and overview, within GitHub's limit of 1 MiB for a step summary",
        write: markdown::markdown,
    },
    Report {
        name: "junit",
        file: "junit.xml",
        doc: "one test case per verdict, for CI systems",
        write: junit::junit,
    },
    Report {
        name: "text",
        file: "report.txt",
        doc: "the table of the terminal, 120 characters wide",
        write: |run| terminal::terminal(run, 120, false),
    },
];

/// Writes all of [`REPORTS`] to `folder`, and returns their paths.
pub fn write_all(run: &Run, show: &dyn Show, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let write = |(report, text): (&Report, String)| {
        let path = folder.join(report.file);
        write_text(&path, &text)?;
        Ok(path)
    };
    texts(run, show).into_iter().map(write).collect()
}

/// Returns all of [`REPORTS`] with their texts. The values that several reports use are derived from the run only once.
pub fn texts(run: &Run, show: &dyn Show) -> Vec<(&'static Report, String)> {
    with(run, show, |run| {
        let written = REPORTS.iter().map(|report| (report, (report.write)(run)));
        written.collect()
    })
}

/// Fills the template of a findings page with the run's numbers. The error names the template's line.
pub fn findings(run: &Run, show: &dyn Show, template: &str) -> Result<String, String> {
    with(run, show, |run| findings::fill(run, template))
}

/// Formats a run for a terminal of `width` characters.
pub fn terminal(run: &Run, show: &dyn Show, width: usize, colour: bool) -> String {
    with(run, show, |run| terminal::terminal(run, width, colour))
}

/// Returns the counts of verdicts that every report shows; `tally(…).line()` formats them as the verdict line.
pub fn tally(run: &Run, show: &dyn Show) -> Tally {
    with(run, show, |run| run.tally.clone())
}

/// A run with the values that all reports derive from it.
pub struct Summarized<'a> {
    pub run: &'a Run,
    pub show: &'a dyn Show,
    pub index: &'a Index<'a>,
    pub candidates: &'a [Candidate<'a>],
    overview: Overview<'a>,
    checks: Vec<Check<'a>>,
    tally: Tally,
    /// Loss of the reference.
    loss: Option<Loss>,
    /// Warning, shown next to the verdict: the measurements cannot tell formats apart, and the reason; `None` if they can.
    blind: Option<String>,
}

fn with<T>(run: &Run, show: &dyn Show, write: impl FnOnce(&Summarized) -> T) -> T {
    let index = Index::new(run);
    let candidates = recipes::candidates(run, show, &index);
    write(&Summarized {
        run,
        show,
        index: &index,
        candidates: &candidates,
        overview: Overview::new(show.columns(), &index, &candidates),
        checks: verdicts::checks(run, &index),
        tally: Tally::new(run, &candidates),
        loss: Loss::of(run),
        blind: loss::blind(run).map(|why| format!("CAUTION: {why}")),
    })
}

/// Returns the sentence that names the smallest passing format. `among` lists the formats with the same gates; `None` if all
/// formats have the same gates.
fn sentence(among: Option<Vec<&str>>, answer: &str) -> String {
    let Some(names) = among else {
        return format!("The smallest format that passes: {answer}");
    };
    let (shown, left) = names.split_at(names.len().min(6));
    let more = if left.is_empty() { "" } else { ", …" };
    let (count, shown) = (names.len(), shown.join(", "));
    format!(
        "The smallest format that passes, of the {count} with the same gates ({shown}{more}): {answer}; other formats have other gates"
    )
}

impl<'a> Summarized<'a> {
    /// Returns the same run limited to some of its candidates; the tally of verdicts is unchanged.
    fn only<'b>(&'b self, candidates: &'b [Candidate<'a>]) -> Summarized<'b> {
        let names: HashSet<&str> = candidates.iter().map(|candidate| candidate.name).collect();
        let mut checks = verdicts::checks(self.run, self.index);
        checks.retain(|check| names.contains(check.verdict.recipe.as_str()));
        Summarized {
            candidates,
            overview: Overview::new(self.show.columns(), self.index, candidates),
            checks,
            tally: self.tally.clone(),
            blind: self.blind.clone(),
            ..*self
        }
    }

    /// Names the smallest format that passes, by its size in caches; if no format has a size in caches, by the size of its
    /// weights. Of equally small formats, it names the one with the least error. Returns `None` if no format passes, the run left
    /// out any cell (recipe, phase and window), any gate was not checked, or the model hardly predicts the text.
    fn smallest(&self) -> Option<String> {
        let judged = matches!(self.tally.outcome, Outcome::Pass | Outcome::Fail)
            && self.tally.not_judged == 0
            && !self.loss.is_some_and(|loss| loss.hardly_predicts())
            && self.run.manifest.left_out.is_empty();
        if !judged {
            return None;
        }
        let all = || self.candidates.iter().filter(|_| self.show.ranks_sizes());
        let plain = all().filter(|candidate| candidate.group == Group::Plain);
        let sized = plain.filter_map(|candidate| Some((candidate.bytes.vector?, candidate)));
        let sized: Vec<_> = sized.collect();
        if !sized.is_empty() {
            let (bytes, smallest, among) = self.smallest_of(&sized)?;
            let (name, bytes) = (smallest.name, number::tenths(bytes));
            let share = smallest.bytes.of_bf16.map(|share| number::significant(share, 3));
            let share = share.map_or(String::new(), |share| format!(", caches of {share} of bf16's size"));
            return Some(sentence(among, &format!("{name}, {bytes} bytes per vector{share}")));
        }
        let megabytes = |candidate: &Candidate| self.show.weight_megabytes(self.index, candidate.name);
        let real = all().filter(|candidate| candidate.group != Group::Noise);
        let weighed = real.filter_map(|candidate| Some((megabytes(candidate)?, candidate)));
        let weighed: Vec<_> = weighed.collect();
        let (megabytes, smallest, among) = self.smallest_of(&weighed)?;
        let answer = format!("{}, {} MB of weights", smallest.name, number::error(megabytes));
        Some(sentence(among, &answer))
    }

    /// Returns the size and candidate of the smallest passing recipe. Recipes with different gates cannot be compared: only the
    /// largest set of recipes with the same gates is ranked. Also returns the names in this set, or `None` if all recipes with
    /// gates are in it. The whole result is `None` if several sets are the largest, or if no recipe passes.
    fn smallest_of<'c>(
        &self,
        sized: &[(f64, &'c Candidate<'c>)],
    ) -> Option<(f64, &'c Candidate<'c>, Option<Vec<&'c str>>)> {
        let mut bind: HashMap<&str, BTreeSet<String>> = HashMap::new();
        let verdicts = self.run.verdicts.iter().filter(|verdict| !verdict.rule.control);
        for Verdict { recipe, rule, .. } in verdicts {
            let (metric, at, statistic) = (&rule.metric, &rule.at, rule.statistic.name());
            let text = format!("{statistic} of {metric} at {at}, {}, {}", rule.phase, rule.require);
            bind.entry(recipe).or_default().insert(text);
        }
        let mut gates: BTreeMap<&BTreeSet<String>, Vec<&str>> = BTreeMap::new();
        for (_, candidate) in sized {
            if let Some(gates_of) = bind.get(candidate.name) {
                gates.entry(gates_of).or_default().push(candidate.name);
            }
        }
        let most = gates.iter().map(|(gates, names)| (names.len(), gates.len())).max()?;
        let mut common = gates.iter().filter(|(gates, names)| (names.len(), gates.len()) == most);
        let (Some((common, names)), None) = (common.next(), common.next()) else {
            return None;
        };
        let passing = |candidate: &Candidate| {
            matches!(candidate.gate, Gate::Pass(_)) && bind.get(candidate.name) == Some(*common)
        };
        let passing = sized.iter().filter(|(_, candidate)| passing(candidate));
        // Candidates are sorted by error, and `min_by` keeps the first of equal sizes.
        let (size, smallest) = passing.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((*size, smallest, (gates.len() > 1).then(|| names.clone())))
    }

    /// Returns a line with the number of recipes that have no row because none of their cells was selected.
    fn unselected(&self) -> Option<String> {
        let Manifest { cells, recipes, .. } = &self.run.manifest;
        let selected: HashSet<&str> = cells.iter().filter_map(|id| id.split('/').next()).collect();
        let all = recipes.iter().map(|recipe| recipe.name.as_str());
        let count = all.filter(|recipe| !selected.contains(recipe)).count();
        let verb = if count == 1 { "was" } else { "were" };
        (count > 0).then(|| format!("{} {verb} not selected", counted(count, self.show.noun())))
    }

    fn checks_of(&self, statuses: &[Status]) -> Vec<&Check<'_>> {
        let all = self.checks.iter();
        all.filter(|check| statuses.contains(&check.verdict.status)).collect()
    }

    /// Returns a pair for each reason why gates were not checked: the names of the recipes, and the reason.
    fn unjudged(&self) -> Vec<(String, &str)> {
        let unjudged = self.checks_of(&[Status::NotJudged]).into_iter();
        let reasons = unjudged.map(|check| (check.verdict.message.as_str(), check.verdict.recipe.as_str()));
        let named = |recipes: Vec<&str>| match &distinct(recipes)[..] {
            [first, second, _, rest @ ..] => format!("{first}, {second} and {} more", 1 + rest.len()),
            few => few.join(", "),
        };
        let reasons = grouped(reasons).into_iter();
        reasons.map(|(why, recipes)| (named(recipes), why)).collect()
    }

    /// Returns a line about the inputs of the measurements: model, windows and seed.
    fn setting(&self) -> String {
        let (experiment, reading) = (&self.run.manifest.experiment, self.show.reading());
        let mut parts: Vec<String> = self.show.drawn().into_iter().collect();
        if !reading.windows.is_empty() {
            parts.extend(reading.model.map(String::from));
            let (windows, length) = (reading.windows.len(), reading.length());
            parts.push(match windows {
                1 => format!("a window of {length}"),
                _ => format!("{windows} windows of {length}"),
            });
        }
        parts.push(format!("seed {}", experiment.seed));
        parts.join(" · ")
    }

    /// Returns the facts of the run: its inputs, its program and its machine.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let manifest = &self.run.manifest;
        let experiment = &manifest.experiment;
        let reading = self.show.reading();
        let windows: Vec<String> = reading.windows.iter().map(|window| window.name()).collect();
        let mut facts = vec![("experiment", experiment.name.clone())];
        let changes = manifest.invocation.changes();
        facts.extend((!changes.is_empty()).then_some(("changed by", changes)));
        facts.extend(reading.model.map(|model| ("model", model.to_string())));
        facts.extend(manifest.notes.iter().map(|note| ("note", note.clone())));
        facts.extend(self.show.drawn().map(|drawn| ("drawn", drawn)));
        if !windows.is_empty() {
            let (count, length) = (windows.len(), reading.length());
            facts.push(("windows", format!("{count} of {length}: {}", windows.join(", "))));
        }
        facts.extend(self.loss.map(|loss| ("loss", loss.to_string())));
        facts.extend(self.blind.clone().map(|why| ("can tell formats apart", why)));
        facts.extend([
            ("seed", experiment.seed.to_string()),
            ("fingerprint", manifest.fingerprint.clone()),
            (
                "commit",
                manifest.commit.clone().unwrap_or_else(|| "not a working tree".into()),
            ),
            ("ulplab", program(manifest)),
            ("device", format!("{}, {} threads", manifest.device, manifest.threads)),
            ("started", manifest.started_at.clone()),
            ("took", format!("{:.0} s", manifest.seconds)),
        ]);
        facts.extend(manifest.invocation.mutant.clone().map(|fault| ("planted fault", fault)));
        let data = manifest.data.iter().map(|(name, hash)| format!("{name} {hash}"));
        facts.extend(data.map(|file| ("data", file)));
        facts
    }
}

/// Describes the program that measured a run.
fn program(manifest: &Manifest) -> String {
    let program = &manifest.program;
    let commit = program.commit.as_ref().map(|commit| format!(", commit {commit}"));
    let (version, sources, vectors) = (&manifest.version, program.short(), &program.vectors);
    format!("{version}, sources {sources}{}, {vectors}", commit.unwrap_or_default())
}
