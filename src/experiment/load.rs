//! Reading an experiment file: every mistake in it is named with file, line, and the nearest valid name.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Experiment, Rule};
use crate::dataset::{explain, parse_toml};
use crate::shipped;
use ulplab_core::error::{Error, Result, did_you_mean};
use ulplab_core::input;

/// A file of gates alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(rename = "gate")]
    gates: Vec<Rule>,
}

/// An experiment with the text it came from, so that later errors can point into it.
pub struct Source {
    pub file: PathBuf,
    pub text: String,
    /// Keys that the command line gives in place of the file.
    set: RefCell<Vec<String>>,
}

impl Source {
    /// Reads the file; a bare name such as `kv_cache` means the experiment of that name that comes with ulplab, unless there
    /// is a file called so.
    pub fn read(file: &Path) -> Result<Self> {
        let bare = file.components().count() == 1 && file.extension().is_none() && !file.is_file();
        let known = bare.then(|| shipped::find(&format!("experiments/{}.toml", file.display())));
        let file = known.flatten().unwrap_or_else(|| file.to_path_buf());
        if bare && !file.exists() {
            return Err(Error::Usage(no_experiment(&file)));
        }
        let text = input::text(&file)?;
        Ok(Self::new(file, text))
    }

    /// A text that is in memory; `file` stands in messages.
    pub fn new(file: PathBuf, text: String) -> Self {
        let set = RefCell::default();
        Self { file, text, set }
    }

    /// Parses the file, then applies `key=value` overrides (dotted keys, values in TOML, bare words taken as strings).
    pub fn parse(&self, overrides: &[String]) -> Result<Experiment> {
        let mut experiment: Experiment = parse_toml(&self.file, &self.text)?;
        if !overrides.is_empty() {
            let mut table: toml::Table = parse_toml(&self.file, &self.text)?;
            for item in overrides {
                set(&mut table, item)?;
            }
            experiment = table
                .try_into()
                .map_err(|error: toml::de::Error| self.refuse(overrides, &error))?;
            let key = |item: &String| item.split(['=', '.']).next().map(String::from);
            *self.set.borrow_mut() = overrides.iter().filter_map(key).collect();
        }
        experiment
            .check_keys()
            .map_err(|(key, message)| self.error_at(&key, message))?;
        Ok(experiment)
    }

    /// The error of the override at which the experiment can no longer be read.
    fn refuse(&self, overrides: &[String], last: &toml::de::Error) -> Error {
        let wrong = (1..=overrides.len()).find_map(|count| {
            let mut table: toml::Table = parse_toml(&self.file, &self.text).ok()?;
            let given = &overrides[..count];
            given.iter().try_for_each(|item| set(&mut table, item)).ok()?;
            let error = table.try_into::<Experiment>().err()?;
            Some((given.last()?, expected(given.last()?, &error)))
        });
        match wrong {
            Some((item, message)) => Error::Usage(format!("--set {item}: {message}")),
            None => Error::Usage(format!("--set: {}", explain(last))),
        }
    }

    /// An error of data that the experiment names, said of the experiment: `name` stands there.
    pub fn of_data(&self, name: &str, error: Error) -> Error {
        match error {
            Error::Config { file, message } => self.error_at(name, format!("{}: {message}", file.display())),
            other => other,
        }
    }

    /// The gates of an experiment, or of a file that has `[[gate]]` and nothing else.
    pub fn gates(&self) -> Result<Vec<Rule>> {
        let table: toml::Table = parse_toml(&self.file, &self.text)?;
        let gates = match table.contains_key("name") {
            true => self.parse(&[])?.gates,
            false => parse_toml::<Rules>(&self.file, &self.text)?.gates,
        };
        match gates.is_empty() {
            true => Err(Error::config(&self.file, "the file has no [[gate]]")),
            false => Ok(gates),
        }
    }

    /// An error about the place where `needle` (a pattern, a name) stands in the file.
    pub fn error_at(&self, needle: &str, message: impl AsRef<str>) -> Error {
        let quoted = format!("\"{needle}\"");
        let header = format!("[[{needle}]]");
        let here = |line: &str| {
            line.contains(&quoted) || line.split(['=', ' ']).next() == Some(needle) || line.trim_end() == header
        };
        let message = message.as_ref();
        if self.set.borrow().iter().any(|key| key == needle) {
            return Error::Usage(format!("--set {needle}: {message}"));
        }
        let line = self.text.lines().position(here);
        Error::config(
            &self.file,
            match line {
                Some(line) => format!("line {}: {message}", line + 1),
                None => message.to_string(),
            },
        )
    }
}

/// What is said of a bare name that no experiment has.
fn no_experiment(name: &Path) -> String {
    let folder = shipped::find("experiments").and_then(|folder| folder.read_dir().ok());
    let files = folder
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let experiments = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml"));
    let mut names: Vec<String> = experiments
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_string()))
        .collect();
    names.sort();
    let name = name.display().to_string();
    let near = did_you_mean(&name, names.iter().map(String::as_str));
    let all = if near.is_empty() && !names.is_empty() {
        format!("; there are: {}", names.join(", "))
    } else {
        String::new()
    };
    format!("{name}: no such file, and no experiment of that name comes with ulplab{near}{all}")
}

/// What is wrong with a value of `--set`, with the value as it was typed.
fn expected(item: &str, error: &toml::de::Error) -> String {
    let message = explain(error);
    let whole = ["usize", "u64", "u32", "an integer"]
        .iter()
        .any(|kind| message.ends_with(&format!("expected {kind}")));
    match item.split_once('=') {
        Some((_, value)) if whole => format!("expected a whole number, found '{value}'"),
        _ => message,
    }
}

fn set(table: &mut toml::Table, item: &str) -> Result<()> {
    let (key, value) = item
        .split_once('=')
        .ok_or_else(|| Error::Usage(format!("--set {item}: expected key=value")))?;
    let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.to_string()));
    let (path, last) = match key.rsplit_once('.') {
        Some((path, last)) => (path.split('.').collect(), last),
        None => (Vec::new(), key),
    };
    let mut table = table;
    for name in path {
        table = table
            .entry(name)
            .or_insert_with(|| toml::Table::new().into())
            .as_table_mut()
            .ok_or_else(|| Error::Usage(format!("--set {item}: '{name}' is not a table")))?;
    }
    table.insert(last.to_string(), value);
    Ok(())
}
