//! A model with its weights.

use std::path::Path;

use reference::paths::Weights;
use reference::paths::deepseek_v4::Config;

use serde_json::Value;

use super::Tensors;
use crate::{Error, Result};
use ulplab_core::input;

/// A DeepSeek-V4 checkpoint as `transformers` names its tensors: `config.json`, and safetensors in one file or many.
pub struct Checkpoint {
    pub config: Config,
    /// Tensors of the files that the model does not use.
    pub unused: Vec<String>,
    tensors: Tensors,
}

impl Checkpoint {
    /// Reads the configuration and the headers of all files, and checks that every tensor the model needs is there.
    pub fn open(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let text = input::text(&file)?;
        let wrong = |error: serde_json::Error| Error::config(&file, error.to_string());
        supported(&serde_json::from_str(&text).map_err(wrong)?).map_err(|message| Error::config(&file, message))?;
        let config: Config = serde_json::from_str(&text).map_err(wrong)?;
        config.check().map_err(|message| Error::config(&file, message))?;
        let tensors = Tensors::open(folder)?;
        let unused = tensors.check(&config.tensors())?;
        Ok(Self {
            config,
            unused,
            tensors,
        })
    }
}

/// The models that ulplab has a reference of, by `model_type`.
const MODEL_TYPES: [&str; 1] = ["deepseek_v4"];

/// Refuses other models before their keys are found missing one by one.
fn supported(config: &Value) -> Result<(), String> {
    let known = MODEL_TYPES.map(|name| format!("'{name}'")).join(", ");
    let Value::Object(keys) = config else {
        return Err("expected an object, as `config.json` of a checkpoint holds".into());
    };
    let architecture = match keys.get("architectures").and_then(|names| names.get(0)?.as_str()) {
        Some(name) => format!(" ({name})"),
        None => String::new(),
    };
    match keys.get("model_type") {
        Some(Value::String(found)) if MODEL_TYPES.contains(&found.as_str()) => Ok(()),
        Some(Value::String(found)) => Err(format!(
            "model_type is '{found}'{architecture}, which ulplab has no reference of; it has one of {known}. `ulplab \
             quantize`, `inspect` and `compare` take the checkpoint's files all the same"
        )),
        Some(other) => Err(format!("model_type is {other}, expected one of {known}")),
        None => Err(format!("model_type is missing, expected one of {known}")),
    }
}

impl Weights for Checkpoint {
    type Error = Error;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.tensors.floats(name, shape)
    }

    /// The only ids of this model are those of routed experts.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>> {
        self.tensors.integers(name, shape, self.config.n_routed_experts)
    }
}
