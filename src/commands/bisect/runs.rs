//! Compares two runs of one experiment: finds the first site, in the order in which the model computes sites, whose metric values
//! differ.
//!
//! A run stores metric values and no tensors. If two values differ, the tensors differed. If all values are equal, the tensors
//! may still differ, but it is unlikely that a difference leaves every metric of a site bit-equal.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use serde::Serialize;

use crate::backend::recipe::Ranges;
use crate::commands::check_two;
use crate::commands::diff::{Pair, Pairs, differences, timed};
use crate::json;
use crate::run::Run;
use ulplab_core::error::{Error, Exit, Result, counted, refuse};
use ulplab_core::record::{Phase, Record, place};

/// Maximum number of listed names of recipes or cells that only one run has.
const NAMES: usize = 5;

/// The result of comparing two runs.
#[derive(Serialize)]
struct Divergence {
    /// Differences in experiment, data, program or device, as in `ulplab diff`.
    question: Vec<String>,
    /// The first metric value that differs, for each recipe and phase, in the order of the experiment.
    cells: Vec<Diverging>,
    /// Number of records that both runs have (`both`), and number of these records that are bit-equal (`equal`).
    both: usize,
    equal: usize,
    only_base: OneSided,
    only_new: OneSided,
    verdict: &'static str,
}

/// Records, recipes and cells that only one run has.
#[derive(Serialize)]
struct OneSided {
    numbers: usize,
    /// Recipes and cells without any record in the other run.
    recipes: Vec<String>,
    cells: Vec<String>,
}

/// A recipe and phase in which metric values differ.
#[derive(Serialize)]
struct Diverging {
    recipe: String,
    phase: Phase,
    /// Number of windows with a metric value that differs.
    windows: usize,
    /// The first metric value that differs, in the order in which a model computes the sites.
    first: First,
    differing: usize,
    of: usize,
    /// Layers with a metric value that differs.
    layers: String,
}

#[derive(Serialize)]
struct First {
    place: String,
    window: String,
    metric: String,
    #[serde(with = "ulplab_core::record::nullable")]
    base: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    new: f64,
}

/// Compares two runs, and prints where they diverge.
///
/// # Errors
/// Returns an error if a run is damaged or incomplete, or if the runs have nothing in common.
pub fn run(base: &Path, new: &Path, as_json: bool) -> Result<Exit> {
    let paths = [base, new].map(|path| path.display().to_string());
    let folders = [base, new];
    let (base, new) = (Run::read(base)?, Run::read(new)?);
    check_two(["BASE", "NEW"], folders)?;
    let pairs = Pairs::new(&base.records, &new.records);
    let both: Vec<&Pair> = pairs.both.iter().filter(|pair| !timed(&pair.base.metric)).collect();
    let none = format_args!("{} and {} have no number in common", paths[0], paths[1]);
    refuse(both.is_empty(), none).map_err(Error::NothingSelected)?;
    let question = differences(&base.manifest, &new.manifest);
    let question = question.iter().map(|found| found.sentence(", then ", ""));
    let mut cells = Vec::new();
    for plan in &base.manifest.plan.recipes {
        for &phase in &plan.phases {
            let of_cell = |pair: &&Pair| pair.base.recipe == plan.name && pair.base.phase == phase;
            let here: Vec<&Pair> = both.iter().copied().filter(of_cell).collect();
            cells.extend(Diverging::find(&here));
        }
    }
    let equal = both.iter().filter(|pair| pair.equal()).count();
    let only_base = OneSided::new(&pairs.only_base, &new.records);
    let only_new = OneSided::new(&pairs.only_new, &base.records);
    let verdict = match (both.len() - equal, only_base.numbers + only_new.numbers) {
        (0, 0) => "SAME",
        (0, _) => "UNEQUAL",
        _ => "DIVERGED",
    };
    let found = Divergence {
        question: question.collect(),
        cells,
        both: both.len(),
        equal,
        only_base,
        only_new,
        verdict,
    };
    json::print_or(as_json, &found, || text(&found, &paths))?;
    Ok(Exit::judged(verdict == "SAME"))
}

