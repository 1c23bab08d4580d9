//! Reads an experiment file. An error message gives file and line of a mistake, and the nearest valid name.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::missing::{self, Gap};
use super::{Head, Mistake, Rule, Step};
use crate::dataset::{at_byte, explain_beside, parse_toml};
use crate::entries::with_extension;
use crate::shipped;
use ulplab_core::error::{Error, Result, did_you_mean};
use ulplab_core::input;

/// A file that contains only `[[gate]]` tables.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(rename = "gate")]
    gates: Vec<Rule>,
}

/// The text of an experiment file, and the overrides (`--set`) from the command line.
pub struct ExperimentFile {
    pub path: PathBuf,
    text: String,
    /// Overrides of the form `key=value`: keys are dotted, values are TOML, and bare words are strings.
    overrides: Vec<String>,
}

impl ExperimentFile {
    /// Reads the file. A bare name such as `kv_cache` means the shipped experiment of that name, unless there is a file of that
    /// name.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self> {
        let bare = path.components().count() == 1 && path.extension().is_none() && !path.is_file();
        let known = bare.then(|| shipped::find(&format!("experiments/{}.toml", path.display())));
        let path = known.flatten().unwrap_or_else(|| path.to_path_buf());
        if bare && !path.exists() {
            return Err(Error::Usage(no_experiment(&path)));
        }
        let text = input::text(&path)?;
        Self::new(path, text, overrides)
    }

    /// Creates an experiment file from a text in memory; error messages call it `path`.
    pub fn new(path: PathBuf, text: String, overrides: &[String]) -> Result<Self> {
        let file = Self {
            path,
            text,
            overrides: overrides.to_vec(),
        };
        let _: toml::Table = parse_toml(&file.path, &file.text)?;
        file.changed(overrides)?;
        Ok(file)
    }

    /// Reads the head: the keys that every experiment has.
    pub fn head(&self) -> Result<Head> {
        self.part(|key| Head::KEYS.contains(&key))
    }

    /// Reads all keys outside the head as type `B`, which has the keys of one kind of experiment. The error for an unknown key or
    /// an invalid value gives the line.
    pub fn body<B: DeserializeOwned + JsonSchema>(&self) -> Result<B> {
        self.part(|key| !Head::KEYS.contains(&key))
    }

    /// Returns all keys at the root, including those of `--set`.
    pub fn keys(&self) -> Result<Vec<String>> {
        Ok(self.changed(&self.overrides)?.keys().cloned().collect())
    }

    fn part<T: DeserializeOwned + JsonSchema>(&self, keep: impl Fn(&str) -> bool) -> Result<T> {
        let table = DeTable::parse(&self.text).map_err(|error| self.refused(&error, None))?;
        let span = table.span();
        let kept = table.into_inner().into_iter().filter(|(key, _)| keep(key.get_ref()));
        let alone = toml::de::Deserializer::from(Spanned::new(span, kept.collect::<DeTable>()));
        let root = DeTable::parse(&self.text).ok().map(Spanned::into_inner);
        let gap = root.and_then(|root| missing::gap(&schemars::schema_for!(T).to_value(), &root));
        let mut read = match (T::deserialize(alone), gap) {
            // The schema may require one of several alternative keys. Deserialization succeeds without any of them, because each
            // has a default: report the missing keys here.
            (Ok(_), Some(gap)) if gap.lacks() => return Err(self.at_byte(self.place(&gap.path), &gap.message())),
            (read, gap) => read.map_err(|error| self.refused(&error, gap))?,
        };
        // Apply the overrides one by one: the error names the first override after which the experiment can no longer be read.
        for (last, item) in self.overrides.iter().enumerate() {
            if keep(root_of(item)) {
                let mut table = self.changed(&self.overrides[..=last])?;
                table.retain(|key, _| keep(key));
                let wrong = |error| Error::Usage(format!("--set {item}: {}", expected(item, &error)));
                read = table.try_into().map_err(wrong)?;
            }
        }
        Ok(read)
    }

    /// Returns the file's table with the given overrides applied.
    fn changed(&self, overrides: &[String]) -> Result<toml::Table> {
        let mut table: toml::Table = parse_toml(&self.path, &self.text)?;
        for item in overrides {
            set(&mut table, item)?;
        }
        Ok(table)
    }

    /// Converts a deserialization error into an error about the file. The message has the line, the recipe or table of the wrong
    /// value, and all missing keys of this table.
    fn refused(&self, error: &toml::de::Error, gap: Option<Gap>) -> Error {
        let words = error.message();
        if let Some(Step::Key(key)) = gap.as_ref().filter(|gap| gap.alone).and_then(|gap| gap.path.last()) {
            let message = format!("[{key}]: found one table, expected an array of tables; write [[{key}]]");
            return self.at_byte(gap.as_ref().and_then(|gap| self.place(&gap.path)), &message);
        }
        let named = words.split('`').nth(1).unwrap_or_default();
        let of_keys = words.starts_with("missing field") || words.starts_with("unknown field");
        let concerns = |gap: &Gap| gap.missing.iter().chain(&gap.unknown).any(|(name, _)| name == named);
        let gap = gap.filter(|gap| of_keys && concerns(gap));
        let start = error.span().map(|span| span.start);
        let root = DeTable::parse(&self.text).ok().map(Spanned::into_inner);
        let (mut place, mut others) = (String::new(), &[][..]);
        if let (Some(root), Some(start)) = (&root, start) {
            place = within(root, start).unwrap_or_default();
            place += &key_of(root, start).map_or(String::new(), |key| format!("{key}: "));
            // Some root keys belong to the head and are read separately: also suggest these names.
            if root.iter().any(|(key, _)| key.span().start == start) {
                others = &Head::KEYS;
            }
        }
        let message = match gap {
            Some(gap) if words.starts_with("missing field") => gap.message(),
            Some(gap) => {
                let lacks = gap.lacks().then(|| format!("; {}", gap.message()));
                explain_beside(error, others) + &gap.others_than(named) + &lacks.unwrap_or_default()
            }
            None => explain_beside(error, others),
        };
        self.at_byte(start, &format!("{place}{message}"))
    }

    fn at_byte(&self, byte: Option<usize>, message: &str) -> Error {
        at_byte(&self.path, &self.text, byte, message)
    }

    /// Returns the error for a mistake. The error names the line of the wrong value or, if a key is missing, the line of the
    /// table that lacks the key. For a root key that `--set` changes, the error names the override instead.
    pub fn error(&self, mistake: &Mistake) -> Error {
        let given = |item: &String| Some(root_of(item)) == mistake.root();
        if let Some(root) = mistake.root().filter(|_| self.overrides.iter().any(given)) {
            return Error::Usage(format!("--set {root}: {}", mistake.message));
        }
        self.at_byte(self.place(&mistake.path), &mistake.message)
    }

    /// Returns the byte offset of the value at a path. If the file lacks this value, returns the offset of the innermost step of
    /// the path that the file has.
    fn place(&self, path: &[Step]) -> Option<usize> {
        let root = DeTable::parse(&self.text).ok()?.into_inner();
        let (first, rest) = path.split_first()?;
        let Step::Key(first) = first else { return None };
        let (key, mut value) = root.iter().find(|(key, _)| key.get_ref() == first)?;
        // If the path ends at a root key, return the byte offset of the key.
        let mut place = key.span().start;
        for step in rest {
            let next = match (step, value.get_ref()) {
                (Step::Key(name), DeValue::Table(table)) => {
                    let found = table.iter().find(|(key, _)| key.get_ref() == name);
                    found.map(|(key, value)| (key.span().start, value))
                }
                (Step::Index(at), DeValue::Array(array)) => array.get(*at).map(|value| (value.span().start, value)),
                _ => None,
            };
            let Some((start, inner)) = next else { break };
            (place, value) = (start, inner);
        }
        Some(place)
    }

    /// Converts an error in a data file that the experiment names into an error of the experiment file. `at` is the key that
    /// names the data file.
    pub fn of_data(&self, at: Mistake, error: Error) -> Error {
        match error {
            Error::Config { file, message } => self.error(&Mistake {
                message: format!("{}: {message}", file.display()),
                ..at
            }),
            Error::Usage(message) => self.error(&Mistake { message, ..at }),
            other => other,
        }
    }

    /// Reads the gates of an experiment, or of a file with only `[[gate]]`.
    pub fn gates(&self) -> Result<Vec<Rule>> {
        let keys = self.keys()?;
        let lacks = |key: &str| !keys.iter().any(|other| other == key);
        let gates = match (lacks("name"), lacks("question")) {
            (false, false) => self.head()?.gates,
            (true, true) => self.part::<Rules>(|_| true)?.gates,
            (lacks_name, _) => {
                let key = if lacks_name { "name" } else { "question" };
                let message = format!("neither an experiment (missing field `{key}`) nor a file with only [[gate]]");
                return Err(Error::config(&self.path, message));
            }
        };
        match gates.is_empty() {
            true => Err(Error::config(&self.path, "the file has no [[gate]]")),
            false => Ok(gates),
        }
    }
}

