//! Columns of the overview of models, and the order of its rows.

use reference::SiteInfo;
use reference::paths::Path;
use reference::sites::Decision;

use crate::report::index::{self, Index, Quantity};
use crate::report::number;
use crate::report::overview::Column;
use ulplab_core::metrics::{
    COSINE, DELTA_NATS, DELTA_NATS_PER_BYTE, GAIN, KL, Metric, NONFINITE, PERPLEXITY, RECALL, RELATIVE_L2, TOP1,
    WEIGHT_BITS, WEIGHT_MEGABYTES,
};
use ulplab_core::record::Phase::{self, Cumulative, Local};

/// Returns the name of the site where the residual stream leaves a layer. If the path (implementation of a model) has no such
/// site, the name is empty, and so matches no record.
fn stream(index: &Index) -> &'static str {
    let stream = index.path.and_then(Path::stream);
    stream.map_or("", |site| site.name)
}

fn output(index: &Index) -> &'static str {
    index.path.map_or("", |path| path.output().name)
}

/// Returns the local error of the residual streams, where each layer reads the reference's input.
pub fn local_error(index: &Index) -> Quantity<'static> {
    Quantity::new(Local, stream(index), RELATIVE_L2.name)
}

/// Returns the cumulative error of the residual streams, where each layer reads the output of the candidate's previous layer.
pub fn cumulative_error(index: &Index) -> Quantity<'static> {
    Quantity::new(Cumulative, stream(index), RELATIVE_L2.name)
}

/// Returns the gain of a layer: its error divided by the error of the layer before.
pub fn gain(index: &Index, phase: Phase) -> Quantity<'static> {
    Quantity::new(phase, stream(index), GAIN.name)
}

fn kl(index: &Index) -> Quantity<'static> {
    Quantity::new(Cumulative, output(index), KL.name)
}

/// Returns the two final errors, of the residual streams and of the logits, each with a title for charts.
pub fn finals(index: &Index) -> [(&'static str, Quantity<'static>); 2] {
    let streams = "Residual streams after the last layer";
    [(streams, cumulative_error(index)), ("Logits", kl(index))]
}

/// Returns the names of the sites whose tensors are stored in a cache, and compared with the reference's.
pub fn stored(index: &Index) -> Vec<&'static str> {
    let sites = index.path.map_or(&[][..], |path| path.sites).iter();
    let stored = sites.filter(|site| site.cache.is_some() && site.compared);
    stored.map(|site| site.name).collect()
}

/// Returns the recall of every top-k selection from a cache in one phase.
fn recall(index: &Index, phase: Phase) -> impl Iterator<Item = Quantity<'static>> {
    let sites = index.path.map_or(&[][..], |path| path.sites).iter();
    let selects = |site: &&SiteInfo| matches!(site.decision(), Some(Decision::TopK { .. }));
    let names = sites.filter(selects).map(|site| site.name);
    names.map(move |site| Quantity::new(phase, site, RECALL.name))
}

/// Returns the measured recall of selections from caches: in the cumulative phase if the run has it, else in the local phase.
pub fn measured_recall(index: &Index) -> Vec<Quantity<'static>> {
    let of = |phase| recall(index, phase).filter(|quantity| index.has(*quantity)).collect();
    let phases: [Vec<_>; 2] = [Cumulative, Local].map(of);
    phases.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// Returns a text that names the order of the rows, and the function that computes a recipe's sort value. Rows are ordered by the
/// first of these quantities that the run has: final error, KL divergence, local error.
pub fn order(index: &Index) -> (&'static str, fn(&Index, &str) -> Option<f64>) {
    if index.has(cumulative_error(index)) {
        let error = |index: &Index, recipe: &str| Some(index.last(recipe, cumulative_error(index))?.mean);
        ("by final error, least first", error)
    } else if index.has(kl(index)) {
        let divergence = |index: &Index, recipe: &str| Some(index.whole(recipe, kl(index))?.mean);
        ("by KL divergence at the logits, least first", divergence)
    } else {
        ("by local error, least first", median_error)
    }
}

/// Returns a recipe's median local error over the layers that the recipe changes. Over all layers, a recipe that rounds one layer
/// of many would have the median 0. NaN counts as a change.
fn median_error(index: &Index, recipe: &str) -> Option<f64> {
    let all = index.means(recipe, local_error(index));
    let changed: Vec<f64> = all.iter().copied().filter(|error| *error != 0.0).collect();
    index::median(if changed.is_empty() { &all } else { &changed })
}

