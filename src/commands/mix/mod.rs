//! `ulplab mix`: the trade-off between bytes and KL divergence when groups of tensors have different formats.

mod groups;
mod measure;
mod output;
pub mod search;

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Serialize;

use super::bisect::model_study;
use super::sweep::{self, SweepArgs};
use crate::experiment::Window;
use crate::json;
use crate::signal;
use crate::statistics::mean_and_error;
use crate::studies::model::{Recipe, from_start};
use groups::{Groups, Sizes};
use measure::{Measure, Point};
use search::{Assignment, Budget};
use ulplab_core::atomic::{check_writable, write_text};
use ulplab_core::error::{Error, Exit, Result};

/// Find which formats to mix: bytes against KL divergence, and the recipe for a budget.
///
/// EXPERIMENT gives the model and the windows of text. Its recipes are not used, and its gates only in the file of -o. The
/// tensors that a pattern of --at matches in one layer are a group; all tensors of a group have the same format. The search
/// begins with the cheapest format for all groups. Each step raises one group to a larger format: the raise that lowers the KL
/// divergence from the reference most per byte. Every raise is first measured alone, which gives a ranking. At each step, the
/// first --top raises of the ranking are measured again, after the raises so far.
///
/// A choice looks best on the windows that it was made on. So the last windows are held out: the search does not use them, and
/// its result is also measured on them.
///
/// Exit code: 0; 100 if no assignment of formats keeps the budget.
#[derive(Debug, clap::Args)]
pub struct MixArgs {
    /// An experiment of kind 'model': a file, or the name of a shipped experiment.
    pub experiment: PathBuf,
    /// Sites that may be rounded, e.g. 'layers.*.mlp.*.weight'; repeatable. All are weights, or none is.
    #[arg(long = "at", value_name = "PATTERN", required = true)]
    pub at: Vec<String>,
    /// Formats to choose from, two or more, e.g. nvfp4,fp8_token,bf16.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', required = true)]
    pub formats: Vec<String>,
    /// Maximum number of bytes, as a share of the bytes in bf16, e.g. 0.35.
    #[arg(long, value_name = "SHARE", conflicts_with = "kl")]
    pub bytes: Option<f64>,
    /// End the search at this mean KL divergence, in nats per token, e.g. 0.01.
    #[arg(long, value_name = "NATS")]
    pub kl: Option<f64>,
    /// Number of raises that are measured again at each step.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub top: u16,
    /// Number of held-out windows: the last windows of the experiment, which the search does not use [default: half of them].
    #[arg(long, value_name = "N")]
    pub held_out: Option<usize>,
    /// Write an experiment for `ulplab sweep`: the chosen recipe with gates, and the cheapest and the dearest recipe.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
    /// Store measurements in this file. A later search with the same file continues from them.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub keep: Option<PathBuf>,
    /// Only print the maximum number of forward passes, and the groups.
    #[arg(long)]
    pub dry_run: bool,
    /// Override a key of the experiment, e.g. --set tokens=128 or --set 'model="my-checkpoint"'.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    pub json: bool,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// The result of a search: points with rising bytes and falling KL divergence.
#[derive(Serialize)]
pub struct Front {
    pub experiment: String,
    /// Formats, the cheapest first.
    pub formats: Vec<String>,
    pub groups: usize,
    pub elements: usize,
    /// True if `bytes` counts weights; false if it counts bytes per token.
    pub weights: bool,
    /// Number of windows that the search used, and number of held-out windows.
    pub windows: [usize; 2],
    pub passes: usize,
    pub points: Vec<FrontPoint>,
    /// Index of the chosen point: the one that the budget of bytes or KL divergence selects.
    pub chosen: Option<usize>,
}

/// A point of the front: a format for each group of tensors, with the bytes and the KL divergence of this assignment.
#[derive(Serialize)]
pub struct FrontPoint {
    pub step: usize,
    /// The group that the last step raised to a larger format, and that format.
    pub raised: Option<[String; 2]>,
    pub bytes: f64,
    /// Bytes, divided by the bytes of the same tensors in bf16.
    pub of_bf16: f64,
    pub bits: f64,
    pub chosen_on: Estimate,
    pub held_out: Option<Estimate>,
    #[serde(skip)]
    assignment: Assignment,
}

/// Means of KL divergence and flips over windows.
#[derive(Clone, Copy, Serialize)]
pub struct Estimate {
    pub kl: f64,
    /// Standard error of the mean; `None` for a single window.
    pub kl_error: Option<f64>,
    /// Share of positions whose most probable token differs from the reference's.
    pub flips: f64,
}

/// Bytes per element in bf16.
const BF16: f64 = 2.0;

pub fn run(args: &MixArgs) -> Result<Exit> {
    check(args)?;
    let sweep = SweepArgs {
        experiment: args.experiment.clone(),
        overrides: args.overrides.clone(),
        datasets: args.datasets.clone(),
        ..SweepArgs::default()
    };
    let question = sweep::read(&sweep)?;
    let study = model_study(&question.parsed.experiment, "mix")?;
    let prepared = sweep::prepare(&sweep, &question)?;
    let names: Vec<String> = study.windows.iter().map(Window::name).collect();
    let held = args.held_out.unwrap_or(names.len() / 2);
    let Some(chosen_on @ 1..) = names.len().checked_sub(held) else {
        let windows = names.len();
        let message = format!("--held-out {held}: the experiment has {windows} windows, and needs one to choose on");
        return Err(Error::Usage(message));
    };
    let mut loaded = Sizes::default();
    let model = prepared.inputs.open()?.load_by(&mut &mut loaded)?;
    let ids = &prepared.inputs.texts[0].ids;
    let mut passed = Sizes::default();
    from_start(&*model, ids, &mut &mut passed)?;
    let groups = Groups::new(&args.at, &args.formats, (&loaded, &passed), ids.len(), model.config())?;
    let (count, formats, tokens) = (groups.all.len(), groups.formats.len(), study.tokens);
    let to_choose = search::most(count, formats, args.top.into()) * chosen_on;
    let held_out = (count * (formats - 1) + 1) * held;
    let passes = to_choose + held_out;
    errln!(
        "{count} groups, {formats} formats: at most {passes} forward passes of {tokens} tokens, {to_choose} to choose and {held_out} \
         on held-out windows"
    );
    if args.dry_run {
        for group in &groups.all {
            outln!("{}: {} elements", group.name, group.elements);
        }
        return Ok(Exit::Pass);
    }
    let cheapest = groups.all.iter().map(|group| group.bytes[0]).sum::<f64>() / (BF16 * groups.elements() as f64);
    if let Some(share) = args.bytes.filter(|share| *share < cheapest) {
        let first = &groups.formats[0];
        let message = format!("--bytes {share}: all in {first} takes {cheapest:.3} of bf16 already");
        return Err(Error::Usage(message));
    }
    let texts = prepared.inputs.texts.iter().map(|text| &text.ids[..]);
    let windows: Vec<(&str, &[u32])> = names.iter().map(String::as_str).zip(texts).collect();
    // The fingerprint identifies all inputs of the measurements: stored points of other inputs are an error.
    let parts = (prepared.manifest.identity(), &args.at, &args.formats);
    let fingerprint = blake3::hash(json::line(&parts).as_bytes()).to_hex().to_string();
    let mut measure = Measure::new(
        &prepared.inputs,
        model,
        &windows,
        question.parsed.experiment.seed,
        (args.keep.as_deref(), fingerprint),
    )?;
    let name = &question.parsed.experiment.name;
    let found = signal::while_running(|| found(args, name, &groups, &mut measure, [chosen_on, held]))?;
    if let (Some(file), Some(chosen)) = (&args.output, found.chosen) {
        let text = output::experiment(&prepared.manifest.experiment, &groups, &found.points[chosen], args.kl)?;
        write_text(file, &text)?;
    }
    json::print_or(args.json, &found, || output::text(&found, &groups, args))?;
    let asked = args.bytes.is_some() || args.kl.is_some();
    Ok(Exit::judged(!asked || found.chosen.is_some()))
}

fn check(args: &MixArgs) -> Result<()> {
    let few = format_args!("--formats {}: expected two or more", args.formats.join(","));
    Error::refuse(args.formats.len() < 2, few)?;
    let mut seen = HashSet::new();
    for format in &args.formats {
        Error::refuse(!seen.insert(format), format_args!("--formats: {format} is named twice"))?;
    }
    for (flag, value) in [("--bytes", args.bytes), ("--kl", args.kl)] {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return Err(Error::Usage(format!("{flag} {value}: expected a number above 0")));
        }
    }
    let unasked = args.bytes.is_none() && args.kl.is_none();
    let message = "-o writes the recipe of a budget: expected --bytes or --kl";
    Error::refuse(args.output.is_some() && unasked, message)?;
    args.output.as_deref().map_or(Ok(()), check_writable)
}

