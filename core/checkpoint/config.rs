//! What the configuration of a checkpoint says of its quantization: `config.json` and `hf_quant_config.json`.

use std::path::Path;

use serde_json::Value;

use super::regex::Regex;
use crate::error::{Error, Result};
use crate::formats::{Format, Group};
use crate::input;
use crate::pattern::matches;

/// The quantization section of a configuration.
#[derive(Clone, Debug)]
pub struct Section {
    /// The file that has it.
    pub file: &'static str,
    /// The name of the method: `quant_method`, or `modelopt` for a file of ModelOpt's.
    pub method: String,
    /// The section itself.
    pub value: Value,
}

/// How weights are stored, as a configuration says it. What is `None` is not said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    /// `e2m1`, `e4m3` or `int`.
    pub element: &'static str,
    /// Bits of an element.
    pub bits: usize,
    /// The elements that share a scale.
    pub group: Option<Group>,
    /// Whether there are no zero points.
    pub symmetric: Option<bool>,
}

/// Names of modules, as a configuration writes them.
#[derive(Clone, Debug)]
pub enum Modules {
    /// The name, a part of it at dots, or a pattern with stars for either.
    Named(String),
    /// A regular expression for the beginning of the name.
    Matching(Regex),
}

/// The sections of a checkpoint, that of `config.json` first.
///
/// # Errors
/// A file is there and cannot be read as JSON, or has a section that is no object or without a method.
pub fn sections(folder: &Path) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    if let Some((path, config)) = json(folder, "config.json")? {
        let of = |value: &Value| {
            value
                .get("quantization_config")
                .filter(|value| !value.is_null())
                .cloned()
        };
        // Models of text and images keep it with the text.
        let found = of(&config).or_else(|| config.get("text_config").and_then(of));
        if let Some(mut value) = found {
            // DeepSeek says the type of its experts outside.
            if let (Some(section), Some(experts)) = (value.as_object_mut(), config.get("expert_dtype")) {
                section.entry("expert_dtype").or_insert(experts.clone());
            }
            let method = value.get("quant_method").and_then(Value::as_str).map(str::to_lowercase);
            let method = method.ok_or_else(|| {
                let text = "key 'quantization_config.quant_method' is missing, expected the name of a method";
                Error::data(&path, text)
            })?;
            sections.push(Section {
                file: "config.json",
                method,
                value,
            });
        }
    }
    if let Some((path, config)) = json(folder, "hf_quant_config.json")? {
        let value = config.get("quantization").filter(|value| value.is_object()).cloned();
        let value = value.ok_or_else(|| Error::data(path, "key 'quantization' is missing, expected an object"))?;
        sections.push(Section {
            file: "hf_quant_config.json",
            method: "modelopt".into(),
            value,
        });
    }
    Ok(sections)
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
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| value.as_str().ok_or_else(|| wrong(value)))
                .collect(),
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
        match text.strip_prefix("re:") {
            None => Ok(Self::Named(text.into())),
            Some(regex) => Regex::parse(regex)
                .map(Self::Matching)
                .map_err(|why| format!("regular expression '{regex}': {why} is not understood")),
        }
    }

    /// Whether it names a module, or one that contains it.
    pub fn has(&self, module: &str) -> bool {
        match self {
            Self::Matching(regex) => regex.matches(module),
            Self::Named(name) => {
                let parts: Vec<&str> = module.split('.').collect();
                let length = name.split('.').count();
                // A star of these patterns stands for dots as well.
                let wide = name.replace('*', "**");
                parts
                    .windows(length.min(parts.len()))
                    .any(|part| part.join(".") == *name)
                    || (name.contains('*') && (matches(&wide, module) || matches(&format!("{wide}.**"), module)))
            }
        }
    }
}

impl Scheme {
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

#[cfg(test)]
mod tests {
    use super::Modules;

    #[test]
    fn names_of_modules() {
        for (pattern, module, want) in [
            ("lm_head", "lm_head", true),
            ("lm_head", "model.lm_head_norm", false),
            ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", true),
            ("model.layers.1.mlp", "model.layers.1.mlp.gate", true),
            ("model.layers.1", "model.layers.11.mlp", false),
            ("*router*", "model.layers.1.mlp.router", true),
            ("visual", "model.visual.blocks.0", true),
            ("re:.*gate$", "a.gate", true),
        ] {
            assert_eq!(Modules::parse(pattern).unwrap().has(module), want, "{pattern} {module}");
        }
    }
}
