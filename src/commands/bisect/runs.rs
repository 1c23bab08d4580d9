//! Two runs of one experiment: the first numbers, in the order of the model, that differ.
//!
//! A run holds numbers and no tensors. That two numbers differ shows that the tensors did; that they are equal shows nothing of
//! the tensors, though a difference that leaves every metric of a site bit-equal is unlikely.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use serde::Serialize;

use crate::backend::recipe::Ranges;
use crate::commands::check_two;
use crate::commands::diff::{Pair, Pairs, differences, timed};
use crate::json;
use crate::run::Run;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::record::{Phase, Record, place};

/// Names written out of those that only one run has.
const NAMES: usize = 5;

/// Where two runs diverge.
#[derive(Serialize)]
struct Divergence {
    /// What the runs ask otherwise, as `ulplab diff` has it.
    question: Vec<String>,
    /// One for each recipe and phase, in the order of the experiment.
    cells: Vec<Diverging>,
    /// Records that both have, and how many of them are bit-equal.
    both: usize,
    equal: usize,
    only_base: Alone,
    only_new: Alone,
    verdict: &'static str,
}

/// What only one of the runs has.
#[derive(Serialize)]
struct Alone {
    numbers: usize,
    /// The recipes and the cells of which the other run has no number.
    recipes: Vec<String>,
    cells: Vec<String>,
}

/// A recipe in a phase in which numbers differ.
#[derive(Serialize)]
struct Diverging {
    recipe: String,
    phase: Phase,
    /// Windows with a number that differs.
    windows: usize,
    /// The first that differs, in the order in which a model passes the sites.
    first: First,
    differing: usize,
    of: usize,
    /// Layers with a number that differs.
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

/// Compares two runs, and says where they diverge.
///
/// # Errors
/// A run that is damaged or incomplete, and runs that have nothing in common.
pub fn run(base: &Path, new: &Path, as_json: bool) -> Result<Exit> {
    let paths = [base, new].map(|path| path.display().to_string());
    let folders = [base, new];
    let (base, new) = (Run::read(base)?, Run::read(new)?);
    check_two(["BASE", "NEW"], folders)?;
    let pairs = Pairs::new(&base.records, &new.records);
    let both: Vec<&Pair> = pairs.both.iter().filter(|pair| !timed(&pair.base.metric)).collect();
    if both.is_empty() {
        let message = format!("{} and {} have no number in common", paths[0], paths[1]);
        return Err(Error::NothingSelected(message));
    }
    let question = differences(&base.manifest, &new.manifest);
    let question = question.into_iter().map(|found| match found.base.is_empty() {
        true => format!("{}: {}", found.what, found.new),
        false => format!("{}: {}, then {}", found.what, found.base, found.new),
    });
    let mut cells = Vec::new();
    for plan in &base.manifest.plan.recipes {
        for &phase in &plan.phases {
            let here: Vec<&Pair> = both
                .iter()
                .copied()
                .filter(|pair| pair.base.recipe == plan.name && pair.base.phase == phase)
                .collect();
            cells.extend(Diverging::find(&here));
        }
    }
    let equal = both.iter().filter(|pair| pair.equal()).count();
    let only_base = Alone::new(&pairs.only_base, &new.records);
    let only_new = Alone::new(&pairs.only_new, &base.records);
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
    match as_json {
        true => json::print(&found)?,
        false => out!("{}", text(&found, &paths)),
    }
    Ok(match verdict {
        "SAME" => Exit::Pass,
        _ => Exit::GateFailed,
    })
}

impl Alone {
    /// The names of records that `other` run lacks.
    fn new(records: &[&Record], other: &[Record]) -> Self {
        let records: Vec<&Record> = records
            .iter()
            .copied()
            .filter(|record| !timed(&record.metric))
            .collect();
        let missing = |name: fn(&Record) -> &String| {
            let has: HashSet<&String> = other.iter().map(name).collect();
            let mut names: Vec<String> = Vec::new();
            for name in records
                .iter()
                .map(|record| name(record))
                .filter(|name| !has.contains(name))
            {
                // Records of a cell, and cells of a recipe, are in a row.
                if names.last() != Some(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        Self {
            numbers: records.len(),
            recipes: missing(|record| &record.recipe),
            cells: missing(|record| &record.cell),
        }
    }

    /// A line on them, if there are any.
    fn line(&self, which: &str) -> String {
        let named = |noun: &str, names: &[String]| match names {
            [] => String::new(),
            names => {
                let more = if names.len() > NAMES { ", …" } else { "" };
                let first = names[..names.len().min(NAMES)].join(", ");
                format!("; {}: {first}{more}", counted(names.len(), noun))
            }
        };
        match self.numbers {
            0 => String::new(),
            numbers => format!(
                "only the {which} run has {}{}{}\n",
                counted(numbers, "number"),
                named("recipe", &self.recipes),
                named("cell", &self.cells)
            ),
        }
    }
}

impl Diverging {
    /// Nothing if all of these are equal. Records of a cell are in the order in which a model passes the sites.
    fn find(pairs: &[&Pair]) -> Option<Self> {
        let differing: Vec<&&Pair> = pairs.iter().filter(|pair| !pair.equal()).collect();
        // The first layer counts over the windows; within it the order of the records.
        let first = differing
            .iter()
            .min_by_key(|pair| (pair.base.layer.is_none(), pair.base.layer))?;
        let layers: BTreeSet<usize> = differing
            .iter()
            .filter_map(|pair| Some(pair.base.layer? as usize))
            .collect();
        let windows: BTreeSet<&str> = differing.iter().map(|pair| pair.base.window.as_str()).collect();
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
        let Diverging {
            recipe,
            phase,
            windows,
            first,
            differing,
            of,
            layers,
        } = cell;
        let First {
            place,
            window,
            metric,
            base,
            new,
        } = first;
        text += &format!(
            "{recipe}, {phase}: first at {place} ({window}): {metric} is {base:e}, then {new:e}; {differing} of {of} numbers in {}",
            counted(*windows, "window")
        );
        text += &match (layers.is_empty(), phase) {
            (true, _) => String::new(),
            // Each layer is fed what the reference fed it.
            (false, Phase::Local) => format!(", each by itself in layers {layers}"),
            (false, Phase::Cumulative) => format!(", in layers {layers}"),
        };
        text.push('\n');
    }
    text += &found.only_base.line("first");
    text += &found.only_new.line("second");
    let both = counted(found.both, "number");
    let (of, alone) = match found.only_base.numbers + found.only_new.numbers {
        0 => (both, String::new()),
        alone => (
            format!("{both} of both runs"),
            format!(", and {alone} are in one run only"),
        ),
    };
    let differ = match found.both - found.equal {
        0 => format!("all of {of} are bit-equal"),
        differing => format!("{differing} of {of} differ"),
    };
    text += &format!("{}: {differ}{alone}\n", found.verdict);
    text + "Runs hold numbers, not tensors: channels and tokens, and which of the two is right, need the experiment or a dump.\n"
}
