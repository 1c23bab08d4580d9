//! Parses an experiment file or a stored run to the study of its kind.

use std::any::TypeId;

use schemars::SchemaGenerator;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Kind, STUDIES, Study};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Experiment, Head, Mistake};
use crate::run::RecipeInfo;
use crate::run::plan::{Cell, REFERENCE};
use ulplab_core::error::{Error, Result, did_you_mean};
use ulplab_core::text::shown;

/// An experiment, and the study that its keys describe.
pub struct ParsedExperiment {
    pub experiment: Experiment,
    pub study: Box<dyn Study>,
}

impl ParsedExperiment {
    /// If the file selects recipes by patterns, replaces the study by a copy with the recipes that match.
    ///
    /// # Errors
    /// Returns an error if a pattern matches nothing.
    pub fn resolve(&mut self, file: &ExperimentFile) -> Result<()> {
        if let Some(study) = self.study.resolve(file)? {
            self.experiment.body = study.body();
            self.study = study;
        }
        Ok(())
    }

    /// Returns a mistake with the text `message` for a cell whose name is too long. In the file, the mistake points to the longer
    /// of the two parts of the name: the recipe or the window.
    pub fn place_of(&self, cell: &Cell, message: String) -> Mistake {
        let plan = self.study.plan();
        let window = &plan.windows[cell.window];
        let recipes = self.study.recipes();
        let who = recipes.iter().position(|recipe| recipe.name == cell.recipe);
        match who.filter(|_| cell.recipe.len() > window.len()) {
            Some(at) => Mistake::at("name", message).in_recipe(&cell.recipe, at),
            None => {
                let noun = if plan.by_case() { "case" } else { "window" };
                let text = plan.windows.len().saturating_sub(self.study.reading().windows.len());
                let mistake = Mistake::new(format!("{noun} '{window}': {message}"));
                match cell.window.checked_sub(text).filter(|_| noun == "window") {
                    Some(at) => mistake.in_key("text").within("window", at),
                    None => mistake.in_key(noun),
                }
            }
        }
    }
}

/// Parses an experiment file. An unknown kind, a key that the kind does not have, and a name with characters not allowed in file
/// names are errors.
///
/// # Errors
/// Returns an error if the file has a mistake. The first mistake is returned, with its line.
pub fn parse(file: &ExperimentFile) -> Result<ParsedExperiment> {
    let head = file.head()?;
    let Some(kind) = STUDIES.iter().find(|kind| kind.name == head.kind) else {
        let names = STUDIES.iter().map(|kind| kind.name);
        let hint = did_you_mean(&head.kind, names.clone());
        let all = names.collect::<Vec<_>>().join(", ");
        let message = format!("unknown kind '{}', expected one of {all}{hint}", head.kind);
        return Err(file.error(&Mistake::at("kind", message)));
    };
    check_keys(&file.keys()?, kind).map_err(|mistake| file.error(&mistake))?;
    let study = (kind.parse)(file)?;
    check_names(&head, &*study).map_err(|mistake| file.error(&mistake))?;
    let body = study.body();
    Ok(ParsedExperiment {
        experiment: Experiment { head, body },
        study,
    })
}

/// Returns the study of a stored experiment.
///
/// # Errors
/// Returns an error if the keys cannot be read.
pub fn read(experiment: &Experiment) -> Result<Box<dyn Study>> {
    let kind = STUDIES.iter().find(|kind| kind.name == experiment.kind);
    let kind = kind.ok_or_else(|| Error::Usage(format!("the run is of an unknown kind, '{}'", experiment.kind)))?;
    (kind.read)(&experiment.body).map_err(|why| Error::Usage(format!("the run's experiment cannot be read: {why}")))
}

