//! Measures how top-k selections change if the scores have an error: on random vectors, and on a model's indexer (which selects
//! positions for sparse attention).

use reference::ops::linear::multiply;
use reference::ops::top_k::top_k;
use reference::{Choice, Site, Tensor};

use super::{RecallStudy, Recipe, Scores};
use crate::backend::rounding::Rounding;
use crate::experiment::Source;
use crate::studies::measure::{at, with_means};
use crate::studies::model::probe::{Trace, decision};
use ulplab_core::pattern::matches;
use ulplab_core::random::{gaussian, stream};
use ulplab_core::record::{Record, place};

/// Random query and entry vectors, whose dot products are scores.
pub struct Vectors {
    source: String,
    /// Shapes: `query` is `[queries, channels]`, `key` is `[entries, channels]`.
    query: Tensor<f32>,
    key: Tensor<f32>,
    /// The reference selection, by exact scores.
    want: Choice<f32>,
}

/// Makes the random vectors of a window (one random sample) for each random source of the experiment.
pub fn drawn(study: &RecallStudy, seed: u64, window: &str) -> Vec<Vectors> {
    let [queries, entries] = study.shape;
    let sources = study.sources.iter().filter_map(|source| match source.from {
        Scores::Vectors { channels, top } => Some((&source.name, channels, top)),
        Scores::Site(_) => None,
    });
    let vectors = |(name, channels, top): (&String, usize, usize)| {
        let matrix = |rows: usize, what: &str| {
            let mut rng = stream(seed, &format!("{name}/{window}/{what}"));
            Tensor::new([rows, channels], gaussian(&mut rng, rows * channels))
        };
        let (query, key) = (matrix(queries, "query"), matrix(entries, "key"));
        Vectors {
            want: select(scores(&query, &key), top),
            source: name.clone(),
            query,
            key,
        }
    };
    sources.map(vectors).collect()
}

/// Measures one recipe on the random vectors of a window. The recipe either adds noise to the scores, or rounds queries and keys
/// as it would at `sites`, the model's sites of queries and keys.
pub fn of_vectors(
    blank: &Record,
    seed: u64,
    recipe: &Recipe,
    rounding: &Rounding,
    sites: [&'static str; 2],
    drawn: &[Vectors],
) -> Vec<Record> {
    let one = |vectors: &Vectors| {
        let want = &vectors.want;
        let got = match recipe.score_noise {
            Some(size) => noisy(want, size, seed, &format!("{}/{}", vectors.source, blank.window)),
            None => {
                let (mut query, mut key) = (vectors.query.clone(), vectors.key.clone());
                // Random vectors have no layer: apply the roundings of layer 0.
                let [of_query, of_key] = sites.map(|site| Site::new(Some(0), site));
                rounding.apply(&of_query, &mut query);
                rounding.apply(&of_key, &mut key);
                select(scores(&query, &key), want.k)
            }
        };
        decision(&at(blank, None, &vectors.source), true, want, &got, None)
    };
    drawn.iter().flat_map(one).collect()
}

/// Measures the selections of a model after noise is added to the reference's scores.
pub fn of_noise(blank: &Record, seed: u64, size: f64, want: &Trace<f32>) -> Vec<Record> {
    let layers = want.selected().into_iter().flat_map(|selected| {
        let blank = at(blank, selected.layer.map(|layer| layer as u32), selected.site);
        let layer = selected.layer.map_or(String::new(), |layer| layer.to_string());
        let got = noisy(selected.choice, size, seed, &format!("{layer}/{}", blank.window));
        decision(&blank, true, selected.choice, &got, selected.mass.as_deref())
    });
    layers.collect()
}

/// Returns the records of each source that selects sites of the model: copies of the matching records in `measured`, with the
/// source's name as site, and the means of these copies over layers.
pub fn by_source(sources: &[Source<Scores>], measured: &[Record]) -> Vec<Record> {
    let under = |source: &Source<Scores>, record: &Record| match &source.from {
        Scores::Site(sites) if matches(sites, &place(record.layer, &record.site)) => Some(Record {
            site: source.name.clone(),
            ..record.clone()
        }),
        _ => None,
    };
    let of = |source| measured.iter().filter_map(move |record| under(source, record));
    with_means(sources.iter().flat_map(of).collect())
}

/// Returns the scores, `[queries, entries]`: the dot product of each query with each key.
fn scores(query: &Tensor<f32>, key: &Tensor<f32>) -> Tensor<f32> {
    let mut scores = Tensor::full([query.rows(), key.rows()], 0.0);
    multiply(&query.data, &key.data, key.cols(), &mut scores.data);
    scores
}

fn select(scores: Tensor<f32>, k: usize) -> Choice<f32> {
    let mut indices = vec![-1; scores.rows() * k];
    for (row, best) in scores.data.chunks_exact(scores.cols()).zip(indices.chunks_exact_mut(k)) {
        let visible = row.iter().take_while(|score| **score > f32::NEG_INFINITY).count();
        top_k(row, visible, k, best);
    }
    Choice { indices, k, scores }
}

/// Returns the selection after Gaussian noise is added to the scores. The noise has `size` times the standard deviation of the
/// row's scores. Noise of every size is a multiple of the same random numbers.
fn noisy(exact: &Choice<f32>, size: f64, seed: u64, purpose: &str) -> Choice<f32> {
    let mut rng = stream(seed, &format!("{purpose}/noise"));
    let mut scores = exact.scores.clone();
    let cols = scores.cols();
    for row in scores.data.chunks_exact_mut(cols) {
        let noise = gaussian(&mut rng, cols);
        let visible: Vec<f64> = row.iter().filter(|x| x.is_finite()).map(|&x| x.into()).collect();
        let mean = visible.iter().sum::<f64>() / visible.len().max(1) as f64;
        let variance = visible.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / visible.len().max(1) as f64;
        let scale = size * variance.sqrt();
        for (score, noise) in row.iter_mut().zip(noise) {
            *score = (f64::from(*score) + scale * f64::from(noise)) as f32;
        }
    }
    select(scores, exact.k)
}
