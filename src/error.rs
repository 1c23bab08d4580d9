//! Errors people meet, and the exit codes they end in.

use std::path::{Path, PathBuf};

/// What a command ends in; the number is the process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All gates hold, on everything that the experiment plans.
    Pass = 0,
    /// A bug of ulplab's.
    Bug = 1,
    /// Bad command line, experiment file or input data.
    Usage = 2,
    /// Nothing was judged, or not all that the experiment states.
    NotJudged = 4,
    /// Something the machine must have is not there (a device, a writable folder).
    Setup = 96,
    /// A gate failed.
    GateFailed = 100,
    /// The reference failed: it is not finite, or disagrees with its own check.
    ReferenceFailed = 101,
    /// The run is not complete, so it cannot be judged.
    Incomplete = 103,
    /// Interrupted by SIGINT or SIGTERM.
    Interrupted = 130,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error a user can act on: each message names the file, the key or tensor, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line asks for something that does not exist or does not fit.
    #[error("{0}")]
    Usage(String),
    /// An experiment or manifest file is wrong; `message` holds line, key, and the nearest valid name.
    #[error("{}: {message}", file.display())]
    Config { file: PathBuf, message: String },
    /// A data file (checkpoint, text, safetensors, npy, stored run) is wrong.
    #[error("{}: {message}", file.display())]
    Data { file: PathBuf, message: String },
    /// The operating system refused to read or write.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        file: PathBuf,
        action: &'static str,
        source: std::io::Error,
    },
    #[error("nothing selected: {0}")]
    NothingSelected(String),
    #[error("set-up: {0}")]
    Setup(String),
    #[error("the reference failed: {0}")]
    Reference(String),
    #[error("incomplete run: {0}")]
    Incomplete(String),
    #[error("interrupted; finished cells are kept, go on with --resume")]
    Interrupted,
}

impl Error {
    pub fn config(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Config {
            file: file.as_ref().to_path_buf(),
            message: message.into(),
        }
    }

    pub fn data(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Data {
            file: file.as_ref().to_path_buf(),
            message: message.into(),
        }
    }

    /// For `map_err`: `action` completes "cannot …".
    pub fn io(file: impl AsRef<Path>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.as_ref().to_path_buf();
        move |source| Self::Io { file, action, source }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Config { .. } | Self::Data { .. } => Exit::Usage,
            // A file to read that is not there was misnamed; what else the system refuses is the machine's matter.
            Self::Io { source, action, .. }
                if source.kind() == std::io::ErrorKind::NotFound
                    && (action.starts_with("read") || action.starts_with("open")) =>
            {
                Exit::Usage
            }
            Self::Io { .. } | Self::Setup(_) => Exit::Setup,
            Self::NothingSelected(_) => Exit::NotJudged,
            Self::Reference(_) => Exit::ReferenceFailed,
            Self::Incomplete(_) => Exit::Incomplete,
            Self::Interrupted => Exit::Interrupted,
        }
    }
}

/// The name nearest to `wrong` among `valid`, worded for the end of an error message, or nothing if none is near.
pub fn did_you_mean<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    valid
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3)
        .map(|(_, name)| format!("; did you mean '{name}'?"))
        .unwrap_or_default()
}
