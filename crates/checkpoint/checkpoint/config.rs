//! The statements of a configuration about the quantization of a checkpoint: `config.json` and `hf_quant_config.json`.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::Value;

use ulplab_core::error::{Error, Result};
use ulplab_core::formats::{Format, Group};
use ulplab_core::input;
use ulplab_core::pattern::matches;
use ulplab_core::text::shown;

/// The quantization section of a configuration.
#[derive(Clone, Debug)]
pub struct Section {
    /// The file that has it.
    pub file: &'static str,
    /// The name of the method: `quant_method`, or `modelopt` for a file of ModelOpt's; empty if none is named.
    pub method: String,
    /// The section itself.
    pub value: Value,
}

/// The form in which weights are stored, by a configuration. `None`: it does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    /// `e2m1`, `e4m3` or `int`.
    pub element: &'static str,
    /// Bits of an element.
    pub bits: usize,
    /// The elements that share a scale.
    pub group: Option<Group>,
    /// True without zero points.
    pub symmetric: Option<bool>,
    /// The names of the static scale of activations, one of which every matrix needs; none if activations have no static scale.
    pub inputs: Inputs,
}

/// Names; `None`: a configuration does not say them.
pub type Inputs = Option<&'static [&'static str]>;

/// Names of modules, as a configuration writes them.
#[derive(Clone, Debug)]
pub enum Modules {
    /// The name, a part of it at dots, or a pattern with stars for either.
    Named(String),
    /// Any part of the name, as AWQ writes it.
    Within(String),
    /// A regular expression for the beginning of the name, as Python's `re.match` takes it.
    Matching(Box<Regex>),
}

/// The sections of a checkpoint, that of `config.json` first, and the type of the model that it names, if it does.
///
/// # Errors
/// A file is there and cannot be read as JSON, or ModelOpt's has no section.
pub fn read(folder: &Path) -> Result<(Vec<Section>, Option<String>)> {
    let (mut sections, mut model) = (Vec::new(), None);
    if let Some((_, config)) = json(folder, "config.json")? {
        model = config.get("model_type").and_then(Value::as_str).map(String::from);
        // MLX writes `quantization`, and a copy of it without a method.
        let mlx = config.get("quantization").filter(|value| value.is_object());
        if let Some(mut value) = section(&config, 2).or(mlx).cloned() {
            // DeepSeek says the type of its experts outside.
            if let (Some(section), Some(experts)) = (value.as_object_mut(), config.get("expert_dtype")) {
                section.entry("expert_dtype").or_insert(experts.clone());
            }
            let named = value.get("quant_method").and_then(Value::as_str);
            let named = named.map(|name| shown(&name.to_lowercase()));
            let method = named.unwrap_or_else(|| mlx.map_or("", |_| "mlx").into());
            let file = "config.json";
            sections.push(Section { file, method, value });
        }
    }
    if let Some((path, config)) = json(folder, "hf_quant_config.json")? {
        let value = config.get("quantization").filter(|value| value.is_object()).cloned();
        let value = value.ok_or_else(|| Error::data(path, "key 'quantization' is missing, expected an object"))?;
        let (file, method) = ("hf_quant_config.json", "modelopt".into());
        sections.push(Section { file, method, value });
    }
    Ok((sections, model))
}

/// The section of a model's configuration; models of text and images keep it with the text, up to `depth` objects further in.
fn section(config: &Value, depth: usize) -> Option<&Value> {
    let of = |key: &str| config.get(key).filter(|value| !value.is_null());
    let early = || of("compression_config").filter(|value| value.get("config_groups").is_some());
    of("quantization_config").or_else(early).or_else(|| {
        let inner = config.as_object()?.values().filter(|value| value.is_object());
        let mut inner = inner.filter(|_| depth > 0);
        inner.find_map(|value| section(value, depth - 1))
    })
}

fn json(folder: &Path, name: &str) -> Result<Option<(std::path::PathBuf, Value)>> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let text = input::text(&path)?;
    let value = serde_json::from_str(&text).map_err(|error| Error::data(&path, error.to_string()))?;
    Ok(Some((path, value)))
}

