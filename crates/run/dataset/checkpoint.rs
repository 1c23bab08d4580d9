//! A model checkpoint: configuration, weights and tokenizer.

use std::path::{Path, PathBuf};

use reference::paths::{self, Config, Model, Scalar, Weights};
use reference::{Numerics, Plain};

use super::{Tensors, Tokenizer, quantized};
use ulplab_core::error::refuse;
use ulplab_core::{Error, Result, input};

/// A checkpoint folder with the tensor names of `transformers`: `config.json`, and safetensors in one file or several.
pub struct Checkpoint {
    folder: PathBuf,
    pub config: Box<dyn Config>,
    /// Size of the vocabulary: all token ids are below this.
    pub vocabulary: usize,
    /// Notes about tensors and keys that the model does not read, for reports.
    pub notes: Vec<String>,
    tensors: Tensors,
}

impl Checkpoint {
    /// Reads the configuration and the headers of all files. Checks that no tensor of the model is missing, and that no unread
    /// tensor would change the model's result.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_without(folder, &[])
    }

    /// Same as [`open`](Self::open), but ignores the keys `inert` of the configuration, which the caller declares to have no
    /// effect.
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

    /// Returns the tokenizer that converts text to the model's token ids.
    ///
    /// # Errors
    /// Returns the errors of [`Tokenizer::open`].
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::open(&self.folder, self.vocabulary)
    }

    /// Reads the weights as stored, without rounding.
    pub fn load<T: Scalar>(&mut self) -> Result<Box<dyn Model<T>>> {
        self.load_by(&mut Plain)
    }

    /// Reads the weights. `numerics` may round each weight that is a site, i.e. a tensor that recipes can name.
    pub fn load_by<T: Scalar>(&mut self, numerics: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>> {
        let config = self.config.clone();
        paths::load(&*config, self, numerics)
    }
}

/// Reads the configuration of a model that takes tokens. Checks the model type first, so that an unsupported type is one error,
/// not an error about the model's keys.
fn config(text: &str, inert: &[String]) -> Result<Box<dyn Config>, String> {
    let path = paths::find_in(&paths::readers(), text).map_err(|why| {
        format!("{why}; `ulplab quantize`, `inspect` and `compare` take the files of any checkpoint all the same")
    })?;
    let inert: Vec<&str> = inert.iter().map(String::as_str).collect();
    path.config_without(text, &inert)
}

/// Checks, before memory is allocated, that the files can contain a model of the configured size: at most as many layers as
/// stored tensors, and no size above twice the number of stored elements.
fn fits(config: &dyn Config, (tensors, numbers): (usize, usize)) -> Result<(), String> {
    let layers = config.layers();
    let why = format_args!("num_hidden_layers is {layers}, but the files have only {tensors} tensors");
    refuse(layers > tensors, why)?;
    // A stored element may hold two 4-bit values: a size may be up to twice the number of stored elements.
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

    /// Reads a tensor of integers. The only integers in checkpoints are ids of routed experts.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>> {
        let experts = self.config.size("n_routed_experts").unwrap_or(u32::MAX as usize);
        self.tensors.integers(name, shape, experts)
    }
}