/// Searches assignments of formats to groups. Measures the front (the assignments with less KL divergence than all cheaper ones)
/// on the held-out windows as well.
fn found(
    args: &MixArgs,
    experiment: &str,
    groups: &Groups,
    measure: &mut Measure,
    [chosen_on, held]: [usize; 2],
) -> Result<Front> {
    let of_bf16 = BF16 * groups.elements() as f64;
    let bytes: Vec<Vec<f64>> = groups.all.iter().map(|group| group.bytes.clone()).collect();
    let budget = Budget {
        bytes: args.bytes.map(|share| share * of_bf16),
        kl: args.kl,
    };
    // The key of an assignment: the formats of all groups.
    let key = |one: &Assignment| one.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let named = |all: &[Assignment]| -> Vec<(String, Recipe)> {
        let recipes = all.iter().map(|one| (key(one), groups.recipe("front", "", one)));
        recipes.collect()
    };
    let mut kl = |all: &[Assignment]| {
        let points = measure.points(&named(all), 0..chosen_on)?;
        let mean = |points: &Vec<Point>| estimate(points).map_or(f64::NAN, |estimate| estimate.kl);
        Ok(points.iter().map(mean).collect())
    };
    let steps = search::greedy(&bytes, args.top.into(), budget, &mut kl)?;
    let mut points = Vec::new();
    for at in search::front(&steps) {
        let (assignment, raised, bytes) = (&steps[at].assignment, steps[at].raised, steps[at].bytes);
        let format = |group: usize| groups.formats[assignment[group]].clone();
        let one = named(std::slice::from_ref(assignment));
        let here = measure.points(&one, 0..chosen_on)?;
        let there = measure.points(&one, chosen_on..chosen_on + held)?;
        points.push(FrontPoint {
            step: at,
            raised: raised.map(|group| [groups.all[group].name.clone(), format(group)]),
            bytes,
            of_bf16: bytes / of_bf16,
            bits: 8.0 * bytes / groups.elements() as f64,
            chosen_on: estimate(&here[0]).ok_or_else(|| Error::Usage("there is no window to choose on".into()))?,
            held_out: estimate(&there[0]),
            assignment: assignment.clone(),
        });
    }
    // Chooses the last point of the front within the budget. Bytes rise and KL falls along the front, so with a budget of bytes
    // this point has the least KL. With a budget of KL, the search ended at the first point within the budget.
    let fits = |found: &FrontPoint| match (budget.bytes, budget.kl) {
        (Some(most), _) => found.bytes <= most,
        (None, Some(most)) => found.chosen_on.kl <= most,
        (None, None) => false,
    };
    Ok(Front {
        experiment: experiment.into(),
        formats: groups.formats.clone(),
        groups: groups.all.len(),
        elements: groups.elements(),
        weights: groups.weights,
        windows: [chosen_on, held],
        passes: measure.passes,
        chosen: points.iter().rposition(fits),
        points,
    })
}

/// Returns the means over the windows; `None` if there are no windows.
fn estimate(points: &[Point]) -> Option<Estimate> {
    let count = points.len();
    (count > 0).then(|| {
        let (kl, error) = mean_and_error(points.iter().map(|point| point.kl), count);
        Estimate {
            kl,
            kl_error: (count > 1).then_some(error),
            flips: points.iter().map(|point| point.flips).sum::<f64>() / count as f64,
        }
    })
}
