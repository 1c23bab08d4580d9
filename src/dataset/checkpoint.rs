//! A model with its weights.

use std::path::{Path, PathBuf};

use reference::paths::{self, Config, Model, Scalar, Weights};
use reference::{Numerics, Plain};

use super::{Tensors, Tokenizer};
use crate::{Error, Result};
use ulplab_core::input;

/// A checkpoint as `transformers` names its tensors: `config.json`, and safetensors in one file or many.
pub struct Checkpoint {
    folder: PathBuf,
    pub config: Box<dyn Config>,
    /// Token ids of the model are below this.
    pub vocabulary: usize,
    /// Tensors of the files that the model does not use.
    pub unused: Vec<String>,
    tensors: Tensors,
}

impl Checkpoint {
    /// Reads the configuration and the headers of all files, and checks that every tensor the model needs is there.
    pub fn open(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let config = config(&input::text(&file)?).map_err(|message| Error::config(&file, message))?;
        let Some(vocabulary) = config.vocabulary() else {
            return Err(Error::config(
                &file,
                "the model takes vectors, expected one that takes token ids",
            ));
        };
        let tensors = Tensors::open(folder)?;
        let unused = tensors.check(&config.tensors())?;
        Ok(Self {
            folder: folder.to_path_buf(),
            config,
            vocabulary,
            unused,
            tensors,
        })
    }

    /// What turns text into its ids.
    ///
    /// # Errors
    /// Those of [`Tokenizer::open`].
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::open(&self.folder, self.vocabulary)
    }

    /// Reads the weights.
    pub fn load<T: Scalar>(&mut self) -> Result<Box<dyn Model<T>>> {
        self.load_by(&mut Plain)
    }

    /// Reads the weights and passes those that are sites to `numerics`, which may round them.
    pub fn load_by<T: Scalar>(&mut self, numerics: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>> {
        let config = self.config.clone();
        paths::load(&*config, self, numerics)
    }
}

/// Reads the configuration of a model that reads tokens. Others are refused before their keys are found missing one by one.
fn config(text: &str) -> Result<Box<dyn Config>, String> {
    let path = paths::find_in(&paths::readers(), text).map_err(|why| {
        format!("{why}; `ulplab quantize`, `inspect` and `compare` take the files of any checkpoint all the same")
    })?;
    path.config(text)
}

impl Weights for Checkpoint {
    type Error = Error;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.tensors.floats(name, shape)
    }

    /// The only integers in checkpoints are numbers of routed experts.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>> {
        let experts = self.config.size("n_routed_experts").unwrap_or(u32::MAX as usize);
        self.tensors.integers(name, shape, experts)
    }
}
