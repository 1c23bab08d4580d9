//! A model with its weights.

use std::path::Path;

use reference::paths::Weights;
use reference::paths::deepseek_v4::Config;

use super::Tensors;
use crate::{Error, Result};

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
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file, "read the configuration"))?;
        let config: Config = serde_json::from_str(&text).map_err(|error| Error::config(&file, error.to_string()))?;
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
