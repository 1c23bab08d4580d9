//! Two runs of one experiment: the first numbers, in the order of the model, that differ.
//!
//! A run holds numbers and no tensors. That two numbers differ shows that the tensors did; that they are equal shows nothing of
//! the tensors, though a difference that leaves every metric of a site bit-equal is unlikely.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use crate::backend::recipe::Ranges;
use crate::commands::diff::{Pair, Pairs, differences, timed};
use crate::commands::judge;
use crate::json;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::record::{Phase, place};

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
    only_base: usize,
    only_new: usize,
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
    let (base, new) = (judge::read(base)?, judge::read(new)?);
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
    let alone =
        |records: &[&ulplab_core::record::Record]| records.iter().filter(|record| !timed(&record.metric)).count();
    let found = Divergence {
        question: question.collect(),
        cells,
        both: both.len(),
        equal: both.iter().filter(|pair| pair.equal()).count(),
        only_base: alone(&pairs.only_base),
        only_new: alone(&pairs.only_new),
    };
    match as_json {
        true => json::print(&found)?,
        false => out!("{}", text(&found, &paths)),
    }
    let same = found.equal == found.both && found.only_base + found.only_new == 0;
    Ok(if same { Exit::Pass } else { Exit::GateFailed })
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
    if found.only_base + found.only_new > 0 {
        text += &format!(
            "only the first run has {}, only the second {}\n",
            counted(found.only_base, "number"),
            found.only_new
        );
    }
    let differing = found.both - found.equal;
    text += &match differing {
        0 => format!("SAME: all of {} are bit-equal\n", counted(found.both, "number")),
        _ => format!("DIVERGED: {differing} of {} differ\n", counted(found.both, "number")),
    };
    text + "Runs hold numbers, not tensors: channels and tokens, and which of the two is right, need the experiment or a dump.\n"
}
