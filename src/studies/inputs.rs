//! The model and the texts that an experiment reads.

use std::collections::BTreeSet;
use std::path::PathBuf;

use reference::paths::{Config, Model};

use crate::dataset::{Checkpoint, Manifest as Datasets, Tokenizer, Tokens};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Head, Mistake, Reading};
use ulplab_core::error::{Error, Result};

/// The files of a model as they are before its weights are loaded, and its windows of text.
#[derive(Default)]
pub struct Inputs {
    /// Folder of the checkpoint, if there is a model.
    pub folder: Option<PathBuf>,
    /// Keys of its `config.json` that change nothing.
    pub inert: Vec<String>,
    pub config: Option<Box<dyn Config>>,
    /// Parts of the files that nobody reads, in words.
    pub notes: Vec<String>,
    /// The model's, until the texts are read.
    pub tokenizer: Option<Tokenizer>,
    /// Each window of text.
    pub texts: Vec<Tokens>,
}

impl Inputs {
    /// Finds the model of an experiment; its texts are read by [`read_texts`](Self::read_texts).
    ///
    /// # Errors
    /// If the model or its tokenizer cannot be read, with the line of its name.
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

    /// Reads the windows of text. Without a model a window is bytes.
    ///
    /// # Errors
    /// If a text cannot be read or is too short, with the line of its window.
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
    /// If there is no model, or its files cannot be read.
    pub fn open(&self) -> Result<Checkpoint> {
        let folder = self.folder.as_deref();
        let folder = folder.ok_or_else(|| Error::Usage("the experiment has no model".into()))?;
        Checkpoint::open_without(folder, &self.inert)
    }

    /// Loads the model, if there is one.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn load(&self) -> Result<Option<Box<dyn Model<f32>>>> {
        let folder = self.folder.as_ref();
        folder.map(|_| self.open()?.load()).transpose()
    }
}

/// Name and blake3 of every file of the model and the texts that are read.
///
/// # Errors
/// If a file is not as the manifest of the data sets has it.
pub fn verified(reading: Reading, datasets: &Datasets) -> Result<Vec<(String, String)>> {
    let texts: BTreeSet<&str> = reading.windows.iter().map(|window| window.text.as_str()).collect();
    let mut data = Vec::new();
    for name in reading.model.into_iter().chain(texts) {
        data.extend(datasets.verify(name)?);
    }
    Ok(data)
}
