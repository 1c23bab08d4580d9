//! `ulplab mix`: bytes against KL, where formats are mixed.

mod groups;
mod measure;
pub mod search;

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Serialize;

use super::bisect::{as_toml, experiment_of, model_study};
use super::sweep::{self, SweepArgs};
use crate::experiment::{Experiment, Rule, Statistic, Window};
use crate::statistics::mean_and_error;
use crate::studies::model::{Recipe, from_start};
use crate::{json, signal};
use groups::{Groups, Sizes};
use measure::{Measure, Point};
use search::{Assignment, Budget};
use ulplab_core::atomic::{check_writable, write_text};
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::metrics::KL;
use ulplab_core::record::Phase;

/// Find which formats to mix: bytes against KL divergence, and the recipe for a budget.
///
/// EXPERIMENT gives the model and the windows of text; its recipes are not used, and its gates only in the file of -o. The tensors that a
/// pattern of --at matches in a layer are a group, and all tensors of a group have one format. The search begins with the cheapest
/// format everywhere and raises one group at a time: the one that lowers the KL divergence from the reference most by byte. Every
/// raise is measured once alone; at each step the best --top of that ranking are measured again where the search is.
///
/// A choice is best on the windows that it was made on. So the last windows are held out, and what the others chose is measured on
/// them, too.
///
/// Exit code: 0; 100 if no point of the front keeps the budget.
#[derive(Debug, clap::Args)]
pub struct MixArgs {
    /// An experiment of kind 'model': a file, or the name of a shipped experiment.
    pub experiment: PathBuf,
    /// Sites that may be rounded, e.g. 'layers.*.mlp.*.weight'; repeatable. All are weights, or none is.
    #[arg(long = "at", value_name = "PATTERN", required = true)]
    pub at: Vec<String>,
    /// Formats to choose from, e.g. nvfp4,fp8_token,bf16; two or more.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', required = true)]
    pub formats: Vec<String>,
    /// End at so many bytes, as a share of what bf16 takes, e.g. 0.35.
    #[arg(long, value_name = "SHARE", conflicts_with = "kl")]
    pub bytes: Option<f64>,
    /// End at this mean KL divergence in nats by token, e.g. 0.01.
    #[arg(long, value_name = "NATS")]
    pub kl: Option<f64>,
    /// Raises that are measured again at each step.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub top: u16,
    /// Windows that nothing is chosen on, the last of the experiment [default: half of them].
    #[arg(long, value_name = "N")]
    pub held_out: Option<usize>,
    /// Write an experiment with the recipe that was chosen, next to the cheapest and the dearest, and gates on it; `ulplab sweep` runs it.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
    /// Keep measurements in a file; a search that finds it goes on from there.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub keep: Option<PathBuf>,
    /// Print how many forward passes there are at most, and the groups, and end.
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

/// The answer of a search.
#[derive(Serialize)]
pub struct Front {
    pub experiment: String,
    /// The cheapest first.
    pub formats: Vec<String>,
    pub groups: usize,
    pub elements: usize,
    /// True if bytes are those of weights; else they are bytes by token.
    pub weights: bool,
    /// Windows that were chosen on, and those that were held out.
    pub windows: [usize; 2],
    pub passes: usize,
    pub points: Vec<FrontPoint>,
    /// The point that a budget chooses, by its place among the points.
    pub chosen: Option<usize>,
}

/// A point of the front.
#[derive(Serialize)]
pub struct FrontPoint {
    pub step: usize,
    /// The group that was raised last, and to which format.
    pub raised: Option<[String; 2]>,
    pub bytes: f64,
    /// Share of what bf16 takes.
    pub of_bf16: f64,
    pub bits: f64,
    pub chosen_on: Estimate,
    pub held_out: Option<Estimate>,
    #[serde(skip)]
    assignment: Assignment,
}

/// Means over windows.
#[derive(Clone, Copy, Serialize)]
pub struct Estimate {
    pub kl: f64,
    /// Standard error of the mean; `None` of one window.
    pub kl_error: Option<f64>,
    /// Share of positions whose most probable token differs from the reference's.
    pub flips: f64,
}

/// Bytes of an element in bf16.
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
    let no_model = || Error::Usage("the experiment has no model".into());
    let folder = prepared.inputs.folder.as_deref().ok_or_else(no_model)?;
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
    let depends = (prepared.manifest.identity(), &args.at, &args.formats);
    let fingerprint = blake3::hash(json::line(&depends).as_bytes()).to_hex().to_string();
    let mut measure = Measure::new(
        (folder, &question.parsed.experiment.inert),
        model,
        &windows,
        question.parsed.experiment.seed,
        (args.keep.as_deref(), fingerprint),
    )?;
    let name = &question.parsed.experiment.name;
    let found = signal::while_running(|| found(args, name, &groups, &mut measure, [chosen_on, held]))?;
    if let (Some(file), Some(chosen)) = (&args.output, found.chosen) {
        let text = experiment(&prepared.manifest.experiment, &groups, &found.points[chosen], args.kl)?;
        write_text(file, &text)?;
    }
    json::print_or(args.json, &found, || text(&found, &groups, args))?;
    let asked = args.bytes.is_some() || args.kl.is_some();
    Ok(Exit::judged(!asked || found.chosen.is_some()))
}

