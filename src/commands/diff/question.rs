//! Differences between two runs in experiment, data, program and device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::Serialize;
use serde_json::Value;

use super::verdicts;
use crate::experiment::{Experiment, Rule};
use crate::json;
use crate::run::Manifest;
use ulplab_core::text::shown;

/// Maximum number of listed names of entries (such as recipes) that only one run has.
const NAMES: usize = 5;
/// Longer values are cut to this many characters.
const VALUE: usize = 80;
/// Placeholder for a missing value of a run.
const NOTHING: &str = "none";
/// Printed as the value of the new run if the definition of an entry changed, or if both values look equal once they are cut.
const CHANGED: &str = "its definition changed";
/// Keys of an experiment that [`keys`] skips: other functions of this file compare them.
const APART: [&str; 6] = ["seed", "recipe", "gate", "window", "draws", "case_names"];

/// A difference between two runs in experiment, data, program or device.
#[derive(Debug, Serialize)]
pub struct Difference {
    pub what: String,
    pub base: String,
    pub new: String,
    /// True if the numbers of the two runs are comparable despite this difference.
    #[serde(skip)]
    pub comparable: bool,
}

impl Difference {
    /// Formats the difference as a text: name, value in BASE, `between`, value in NEW, `behind`. If BASE has no value, the text
    /// has only the name and the value in NEW.
    pub fn sentence(&self, between: &str, behind: &str) -> String {
        let Self { what, base, new, .. } = self;
        match base.is_empty() {
            true => format!("{what}: {new}"),
            false => format!("{what}: {base}{between}{new}{behind}"),
        }
    }
}

/// Returns all differences between two runs in program, device, data and experiment.
pub fn differences(base: &Manifest, new: &Manifest) -> Vec<Difference> {
    let or_none = |value: &Option<String>| value.clone().unwrap_or(NOTHING.into());
    let of = |manifest: &Manifest| {
        [
            ("version of ulplab", manifest.version.clone(), true),
            ("sources of the program", manifest.program.short(), true),
            ("commit of the program", or_none(&manifest.program.commit), true),
            ("commit", or_none(&manifest.commit), true),
            ("vectors of the machine", manifest.program.vectors.clone(), true),
            ("device", manifest.device.clone(), true),
            ("seed", manifest.experiment.seed.to_string(), false),
            ("planted fault", or_none(&manifest.invocation.mutant), false),
        ]
    };
    let mut found: Vec<Difference> = Vec::new();
    for ((what, base, comparable), (_, new, _)) in of(base).into_iter().zip(of(new)) {
        found.extend(differs(what, base, new, comparable));
    }
    let [then, now] = [base, new].map(|manifest| manifest.data.iter().cloned().collect());
    found.extend(named::<String>("data", then, now, false));
    found.extend(named("recipe", recipes(base), recipes(new), true));
    let names = |noun, then: &[String], now: &[String]| named(noun, only_names(then), only_names(now), true);
    found.extend(names("window", &base.plan.windows, &new.plan.windows));
    found.extend(names("gate", &gates(base), &gates(new)));
    found.extend(keys(&base.experiment, &new.experiment));
    found.extend(names("cell", &base.cells, &new.cells));
    found
}

fn differs(what: &str, base: impl Display, new: impl Display, comparable: bool) -> Option<Difference> {
    let (base, new) = (base.to_string(), new.to_string());
    (base != new).then(|| Difference {
        what: what.into(),
        base: cut(&base),
        new: cut(&new),
        comparable,
    })
}

fn cut(text: &str) -> String {
    let text = shown(text);
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Describes the gates with their bounds and recipes.
fn gates(manifest: &Manifest) -> Vec<String> {
    let named = |rule: &Rule| format!("'{}' for {}", verdicts::text(rule), rule.recipes.join(", "));
    manifest.experiment.gates.iter().map(named).collect()
}

fn recipes(manifest: &Manifest) -> BTreeMap<String, Value> {
    let recipes = manifest.experiment.recipes().into_iter();
    recipes.map(|(name, recipe)| (name.into(), recipe.clone())).collect()
}

fn only_names(names: &[String]) -> BTreeMap<String, ()> {
    names.iter().map(|name| (name.clone(), ())).collect()
}

/// Compares entries (such as recipes) by name. If `comparable` is true, the runs are comparable despite an entry that only one
/// run has. If the definition of an entry changed, the runs are not comparable.
fn named<V: PartialEq>(
    noun: &str,
    base: BTreeMap<String, V>,
    new: BTreeMap<String, V>,
    comparable: bool,
) -> Vec<Difference> {
    let missing = |from: &BTreeMap<String, V>, other: &BTreeMap<String, V>| {
        let names = from.keys().filter(|name| !other.contains_key(*name));
        list(names.map(String::as_str).collect())
    };
    let what = format!("{noun} in one run only");
    let mut found = Vec::from_iter(differs(&what, missing(&base, &new), missing(&new, &base), comparable));
    for (name, value) in &base {
        if new.get(name).is_some_and(|other| other != value) {
            found.push(Difference {
                what: format!("{noun} {}", shown(name)),
                base: String::new(),
                new: CHANGED.into(),
                comparable: false,
            });
        }
    }
    found
}

fn list(names: Vec<&str>) -> String {
    let names: Vec<String> = names.into_iter().map(shown).collect();
    match names.len() {
        0 => NOTHING.into(),
        count if count > NAMES => format!("{count}: {}, …", names[..NAMES].join(", ")),
        _ => names.join(", "),
    }
}

/// Compares the keys of the experiment file, except those in [`APART`].
fn keys(base: &Experiment, new: &Experiment) -> Vec<Difference> {
    let [base, new] = [base, new].map(json::keys);
    let names: BTreeSet<&String> = base.keys().chain(new.keys()).collect();
    let text = |value: Option<&Value>| value.map_or(NOTHING.into(), Value::to_string);
    let mut all = Vec::new();
    for key in names.into_iter().filter(|key| !APART.contains(&key.as_str())) {
        let found = differs(key, text(base.get(key)), text(new.get(key)), key == "question");
        // If two long values differ only after the cut, shows the text [`CHANGED`] in place of the value in NEW.
        all.extend(found.map(|mut found| {
            if found.base == found.new {
                found.new = CHANGED.into();
            }
            found
        }));
    }
    all
}