/// Returns the key of the innermost value that begins at a byte offset of the text.
fn key_of(table: &DeTable, byte: usize) -> Option<String> {
    fn inside(value: &Spanned<DeValue>, byte: usize) -> Option<String> {
        match value.get_ref() {
            DeValue::Table(table) => key_of(table, byte),
            DeValue::Array(array) => array.iter().find_map(|element| inside(element, byte)),
            _ => None,
        }
    }
    table.iter().find_map(|(key, value)| {
        let begins = || (value.span().start == byte).then(|| key.get_ref().to_string());
        inside(value, byte).or_else(begins)
    })
}

/// Returns the name of the array element that contains a byte offset, as the start of a message such as `recipe 'nvfp4': `.
/// Returns `None` if the element has no name.
fn within(root: &DeTable, byte: usize) -> Option<String> {
    let elements = root.iter().flat_map(|(key, value)| {
        let elements = value.get_ref().as_array().into_iter().flatten();
        elements.map(move |element| (key.get_ref(), element))
    });
    let before = elements.filter(|(_, element)| element.span().start <= byte);
    let (key, element) = before.max_by_key(|(_, element)| element.span().start)?;
    let name = element.get_ref().as_table()?.get("name")?.get_ref().as_str()?;
    Some(format!("{key} '{name}': "))
}

