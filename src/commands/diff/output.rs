//! The comparison of two runs as tables: the same in a terminal and as Markdown.

use super::numbers::{Change, Numbers};
use super::{Diff, Side};
use crate::report::columns::with_margin;
use crate::report::markdown::{LIMIT, escape, row, table};
use crate::report::number::{signed, significant};
use crate::run::verdict::Status;
use ulplab_core::record::place;
use ulplab_core::text::shown;

const CHANGES: [&str; 9] = [
    "recipe", "phase", "where", "window", "metric", "BASE", "NEW", "worse by", "in %",
];
/// Indices of the columns of [`CHANGES`] that are hidden, in this order, if the table is too wide: 'worse by' (column 'in %'
/// remains), phase and window (the JSON output has both).
const LEAST: [usize; 3] = [7, 1, 3];
const DASH: &str = "—";

/// A title line with a table below it. The title is printed even if the table is empty.
struct Block {
    title: String,
    heads: Heads,
    rows: Vec<Vec<String>>,
}

type Heads = &'static [&'static str];

impl Block {
    fn new(title: impl Into<String>, heads: Heads, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let (title, rows) = (title.into(), rows.into_iter().collect());
        Self { title, heads, rows }
    }
}

/// Formats the comparison for a terminal of `width` characters. The last line is the verdict.
pub fn terminal(diff: &Diff, width: usize, colour: bool) -> String {
    let mut text = format!("BASE {}\nNEW  {}\n", side(&diff.base), side(&diff.new));
    for block in blocks(diff) {
        text += &format!("\n{}\n", block.title);
        let least: &[usize] = if block.heads == CHANGES { &LEAST } else { &[] };
        if !block.rows.is_empty() {
            text += &with_margin(block.heads, &block.rows, least, width);
        }
    }
    let name = diff.outcome.name();
    let (code, counts) = (diff.outcome.colour(), counts(diff));
    text + &match colour {
        true => format!("\n\x1b[{code}m{name}\x1b[0m: {counts}\n"),
        false => format!("\n{name}: {counts}\n"),
    }
}

/// Formats the comparison as Markdown, below the size limit of a GitHub step summary.
pub fn markdown(diff: &Diff) -> String {
    let mut text = format!("## {}: what became worse\n\n", diff.outcome.name());
    text += &format!("**{}**\n\n", escape(&counts(diff)));
    let [base, new] = [&diff.base, &diff.new].map(|run| escape(&side(run)));
    text += &format!("- BASE {base}\n- NEW {new}\n");
    let blocks = blocks(diff);
    for (at, block) in blocks.iter().enumerate() {
        let Block { title, heads, rows } = block;
        if rows.is_empty() {
            text += &format!("\n### {}\n", escape(title));
        }
        let rows = rows.iter().map(|cells| row(cells.iter().map(String::as_str)));
        // Limits each table so that space is left for the later tables.
        table(&mut text, title, heads, rows, LIMIT * (at + 1) / blocks.len());
    }
    text
}

fn side(side: &Side) -> String {
    let fingerprint: String = side.fingerprint.chars().take(12).collect();
    let (path, experiment, started) = (side.path.display(), shown(&side.experiment), shown(&side.started_at));
    format!("{path}: {experiment}, started {started}, fingerprint {fingerprint}")
}

fn counts(diff: &Diff) -> String {
    if diff.checks.is_empty() {
        return "BASE has no gates, and no --worsening, --rules or --identical is given".into();
    }
    let count = |status| diff.checks.iter().filter(|check| check.status == status).count();
    let (hold, fail, open) = (count(Status::Pass), count(Status::Fail), count(Status::NotJudged));
    format!("{hold} gates on the change hold, {fail} fail, {open} cannot be judged")
}

