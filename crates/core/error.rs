//! Errors that users see, and exit codes.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::text::shown;

/// Outcome of a command; the discriminant is the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All gates (pass/fail checks) passed, and no planned result is missing.
    Pass = 0,
    /// A bug in ulplab.
    Bug = 1,
    /// Bad command line, experiment file or input data.
    Usage = 2,
    /// No gate failed, but some gates were not checked, because results are missing.
    NotJudged = 4,
    /// The machine lacks something that is needed (a device, a writable folder).
    Setup = 96,
    /// A gate failed.
    GateFailed = 100,
    /// The reference computation failed: its result is not finite, or it failed a self-check.
    ReferenceFailed = 101,
    /// Cells (recipe, phase and input window) of the run are missing, so its gates cannot be checked.
    Incomplete = 103,
    /// Interrupted by SIGINT or SIGTERM.
    Interrupted = 130,
}

impl Exit {
    /// Returns [`Exit::Pass`] if all gates passed, else [`Exit::GateFailed`].
    pub fn judged(hold: bool) -> Self {
        if hold { Self::Pass } else { Self::GateFailed }
    }

    /// Returns the [`Exit`] with this exit code; `None` if ulplab has no such code.
    pub fn from_code(code: i32) -> Option<Self> {
        use Exit::{Bug, GateFailed, Incomplete, Interrupted, NotJudged, Pass, ReferenceFailed, Setup, Usage};
        let all = [
            Pass,
            Bug,
            Usage,
            NotJudged,
            Setup,
            GateFailed,
            ReferenceFailed,
            Incomplete,
            Interrupted,
        ];
        all.into_iter().find(|exit| *exit as i32 == code)
    }
}

/// Returns an error if `wrong` is true. Give `why` as `format_args!`, so that the message is formatted only in that case.
///
/// # Errors
/// Returns the message `why` if `wrong` is true.
pub fn refuse(wrong: bool, why: impl Display) -> Result<(), String> {
    if wrong { Err(why.to_string()) } else { Ok(()) }
}

/// `std::result::Result` whose error type is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a user can act on: each message names the file, the key or tensor, the value that was found and the value that
/// was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line asks for something that does not exist or is not possible.
    #[error("{0}")]
    Usage(String),
    /// An experiment or manifest file is wrong; `message` holds line, key, and the nearest valid name.
    #[error("{}: {message}", shown(&file.display().to_string()))]
    Config {
        /// Path of the wrong file.
        file: PathBuf,
        /// Description of the mistake, and of what was expected.
        message: String,
    },
    /// A data file (checkpoint, text, safetensors, npy, stored run) is wrong.
    #[error("{}: {message}", shown(&file.display().to_string()))]
    Data {
        /// Path of the wrong file.
        file: PathBuf,
        /// Description of the mistake, and of what was expected.
        message: String,
    },
    /// The operating system refused to read or write.
    #[error("{}: cannot {action}: {source}", shown(&file.display().to_string()))]
    Io {
        /// Path of the file or folder.
        file: PathBuf,
        /// The action as a verb, e.g. `read`; it follows "cannot" in the message.
        action: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A selection, such as a filter of cells, matches nothing. The text describes the set that was searched.
    #[error("nothing selected: {0}")]
    NothingSelected(String),
    /// The machine lacks something, e.g. a GPU or a writable folder. The text names it.
    #[error("set-up: {0}")]
    Setup(String),
    /// The reference could not compute a result, or its result is not finite. The text names the result and the reason.
    #[error("the reference failed: {0}")]
    Reference(String),
    /// A run lacks cells (results of a recipe on an input window), so its gates cannot be checked. The text names the missing
    /// cells.
    #[error("incomplete run: {0}")]
    Incomplete(String),
    /// SIGINT or SIGTERM stopped the run.
    #[error("interrupted; finished cells are kept, go on with --resume")]
    Interrupted,
}

impl Error {
    /// Same as [`refuse`], for a mistake in the command line.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the message `why` if `wrong` is true.
    pub fn refuse(wrong: bool, why: impl Display) -> Result<()> {
        refuse(wrong, why).map_err(Self::Usage)
    }

