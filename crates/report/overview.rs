//! The overview table of every report: one row per recipe (choice of formats or kernels), one column per property.

use super::index::Index;
use super::recipes::{Candidate, Gate, Group};

/// A column of the overview.
pub struct Column {
    /// Heading, in two lines.
    pub title: [String; 2],
    /// Explanation of the column's numbers.
    pub doc: String,
    /// Priority of the column. A narrow terminal drops columns with the smallest weight first.
    pub weight: u8,
    pub cell: Cell,
}

impl Column {
    pub fn new(
        title: [&str; 2],
        doc: impl Into<String>,
        weight: u8,
        cell: impl Fn(&Index, &Candidate) -> Option<String> + 'static,
    ) -> Self {
        Self {
            title: title.map(String::from),
            doc: doc.into(),
            weight,
            cell: Box::new(cell),
        }
    }
}

/// Function that returns a column's text for a candidate.
pub type Cell = Box<dyn Fn(&Index, &Candidate) -> Option<String>>;

/// A recipe's table cells, in the order of [`Overview::columns`].
pub struct Row<'a> {
    pub candidate: &'a Candidate<'a>,
    pub cells: Vec<Option<String>>,
}

/// The overview table.
pub struct Overview<'a> {
    pub columns: Vec<Column>,
    /// Rows: the reference first, then the recipes by [`Show::sort_key`](super::Show::sort_key).
    pub rows: Vec<Row<'a>>,
}

impl<'a> Overview<'a> {
    pub fn new(columns: Vec<Column>, index: &Index, candidates: &'a [Candidate<'a>]) -> Self {
        let cells = |column: &Column| candidates.iter().map(|c| (column.cell)(index, c)).collect::<Vec<_>>();
        let filled: Vec<Vec<Option<String>>> = columns.iter().map(cells).collect();
        let shown = columns.into_iter().zip(filled);
        let shown = shown.filter(|(_, cells)| cells.iter().any(Option::is_some));
        let (columns, filled): (Vec<Column>, Vec<_>) = shown.unzip();
        let row = |at: usize| Row {
            candidate: &candidates[at],
            cells: filled.iter().map(|cells| cells[at].clone()).collect(),
        };
        Self {
            rows: (0..candidates.len()).map(row).collect(),
            columns,
        }
    }
}

impl Row<'_> {
    /// Returns the recipe's verdict, with the metric of its gate or the number of its gates.
    pub fn gate(&self) -> String {
        match (self.candidate.gate, self.candidate.group) {
            (Gate::Pass(rules), _) => format!("PASS {rules}"),
            (Gate::Fail(rules), _) => format!("FAIL {rules}"),
            (Gate::NotJudged { judged: 0, .. }, _) => "not judged".into(),
            (Gate::NotJudged { judged, all }, _) => format!("{judged} of {all} judged"),
            (Gate::Control, _) => "control holds".into(),
            (Gate::Unbound, Group::Reference) => String::new(),
            (Gate::Unbound, _) => "—".into(),
        }
    }

    /// Returns the CSS class of the verdict's colours; empty if the verdict has no colour.
    pub fn tone(&self) -> &'static str {
        match self.candidate.gate {
            Gate::Pass(_) => "pass",
            Gate::Fail(_) => "fail",
            Gate::NotJudged { .. } => "open",
            Gate::Control | Gate::Unbound => "",
        }
    }
}
