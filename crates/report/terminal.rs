//! Formats the table that the terminal shows when a run ends.

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::figures::{self, Content};
use super::overview::Overview;
use super::{Summarized, cases, columns, failures};
use ulplab_core::text::{REPLACEMENT, hidden};
use ulplab_run::run::verdict::Failures;

/// Number of failed checks shown below the table; the other reports show all.
const FAILURES: usize = 10;
/// Number of reasons for unchecked gates that are shown below the table.
const UNJUDGED: usize = 5;
/// Number of failing kernels that are shown case by case, and number of lines for each of these kernels (`CASES`).
const KERNELS: usize = 3;
const CASES: usize = 24;
/// Largest number of rows of a table that the terminal shows; longer tables are left out.
const ROWS: usize = 16;
/// Number of characters after which a name is cut.
const NAME: usize = 24;
const GAP: &str = "  ";

/// Returns one row per recipe, then the failed checks, then the verdict line. `width` is the width of the terminal in characters.
/// Columns that do not fit are left out, the least important first.
pub fn terminal(run: &Summarized, width: usize, colour: bool) -> String {
    let paint = |text: &str, code: u8| match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.into(),
    };
    let mut lines = sentence(&run.run.manifest.experiment.question, width, 0);
    lines.extend(run.loss.iter().flat_map(|loss| sentence(&loss.to_string(), width, 0)));
    lines.push(String::new());
    for line in table(&run.overview, width).lines() {
        let line = line.trim_end();
        // Colour the gate here, in the last column: comfy-table would count colour codes as characters.
        lines.push(match line.rsplit_once(GAP) {
            Some((head, gate)) if gate.starts_with("PASS") => format!("{head}{GAP}{}", paint(gate, 32)),
            Some((head, gate)) if gate.starts_with("FAIL") => format!("{head}{GAP}{}", paint(gate, 31)),
            _ => line.into(),
        });
    }
    let unselected = run.unselected().map(|unselected| format!("… {unselected}"));
    lines.extend(unselected.iter().flat_map(|text| sentence(text, width, 0)));
    lines.push(String::new());
    let failures: Vec<_> = run.checks.iter().filter(|check| check.verdict.fails()).collect();
    for check in failures.iter().take(FAILURES) {
        let text = format!("{}: {}", check.verdict.recipe, check.verdict.message);
        lines.extend(labelled("FAIL", &paint("FAIL", 31), &text, width));
        let consequence = check.verdict.consequence().into_iter();
        lines.extend(consequence.flat_map(|text| columns::wrapped(text, width, 5)));
        lines.extend(reasons(&check.verdict.failures, width));
    }
    if failures.len() > FAILURES {
        let more = failures.len() - FAILURES;
        let text = format!("… and {more} more failed checks; report.md has them all");
        lines.push(clip(&text, width));
    }
    let rows = cases::rows(run.run, run.show);
    let mut kernels: Vec<&str> = failures.iter().map(|check| check.verdict.recipe.as_str()).collect();
    kernels.dedup();
    if rows.is_empty() {
        kernels.clear();
    }
    for kernel in kernels.iter().take(KERNELS) {
        lines.push(String::new());
        lines.push(clip(&format!("{kernel}, case by case"), width));
        let table = cases::table(&rows, kernel);
        lines.extend(table.iter().take(CASES).map(|line| clip(line, width)));
        if table.len() > CASES {
            lines.push(format!("… and {} more cases", table.len() - CASES));
        }
        lines.push(String::new());
    }
    if kernels.len() > KERNELS {
        let more = kernels.len() - KERNELS;
        let text = format!("… and {more} more kernels that fail; report.md has their cases");
        lines.push(clip(&text, width));
    }
    if !run.show.by_case() {
        lines.extend(sections(run, width));
    }
    let unjudged = run.unjudged();
    for (recipes, why) in unjudged.iter().take(UNJUDGED) {
        let text = format!("{recipes}: {why}");
        lines.extend(labelled("NOT JUDGED", &paint("NOT JUDGED", 33), &text, width));
    }
    if unjudged.len() > UNJUDGED {
        lines.push(format!("… and more for {} other reasons", unjudged.len() - UNJUDGED));
    }
    lines.extend(run.smallest().iter().flat_map(|smallest| sentence(smallest, width, 0)));
    if let Some(why) = &run.blind {
        lines.extend(columns::wrapped(&paint(why, 33), width, 0));
    }
    let outcome = run.tally.outcome;
    lines.push(format!(
        "{}: {}",
        paint(outcome.name(), outcome.colour()),
        run.tally.counts()
    ));
    lines.join("\n") + "\n"
}

