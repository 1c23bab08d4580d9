//! A front as a table, and the point of a budget as an experiment.

use std::fmt::Write;

use super::groups::Groups;
use super::{Estimate, Found, Front, MixArgs};
use crate::commands::bisect::{as_toml, experiment_of};
use crate::experiment::{Experiment, Rule, Statistic};
use ulplab_core::error::{Result, counted};
use ulplab_core::metrics::KL;
use ulplab_core::pattern::matches;
use ulplab_core::record::Phase;

/// Points that are shown; the others are in the JSON.
const SHOWN: usize = 24;
/// Name of the chosen recipe.
const CHOSEN: &str = "front";

/// The experiment with the chosen recipe and the two ends of the search, and gates on the chosen one.
pub fn experiment(of: &Experiment, groups: &Groups, chosen: &Found, most: Option<f64>) -> Result<String> {
    let last = groups.formats.len() - 1;
    let all = |format: usize| vec![format; groups.all.len()];
    let said = |estimate: Estimate| format!("KL {}", kl(&estimate));
    let held_out = chosen
        .held_out
        .map_or(String::new(), |held| format!(", {} on held-out windows", said(held)));
    let doc = format!(
        "step {} of the front: {:.3} of bf16; {} on the windows that it was chosen on{held_out}",
        chosen.step,
        chosen.of_bf16,
        said(chosen.chosen_on)
    );
    let recipes = [
        groups.recipe(CHOSEN, &doc, &chosen.assignment),
        groups.recipe("cheapest", &format!("everything in {}", groups.formats[0]), &all(0)),
        groups.recipe(
            "dearest",
            &format!("everything in {}", groups.formats[last]),
            &all(last),
        ),
    ];
    let mut of = of.clone();
    // The front is of what runs free.
    of.body.insert("phases".into(), serde_json::json!(["cumulative"]));
    of.head.gates = gates(&of.head.gates, chosen, most);
    experiment_of(&of, &recipes)
}

/// The gates of an experiment that bind a recipe of any name, on the chosen recipe; those that name others were made for these. If there
/// is none, the budget in `most` nats is the gate, else what the search measured.
fn gates(of: &[Rule], chosen: &Found, most: Option<f64>) -> Vec<Rule> {
    let mut gates: Vec<Rule> = Vec::new();
    let carried = |rule: &&Rule| {
        let binds = rule.recipes.iter().any(|pattern| matches(pattern, CHOSEN));
        !rule.control && rule.phase == Phase::Cumulative && binds
    };
    for rule in of.iter().filter(carried) {
        let rule = Rule {
            recipes: vec![CHOSEN.into()],
            ..rule.clone().stated()
        };
        let same = |other: &Rule| {
            Rule {
                why: rule.why.clone(),
                ..other.clone()
            } == rule
        };
        if !gates.iter().any(same) {
            gates.push(rule);
        }
    }
    if gates.is_empty() {
        // `--kl` binds the windows that were chosen on, and the gate is on all.
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
pub fn text(found: &Front, groups: &Groups, args: &MixArgs) -> String {
    let mut text = String::new();
    let [chosen_on, held] = found.windows;
    let unit = if found.weights { "bytes" } else { "bytes/token" };
    let _ = writeln!(
        text,
        "{}: {} in {}, chosen on {}, {} held out\n",
        found.experiment,
        counted(found.groups, "group"),
        found.formats.join(", "),
        counted(chosen_on, "window"),
        counted(held, "window")
    );
    let _ = writeln!(
        text,
        "{:>4}  {unit:>11}  {:>7}  {:>6}  {:>21}  {:>21}  {:>6}  raised",
        "step", "of bf16", "bits", "KL, chosen on", "KL, held out", "flips"
    );
    for (at, point) in found.points.iter().enumerate() {
        if !shown(at, found) {
            continue;
        }
        let held = point.held_out.map_or("—".into(), |held| kl(&held));
        let flips = point.held_out.unwrap_or(point.chosen_on).flips;
        let raised = match &point.raised {
            None => format!("nothing: all in {}", found.formats[0]),
            Some([group, format]) => format!("{group} to {format}"),
        };
        let mark = if found.chosen == Some(at) {
            "  <- the budget"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{:>4}  {:>11.0}  {:>7.3}  {:>6.2}  {:>21}  {held:>21}  {flips:>6.3}  {raised}{mark}",
            point.step,
            point.bytes,
            point.of_bf16,
            point.bits,
            kl(&point.chosen_on)
        );
    }
    let left_out = (0..found.points.len()).filter(|at| !shown(*at, found)).count();
    if left_out > 0 {
        let _ = writeln!(
            text,
            "      and {} between, which --json has",
            counted(left_out, "point")
        );
    }
    match (found.chosen, args.kl) {
        (Some(chosen), _) => {
            let recipe = groups.recipe("front", "the point of the budget", &found.points[chosen].assignment);
            let _ = write!(text, "\n{}", as_toml(&recipe));
            if let Some(file) = &args.output {
                let _ = writeln!(text, "\nulplab sweep {}", file.display());
            }
        }
        (None, Some(most)) => {
            let least = found.points.last().map_or(f64::NAN, |point| point.chosen_on.kl);
            let _ = writeln!(text, "\nNOT REACHED: the least KL is {least:.3e}, more than {most}");
        }
        (None, None) => {}
    }
    let _ = writeln!(text, "\n{}", counted(found.passes, "forward pass"));
    text
}

/// Whether a point is in the table: about evenly many, with the ends and the chosen one.
fn shown(at: usize, found: &Front) -> bool {
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
