//! A model with its weights.

use std::path::{Path, PathBuf};

use reference::paths::{self, Config, Model, Scalar, Weights};
use reference::{Numerics, Plain};

use super::{Tensors, Tokenizer, quantized};
use ulplab_core::error::refuse;
use ulplab_core::{Error, Result, input};

/// A checkpoint as `transformers` names its tensors: `config.json`, and safetensors in one file or many.
pub struct Checkpoint {
    folder: PathBuf,
    pub config: Box<dyn Config>,
    /// Token ids of the model are below this.
    pub vocabulary: usize,
    /// Notes on it, in words: tensors that the model does not read.
    pub notes: Vec<String>,
    tensors: Tensors,
}

impl Checkpoint {
    /// Reads the configuration and the headers of all files, and checks that every tensor the model needs is there, and none that would
    /// change its result besides.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_without(folder, &[])
    }

    /// Does the same without keys of the configuration that the caller declares inert.
    pub fn open_without(folder: &Path, inert: &[String]) -> Result<Self> {
        let file = folder.join("config.json");
        let wrong = |message: String| Error::config(&file, message);
        let text = input::text(&file)?;
        let config = config(&text, inert).map_err(wrong)?;
        let Some(vocabulary) = config.vocabulary() else {
            return Err(wrong(
                "the model takes vectors, expected one that takes token ids".into(),
            ));
        };
        let block = quantized::block(&text).map_err(wrong)?;
        let tensors = Tensors::open(folder)?.in_blocks(block);
        fits(&*config, tensors.size()).map_err(wrong)?;
        let needed = config.tensors();
        let unused = tensors.check(&needed, &config.sizes())?;
        let mut notes = tensors.notes(&needed, config.layers(), &unused)?;
        let note = |key| format!("'{key}' of config.json is not read: the experiment says that it is inert");
        notes.extend(inert.iter().map(note));
        Ok(Self {
            folder: folder.to_path_buf(),
            config,
            vocabulary,
            notes,
            tensors,
        })
    }

    /// The tokenizer that turns text into its ids.
    ///
    /// # Errors
    /// If [`Tokenizer::open`] fails.
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
fn config(text: &str, inert: &[String]) -> Result<Box<dyn Config>, String> {
    let path = paths::find_in(&paths::readers(), text).map_err(|why| {
        format!("{why}; `ulplab quantize`, `inspect` and `compare` take the files of any checkpoint all the same")
    })?;
    let inert: Vec<&str> = inert.iter().map(String::as_str).collect();
    path.config_without(text, &inert)
}

/// Compares sizes with those of the files, before lists are made of them: every layer has a tensor, and every size is that of one.
fn fits(config: &dyn Config, (tensors, numbers): (usize, usize)) -> Result<(), String> {
    let layers = config.layers();
    let why = format_args!("num_hidden_layers is {layers}, but the files have only {tensors} tensors");
    refuse(layers > tensors, why)?;
    // A byte may hold two.
    let mut sizes = config.sizes().into_iter();
    match sizes.find(|(_, size)| *size > numbers.saturating_mul(2)) {
        Some((key, size)) => Err(format!("{key} is {size}, but the files have only {numbers} numbers")),
        None => Ok(()),
    }
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
