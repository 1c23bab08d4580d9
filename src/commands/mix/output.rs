//! Prints the front (the assignments of formats that have a lower KL divergence than all cheaper ones) as a table, and writes the
//! chosen assignment as an experiment file.

use super::groups::Groups;
use super::{Estimate, Front, FrontPoint, MixArgs};
use crate::commands::bisect::{as_toml, experiment_of};
use crate::experiment::{Experiment, Rule, Statistic};
use ulplab_core::error::{Result, counted};
use ulplab_core::metrics::KL;
use ulplab_core::record::Phase;

/// Maximum number of points in the table; the JSON has all points.
const SHOWN: usize = 24;
/// Name of the chosen recipe.
const CHOSEN: &str = "front";

/// Returns an experiment with three recipes: the chosen one, and for comparison all groups in the cheapest and all groups in the
/// largest format. The gates apply to the chosen recipe.
pub fn experiment(of: &Experiment, groups: &Groups, chosen: &FrontPoint, most: Option<f64>) -> Result<String> {
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
    // The search measured runs in which errors pass from layer to layer, so the experiment has only the phase `cumulative`.
    of.body.insert("phases".into(), serde_json::json!(["cumulative"]));
    of.head.gates = gates(&of.head.gates, chosen, most);
    experiment_of(&of, &recipes)
}

/// Returns the gates for the chosen recipe: those gates of the experiment whose recipe patterns match the name [`CHOSEN`], such
/// as gates on all recipes. If no gate remains, returns one gate that bounds the KL divergence by the budget `most` (in nats)
/// or, without a budget, by the measured value.
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
        // The budget of `--kl` applies to the windows that the search used; the gate applies to all windows.
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

/// Rounds up to the next number with two significant digits.
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

/// Formats the result as text.
pub fn text(found: &Front, groups: &Groups, args: &MixArgs) -> String {
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
    let shown: Vec<usize> = (0..found.points.len()).filter(|at| is_shown(*at, found)).collect();
    for &at in &shown {
        let point = &found.points[at];
        let (step, bytes, of_bf16, bits) = (point.step, point.bytes, point.of_bf16, point.bits);
        let flips = point.held_out.unwrap_or(point.chosen_on).flips;
        let (chosen_on, held) = (kl(&point.chosen_on), point.held_out.as_ref().map_or("—".into(), kl));
        let raised = match &point.raised {
            None => format!("nothing: all in {}", found.formats[0]),
            Some([group, format]) => format!("{group} to {format}"),
        };
        let mark = if found.chosen == Some(at) {
            "  <- the budget"
        } else {
            ""
        };
        text += &format!("{step:>4}  {bytes:>11.0}  {of_bf16:>7.3}  {bits:>6.2}  {chosen_on:>21}  {held:>21}  ");
        text += &format!("{flips:>6.3}  {raised}{mark}\n");
    }
    if let left_out @ 1.. = found.points.len() - shown.len() {
        text += &format!("      and {} between, which --json has\n", counted(left_out, "point"));
    }
    match (found.chosen, args.kl) {
        (Some(chosen), _) => {
            let recipe = groups.recipe(CHOSEN, "the point of the budget", &found.points[chosen].assignment);
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

/// True if the table shows the point `at` of the front. The table shows both ends, the chosen point, and points spread evenly
/// between the ends.
fn is_shown(at: usize, found: &Front) -> bool {
    let count = found.points.len();
    let slot = |at: usize| at * (SHOWN - 1) / (count - 1).max(1);
    count <= SHOWN || at == 0 || at + 1 == count || found.chosen == Some(at) || slot(at) != slot(at - 1)
}

/// Formats a mean KL with its standard error over windows.
fn kl(estimate: &Estimate) -> String {
    match estimate.kl_error {
        Some(error) => format!("{:.3e} ±{error:.1e}", estimate.kl),
        None => format!("{:.3e}", estimate.kl),
    }
}