/// Returns all columns of the overview.
pub fn columns() -> Vec<Column> {
    let mut all = Vec::new();
    let doc = "Bytes one KV vector takes in the cache, scales included.";
    all.push(Column::new(["bytes/", "vector"], doc, 9, |_, candidate| {
        candidate.bytes.vector.map(number::tenths)
    }));
    let doc = "Bytes that the caches of all layers grow by per token of context, scales included; caches that the recipe leaves \
               exact count as bf16. Caches that stop growing, as sliding windows do, are not counted.";
    all.push(Column::new(["bytes/", "token"], doc, 1, |_, candidate| {
        let bytes = candidate.bytes.token.filter(|bytes| *bytes > 0.0);
        bytes.map(number::tenths)
    }));
    let doc = "The bytes per token as a share of what the same caches take in bf16.";
    all.push(Column::new(["of", "bf16"], doc, 1, |_, candidate| {
        candidate.bytes.of_bf16.map(|share| number::significant(share, 3))
    }));
    let doc = "Stored bits per weight of the weights that the recipe rounds, scales included.";
    all.push(Column::new(["bits/", "weight"], doc, 9, |index, candidate| {
        Some(number::error(weights(index, candidate.name, &WEIGHT_BITS)?))
    }));
    let doc =
        "All weights of the model in 10⁶ bytes: those that the recipe rounds in their formats, the others in bf16.";
    all.push(Column::new(["weights", "MB"], doc, 7, |index, candidate| {
        Some(number::error(weights(index, candidate.name, &WEIGHT_MEGABYTES)?))
    }));
    let doc = "Cosine between a KV vector and what is read back from the cache, mean over layers: what the format \
               does to the vector itself, before any layer uses it.";
    all.push(Column::new(["stored", "cosine"], doc, 4, |index, candidate| {
        let cosine = |site| index.means(candidate.name, Quantity::new(Local, site, COSINE.name));
        let cosines: Vec<f64> = stored(index).into_iter().flat_map(cosine).collect();
        index::mean(&cosines).map(number::near_one)
    }));
    let doc = "Relative L2 error of a layer's output when the layer is fed the reference's input, ‖got − want‖ / \
               ‖want‖, median over the layers that have an error: the error a layer makes by itself. Layers that a \
               recipe leaves exact are not counted.";
    all.push(Column::new(["local error", "median"], doc, 6, |index, candidate| {
        median_error(index, candidate.name).map(number::error)
    }));
    let doc = "Cosine of the residual streams after the last layer when the candidate runs free.";
    all.push(Column::new(["final", "cosine"], doc, 5, |index, candidate| {
        let cosine = Quantity::new(Cumulative, stream(index), COSINE.name);
        Some(number::near_one(index.last(candidate.name, cosine)?.mean))
    }));
    let doc = "Relative L2 error of the residual streams after the last layer when the candidate runs free: local \
               errors added up, and damped or amplified by the layers behind them. Rows are sorted by it.";
    all.push(Column::new(["final", "error"], doc, 10, |index, candidate| {
        let last = index.last(candidate.name, cumulative_error(index))?;
        Some(number::error(last.mean))
    }));
    let doc = "Kullback–Leibler divergence of the candidate's next-token distribution from the reference's, in nats, \
               mean over positions.";
    all.push(Column::new(["logits", "KL"], doc, 8, |index, candidate| {
        Some(number::error(index.whole(candidate.name, kl(index))?.mean))
    }));
    let doc = "Share of positions where candidate and reference rank the same token first.";
    all.push(Column::new(["top-1", "same"], doc, 3, |index, candidate| {
        let top1 = Quantity::new(Cumulative, output(index), TOP1.name);
        Some(number::share(index.whole(candidate.name, top1)?.mean))
    }));
    let doc = "Change of the loss on the text (positive: worse), with a 95 % bootstrap interval of the mean over \
               windows. An interval that spans 0 means this text cannot tell the two apart.";
    all.push(Column::new(["Δ nats/byte", "± 95 %"], doc, 2, |index, candidate| {
        // If tokens are bytes, only the loss per token was recorded, and it equals the loss per byte.
        let delta = [&DELTA_NATS_PER_BYTE, &DELTA_NATS].map(|metric| loss(index, candidate.name, metric));
        delta.into_iter().flatten().next()
    }));
    let doc = "The same change by tokens of a model that does not read bytes. Models with other tokenizers compare by bytes only.";
    all.push(Column::new(["Δ nats/token", "± 95 %"], doc, 1, |index, candidate| {
        loss(index, candidate.name, &DELTA_NATS_PER_BYTE)?;
        loss(index, candidate.name, &DELTA_NATS)
    }));
    let doc = "Perplexity on the text, e to the power of the loss per token, of all windows together.";
    all.push(Column::new(["", "perplexity"], doc, 0, |index, candidate| {
        let perplexity = Quantity::new(Cumulative, output(index), PERPLEXITY.name);
        Some(number::error(index.whole(candidate.name, perplexity)?.mean))
    }));
    let doc = "Share of the indexer's top-k choices that the candidate makes too: in the worst layer, and the mean \
               over layers.";
    all.push(Column::new(["recall", "min/mean"], doc, 1, |index, candidate| {
        let of = |phase| -> Vec<f64> {
            let values = recall(index, phase).flat_map(|quantity| index.means(candidate.name, quantity));
            values.collect()
        };
        let recalls = [Cumulative, Local].map(of);
        let recalls = recalls.iter().find(|values| !values.is_empty())?;
        let [min, mean] = [index::min(recalls)?, index::mean(recalls)?].map(number::share);
        Some(format!("{min}/{mean}"))
    }));
    let doc = "NaN and infinite elements of the layers' outputs, all layers together. Shown only if there are any.";
    all.push(Column::new(["NaN or", "inf"], doc, 11, |index, candidate| {
        let nonfinite = [Local, Cumulative].map(|phase| Quantity::new(phase, stream(index), NONFINITE.name));
        let counts = nonfinite.iter().flat_map(|q| index.means(candidate.name, *q));
        let counts: f64 = counts.sum();
        (counts != 0.0).then(|| number::tenths(counts))
    }));
    all
}

/// Returns the value of `metric`, e.g. bits per weight, for the weights that a recipe rounds.
pub fn weights(index: &Index, recipe: &str, metric: &Metric) -> Option<f64> {
    let found = [Cumulative, Local].map(|phase| index.whole(recipe, Quantity::new(phase, output(index), metric.name)));
    found.into_iter().flatten().next().map(|summary| summary.mean)
}

/// Formats the change of the loss by a recipe, with its confidence interval.
fn loss(index: &Index, recipe: &str, metric: &Metric) -> Option<String> {
    let delta = index.whole(recipe, Quantity::new(Cumulative, output(index), metric.name))?;
    Some(number::interval(delta.mean, delta.ci_low, delta.ci_high))
}
