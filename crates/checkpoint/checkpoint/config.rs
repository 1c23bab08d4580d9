//! Reads what `config.json` and `hf_quant_config.json` state about the quantization of a checkpoint.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::Value;

use ulplab_core::error::{Error, Result};
use ulplab_core::formats::{Format, Group};
use ulplab_core::input;
use ulplab_core::pattern::matches;
use ulplab_core::text::shown;

/// The section of a configuration that describes the quantization.
#[derive(Clone, Debug)]
pub struct Section {
    /// Name of the file that contains the section.
    pub file: &'static str,
    /// Name of the method: `quant_method`, or `modelopt` for a file that ModelOpt wrote; empty if the section names no method.
    pub method: String,
    /// The section as JSON.
    pub value: Value,
}

/// Storage format of weights as a configuration states it. A field is `None` if the configuration does not state it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    /// Element type: `e2m1`, `e4m3` or `int`.
    pub element: &'static str,
    /// Number of bits of an element.
    pub bits: usize,
    /// The elements that share a scale.
    pub group: Option<Group>,
    /// True if there are no zero points.
    pub symmetric: Option<bool>,
    /// Possible names of the static scale of activations: every matrix needs one of them. Empty if activations have no static
    /// scale.
    pub inputs: Inputs,
}

/// Possible names of a static activation scale; `None` if the configuration does not state them.
pub type Inputs = Option<&'static [&'static str]>;

/// A rule by which a configuration selects modules.
#[derive(Clone, Debug)]
pub enum Modules {
    /// Modules whose whole name, or consecutive components of the name, match this text. A `*` in the text matches anything.
    Named(String),
    /// Modules whose names contain this text, as AWQ lists them.
    Within(String),
    /// Modules whose names match this regular expression from the beginning, as with Python's `re.match`.
    Matching(Box<Regex>),
}

/// Reads the quantization sections of a checkpoint, the section of `config.json` first, and `model_type` if it is stated.
///
/// # Errors
/// Returns an error if a file exists but is not valid JSON, or if the file of ModelOpt has no section.
pub fn read(folder: &Path) -> Result<(Vec<Section>, Option<String>)> {
    let (mut sections, mut model) = (Vec::new(), None);
    if let Some((_, config)) = json(folder, "config.json")? {
        model = config.get("model_type").and_then(Value::as_str).map(String::from);
        // MLX writes the section under `quantization` and a copy under `quantization_config`, both without a method.
        let mlx = config.get("quantization").filter(|value| value.is_object());
        if let Some(mut value) = section(&config, 2).or(mlx).cloned() {
            // DeepSeek states the type of its experts outside of the section.
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

/// Finds the quantization section of a configuration, at most `depth` objects deep: multimodal models store this section in the
/// nested configuration of the text model.
fn section(config: &Value, depth: usize) -> Option<&Value> {
    let early = || given(config, "compression_config").filter(|value| value.get("config_groups").is_some());
    given(config, "quantization_config").or_else(early).or_else(|| {
        let inner = config.as_object()?.values().filter(|value| value.is_object());
        let mut inner = inner.filter(|_| depth > 0);
        inner.find_map(|value| section(value, depth - 1))
    })
}

/// Returns the value of a key of an object; `None` if the key is missing or null.
pub fn given<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
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
    /// Returns the list of strings under a key; empty if the key is missing or null.
    ///
    /// # Errors
    /// Returns an error if the value is anything but a list of strings.
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

    /// Returns the string under a key; `None` if the key has no string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key)?.as_str()
    }
}

impl Modules {
    /// Parses a rule that selects modules: a name, a pattern, or `re:` followed by a regular expression.
    ///
    /// # Errors
    /// Returns an error if the regular expression is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(regex) = text.strip_prefix("re:") else {
            return Ok(Self::Named(text.trim_end_matches('.').into()));
        };
        // Parse the expression on its own first: a surplus parenthesis would close the group that is put around it.
        let anchored = Regex::new(regex).and_then(|_| Regex::new(&format!(r"\A(?:{regex})")));
        anchored
            .map(|regex| Self::Matching(Box::new(regex)))
            .map_err(|why| format!("regular expression '{regex}' is not understood: {why}"))
    }

    /// True if the rule matches the module, or a module that contains it.
    ///
    /// # Errors
    /// Returns an error if a regular expression takes too many steps to match.
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
                // A star in these patterns also matches dots.
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
    /// Creates a scheme that does not state zero points. `group` are the elements that share a scale, `inputs` the possible names
    /// of the static activation scale.
    pub fn new(element: &'static str, bits: usize, group: Option<Group>, inputs: Inputs) -> Self {
        Self {
            element,
            bits,
            group,
            symmetric: None,
            inputs,
        }
    }

    /// Describes the scheme as text, e.g. `e4m3 in tiles of 128 × 128`.
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

    /// True if two schemes state the same element type and number of bits, and the same group if both state one.
    pub fn agrees(&self, other: &Self) -> bool {
        let same = self.group.is_none() || other.group.is_none() || self.group == other.group;
        self.element == other.element && self.bits == other.bits && same
    }

    /// Returns the byte-coded formats (none for codes in 32-bit words) that fit the scheme. `rule` names the NVFP4 rule that
    /// defines how to decode the global scale.
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

/// Returns the format string of NVFP4; `rule` names the NVFP4 rule that defines how to decode the global scale.
pub fn nvfp4(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("e2m1/b16:e4m3({rule})/t:f32"),
        None => "e2m1/b16:e4m3/t:f32".into(),
    }
}
