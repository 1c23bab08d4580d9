//! Columns of the overview of models, and what its rows are sorted by.

use std::borrow::Cow;

use crate::report::index::{self, Index, Quantity};
use crate::report::number;
use crate::report::overview::Column;
use crate::report::recipes::Candidate;
use ulplab_core::record::Phase::{Cumulative, Local};

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

/// All columns.
pub fn columns() -> Vec<Column> {
    MODEL.iter().map(Fixed::column).collect()
}

/// What rows are sorted by: the first of these that the run has, in words.
pub fn order(index: &Index) -> &'static str {
    if index.has(CUMULATIVE_ERROR) {
        "by final error, least first"
    } else if index.has(KL) {
        "by KL divergence at the logits, least first"
    } else {
        "by local error, least first"
    }
}

/// The number that [`order`] speaks of.
pub fn sort_key(index: &Index, recipe: &str) -> Option<f64> {
    if index.has(CUMULATIVE_ERROR) {
        Some(index.last(recipe, CUMULATIVE_ERROR)?.mean)
    } else if index.has(KL) {
        Some(index.whole(recipe, KL)?.mean)
    } else {
        local_error(index, recipe)
    }
}

/// The median over the layers that a recipe changes: one that rounds a layer of many would else read 0. NaN counts.
fn local_error(index: &Index, recipe: &str) -> Option<f64> {
    let all = index.means(recipe, LOCAL_ERROR);
    let changed: Vec<f64> = all.iter().copied().filter(|error| *error != 0.0).collect();
    index::median(if changed.is_empty() { &all } else { &changed })
}

/// A column that is the same in every experiment.
struct Fixed {
    title: [&'static str; 2],
    doc: &'static str,
    weight: u8,
    cell: fn(&Index, &Candidate) -> Option<String>,
}

impl Fixed {
    fn column(&self) -> Column {
        Column {
            title: self.title.map(Cow::Borrowed),
            doc: self.doc.into(),
            weight: self.weight,
            cell: Box::new(self.cell),
        }
    }
}

/// Columns of models.
const MODEL: &[Fixed] = &[
    Fixed {
        title: ["bytes/", "vector"],
        doc: "Bytes one KV vector takes in the cache, scales included.",
        weight: 9,
        cell: |_, candidate| candidate.bytes_per_vector.map(number::tenths),
    },
    Fixed {
        title: ["stored", "cosine"],
        doc: "Cosine between a KV vector and what is read back from the cache, mean over layers: what the format \
              does to the vector itself, before any layer uses it.",
        weight: 4,
        cell: |index, candidate| {
            let cosines: Vec<f64> = STORED.iter().flat_map(|q| index.means(candidate.name, *q)).collect();
            index::mean(&cosines).map(number::near_one)
        },
    },
    Fixed {
        title: ["local error", "median"],
        doc: "Relative L2 error of a layer's output when the layer is fed the reference's input, ‖got − want‖ / \
              ‖want‖, median over the layers that have an error: the error a layer makes by itself. Layers that a \
              recipe leaves exact are not counted.",
        weight: 6,
        cell: |index, candidate| local_error(index, candidate.name).map(number::error),
    },
    Fixed {
        title: ["final", "cosine"],
        doc: "Cosine of the residual streams after the last layer when the candidate runs free.",
        weight: 5,
        cell: |index, candidate| Some(number::near_one(index.last(candidate.name, CUMULATIVE_COSINE)?.mean)),
    },
    Fixed {
        title: ["final", "error"],
        doc: "Relative L2 error of the residual streams after the last layer when the candidate runs free: local \
              errors added up, and damped or amplified by the layers behind them. Rows are sorted by it.",
        weight: 10,
        cell: |index, candidate| Some(number::error(index.last(candidate.name, CUMULATIVE_ERROR)?.mean)),
    },
    Fixed {
        title: ["logits", "KL"],
        doc: "Kullback–Leibler divergence of the candidate's next-token distribution from the reference's, in nats, \
              mean over positions.",
        weight: 8,
        cell: |index, candidate| Some(number::error(index.whole(candidate.name, KL)?.mean)),
    },
    Fixed {
        title: ["top-1", "same"],
        doc: "Share of positions where candidate and reference rank the same token first.",
        weight: 3,
        cell: |index, candidate| Some(number::share(index.whole(candidate.name, TOP1)?.mean)),
    },
    Fixed {
        title: ["Δ nats/byte", "± 95 %"],
        doc: "Change of the loss on the text (positive: worse), with a 95 % bootstrap interval of the mean over \
              windows. An interval that spans 0 means this text cannot tell the two apart.",
        weight: 2,
        cell: |index, candidate| {
            let delta = index.whole(candidate.name, DELTA)?;
            Some(number::interval(delta.mean, delta.ci_low, delta.ci_high))
        },
    },
    Fixed {
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
    Fixed {
        title: ["NaN or", "inf"],
        doc: "NaN and infinite elements of the layers' outputs, all layers together. Shown only if there are any.",
        weight: 11,
        cell: |index, candidate| {
            let counts: f64 = NONFINITE.iter().flat_map(|q| index.means(candidate.name, *q)).sum();
            (counts != 0.0).then(|| number::tenths(counts))
        },
    },
];
