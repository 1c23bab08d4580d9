//! `ulplab baseline log`: lists the accepted runs, and shows how the values that gates judge change from one baseline to the
//! next.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Baseline, all, incomparable};
use crate::commands::diff;
use crate::json;
use crate::output::width;
use crate::report::columns::with_margin;
use crate::report::number::significant;
use crate::run::Run;
use crate::run::verdict::Verdict;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::metrics::{Better, Metric};

/// Show the baselines of each experiment and device, and how the values that their gates check change from baseline to baseline.
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// Name of an experiment [default: all].
    experiment: Option<String>,
    /// Show the last N baselines.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    last: u16,
    /// Print one JSON object for each experiment and device instead of the text.
    #[arg(long)]
    json: bool,
}

/// Baselines of one experiment on one device, in the order of acceptance.
#[derive(Debug, Serialize)]
struct History {
    experiment: String,
    device: String,
    baselines: Vec<Entry>,
    /// Values that gates judge; the value with the largest relative worsening comes first.
    numbers: Vec<Drift>,
}

#[derive(Debug, Serialize)]
struct Entry {
    path: PathBuf,
    accepted_at: String,
    by: String,
    why: String,
    commit: Option<String>,
    /// Reasons why this baseline cannot be compared with the previous one; empty if it can.
    incomparable: Vec<String>,
}

/// A value that a gate judges, in each baseline.
#[derive(Debug, Serialize)]
struct Drift {
    gate: String,
    recipe: String,
    /// One value for each baseline; `None` if the baseline does not have this gate.
    values: Vec<Option<f64>>,
    /// Relative worsening from the first comparable baseline to the last; below 0 if the value became better. `None` if one of
    /// the two values is missing, or the first is 0.
    worse: Option<f64>,
    /// Number of steps from one baseline to the next, counted back from the last baseline, in each of which the value became
    /// worse.
    #[serde(rename = "row")]
    steps: usize,
}

impl LogArgs {
    pub fn run(&self, store: &Path) -> Result<Exit> {
        let mut all = all(store)?;
        if let Some(name) = &self.experiment {
            let mut known: Vec<String> = all.iter().map(|base| base.manifest.experiment.name.clone()).collect();
            all.retain(|base| &base.manifest.experiment.name == name);
            if all.is_empty() {
                known.dedup();
                let (folder, known) = (store.display(), known.join(", "));
                let known = if known.is_empty() { "none of any" } else { &known };
                return Err(Error::Usage(format!("{folder}: no baseline of '{name}', but {known}")));
            }
        }
        let folder = store.display();
        let message = format_args!("{folder}: no baseline; `ulplab baseline accept RUN --why TEXT` makes one");
        Error::refuse(all.is_empty(), message)?;
        let key = |base: &Baseline| (base.manifest.experiment.name.clone(), base.manifest.device.clone());
        for (at, of_one) in all.chunk_by(|a, b| key(a) == key(b)).enumerate() {
            let last = &of_one[of_one.len().saturating_sub(self.last.into())..];
            let history = History::new(last)?;
            match self.json {
                true => json::print(&history)?,
                false if at > 0 => out!("\n{}", history.text()),
                false => out!("{}", history.text()),
            }
        }
        Ok(Exit::Pass)
    }
}