impl Section {
    /// The strings of a list, which may be missing or null.
    ///
    /// # Errors
    /// The key holds something else.
    pub fn strings(&self, key: &str) -> Result<Vec<&str>, String> {
        let wrong = |found: &Value| format!("key '{key}' is {found}, expected a list of strings");
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                let strings = list.iter().map(|value| value.as_str().ok_or_else(|| wrong(value)));
                strings.collect()
            }
            Some(other) => Err(wrong(other)),
        }
    }

    /// A string, if the key has one.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key)?.as_str()
    }
}

impl Modules {
    /// A name, a pattern, or `re:` and a regular expression.
    ///
    /// # Errors
    /// The expression is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(regex) = text.strip_prefix("re:") else {
            return Ok(Self::Named(text.trim_end_matches('.').into()));
        };
        // The expression is parsed by itself too: within the group, a parenthesis too many would close that.
        let anchored = Regex::new(regex).and_then(|_| Regex::new(&format!(r"\A(?:{regex})")));
        anchored
            .map(|regex| Self::Matching(Box::new(regex)))
            .map_err(|why| format!("regular expression '{regex}' is not understood: {why}"))
    }

    /// True if it names a module, or one that contains it.
    ///
    /// # Errors
    /// An expression takes too many steps to match.
    pub fn has(&self, module: &str) -> Result<bool, String> {
        match self {
            Self::Matching(regex) => {
                let why = |why| format!("regular expression '{}' on '{module}': {why}", regex.as_str());
                regex.is_match(module).map_err(why)
            }
            Self::Within(part) => Ok(module.contains(part.as_str()) || format!("{module}.").ends_with(part.as_str())),
            Self::Named(name) => {
                let whole = |(at, _): (usize, &str)| {
                    let (before, after) = (&module[..at], &module[at + name.len()..]);
                    (before.is_empty() || before.ends_with('.')) && (after.is_empty() || after.starts_with('.'))
                };
                let part = !name.is_empty() && module.match_indices(name.as_str()).any(whole);
                // A star of these patterns stands for dots as well.
                let star = || {
                    let wide = name.replace('*', "**");
                    matches(&wide, module) || matches(&format!("{wide}.**"), module)
                };
                Ok(part || (name.contains('*') && star()))
            }
        }
    }
}

impl Scheme {
    /// Elements of these bits in these groups, and names of the static scale of activations; zero points are not stated.
    pub fn new(element: &'static str, bits: usize, group: Option<Group>, inputs: Inputs) -> Self {
        Self {
            element,
            bits,
            group,
            symmetric: None,
            inputs,
        }
    }

    /// In words: `e4m3 in tiles of 128 × 128`.
    pub fn words(&self) -> String {
        let element = match self.element {
            "int" => format!("integers of {} bits", self.bits),
            element => element.into(),
        };
        let group = match self.group {
            None => String::new(),
            Some(Group::Tensor) => " with a scale for the matrix".into(),
            Some(Group::Token) => " with a scale for each output channel".into(),
            Some(Group::Column) => " with a scale for each input channel".into(),
            Some(Group::Tile { rows: 1, cols }) => format!(" in blocks of {cols}"),
            Some(Group::Tile { rows, cols }) => format!(" in tiles of {rows} × {cols}"),
        };
        element + &group
    }

    /// True if two statements can both hold.
    pub fn agrees(&self, other: &Self) -> bool {
        let same = self.group.is_none() || other.group.is_none() || self.group == other.group;
        self.element == other.element && self.bits == other.bits && same
    }

    /// The formats of bytes that it may mean, with NVFP4 scales by `rule`.
    pub fn formats(&self, rule: Option<&str>) -> Vec<Format> {
        let group = match self.group {
            None => return Vec::new(),
            Some(group) => group.to_string(),
        };
        let texts = match (self.element, self.bits, group.as_str()) {
            ("e2m1", _, "b16") => vec![nvfp4(rule)],
            ("e2m1", ..) => vec![format!("e2m1/{group}:e8m0")],
            ("int", 8, _) => vec![format!("int8/{group}:f32")],
            ("int", ..) => Vec::new(),
            (element, ..) => vec![format!("{element}/{group}:f32"), format!("{element}/{group}:e8m0")],
        };
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    }
}

/// NVFP4 with the meaning of its global scale.
pub fn nvfp4(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("e2m1/b16:e4m3({rule})/t:f32"),
        None => "e2m1/b16:e4m3/t:f32".into(),
    }
}