fn check(args: &MixArgs) -> Result<()> {
    let usage = |message: String| Err(Error::Usage(message));
    if args.formats.len() < 2 {
        return usage(format!("--formats {}: expected two or more", args.formats.join(",")));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = args.formats.iter().find(|format| !seen.insert(*format)) {
        return usage(format!("--formats: {twice} is named twice"));
    }
    for (flag, value) in [("--bytes", args.bytes), ("--kl", args.kl)] {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return usage(format!("{flag} {value}: expected a number above 0"));
        }
    }
    if args.output.is_some() && args.bytes.is_none() && args.kl.is_none() {
        return usage("-o writes the recipe of a budget: expected --bytes or --kl".into());
    }
    args.output.as_deref().map_or(Ok(()), check_writable)
}

/// Searches, and measures the front on the windows that were held out.
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
    // The formats of all groups in one word.
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
    // KL falls and bytes rise along the front, so the last point that fits the budget has the least KL.
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

/// `None` of no windows.
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

/// Points that are shown; the others are in the JSON.
const SHOWN: usize = 24;
/// Name of the chosen recipe.
const CHOSEN: &str = "front";

/// The experiment with the chosen recipe and the two ends of the search, and gates on the chosen one.
fn experiment(of: &Experiment, groups: &Groups, chosen: &FrontPoint, most: Option<f64>) -> Result<String> {
    let last = groups.formats.len() - 1;
    let all = |format: usize| vec![format; groups.all.len()];
    let held_out = chosen.held_out.as_ref();
    let held_out = held_out.map_or(String::new(), |held| format!(", KL {} on held-out windows", kl(held)));
    let (step, share, kl) = (chosen.step, chosen.of_bf16, kl(&chosen.chosen_on));
    let doc =
        format!("step {step} of the front: {share:.3} of bf16; KL {kl} on the windows that it was chosen on{held_out}");
    let [cheapest, dearest] = [0, last].map(|format| format!("everything in {}", groups.formats[format]));
    let recipes = [
        groups.recipe(CHOSEN, &doc, &chosen.assignment),
        groups.recipe("cheapest", &cheapest, &all(0)),
        groups.recipe("dearest", &dearest, &all(last)),
    ];
    let mut of = of.clone();
    // The front is of what runs free.
    of.body.insert("phases".into(), serde_json::json!(["cumulative"]));
    of.head.gates = gates(&of.head.gates, chosen, most);
    experiment_of(&of, &recipes)
}

/// The gates of an experiment that bind a recipe of any name, on the chosen recipe; those that name others were made for these. If there
/// is none, the budget in `most` nats is the gate, else what the search measured.
fn gates(of: &[Rule], chosen: &FrontPoint, most: Option<f64>) -> Vec<Rule> {
    let mut gates: Vec<Rule> = Vec::new();
    let carried = |rule: &&Rule| !rule.control && rule.phase == Phase::Cumulative && rule.binds(CHOSEN);
    for rule in of.iter().filter(carried) {
        let mut rule = rule.clone().stated();
        rule.recipes = vec![CHOSEN.into()];
        let same = |other: &Rule| {
            let why = rule.why.clone();
            Rule { why, ..other.clone() } == rule
        };
        if !gates.iter().any(same) {
            gates.push(rule);
        }
    }
    if gates.is_empty() {
        // The budget of `--kl` applies to the windows that the search chose on; the gate applies to all windows.
        let held_out = chosen.held_out.map_or(0.0, |held| held.kl);
        let measured = chosen.chosen_on.kl.max(held_out);
        let (bound, why) = match most {
            Some(most) => (most, "the budget that the recipe was chosen by"),
            None => (
                rounded_up(measured),
                "what the search measured, rounded up: it holds as long as the recipe is what was found; in its place state the KL that you \
                 can afford",
            ),
        };
        gates.push(Rule {
            metric: KL.name.into(),
            at: "logits".into(),
            phase: Phase::Cumulative,
            statistic: Statistic::Mean,
            require: format!("<= {bound:e}"),
            flake: None,
            calibration: None,
            recipes: vec![CHOSEN.into()],
            control: false,
            why: why.into(),
        });
    }
    gates
}