impl History {
    fn new(baselines: &[Baseline]) -> Result<Self> {
        let runs = baselines.iter().map(|base| Run::read(&base.path));
        let runs = runs.collect::<Result<Vec<Run>>>()?;
        let changed = |pair: &[Baseline]| incomparable(&pair[0], &pair[1].manifest, &pair[1].accepted.definitions);
        let changed = std::iter::once(Vec::new()).chain(baselines.windows(2).map(changed));
        let changed: Vec<Vec<String>> = changed.collect();
        let first = changed.iter().rposition(|changed| !changed.is_empty()).unwrap_or(0);
        let entry = |(base, incomparable): (&Baseline, Vec<String>)| Entry {
            path: base.path.clone(),
            accepted_at: base.accepted.accepted_at.clone(),
            by: base.accepted.by.clone(),
            why: base.accepted.why.clone(),
            commit: base.manifest.commit.clone(),
            incomparable,
        };
        let manifest = &baselines[0].manifest;
        Ok(Self {
            experiment: manifest.experiment.name.clone(),
            device: manifest.device.clone(),
            baselines: baselines.iter().zip(changed).map(entry).collect(),
            numbers: drifts(&runs, first),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{} on {}\n\n", self.experiment, self.device);
        let entries = self.baselines.iter().enumerate().map(|(at, base)| {
            let commit = base.commit.as_ref();
            let commit = commit.map_or("—".into(), |commit| commit.chars().take(10).collect());
            let (number, accepted) = ((at + 1).to_string(), base.accepted_at.clone());
            vec![number, accepted, base.by.clone(), commit, base.why.clone()]
        });
        let heads = ["", "accepted", "by", "commit", "why"];
        text += &with_margin(&heads, &entries.collect::<Vec<_>>(), &[3], width());
        for (before, base) in self.baselines.iter().enumerate() {
            if !base.incomparable.is_empty() {
                let (number, why) = (before + 1, base.incomparable.join("; "));
                text += &format!(" {number} is incomparable with {before}: {why}\n");
            }
        }
        text.push('\n');
        let numbers: Vec<String> = (1..=self.baselines.len()).map(|number| number.to_string()).collect();
        let heads = ["gate", "recipe"].into_iter().chain(numbers.iter().map(String::as_str));
        let heads: Vec<&str> = heads.chain(["worse by", "in a row"]).collect();
        let rows: Vec<Vec<String>> = self.numbers.iter().map(Drift::row).collect();
        text += &with_margin(&heads, &rows, &[], width());
        text
    }
}

impl Drift {
    /// Formats this value as a row of the table.
    fn row(&self) -> Vec<String> {
        let value = |value: &Option<f64>| value.map_or("—".into(), |value| significant(value, 4));
        let worse = match self.worse {
            None => "—".into(),
            Some(0.0) => "0 %".into(),
            Some(worse) => format!("{:+.2} %", 100.0 * worse),
        };
        let steps = Some(self.steps).filter(|steps| *steps > 0);
        let steps = steps.map_or(String::new(), |steps| steps.to_string());
        let mut row = vec![self.gate.clone(), self.recipe.clone()];
        row.extend(self.values.iter().map(value));
        row.extend([worse, steps]);
        row
    }
}

/// For each value that a gate of the last run judges, returns this value in all runs. Worsening is measured from run `first` to
/// the last run. All runs after `first` must be comparable with it.
fn drifts(runs: &[Run], first: usize) -> Vec<Drift> {
    let Some(last) = runs.last() else { return Vec::new() };
    let drift = |verdict: &Verdict| {
        let value = |run: &Run| {
            let same = |other: &&Verdict| other.recipe == verdict.recipe && diff::alike(&other.rule, &verdict.rule);
            let found = run.verdicts.iter().find(same).map(|found| found.value);
            found.filter(|value| !value.is_nan())
        };
        let values: Vec<Option<f64>> = runs.iter().map(value).collect();
        let sign = match Metric::find(&verdict.rule.metric).map(|metric| metric.better) {
            Ok(Better::Higher) => -1.0,
            _ => 1.0,
        };
        let worse = match (values[first], values[runs.len() - 1]) {
            (Some(first), Some(last)) if first != 0.0 => Some(sign * (last - first) / first.abs()),
            _ => None,
        };
        let steps = values[first..].windows(2).rev();
        let row = steps.take_while(|pair| matches!(pair, [Some(a), Some(b)] if sign * (b - a) > 0.0));
        Drift {
            gate: diff::text(&verdict.rule),
            recipe: verdict.recipe.clone(),
            steps: row.count(),
            values,
            worse,
        }
    };
    let mut all: Vec<Drift> = last.verdicts.iter().map(drift).collect();
    let worse = |drift: &Drift| drift.worse.unwrap_or(f64::NEG_INFINITY);
    all.sort_by(|a, b| worse(b).total_cmp(&worse(a)));
    all
}