impl OneSided {
    /// Summarizes `records`, the records that only one run has. `other` has all records of the other run, to find the recipes and
    /// cells that it lacks.
    fn new(records: &[&Record], other: &[Record]) -> Self {
        let lasting = records.iter().copied().filter(|record| !timed(&record.metric));
        let records: Vec<&Record> = lasting.collect();
        let missing = |name: fn(&Record) -> &String| {
            let has: HashSet<&String> = other.iter().map(name).collect();
            let names = records.iter().map(|record| name(record));
            let mut names: Vec<String> = names.filter(|name| !has.contains(name)).cloned().collect();
            // `dedup` is enough: equal names are adjacent, since the records of a cell, and the cells of a recipe, are stored
            // together.
            names.dedup();
            names
        };
        Self {
            numbers: records.len(),
            recipes: missing(|record| &record.recipe),
            cells: missing(|record| &record.cell),
        }
    }

    /// Returns a line of text about the records that only one run has; empty if there are none. `which` names this run.
    fn line(&self, which: &str) -> String {
        let named = |noun: &str, names: &[String]| {
            let more = if names.len() > NAMES { ", …" } else { "" };
            let first = names[..names.len().min(NAMES)].join(", ");
            let text = || format!("; {}: {first}{more}", counted(names.len(), noun));
            (!names.is_empty()).then(text).unwrap_or_default()
        };
        let (recipes, cells) = (named("recipe", &self.recipes), named("cell", &self.cells));
        let numbers = counted(self.numbers, "number");
        let text = || format!("only the {which} run has {numbers}{recipes}{cells}\n");
        (self.numbers > 0).then(text).unwrap_or_default()
    }
}

impl Diverging {
    /// Finds the first difference; `None` if all pairs are equal. The records of a cell are in the order of the model's sites.
    fn find(pairs: &[&Pair]) -> Option<Self> {
        let differing: Vec<&&Pair> = pairs.iter().filter(|pair| !pair.equal()).collect();
        // The first difference is the one in the lowest layer of all windows; within a layer, the first record.
        let records = || differing.iter().map(|pair| pair.base);
        let depth = |pair: &&&&Pair| (pair.base.layer.is_none(), pair.base.layer);
        let first = differing.iter().min_by_key(depth)?;
        let layers: BTreeSet<usize> = records().filter_map(|record| Some(record.layer? as usize)).collect();
        let windows: BTreeSet<&str> = records().map(|record| record.window.as_str()).collect();
        Some(Self {
            recipe: first.base.recipe.clone(),
            phase: first.base.phase,
            windows: windows.len(),
            first: First {
                place: place(first.base.layer, &first.base.site),
                window: first.base.window.clone(),
                metric: first.base.metric.clone(),
                base: first.base.value,
                new: first.new.value,
            },
            differing: differing.len(),
            of: pairs.len(),
            layers: Ranges::of(layers).to_string(),
        })
    }
}

fn text(found: &Divergence, [base, new]: &[String; 2]) -> String {
    let mut text = format!("{base} and {new}\n");
    for line in &found.question {
        text += &format!("  {line}\n");
    }
    for cell in &found.cells {
        let (recipe, phase, layers) = (&cell.recipe, cell.phase, &cell.layers);
        let first = &cell.first;
        let (place, window, metric, base, new) = (&first.place, &first.window, &first.metric, first.base, first.new);
        let (differing, of, windows) = (cell.differing, cell.of, counted(cell.windows, "window"));
        text += &format!("{recipe}, {phase}: first at {place} ({window}): {metric} is {base:e}, then {new:e}; ");
        text += &format!("{differing} of {of} numbers in {windows}");
        text += &match (layers.is_empty(), phase) {
            (true, _) => "\n".to_string(),
            // In the local phase, each layer gets the reference's tensor as input, so each difference arose in the layer itself.
            (false, Phase::Local) => format!(", each by itself in layers {layers}\n"),
            (false, Phase::Cumulative) => format!(", in layers {layers}\n"),
        };
    }
    text += &found.only_base.line("first");
    text += &found.only_new.line("second");
    let mut of = counted(found.both, "number");
    let mut alone = String::new();
    if let only @ 1.. = found.only_base.numbers + found.only_new.numbers {
        of += " of both runs";
        alone = format!(", and {only} are in one run only");
    }
    let differ = match found.both - found.equal {
        0 => format!("all of {of} are bit-equal"),
        differing => format!("{differing} of {of} differ"),
    };
    text += &format!("{}: {differ}{alone}\n", found.verdict);
    text + "Runs hold numbers, not tensors: channels and tokens, and which of the two is right, need the experiment or a dump.\n"
}