/// The next larger number of two digits.
fn rounded_up(value: f64) -> f64 {
    let text = format!("{value:.1e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let read = |digits: f64| format!("{digits:.1}e{exponent}").parse().unwrap_or(f64::INFINITY);
    let near = digits.parse().map_or(f64::INFINITY, read);
    match near >= value {
        true => near,
        false => digits.parse().map_or(f64::INFINITY, |digits: f64| read(digits + 0.1)),
    }
}

/// The answer as text.
fn text(found: &Front, groups: &Groups, args: &MixArgs) -> String {
    let (of, formats) = (counted(found.groups, "group"), found.formats.join(", "));
    let [chosen_on, held] = found.windows.map(|windows| counted(windows, "window"));
    let mut text = format!(
        "{}: {of} in {formats}, chosen on {chosen_on}, {held} held out\n\n",
        found.experiment
    );
    let unit = if found.weights { "bytes" } else { "bytes/token" };
    text += &format!(
        "{:>4}  {unit:>11}  {:>7}  {:>6}  {:>21}  {:>21}  {:>6}  raised\n",
        "step", "of bf16", "bits", "KL, chosen on", "KL, held out", "flips"
    );
    let shown = |at: &usize| is_shown(*at, found);
    for at in (0..found.points.len()).filter(shown) {
        let point = &found.points[at];
        let (step, bytes, of_bf16, bits) = (point.step, point.bytes, point.of_bf16, point.bits);
        let flips = point.held_out.unwrap_or(point.chosen_on).flips;
        let (chosen_on, held) = (kl(&point.chosen_on), point.held_out.as_ref().map_or("—".into(), kl));
        let raised = match &point.raised {
            None => format!("nothing: all in {}", found.formats[0]),
            Some([group, format]) => format!("{group} to {format}"),
        };
        let mark = match found.chosen == Some(at) {
            true => "  <- the budget",
            false => "",
        };
        text += &format!("{step:>4}  {bytes:>11.0}  {of_bf16:>7.3}  {bits:>6.2}  {chosen_on:>21}  {held:>21}  ");
        text += &format!("{flips:>6.3}  {raised}{mark}\n");
    }
    let left_out = found.points.len() - (0..found.points.len()).filter(shown).count();
    if left_out > 0 {
        text += &format!("      and {} between, which --json has\n", counted(left_out, "point"));
    }
    match (found.chosen, args.kl) {
        (Some(chosen), _) => {
            let recipe = groups.recipe("front", "the point of the budget", &found.points[chosen].assignment);
            text += &format!("\n{}", as_toml(&recipe));
            if let Some(file) = &args.output {
                text += &format!("\nulplab sweep {}\n", file.display());
            }
        }
        (None, Some(most)) => {
            let least = found.points.last().map_or(f64::NAN, |point| point.chosen_on.kl);
            text += &format!("\nNOT REACHED: the least KL is {least:.3e}, more than {most}\n");
        }
        (None, None) => {}
    }
    text + &format!("\n{}\n", counted(found.passes, "forward pass"))
}

/// True of the points in the table: about evenly many, with the ends and the chosen one.
fn is_shown(at: usize, found: &Front) -> bool {
    let count = found.points.len();
    let slot = |at: usize| at * (SHOWN - 1) / (count - 1).max(1);
    count <= SHOWN || at == 0 || at + 1 == count || found.chosen == Some(at) || slot(at) != slot(at - 1)
}

/// A mean with its standard error over windows.
fn kl(estimate: &Estimate) -> String {
    match estimate.kl_error {
        Some(error) => format!("{:.3e} ±{error:.1e}", estimate.kl),
        None => format!("{:.3e}", estimate.kl),
    }
}
