//! Writes `report.md`, which is small enough for `$GITHUB_STEP_SUMMARY`.

use super::figures::{self, Content};
use super::verdicts::Check;
use super::{Summarized, failures};
use ulplab_core::text::hidden;
use ulplab_run::run::verdict::Status;

/// GitHub drops a whole step summary above this size in bytes: the report must stay below.
pub const LIMIT: usize = 1 << 20;
/// Bytes reserved for the headings of tables and the line about omitted rows.
const RESERVE: usize = 4 << 10;
/// Largest number of characters of a text; longer texts are cut.
const CELL: usize = 1000;

/// Returns the report (verdict, checks, overview and facts) in less than [`LIMIT`] bytes. A line states the number of table rows
/// that do not fit.
pub(super) fn markdown(run: &Summarized) -> String {
    let experiment = &run.run.manifest.experiment;
    let (outcome, question) = (run.tally.outcome.name(), escape(&experiment.question));
    let mut text = format!("## {outcome}: {question}\n\n");
    text += &format!("**{}**\n", escape(&run.tally.counts()));
    let loss = run.loss.map(|loss| loss.to_string());
    for line in [loss, run.smallest(), run.blind.clone()].into_iter().flatten() {
        text += &format!("\n{}.\n", escape(&line));
    }
    let (failed, passed) = (run.checks_of(&[Status::Fail]), run.checks_of(&[Status::Pass]));
    let unjudged = run.checks_of(&[Status::NotJudged, Status::NotForDevice]);
    checks(&mut text, "Failed checks", &failed, LIMIT / 2);
    wrong(&mut text, &failed, LIMIT / 8 * 5);
    let rows = unjudged.iter().map(|check| {
        let verdict = check.verdict;
        row([verdict.recipe.as_str(), &check.rule, check.label(), &verdict.message].into_iter())
    });
    let heads = ["recipe", "rule", "", "why"];
    table(&mut text, "Checks that were not judged", &heads, rows, LIMIT / 16 * 11);
    overview(&mut text, run, LIMIT / 4 * 3);
    sections(&mut text, run, LIMIT / 16 * 13);
    checks(&mut text, "Passed checks", &passed, LIMIT / 8 * 7);
    let facts = run.facts();
    let rows = facts.iter().map(|(name, value)| row([*name, value].into_iter()));
    table(&mut text, "Run", &["", ""], rows, LIMIT);
    text
}

fn checks(text: &mut String, title: &str, checks: &[&Check], limit: usize) {
    let titles = "recipe,rule,statistic,bound,measured,layer,reference's own,why";
    let titles: Vec<&str> = titles.split(',').collect();
    let rows = checks.iter().map(|check| {
        let rule = &check.verdict.rule;
        let name = match rule.control {
            true => format!("{} (a control)", check.rule),
            false => check.rule.clone(),
        };
        let statistic = format!("{}{}", check.statistic, check.over);
        let judged = [check.verdict.recipe.as_str(), &name, &statistic, &rule.require];
        let found = [check.measured.as_str(), &check.layer, &check.reference, &rule.why];
        row(judged.into_iter().chain(found))
    });
    table(text, title, &titles, rows, limit);
}

/// Appends the failures of checks.
fn wrong(text: &mut String, checks: &[&Check], limit: usize) {
    let mut rows = Vec::new();
    for check in checks {
        let (recipe, found) = (check.verdict.recipe.as_str(), &check.verdict.failures);
        let consequence = check.verdict.consequence();
        rows.extend(consequence.map(|text| row([recipe, "", text, ""].into_iter())));
        let lines = failures::lines(found).into_iter();
        rows.extend(lines.map(|line| row([recipe, line.window, line.message, line.why].into_iter())));
        rows.extend(failures::more(found).map(|more| row([recipe, "", &more, ""].into_iter())));
    }
    let titles = "recipe,window or case,what is wrong,why the bound is what it is";
    let titles: Vec<&str> = titles.split(',').collect();
    table(text, "What is wrong", &titles, rows.into_iter(), limit);
}

fn overview(text: &mut String, run: &Summarized, limit: usize) {
    let titles = run.overview.columns.iter().map(|column| column.title.join(" "));
    let titles: Vec<String> = titles.collect();
    let titles = std::iter::once("recipe").chain(titles.iter().map(String::as_str));
    let titles: Vec<&str> = titles.chain(["gate"]).collect();
    let rows = run.overview.rows.iter().map(|line| {
        let cells = line.cells.iter().map(|cell| cell.as_deref().unwrap_or("—"));
        let gate = line.gate();
        row(std::iter::once(line.candidate.name).chain(cells).chain([gate.as_str()]))
    });
    table(text, "Recipes, by error", &titles, rows, limit);
    if let Some(unselected) = run.unselected() {
        *text += &format!("\n{unselected}.\n");
    }
}

/// Appends the sections of the experiment: tables, and charts as tables of their numbers. Skips the charts that `report.html`
/// shows only on a click: they draw the same recipes as the main chart.
fn sections(text: &mut String, run: &Summarized, limit: usize) {
    for section in figures::sections(run) {
        for figure in section.figures(false) {
            match &figure.content {
                // Leave out the caption of a chart: it describes lines, which the table of the chart's numbers does not have.
                Content::Chart(chart) => {
                    let title = format!("{}: {}", section.title, escape(chart.title()));
                    chart.table().append(text, &title, limit);
                }
                Content::Table(table) => {
                    table.append(text, section.title, limit);
                    if !figure.caption.is_empty() && text.len() + figure.caption.len() + RESERVE < limit {
                        *text += &format!("\n{}\n", escape(&figure.caption));
                    }
                }
            }
        }
    }
}

/// Appends a table to `text`. Leaves out the rows that would make `text` exceed `limit` bytes, and states their number.
pub fn table(text: &mut String, title: &str, titles: &[&str], rows: impl Iterator<Item = String>, limit: usize) {
    let rows: Vec<String> = rows.collect();
    let total = rows.len();
    if total == 0 {
        return;
    }
    *text += &format!("\n### {title}\n\n");
    *text += &row(titles.iter().copied());
    *text += &row(titles.iter().map(|_| "---"));
    for (kept, row) in rows.iter().enumerate() {
        if text.len() + row.len() + RESERVE > limit {
            let left_out = total - kept;
            *text += &format!("\n{left_out} of these {total} rows are left out: a step summary ends at 1 MiB.\n");
            return;
        }
        *text += row;
    }
}

/// Formats a row of a table.
pub fn row<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    cells.fold("|".into(), |row: String, cell| format!("{row} {} |", escape(cell))) + "\n"
}

/// Escapes plain text, so that Markdown shows it literally and in one line. Cuts the text after `CELL` characters.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars().take(CELL) {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' | '$' | '~' => escaped.extend(['\\', c]),
            c if hidden(c) => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    if text.chars().nth(CELL).is_some() {
        escaped.push('…');
    }
    escaped
}
