//! All printing to standard output and standard error.
//!
//! If the reader goes away (`ulplab list formats | head -1`), the command continues: the rest of its output is dropped, its files
//! are written, and its exit code is unchanged. Two things in printed texts never reach a terminal or a log unchanged: hidden
//! characters, and GitHub Actions commands.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::{PathBufValueParser, TypedValueParser};
use ulplab_core::atomic::IS_FOLDER;
use ulplab_core::error::{Error, Result};
use ulplab_core::text;

/// Returns the parser for options that give the path of an output file. It rejects a folder before anything is computed.
pub fn file_name() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if folder { Err(IS_FOLDER) } else { Ok(path) }
    })
}

/// Width of a line, in characters, if the terminal's width is unknown.
const WIDTH: usize = 120;
/// The only escape sequences that are printed, and only if colour is on.
const COLOURS: [&[u8]; 4] = [b"\x1b[31m", b"\x1b[32m", b"\x1b[33m", b"\x1b[0m"];
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Set if printing failed for any reason other than a closed pipe.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints to standard output, as `print!` does.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard output, as `println!` does.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line to standard error, as `eprintln!` does.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::print_error(format_args!($($text)*)) };
}

/// Implements [`out!`] and [`outln!`].
pub fn print(text: std::fmt::Arguments) {
    if stdout().write_fmt(text).is_err() {
        LOST.store(true, Ordering::Relaxed);
    }
}

/// Prints an error message. Indents all lines after the first, so that they do not look like separate messages.
pub fn error(message: &str) {
    let lines: Vec<String> = message.split('\n').map(text::shown).collect();
    errln!("error: {}", lines.join("\n  "));
}

/// Implements [`errln!`]. Ignores write errors.
pub fn print_error(text: std::fmt::Arguments) {
    let _ = writeln!(CleanWriter::new(io::stderr().lock(), false), "{text}");
}

/// Flushes standard output. Returns an error if any printed text was lost, as on a full disk.
pub fn finish() -> Result<()> {
    let flushed = stdout().flush();
    if LOST.load(Ordering::Relaxed) {
        let lost = io::Error::other("not everything could be written");
        return Err(Error::io("stdout", "write")(lost));
    }
    flushed.map_err(Error::io("stdout", "write"))
}

/// Returns standard output as a writer.
pub fn stdout() -> impl Write {
    CleanWriter::new(io::stdout().lock(), colour())
}

/// True if output to standard output is coloured: it is a terminal, and `NO_COLOR` is not set.
pub fn colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Returns the number of characters in a line of standard output.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    width_of(comfy_table::Table::new().width(), columns.as_deref())
}

/// Returns the width for lines of results. Without a terminal or `$COLUMNS`, the width is unlimited, so that a pipe or a file
/// gets every column.
pub fn table_width() -> usize {
    let told = std::env::var("COLUMNS").is_ok_and(|columns| columns.parse::<u16>().is_ok_and(|width| width > 0));
    match io::stdout().is_terminal() || told {
        true => width(),
        false => usize::MAX,
    }
}

/// Returns the terminal's width, else `$COLUMNS`, else 120. Some terminals report 0 columns, which is ignored.
pub fn width_of(terminal: Option<u16>, columns: Option<&str>) -> usize {
    let widths = [
        terminal.map(usize::from),
        columns.and_then(|columns| columns.parse().ok()),
    ];
    let known = widths.into_iter().flatten().find(|width| *width > 0);
    known.unwrap_or(WIDTH)
}

/// A writer that replaces hidden characters except line ends and tabs, makes commands to GitHub Actions ineffective, and ignores
/// a closed pipe.
pub struct CleanWriter<W> {
    inner: W,
    colour: bool,
    /// True while the current line contains nothing but white space.
    begins: bool,
}

impl<W: Write> CleanWriter<W> {
    /// Creates a writer to `inner`. If `colour` is true, the writer does not replace the escape sequences in [`COLOURS`].
    pub fn new(inner: W, colour: bool) -> Self {
        Self {
            inner,
            colour,
            begins: true,
        }
    }

    /// Returns the position of the first bytes to replace: a hidden character, `::` at the beginning of a line, or `##[`.
    fn bad(&mut self, bytes: &[u8]) -> Option<usize> {
        (0..bytes.len()).find(|at| {
            let rest = &bytes[*at..];
            let command = self.begins && (rest.starts_with(b"::") || rest == b":") || rest.starts_with(b"##[");
            self.begins = rest[0] == b'\n' || self.begins && rest[0].is_ascii_whitespace();
            command || hidden(rest) > 0
        })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.inner.write_all(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

impl<W: Write> Write for CleanWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = self.bad(rest) {
            let (plain, from) = rest.split_at(at);
            self.put(plain)?;
            let colour = COLOURS.iter().find(|code| self.colour && from.starts_with(code));
            match colour {
                Some(code) => self.put(code)?,
                // Drop the `\r` of a Windows line end.
                None if from.starts_with(b"\r\n") => {}
                None => self.put(REPLACEMENT)?,
            }
            rest = &from[colour.map_or(hidden(from).max(1), |code| code.len())..];
        }
        self.put(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.inner.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed,
        }
    }
}

/// Returns the length in bytes of the hidden character at the start of the UTF-8 text; 0 if the first character is visible.
fn hidden(bytes: &[u8]) -> usize {
    let size = match bytes {
        [b'\n' | b'\t' | 0x20..=0x7e, ..] | [] => return 0,
        [0..=0x7f, ..] => return 1,
        [0xc0..=0xdf, ..] => 2,
        [0xe0..=0xef, ..] => 3,
        [..] => 4,
    };
    let character = bytes.get(..size).and_then(|bytes| str::from_utf8(bytes).ok());
    match character.is_some_and(|character| character.contains(text::hidden)) {
        true => size,
        false => 0,
    }
}