/// Returns the study of an experiment as the type `B`; `None` if the experiment is of another kind.
///
/// # Errors
/// Returns an error if the experiment's keys cannot be read.
pub fn read_as<B: Study + DeserializeOwned + 'static>(experiment: &Experiment) -> Result<Option<B>> {
    let known = |kind: &Kind| kind.name == experiment.kind && (kind.id)() == TypeId::of::<B>();
    if !STUDIES.iter().any(known) {
        return Ok(None);
    }
    let body = Value::Object(experiment.body.clone());
    let study = serde_json::from_value(body).map_err(|error| Error::Usage(error.to_string()))?;
    Ok(Some(study))
}

/// Keys that stored runs have and experiment files must not have.
const STORED: [&str; 1] = ["case_names"];

/// Refuses keys that a kind does not have. The message names all such keys, and the kinds that have them.
fn check_keys(keys: &[String], kind: &Kind) -> Result<(), Mistake> {
    let names = |kind: &Kind| -> Vec<String> {
        let schema = (kind.schema)(&mut SchemaGenerator::default());
        let keys = schema.get("properties").and_then(Value::as_object);
        keys.into_iter().flat_map(|keys| keys.keys().cloned()).collect()
    };
    let own = names(kind);
    let known = || Head::KEYS.into_iter().chain(own.iter().map(String::as_str));
    let whose = |key: &str| {
        let has = |kind: &&Kind| names(kind).iter().any(|name| name == key);
        let users = STUDIES.iter().filter(has);
        let users: Vec<String> = users.map(|other| format!("\"{}\"", other.name)).collect();
        match users.is_empty() {
            true if STORED.contains(&key) => Some("no experiment file has it".into()),
            true => None,
            false => Some(format!("it is for kind = {}", users.join(", "))),
        }
    };
    let foreign = keys.iter().filter(|key| !known().any(|name| name == *key));
    let foreign: Vec<(&String, Option<String>)> = foreign.map(|key| (key, whose(key))).collect();
    let told = match foreign.as_slice() {
        // Accept a single key that no kind has: the study's own parser reports it later, with the nearest key and missing keys.
        [] | [(_, None)] => return Ok(()),
        [(key, Some(whose))] => format!("'{key}'; {whose}"),
        several if several.iter().all(|(_, whose)| whose.is_none()) => {
            let one = |(key, _): &(&String, _)| format!("`{}`{}", shown(key), did_you_mean(key, known()));
            let unknown = several.iter().map(one).collect::<Vec<_>>().join(", ");
            return Err(Mistake::at(foreign[0].0, format!("unknown fields {unknown}")));
        }
        several => {
            let one = |(key, whose): &(&String, Option<String>)| match whose {
                Some(whose) => format!("'{}' ({whose})", shown(key)),
                None => format!("'{}' (unknown{})", shown(key), did_you_mean(key, known())),
            };
            several.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    };
    let message = format!("an experiment of kind = \"{}\" has no use for {told}", kind.name);
    Err(Mistake::at(foreign[0].0, message))
}

/// Checks the names of the experiment and of its recipes: names become parts of paths and of patterns.
fn check_names(head: &Head, study: &dyn Study) -> Result<(), Mistake> {
    Mistake::refuse(!is_name(&head.name, "_-"), "name", no_name(&head.name))?;
    let recipes = study.recipes();
    recipes
        .iter()
        .enumerate()
        .try_for_each(|(at, RecipeInfo { name, .. })| {
            let wrong = |mistake: Mistake| mistake.within("recipe", at);
            // Kernel recipes are named `op.variant`, so dots are allowed.
            Mistake::refuse(!is_name(name, "_-."), "name", no_name(name)).map_err(wrong)?;
            let taken = recipes[..at].iter().any(|other| other.name == *name) || name == REFERENCE;
            Mistake::refuse(taken, "name", format_args!("recipe name '{name}' is taken")).map_err(wrong)
        })
}

/// True if a name has only ASCII letters, digits and the characters in `marks`.
pub(super) fn is_name(name: &str, marks: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
}

pub(super) fn no_name(name: &str) -> String {
    format!("'{name}' is not a name: letters, digits, '_' and '-' only")
}
