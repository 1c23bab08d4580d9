//! Columns of the overview of models, and what its rows are sorted by.

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

/// The stream that leaves a layer. A site that the path has not, here and in the next, has no name, and nothing was measured
/// there.
fn stream(index: &Index) -> &'static str {
    let stream = index.path.and_then(Path::stream);
    stream.map_or("", |site| site.name)
}

fn output(index: &Index) -> &'static str {
    index.path.map_or("", |path| path.output().name)
}

/// Error of the residual streams where each layer is fed the reference's input.
pub fn local_error(index: &Index) -> Quantity<'static> {
    Quantity::new(Local, stream(index), RELATIVE_L2.name)
}

/// Error of the residual streams where the candidate runs free.
pub fn cumulative_error(index: &Index) -> Quantity<'static> {
    Quantity::new(Cumulative, stream(index), RELATIVE_L2.name)
}

/// Error over that of the layer before.
pub fn gain(index: &Index, phase: Phase) -> Quantity<'static> {
    Quantity::new(phase, stream(index), GAIN.name)
}

fn kl(index: &Index) -> Quantity<'static> {
    Quantity::new(Cumulative, output(index), KL.name)
}

/// Both final errors, with their titles.
pub fn finals(index: &Index) -> [(&'static str, Quantity<'static>); 2] {
    let streams = "Residual streams after the last layer";
    [(streams, cumulative_error(index)), ("Logits", kl(index))]
}

/// The sites whose tensors are cached and compared.
pub fn stored(index: &Index) -> Vec<&'static str> {
    let sites = index.path.map_or(&[][..], |path| path.sites).iter();
    let stored = sites.filter(|site| site.cache.is_some() && site.compared);
    stored.map(|site| site.name).collect()
}

/// Selections from caches in one phase.
fn recall(index: &Index, phase: Phase) -> impl Iterator<Item = Quantity<'static>> {
    let sites = index.path.map_or(&[][..], |path| path.sites).iter();
    let selects = |site: &&SiteInfo| matches!(site.decision(), Some(Decision::TopK { .. }));
    let names = sites.filter(selects).map(|site| site.name);
    names.map(move |site| Quantity::new(phase, site, RECALL.name))
}

/// Selections from caches, first where they matter, else where they were measured.
pub fn measured_recall(index: &Index) -> Vec<Quantity<'static>> {
    let of = |phase| recall(index, phase).filter(|quantity| index.has(*quantity)).collect();
    let phases: [Vec<_>; 2] = [Cumulative, Local].map(of);
    phases.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// The order of rows, in words, and the number of a recipe that it speaks of: by the first of these quantities that the run has.
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

/// The median over the layers that a recipe changes: one that rounds a layer of many would else read 0. NaN counts.
fn median_error(index: &Index, recipe: &str) -> Option<f64> {
    let all = index.means(recipe, local_error(index));
    let changed: Vec<f64> = all.iter().copied().filter(|error| *error != 0.0).collect();
    index::median(if changed.is_empty() { &all } else { &changed })
}

/// All columns.
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
        // The two are the same if tokens are bytes.
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

/// A size of the weights that a recipe rounds.
pub fn weights(index: &Index, recipe: &str, metric: &Metric) -> Option<f64> {
    let found = [Cumulative, Local].map(|phase| index.whole(recipe, Quantity::new(phase, output(index), metric.name)));
    found.into_iter().flatten().next().map(|summary| summary.mean)
}

/// A change of the loss with its interval.
fn loss(index: &Index, recipe: &str, metric: &Metric) -> Option<String> {
    let delta = index.whole(recipe, Quantity::new(Cumulative, output(index), metric.name))?;
    Some(number::interval(delta.mean, delta.ci_low, delta.ci_high))
}
