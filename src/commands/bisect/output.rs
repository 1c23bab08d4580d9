//! Formats the result of a search for culprits (roundings that make a gate fail) as text and as an experiment file.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use super::BisectArgs;
use super::explain::{Culprit, Explanation};
use super::mix::Mix;
use crate::experiment::{Experiment, Rule};
use crate::json;
use crate::studies::model::Recipe;
use ulplab_core::error::{Error, Result, counted};

/// Maximum number of tests in the text; the JSON has all tests.
const SHOWN: usize = 24;

/// Formats a recipe as a table of an experiment file.
pub fn recipe(recipe: &Recipe) -> String {
    let quoted = |text: &str| toml::Value::String(text.into()).to_string();
    let (name, doc) = (quoted(&recipe.name), quoted(&recipe.doc));
    let mut text = format!("[[recipe]]\nname = {name}\ndoc = {doc}\n");
    if recipe.noise {
        text += "noise = true\n";
    }
    if let Some(gain) = recipe.gain {
        let _ = writeln!(text, "gain = {gain:?}");
    }
    text += "round = [\n";
    for round in &recipe.rounds {
        let keys = json::keys(round);
        let said = keys.iter().filter_map(|(key, value)| match value {
            Value::String(value) => Some(format!("{key} = {}", quoted(value))),
            Value::Bool(true) => Some(format!("{key} = true")),
            _ => None,
        });
        let _ = writeln!(text, "    {{ {} }},", said.collect::<Vec<_>>().join(", "));
    }
    text + "]\n"
}

/// Returns an experiment with only the recipe that the search found, and the gates that this recipe fails.
pub fn experiment(of: &Experiment, found: &Recipe, rules: &[&Rule], explained: &Explanation) -> Result<String> {
    let mut experiment = of.clone();
    let failed = |rule: &&&Rule| explained.failed.iter().any(|failed| failed.rule == ***rule);
    let gates = rules.iter().filter(failed).map(|rule| Rule {
        recipes: vec![found.name.clone()],
        ..(*rule).clone().stated()
    });
    experiment.head.gates = gates.collect();
    experiment_of(&experiment, std::slice::from_ref(found))
}

/// Returns a copy of an experiment file in which these recipes replace all recipes. Keeps only the gates that name one of the new
/// recipes.
pub fn experiment_of(of: &Experiment, recipes: &[Recipe]) -> Result<String> {
    let mut experiment = of.clone();
    experiment.body.remove("recipe");
    let names = |rule: &Rule| recipes.iter().any(|recipe| rule.recipes.contains(&recipe.name));
    let mut gates = std::mem::take(&mut experiment.head.gates);
    gates.retain(names);
    let wrong = |error: toml::ser::Error| Error::Usage(error.to_string());
    let mut text = toml::to_string(&experiment).map_err(wrong)?.replace("gate = []\n", "");
    for found in recipes {
        let _ = write!(text, "\n{}", recipe(found));
    }
    for gate in gates {
        let _ = write!(text, "\n[[gate]]\n{}", toml::to_string(&gate).map_err(wrong)?);
    }
    Ok(text)
}

/// Formats the result as text.
pub fn text(found: &Explanation, mix: &Mix, args: &BisectArgs, experiment: &str) -> String {
    let mut text = format!("'{}' of {experiment} fails, against '{}':\n", found.recipe, args.right);
    for failed in &found.failed {
        text += &format!("  {}\n", failed.message);
        if let Some(place) = &failed.first_beyond {
            text += &format!("  the first place beyond that bound is {place}\n");
        }
    }
    let metric = found.failed.first().map_or("", |failed| failed.metric.as_str());
    text += &format!("\n{:>5}  {metric:>12}  {:<5} wrong\n", "cells", "gates");
    for test in found.tests.iter().take(SHOWN) {
        let gate = if test.fails { "FAIL" } else { "hold" };
        let (cells, value, wrong) = (test.cells, number(test.value), &test.wrong);
        text += &format!("{cells:>5}  {value:>12}  {gate:<5} {wrong}\n");
    }
    if let more @ 1.. = found.tests.len().saturating_sub(SHOWN) {
        text += &format!("       and {}, which --json has\n", counted(more, "test"));
    }
    text.push('\n');
    for culprit in &found.culprits {
        text += &of_culprit(culprit, found.suspects, mix);
    }
    if let Some(why) = &found.undivided {
        text += &format!("Channels and tokens were not searched: {why}.\n");
    }
    text += match (found.holds_without, found.culprits.len() > 1) {
        (Some(_), false) => "With that right and all else wrong, the gates hold.\n",
        (Some(_), true) => "Each fails alone; with all of them right and all else wrong, the gates hold.\n",
        (None, _) => "The search did not test that the gates hold with that right: --cells ended it.\n",
    };
    text += &format!("\nThe recipe that is wrong there only:\n\n{}\n", found.toml);
    if let Some(file) = &args.output {
        text += &format!("ulplab sweep {}\n", file.display());
    }
    if let Some(file) = &args.capsule {
        text += &format!("ulplab bisect --replay {}\n", file.display());
    }
    let verdict = if found.whole() { "FOUND" } else { "FOUND IN PART" };
    let culprits: usize = found.culprits.iter().map(|culprit| culprit.places.len()).sum();
    let (suspects, cells, seconds) = (
        counted(found.suspects, "suspect"),
        counted(found.cells, "cell"),
        found.seconds,
    );
    text + &format!("{verdict}: {culprits} of {suspects}; {cells} in {seconds:.1} s\n")
}

/// Describes a culprit (places that alone make a gate fail) in a sentence.
fn of_culprit(culprit: &Culprit, suspects: usize, mix: &Mix) -> String {
    let named = mix.words(&culprit.wrong);
    let formats = culprit.places.iter().flat_map(|place| &place.formats);
    let formats: BTreeSet<&str> = formats.map(String::as_str).collect();
    let formats = Vec::from_iter(formats).join(", ");
    let fewest = match (culprit.units, culprit.minimal) {
        (1, true) => String::new(),
        (units, true) => format!(" All {units} are needed: without any one of them the gates hold."),
        (units, false) => {
            let suspects = counted(suspects, "suspect");
            format!(" Fewer than these {units} may do, of {suspects}: --cells ended the search.")
        }
    };
    let mut text = format!("With only {named} wrong ({formats}), the gates fail.{fewest}\n");
    for (part, members) in [(&culprit.channels, "channels"), (&culprit.tokens, "tokens")] {
        let Some(part) = part else { continue };
        let less = match part.fewest {
            true => "",
            false => " (fewer may do: --cells ended the search)",
        };
        let (all, count, numbers) = (part.of, part.count, &part.numbers);
        text += &format!("  Of {all} {members} with an error there, ");
        text += &format!("the {count} with the largest suffice{less}: {numbers}\n");
    }
    text
}

/// Formats a value with several digits; in scientific notation if it is very large or very small.
fn number(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (1e-3..1e6).contains(&size) => format!("{value:.7}"),
        _ => format!("{value:.4e}"),
    }
}