/// Returns the root key that an override changes.
fn root_of(item: &str) -> &str {
    item.split(['=', '.']).next().unwrap_or_default()
}

/// Returns the error message for a bare name that is neither a file nor a shipped experiment.
fn no_experiment(name: &Path) -> String {
    let folder = shipped::find("experiments");
    let files = folder.and_then(|folder| with_extension(&folder, "read", &["toml"]).ok());
    let files = files.into_iter().flatten();
    let names = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_string()));
    let names: Vec<String> = names.collect();
    let name = name.display().to_string();
    let near = did_you_mean(&name, names.iter().map(String::as_str));
    let all = match near.is_empty() && !names.is_empty() {
        true => format!("; shipped: {}", names.join(", ")),
        false => String::new(),
    };
    format!("{name}: no such file, and no shipped experiment has that name{near}{all}")
}

/// Returns the error message for a wrong value of `--set`, with the value as typed.
fn expected(item: &str, error: &toml::de::Error) -> String {
    let at_root = !item.split('=').next().unwrap_or_default().contains('.');
    let others = if at_root { &Head::KEYS[..] } else { &[] };
    let message = explain_beside(error, others);
    let whole = ["a whole number, 0 or more", "a whole number", "an integer"];
    let whole = whole.iter().any(|kind| message.ends_with(&format!("expected {kind}")));
    match item.split_once('=') {
        Some((_, value)) if whole => format!("expected a whole number, found '{value}'"),
        _ => message,
    }
}

fn set(table: &mut toml::Table, item: &str) -> Result<()> {
    let wrong = |why: &str| Error::Usage(format!("--set {item}: {why}"));
    let (key, value) = item.split_once('=').ok_or_else(|| wrong("expected key=value"))?;
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
    let parsed = parsed.and_then(|mut parsed| parsed.remove("value"));
    let mut names: Vec<&str> = key.split('.').collect();
    let (last, mut table) = (names.pop().unwrap_or_default(), table);
    for name in names {
        let inner = table.entry(name).or_insert_with(|| toml::Table::new().into());
        table = inner
            .as_table_mut()
            .ok_or_else(|| wrong(&format!("'{name}' is not a table")))?;
    }
    table.insert(last.into(), parsed.unwrap_or_else(|| value.into()));
    Ok(())
}
