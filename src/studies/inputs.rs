//! The model and the texts that an experiment reads.

use std::collections::BTreeSet;
use std::path::PathBuf;

use reference::paths::{Config, Model};

use crate::dataset::{Checkpoint, Manifest as Datasets, Tokenizer, Tokens};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Head, Mistake, Reading};
use ulplab_core::error::{Error, Result};

/// Model and texts of an experiment. The model is a folder, configuration and tokenizer; its weights are loaded later. The texts
/// are windows of tokens.
#[derive(Default)]
pub struct Inputs {
    /// Folder of the checkpoint, if there is a model.
    pub folder: Option<PathBuf>,
    /// Keys of the model's `config.json` that the experiment declares to have no effect on results.
    pub inert: Vec<String>,
    pub config: Option<Box<dyn Config>>,
    /// Messages about parts of the checkpoint's files that are not read.
    pub notes: Vec<String>,
    /// The model's tokenizer; `None` once the texts are read.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens of each window of text.
    pub texts: Vec<Tokens>,
}

impl Inputs {
    /// Finds the model of an experiment. The texts are not read here but by [`read_texts`](Self::read_texts).
    ///
    /// # Errors
    /// Returns an error if the model or its tokenizer cannot be read. The error names the line of `model` in the file.
    pub fn find(file: &ExperimentFile, head: &Head, reading: Reading, datasets: &Datasets) -> Result<Self> {
        let of_model = |error| file.of_data(Mistake::at("model", ""), error);
        let inert = head.inert.clone();
        let Some(model) = reading.model else {
            return match inert.first() {
                Some(key) => {
                    let message = format!("names '{key}' of a config.json, but the experiment reads no model");
                    Err(file.error(&Mistake::at("inert", message)))
                }
                None => Ok(Self::default()),
            };
        };
        let folder = datasets.checkpoint(model).map_err(of_model)?;
        let checkpoint = Checkpoint::open_without(&folder, &inert)?;
        let tokenizer = match reading.windows {
            [] => None,
            _ => Some(checkpoint.tokenizer().map_err(of_model)?),
        };
        Ok(Self {
            folder: Some(folder),
            inert,
            config: Some(checkpoint.config),
            notes: checkpoint.notes,
            tokenizer,
            texts: Vec::new(),
        })
    }

    /// Reads the windows of text. Without a model, each byte of a text is a token.
    ///
    /// # Errors
    /// Returns an error if a text cannot be read or is too short. The error names the line of the window in the file.
    pub fn read_texts(
        &mut self,
        file: &ExperimentFile,
        head: &Head,
        reading: Reading,
        datasets: &Datasets,
    ) -> Result<()> {
        let tokenizer = self.tokenizer.take().unwrap_or(Tokenizer::Bytes);
        let texts = reading.windows.iter().enumerate().map(|(at, window)| {
            let text = window.read(datasets, &tokenizer, head.seed, reading.tokens);
            text.map_err(|error| file.of_data(Mistake::at("text", "").within("window", at), error))
        });
        self.texts = texts.collect::<Result<_>>()?;
        Ok(())
    }

    /// Opens the checkpoint.
    ///
    /// # Errors
    /// Returns an error if there is no model, or its files cannot be read.
    pub fn open(&self) -> Result<Checkpoint> {
        let folder = self.folder.as_deref();
        let folder = folder.ok_or_else(|| Error::Usage("the experiment has no model".into()))?;
        Checkpoint::open_without(folder, &self.inert)
    }

    /// Loads the model, if there is one.
    ///
    /// # Errors
    /// Returns an error if its files cannot be read.
    pub fn load(&self) -> Result<Option<Box<dyn Model<f32>>>> {
        let folder = self.folder.as_ref();
        folder.map(|_| self.open()?.load()).transpose()
    }
}

/// Returns the name and the blake3 digest of every file of the model and of the texts.
///
/// # Errors
/// Returns an error if a file differs from its entry in the manifest of the data sets.
pub fn verified(reading: Reading, datasets: &Datasets) -> Result<Vec<(String, String)>> {
    let texts: BTreeSet<&str> = reading.windows.iter().map(|window| window.text.as_str()).collect();
    let mut data = Vec::new();
    for name in reading.model.into_iter().chain(texts) {
        data.extend(datasets.verify(name)?);
    }
    Ok(data)
}
