//! The overview that every report shows: one row a recipe, one column a question.

use super::index::{self, Index, Quantity};
use super::number;
use super::recipes::{Candidate, Gate, Group};
use crate::record::Phase::{Cumulative, Local};

/// Error of the residual streams where each layer is fed the reference's input.
pub const LOCAL_ERROR: Quantity = Quantity::new(Local, "output", "relative_l2");
/// Error of the residual streams where the candidate runs free.
pub const CUMULATIVE_ERROR: Quantity = Quantity::new(Cumulative, "output", "relative_l2");
pub const CUMULATIVE_COSINE: Quantity = Quantity::new(Cumulative, "output", "cosine");
pub const KL: Quantity = Quantity::new(Cumulative, "logits", "kl");
const TOP1: Quantity = Quantity::new(Cumulative, "logits", "top1");
const DELTA: Quantity = Quantity::new(Cumulative, "logits", "delta_nats");
/// Selection by the indexer, first where it matters, else where it was measured.
pub const RECALL: [Quantity; 2] = [
    Quantity::new(Cumulative, "attention.indexer.topk", "recall"),
    Quantity::new(Local, "attention.indexer.topk", "recall"),
];
const STORED: [Quantity; 2] = [
    Quantity::new(Local, "attention.kv.window", "cosine"),
    Quantity::new(Local, "attention.kv.compressed", "cosine"),
];
const NONFINITE: [Quantity; 2] = [
    Quantity::new(Local, "output", "nonfinite"),
    Quantity::new(Cumulative, "output", "nonfinite"),
];

/// A column of the overview.
pub struct Column {
    /// Heading, in two lines.
    pub title: [&'static str; 2],
    /// What the number means.
    pub doc: &'static str,
    /// On a narrow terminal the column with the least goes first.
    pub weight: u8,
    cell: fn(&Index, &Candidate) -> Option<String>,
}

/// All columns; one that has no number in any row is not shown.
pub const COLUMNS: &[Column] = &[
    Column {
        title: ["bytes/", "vector"],
        doc: "Bytes one KV vector takes in the cache, scales included.",
        weight: 9,
        cell: |_, candidate| candidate.bytes_per_vector.map(number::bytes),
    },
    Column {
        title: ["stored", "cosine"],
        doc: "Cosine between a KV vector and what is read back from the cache, mean over layers: what the format \
              does to the vector itself, before any layer uses it.",
        weight: 4,
        cell: |index, candidate| {
            let cosines: Vec<f64> = STORED.iter().flat_map(|q| index.means(candidate.name, *q)).collect();
            index::mean(&cosines).map(number::near_one)
        },
    },
    Column {
        title: ["local", "error"],
        doc: "Relative L2 error of a layer's output when the layer is fed the reference's input, ‖got − want‖ / \
              ‖want‖, median over layers: the error a layer makes by itself.",
        weight: 6,
        cell: |index, candidate| index::median(&index.means(candidate.name, LOCAL_ERROR)).map(number::error),
    },
    Column {
        title: ["final", "cosine"],
        doc: "Cosine of the residual streams after the last layer when the candidate runs free.",
        weight: 5,
        cell: |index, candidate| Some(number::near_one(index.last(candidate.name, CUMULATIVE_COSINE)?.mean)),
    },
    Column {
        title: ["final", "error"],
        doc: "Relative L2 error of the residual streams after the last layer when the candidate runs free: local \
              errors added up, and damped or amplified by the layers behind them. Rows are sorted by it.",
        weight: 10,
        cell: |index, candidate| Some(number::error(index.last(candidate.name, CUMULATIVE_ERROR)?.mean)),
    },
    Column {
        title: ["logits", "KL"],
        doc: "Kullback–Leibler divergence of the candidate's next-token distribution from the reference's, in nats, \
              mean over positions.",
        weight: 8,
        cell: |index, candidate| Some(number::error(index.whole(candidate.name, KL)?.mean)),
    },
    Column {
        title: ["top-1", "same"],
        doc: "Share of positions where candidate and reference rank the same token first.",
        weight: 3,
        cell: |index, candidate| Some(number::share(index.whole(candidate.name, TOP1)?.mean)),
    },
    Column {
        title: ["Δ nats/byte", "± 95 %"],
        doc: "Change of the loss on the text (positive: worse), with a 95 % bootstrap interval of the mean over \
              windows. An interval that spans 0 means this text cannot tell the two apart.",
        weight: 2,
        cell: |index, candidate| {
            let delta = index.whole(candidate.name, DELTA)?;
            Some(number::interval(delta.mean, delta.ci_low, delta.ci_high))
        },
    },
    Column {
        title: ["recall", "min/mean"],
        doc: "Share of the indexer's top-k choices that the candidate makes too: in the worst layer, and the mean \
              over layers.",
        weight: 1,
        cell: |index, candidate| {
            let recalls = RECALL.map(|quantity| index.means(candidate.name, quantity));
            let recalls = recalls.iter().find(|values| !values.is_empty())?;
            Some(format!(
                "{}/{}",
                number::share(index::min(recalls)?),
                number::share(index::mean(recalls)?)
            ))
        },
    },
    Column {
        title: ["NaN or", "inf"],
        doc: "NaN and infinite elements of the layers' outputs, all layers together. Shown only if there are any.",
        weight: 11,
        cell: |index, candidate| {
            let counts: f64 = NONFINITE.iter().flat_map(|q| index.means(candidate.name, *q)).sum();
            (counts != 0.0).then(|| number::bytes(counts))
        },
    },
];

/// A recipe's cells, in the order of [`Overview::columns`].
pub struct Row<'a> {
    pub candidate: &'a Candidate<'a>,
    pub cells: Vec<Option<String>>,
}

/// The table.
pub struct Overview<'a> {
    pub columns: Vec<&'static Column>,
    /// The reference first, then by error.
    pub rows: Vec<Row<'a>>,
}

impl<'a> Overview<'a> {
    pub fn new(index: &Index, candidates: &'a [Candidate<'a>]) -> Self {
        let cells = |column: &Column| candidates.iter().map(|c| (column.cell)(index, c)).collect::<Vec<_>>();
        let filled: Vec<_> = COLUMNS
            .iter()
            .map(|column| (column, cells(column)))
            .filter(|(_, cells)| cells.iter().any(Option::is_some))
            .collect();
        let row = |at: usize| Row {
            candidate: &candidates[at],
            cells: filled.iter().map(|(_, cells)| cells[at].clone()).collect(),
        };
        Self {
            columns: filled.iter().map(|(column, _)| *column).collect(),
            rows: (0..candidates.len()).map(row).collect(),
        }
    }
}

/// What recipes are sorted by: the first of these that the run has.
pub fn sort_key(index: &Index, recipe: &str) -> Option<f64> {
    if index.has(CUMULATIVE_ERROR) {
        Some(index.last(recipe, CUMULATIVE_ERROR)?.mean)
    } else if index.has(KL) {
        Some(index.whole(recipe, KL)?.mean)
    } else {
        index::median(&index.means(recipe, LOCAL_ERROR))
    }
}

impl Row<'_> {
    /// What the gates say of the recipe.
    pub fn gate(&self) -> &'static str {
        match (self.candidate.gate, self.candidate.group) {
            (Gate::Pass, _) => "PASS",
            (Gate::Fail, _) => "FAIL",
            (Gate::Unbound, Group::Reference) => "",
            (Gate::Unbound, _) => "—",
        }
    }
}
