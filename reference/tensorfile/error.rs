//! Errors of files that cannot be read.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of problems that an error message lists; further problems are only counted.
const LISTED: usize = 20;

/// Error if a file or a folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", self.path().display(), self.problem())]
pub enum Error {
    /// The operating system returned an error.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The failed action as a verb; it follows "cannot" in the message.
        action: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file is truncated, corrupt or of another format, or an index contradicts its files.
    Format {
        /// The file or folder.
        path: PathBuf,
        /// The problem, with the actual and the expected state.
        message: String,
    },
}

impl Error {
    pub(super) fn format(path: &Path, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        Self::Format { path, message }
    }

    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, action, error }
    }

    /// Returns the path of the file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::Format { path, .. } => path,
        }
    }

    /// Returns the problem, without the path.
    pub fn problem(&self) -> String {
        match self {
            Self::Io { action, error, .. } => format!("cannot {action}: {error}"),
            Self::Format { message, .. } => message.clone(),
        }
    }
}

/// A list of problems that are reported as one error.
#[derive(Default)]
pub struct Problems {
    text: String,
    count: usize,
}

impl Problems {
    /// Adds a problem. `problem` returns the text; it is called for the first 20 problems only, since the rest are counted.
    pub fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.count < LISTED {
            write!(self.text, "\n  {}", problem()).expect("a String takes all");
        }
        self.count += 1;
    }

    /// Returns an error about `file` with all problems, if there are any.
    ///
    /// # Errors
    /// Returns an error if a problem was added.
    pub fn into_result(self, file: &Path) -> Result<(), Error> {
        let Self { text, count } = self;
        let message = match count {
            0 => return Ok(()),
            1 => text.trim_start().into(),
            _ if count <= LISTED => format!("{count} problems:{text}"),
            _ => format!("{count} problems:{text}\n  … and {} more", count - LISTED),
        };
        Err(Error::format(file, message))
    }
}

/// Formats a count with its noun: `1 tensor`, `2 tensors`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns true for a character that moves the cursor, starts a new line, changes the direction of text, or has no width. A name
/// in a file could use such characters to imitate output of the program.
pub fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            // Zero-width characters; direction marks; line separators; embeddings, overrides and isolates of text direction.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Makes one line of text from a file safe to print on a terminal and in logs of CI: replaces hidden characters, and a leading
/// `::`, which GitHub Actions would read as a command.
pub fn shown(text: &str) -> String {
    let mut text = text.replace(hidden, "\u{fffd}");
    if text.trim_start().starts_with("::") {
        text = text.replacen(':', "\u{fffd}", 1);
    }
    text
}
