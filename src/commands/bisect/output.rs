//! What a search found, for people, and as an experiment.

use std::fmt::Write;

use serde_json::Value;

use super::BisectArgs;
use super::explain::{Culprit, Explanation, Part};
use super::mix::Mix;
use crate::experiment::{Experiment, Rule};
use crate::studies::model::Recipe;
use ulplab_core::error::{Error, Result, counted};

/// Tests that are shown; the others are in the JSON.
const SHOWN: usize = 24;

/// A recipe as a table of an experiment file.
pub fn recipe(recipe: &Recipe) -> String {
    let quoted = |text: &str| toml::Value::String(text.into()).to_string();
    let mut text = format!(
        "[[recipe]]\nname = {}\ndoc = {}\n",
        quoted(&recipe.name),
        quoted(&recipe.doc)
    );
    if recipe.noise {
        text += "noise = true\n";
    }
    if let Some(gain) = recipe.gain {
        let _ = writeln!(text, "gain = {gain:?}");
    }
    text += "round = [\n";
    for round in &recipe.rounds {
        let Ok(Value::Object(keys)) = serde_json::to_value(round) else {
            continue;
        };
        let said = keys.iter().filter_map(|(key, value)| match value {
            Value::String(value) => Some(format!("{key} = {}", quoted(value))),
            Value::Bool(true) => Some(format!("{key} = true")),
            _ => None,
        });
        let _ = writeln!(text, "    {{ {} }},", said.collect::<Vec<_>>().join(", "));
    }
    text + "]\n"
}

/// The experiment with the recipe that was found alone, and the gates that it fails.
pub fn experiment(of: &Experiment, found: &Recipe, rules: &[&Rule], explained: &Explanation) -> Result<String> {
    let mut experiment = of.clone();
    let failed = |rule: &&&Rule| explained.failed.iter().any(|failed| failed.rule == ***rule);
    experiment.head.gates = rules
        .iter()
        .filter(failed)
        .map(|rule| Rule {
            recipes: vec![found.name.clone()],
            ..(*rule).clone().stated()
        })
        .collect();
    experiment_of(&experiment, std::slice::from_ref(found))
}

/// An experiment file with other recipes.
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

/// The answer as text.
pub fn text(found: &Explanation, mix: &Mix, args: &BisectArgs, experiment: &str) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "'{}' of {experiment} fails, against '{}':",
        found.recipe, args.right
    );
    for failed in &found.failed {
        let _ = writeln!(text, "  {}", failed.message);
        if let Some(place) = &failed.first_beyond {
            let _ = writeln!(text, "  the first place beyond that bound is {place}");
        }
    }
    let metric = found.failed.first().map_or("", |failed| failed.metric.as_str());
    let _ = writeln!(text, "\n{:>5}  {:>12}  {:<5} wrong", "cells", metric, "gates");
    for test in found.tests.iter().take(SHOWN) {
        let gate = if test.fails { "FAIL" } else { "hold" };
        let _ = writeln!(
            text,
            "{:>5}  {:>12}  {gate:<5} {}",
            test.cells,
            number(test.value),
            test.wrong
        );
    }
    if found.tests.len() > SHOWN {
        let _ = writeln!(
            text,
            "       and {}, which --json has",
            counted(found.tests.len() - SHOWN, "test")
        );
    }
    text.push('\n');
    let several = found.culprits.len() > 1;
    for culprit in &found.culprits {
        let _ = writeln!(text, "{}", of_culprit(culprit, found.suspects, mix));
    }
    if let Some(why) = &found.undivided {
        let _ = writeln!(text, "Channels and tokens were not searched: {why}.");
    }
    let _ = match (found.holds_without, several) {
        (Some(_), false) => writeln!(text, "With that right and all else wrong, the gates hold."),
        (Some(_), true) => writeln!(
            text,
            "Each fails alone; with all of them right and all else wrong, the gates hold."
        ),
        (None, _) => writeln!(
            text,
            "Whether the gates hold with that right was not tested: --cells ended the search."
        ),
    };
    let _ = write!(text, "\nThe recipe that is wrong there only:\n\n{}\n", found.toml);
    if let Some(file) = &args.output {
        let _ = writeln!(text, "ulplab sweep {}", file.display());
    }
    if let Some(file) = &args.capsule {
        let _ = writeln!(text, "ulplab bisect --replay {}", file.display());
    }
    let (cells, seconds) = (counted(found.cells, "cell"), found.seconds);
    let verdict = if found.whole() { "FOUND" } else { "FOUND IN PART" };
    let culprits: usize = found.culprits.iter().map(|culprit| culprit.places.len()).sum();
    let suspects = counted(found.suspects, "suspect");
    let _ = writeln!(text, "{verdict}: {culprits} of {suspects}; {cells} in {seconds:.1} s");
    text
}

/// A sentence on places that fail alone.
fn of_culprit(culprit: &Culprit, suspects: usize, mix: &Mix) -> String {
    let named = mix.words(&culprit.wrong);
    let formats: std::collections::BTreeSet<&str> = culprit
        .places
        .iter()
        .flat_map(|place| place.formats.iter().map(String::as_str))
        .collect();
    let formats: Vec<&str> = formats.into_iter().collect();
    let fewest = match (culprit.units, culprit.minimal) {
        (1, true) => String::new(),
        (units, true) => format!(" All {units} are needed: without any one of them the gates hold."),
        (units, false) => {
            let suspects = counted(suspects, "suspect");
            format!(" Fewer than these {units} may do, of {suspects}: --cells ended the search.")
        }
    };
    let mut text = format!(
        "With only {named} wrong ({}), the gates fail.{fewest}",
        formats.join(", ")
    );
    for (part, what) in [(&culprit.channels, "channel"), (&culprit.tokens, "token")] {
        if let Some(part) = part {
            text += &of_part(part, what);
        }
    }
    text
}

fn of_part(part: &Part, what: &str) -> String {
    let Part {
        numbers,
        count,
        of,
        fewest,
    } = part;
    let less = match fewest {
        true => "",
        false => " (fewer may do: --cells ended the search)",
    };
    format!("\n  Of {of} {what}s with an error there, the {count} with the largest suffice{less}: {numbers}")
}

/// Six digits, whatever the size.
fn number(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (1e-3..1e6).contains(&size) => format!("{value:.7}"),
        _ => format!("{value:.4e}"),
    }
}