/// Returns the experiment's tables of at most [`ROWS`] rows, in lines that fit the terminal. The other reports also show charts
/// and longer tables.
fn sections(run: &Summarized, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for section in figures::sections(run) {
        for figure in section.figures(false) {
            if let Content::Table(table) = &figure.content
                && table.rows.len() <= ROWS
            {
                lines.push(clip(section.title, width));
                lines.extend(table.lines(width).iter().map(|line| clip(line, width)));
                lines.push(String::new());
            }
        }
    }
    lines
}

/// Wraps a sentence to lines of at most `width` characters, and replaces control characters. Nothing is cut, because the end of a
/// sentence may be decisive.
fn sentence(text: &str, width: usize, indent: usize) -> Vec<String> {
    columns::wrapped(&clip(text, usize::MAX), width, indent)
}

/// Wraps a sentence after its label; further lines are indented to the first word. `painted` is the label with its colour codes.
fn labelled(label: &str, painted: &str, text: &str, width: usize) -> Vec<String> {
    let indent = label.len() + 1;
    let mut lines = sentence(text, width, indent);
    if let Some(first) = lines.first_mut() {
        first.replace_range(..indent, &format!("{painted} "));
    }
    lines
}

/// Returns the failures of a check, in lines of at most `width` characters.
fn reasons(failures: &Failures, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in failures::text(failures).lines() {
        let deeper = if line.starts_with(' ') { 2 } else { 0 };
        let words = columns::wrapped(line.trim_start(), width, 5 + deeper);
        lines.extend(words.iter().map(|line| clip(line, width)));
    }
    lines
}

/// Returns the overview table with as many columns as fit.
fn table(overview: &Overview, width: usize) -> String {
    let mut order: Vec<usize> = (0..overview.columns.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(overview.columns[*at].weight));
    let mut texts = (0..=order.len()).rev().map(|kept| {
        let mut kept = order[..kept].to_vec();
        kept.sort_unstable();
        draw(overview, &kept)
    });
    let found = texts.find(|text| text.lines().all(|line| line.trim_end().chars().count() <= width));
    found.unwrap_or_else(|| draw(overview, &[]))
}

fn draw(overview: &Overview, kept: &[usize]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let titles = kept.iter().map(|at| right(&overview.columns[*at].title.join("\n")));
    let [recipe, gate] = ["\nrecipe", "\ngate"].map(Cell::new);
    table.set_header(std::iter::once(recipe).chain(titles).chain([gate]));
    for row in &overview.rows {
        let cells = kept.iter().map(|at| right(row.cells[*at].as_deref().unwrap_or("—")));
        let name = Cell::new(clip(row.candidate.name, NAME));
        table.add_row(std::iter::once(name).chain(cells).chain([Cell::new(row.gate())]));
    }
    let last = kept.len() + 1;
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { GAP.len() as u16 }));
    }
    table.to_string()
}

fn right(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Cuts a text to at most `width` characters, and replaces control characters (a name must not move the cursor).
fn clip(text: &str, width: usize) -> String {
    let clean = text.chars().map(|c| if hidden(c) { REPLACEMENT } else { c });
    match text.chars().count() <= width {
        true => clean.collect(),
        false => clean.take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}