fn blocks(diff: &Diff) -> Vec<Block> {
    let loosened = diff.loosened.iter().map(|gate| {
        let now = gate.now.clone().unwrap_or("removed".into());
        vec![gate.gate.clone(), now, gate.recipes.join(", ")]
    });
    let question = diff.question.iter();
    let question = question.map(|found| vec![found.what.clone(), found.base.clone(), found.new.clone()]);
    let verdicts = diff.verdicts.iter().map(|moved| {
        let [base, new] = [moved.base, moved.new].map(|status| status.map_or(DASH, Status::name).to_string());
        let [recipe, gate, message] = [&moved.recipe, &moved.gate, &moved.message].map(String::clone);
        vec![recipe, gate, base, new, message]
    });
    let (changed, same) = (diff.verdicts.len(), diff.same_verdicts);
    let checks = diff.checks.iter().map(|check| {
        let status = check.status.name().to_string();
        vec![status, check.gate.clone(), check.message.clone(), check.why.clone()]
    });
    let removed = "Gates of BASE that were removed or relaxed";
    let mut blocks = vec![
        Block::new(removed, &["gate in BASE", "in NEW", "recipes"], loosened),
        Block::new("What differs in the question", &["", "BASE", "NEW"], question),
    ];
    blocks.retain(|block| !block.rows.is_empty());
    let changed = format!("Verdicts: {changed} changed, {same} unchanged");
    let heads = &["recipe", "gate", "BASE", "NEW", "message in NEW"];
    blocks.push(Block::new(changed, heads, verdicts));
    blocks.push(numbers("Numbers", &diff.numbers));
    if diff.times.both + diff.times.only_base + diff.times.only_new > 0 {
        blocks.push(numbers("Times", &diff.times));
    }
    if !diff.checks.is_empty() {
        blocks.push(Block::new("Gates on the change", &["", "gate", "found", "why"], checks));
    }
    blocks
}

fn numbers(noun: &str, numbers: &Numbers) -> Block {
    let mut title = format!("{noun}: {} in both, {} bit-equal", numbers.both, numbers.bit_equal);
    for (count, what) in [
        (numbers.only_base, "only in BASE"),
        (numbers.only_new, "only in NEW"),
        (numbers.newly_nan, "NaN in NEW only, which is the worst that can be"),
        (numbers.no_longer_nan, "NaN in BASE only, which is better"),
    ] {
        if count > 0 {
            title += &format!("; {count} {what}");
        }
    }
    let shown = numbers.worst.len();
    title += &match numbers.worse {
        0 => "; none is worse".to_string(),
        worse if worse > shown => format!("; {worse} places are worse, {shown} shown"),
        worse => format!("; {worse} places are worse"),
    };
    Block::new(title, &CHANGES, numbers.worst.iter().map(cells))
}

fn cells(change: &Change) -> Vec<String> {
    let [base, new] = apart(change.base, change.new);
    vec![
        change.recipe.clone(),
        change.phase.to_string(),
        place(change.layer, &change.site),
        change.window.clone(),
        change.metric.clone(),
        base,
        new,
        worsening(change),
        per_cent(change),
    ]
}

/// Describes a change in a sentence.
pub fn sentence(change: &Change) -> String {
    let [base, new] = apart(change.base, change.new);
    let (recipe, phase, window) = (&change.recipe, change.phase, &change.window);
    format!(
        "{recipe} at {} in {window} ({phase}): {base} → {new}, worse by {} ({} %)",
        place(change.layer, &change.site),
        worsening(change),
        per_cent(change),
    )
}

fn worsening(change: &Change) -> String {
    match change.new.is_nan() {
        true => "NaN".into(),
        false => signed(change.worsening),
    }
}

fn per_cent(change: &Change) -> String {
    match change.per_cent.is_finite() {
        true => signed(change.per_cent),
        false => DASH.into(),
    }
}

/// Formats two numbers with as many digits as are needed to distinguish them.
fn apart(base: f64, new: f64) -> [String; 2] {
    let texts = |digits| [base, new].map(|value| significant(value, digits));
    let different = |[base, new]: &[String; 2]| base != new;
    (4..17).map(texts).find(different).unwrap_or_else(|| texts(17))
}
