//! Text tables. Each report formats them in its own way.

use super::{columns, markdown};

/// A table of text with a row for each name.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Headings: one for the names, then one for each cell of a row.
    pub heads: Vec<String>,
    pub rows: Vec<Row>,
    /// True if cells are numbers, which are right-aligned.
    pub numbers: bool,
}

/// A row of a table.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// A note next to the name; may be empty.
    pub note: String,
    pub cells: Vec<String>,
}

impl Row {
    /// Creates a row from texts: its name, then its cells.
    pub fn new(words: impl IntoIterator<Item = String>) -> Self {
        let mut words = words.into_iter();
        Self {
            name: words.next().unwrap_or_default(),
            note: String::new(),
            cells: words.collect(),
        }
    }

    /// Returns the name with its note, then the cells.
    fn words(&self) -> Vec<String> {
        let name = match self.note.is_empty() {
            true => self.name.clone(),
            false => format!("{} {}", self.name, self.note),
        };
        std::iter::once(name).chain(self.cells.iter().cloned()).collect()
    }
}

impl Table {
    fn heads(&self) -> Vec<&str> {
        self.heads.iter().map(String::as_str).collect()
    }

    /// Returns the table as lines for a terminal of `width` characters.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let rows: Vec<Vec<String>> = self.rows.iter().map(Row::words).collect();
        columns::fitted(&self.heads(), &rows, &[], width)
    }

    /// Appends the table as Markdown until `text` would exceed `limit` bytes.
    pub fn append(&self, text: &mut String, title: &str, limit: usize) {
        let rows = self.rows.iter().map(Row::words);
        let rows = rows.map(|words| markdown::row(words.iter().map(String::as_str)));
        markdown::table(text, title, &self.heads(), rows, limit);
    }
}
