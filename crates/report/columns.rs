//! Text tables of limited width. If a table is too wide, whole columns are dropped; if it is still too wide, each cell gets its
//! own line. Words and numbers are never broken.

use comfy_table::{CellAlignment, Table, presets};

/// Space between two columns.
const GAP: &str = "  ";

/// Returns the lines of a table of any width. The columns from index `right` on are right-aligned.
pub fn aligned(heads: &[impl ToString], rows: impl IntoIterator<Item = Vec<String>>, right: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).add_rows(rows);
    table.set_header(heads.iter().map(ToString::to_string));
    for column in table.column_iter_mut().skip(right) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_string()).collect()
}

/// Returns the lines of a table, each of at most `width` characters unless a single word is longer. A table that is too wide
/// first loses the columns in `least`, in this order. If it is still too wide, each cell gets its own line.
pub fn fitted<S: AsRef<str>>(heads: &[&str], rows: &[Vec<S>], least: &[usize], width: usize) -> Vec<String> {
    let mut kept: Vec<usize> = (0..heads.len()).collect();
    let size = |text: &str| text.chars().count();
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| size(row[column].as_ref()));
        cells.chain([size(heads[column])]).max().unwrap_or(0)
    };
    let total = |kept: &[usize]| kept.iter().map(|column| wide(*column) + GAP.len()).sum::<usize>();
    for column in least {
        if total(&kept) > width.saturating_add(GAP.len()) {
            kept.retain(|other| other != column);
        }
    }
    if total(&kept) > width.saturating_add(GAP.len()) {
        return rows.iter().flat_map(|row| folded(heads, row, width)).collect();
    }
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = kept.iter().map(|column| format!("{:1$}", cell(*column), wide(*column)));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_string()
    };
    let head = line(&|column| heads[column].to_string());
    let body = rows.iter().map(|row| line(&|column| row[column].as_ref().to_string()));
    std::iter::once(head).chain(body).collect()
}

/// Returns the table of [`fitted`] as one text with a left margin of one character, which counts towards `width`.
pub fn with_margin(heads: &[&str], rows: &[Vec<String>], least: &[usize], width: usize) -> String {
    let lines = fitted(heads, rows, least, width.saturating_sub(1));
    lines.iter().map(|line| format!(" {line}\n")).collect()
}

/// Returns one line for each non-empty cell; all but the first are indented.
fn folded<S: AsRef<str>>(heads: &[&str], row: &[S], width: usize) -> Vec<String> {
    let told = heads.iter().zip(row).filter(|(_, cell)| !cell.as_ref().is_empty());
    let lines = told.enumerate().flat_map(|(at, (head, cell))| {
        let colon = if head.is_empty() { "" } else { ": " };
        wrapped(
            &format!("{head}{colon}{}", cell.as_ref()),
            width,
            if at == 0 { 0 } else { 2 },
        )
    });
    lines.collect()
}

/// Wraps words to lines of at most `width` characters, indented by `indent` spaces. A word that is too long has its own line.
pub fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(" ".repeat(indent) + word),
        }
    }
    lines
}