    /// Creates an [`Error::Config`] for an experiment or manifest file.
    pub fn config(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        let (file, message) = (file.as_ref().to_path_buf(), message.into());
        Self::Config { file, message }
    }

    /// Creates an [`Error::Data`] for a data file.
    pub fn data(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        let (file, message) = (file.as_ref().to_path_buf(), message.into());
        Self::Data { file, message }
    }

    /// Returns a function for `map_err` that creates an [`Error::Io`]; `action` completes "cannot …".
    pub fn io(file: impl AsRef<Path>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.as_ref().to_path_buf();
        move |source| Self::Io { file, action, source }
    }

    /// Returns the exit code of a command that ends in this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Config { .. } | Self::Data { .. } => Exit::Usage,
            // A missing input file is a usage error; all other errors of the operating system are set-up errors.
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

/// Largest number of names that a suggestion lists.
const LISTED: usize = 8;

/// Returns the end of an error message that suggests names of `valid` similar to the unknown name `wrong`; empty if no name is
/// similar.
///
/// Case does not matter. If a name differs from `wrong` by at most one typo, only that name is suggested. Otherwise all names
/// that begin with `wrong` are listed, then the names with a word (between `_`) that ends in `wrong`. If no name is listed, the
/// name with the fewest typos is suggested, unless it has more typos than 1 plus a third of its length.
pub fn did_you_mean<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let wrong = wrong.to_lowercase();
    let valid: Vec<(String, &str)> = valid.into_iter().map(|name| (name.to_lowercase(), name)).collect();
    let slips = |name: &str| 1 + name.len() / 3;
    let near = valid
        .iter()
        .filter(|(lower, name)| wrong.len().abs_diff(lower.len()) <= slips(name));
    let distances = near.map(|(lower, name)| (strsim::damerau_levenshtein(&wrong, lower), *name));
    let nearest = distances.min().filter(|(distance, name)| *distance <= slips(name));
    let family = |belongs: &dyn Fn(&str) -> bool| -> Vec<&str> {
        let names = valid.iter().filter(|(lower, _)| wrong.len() > 2 && belongs(lower));
        names.map(|(_, name)| *name).collect()
    };
    let begins = family(&|name| name.starts_with(&wrong));
    let has = family(&|name| name.split('_').any(|word| word.ends_with(&wrong)));
    match (nearest, begins.as_slice(), has.as_slice()) {
        (Some((0 | 1, name)), ..) => or(&[name]),
        (_, begins @ [_, ..], has) | (_, begins @ [], has @ [_, ..]) => {
            let more = has.iter().filter(|name| !begins.contains(name));
            or(&begins.iter().chain(more).copied().collect::<Vec<_>>())
        }
        (Some((_, name)), ..) => or(&[name]),
        _ => String::new(),
    }
}

/// Formats a suggestion: `; did you mean 'a', 'b' or 'c'?`
fn or(names: &[&str]) -> String {
    let quoted = |names: &[&str]| -> Vec<String> { names.iter().map(|name| format!("'{}'", shown(name))).collect() };
    let listed = quoted(&names[..names.len().min(LISTED)]);
    match listed.split_last() {
        Some((last, [])) => format!("; did you mean {last}?"),
        Some((last, others)) => format!("; did you mean {} or {last}?", others.join(", ")),
        None => String::new(),
    }
}

/// Returns a count with its noun: `1 tensor`, `2 tensors`, `2 passes`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = match count {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {what}{plural}")
}

/// Converts an error in the creation of a model to [`Error::Reference`]. The input is not the cause: a checkpoint is validated
/// when it is opened.
#[expect(
    clippy::from_over_into,
    reason = "a second `From` of errors leaves open what `?` in closures turns into"
)]
impl Into<Error> for reference::paths::Invalid {
    fn into(self) -> Error {
        Error::Reference(self.to_string())
    }
}

#[expect(clippy::from_over_into, reason = "as above")]
impl Into<Error> for reference::tensorfile::Error {
    fn into(self) -> Error {
        match self {
            Self::Io { path, action, error } => Error::io(path, action)(error),
            Self::Format { path, message } => Error::data(path, message),
        }
    }
}
