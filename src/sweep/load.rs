//! Reading an experiment file: every mistake in it is named with file, line, and the nearest valid name.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::experiment::{Experiment, Rule};
use crate::dataset::{explain, parse_toml};
use crate::error::{Error, Result};
use crate::input;
use crate::shipped;

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
}

impl Source {
    /// Reads the file; a bare name such as `kv_cache` means the experiment of that name that comes with ulplab, unless there
    /// is a file called so.
    pub fn read(file: &Path) -> Result<Self> {
        let bare = file.components().count() == 1 && file.extension().is_none() && !file.is_file();
        let known = bare.then(|| shipped::find(&format!("experiments/{}.toml", file.display())));
        let file = known.flatten().unwrap_or_else(|| file.to_path_buf());
        let text = input::text(&file)?;
        Ok(Self { file, text })
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
                .map_err(|error: toml::de::Error| Error::Usage(format!("--set: {}", explain(&error))))?;
        }
        experiment
            .check_keys()
            .map_err(|(key, message)| self.error_at(&key, message))?;
        Ok(experiment)
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
        let line = self.text.lines().position(here);
        let message = message.as_ref();
        Error::config(
            &self.file,
            match line {
                Some(line) => format!("line {}: {message}", line + 1),
                None => message.to_string(),
            },
        )
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
