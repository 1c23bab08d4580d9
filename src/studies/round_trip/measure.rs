//! Measurement of a format on samples of numbers.

use super::RoundTripStudy;
use super::draw::draw;
use super::theory;
use std::sync::Arc;

use crate::backend::rounding::Noise;
use crate::backend::rounding::noise::rounded_or_noise;
use crate::experiment::Source;
use crate::studies::measure::{at, records, with_means};
use crate::studies::model::Sample;
use ulplab_core::formats::Codec;
use ulplab_core::metrics::{NSR, Pair, RoundTrip};
use ulplab_core::random::stream;
use ulplab_core::record::Record;
use ulplab_operations::ops::Rows;

/// The format in which a recipe stores numbers, and the noise in place of its rounding errors.
pub struct Stored {
    pub codec: Arc<dyn Codec>,
    /// Noise that replaces the format's rounding errors, if any.
    pub noise: Option<Noise>,
}

/// Makes the random numbers of a window (one random sample), for each source of the experiment that is a distribution.
pub fn drawn(study: &RoundTripStudy, seed: u64, window: &str) -> Vec<Sample> {
    let sample = |source: &Source<_>| {
        let mut rng = stream(seed, &format!("{}/{window}", source.name));
        let rows = Rows {
            layer: None,
            cols: study.shape[1],
            values: draw(&source.from, study.shape, &mut rng)?,
        };
        let source = source.name.clone();
        Some(Sample { source, rows })
    };
    study.sources.iter().filter_map(sample).collect()
}

/// Measures one recipe on the samples of a window. `rival` is the recipe that this recipe is compared with, if any.
pub fn measure(blank: &Record, samples: &[Sample], stored: &Stored, rival: Option<&Stored>) -> Vec<Record> {
    let one = |Sample { source, rows }: &Sample| {
        let (want, cols) = (&rows.values, rows.cols);
        let blank = at(blank, rows.layer, source);
        let read_back = |stored: &Stored| {
            let mut values = want.clone();
            let round = |values: &mut [f32]| stored.codec.round(values, cols);
            rounded_or_noise(stored.noise, source, &mut values, cols, round);
            (Pair::new(want, &values), values)
        };
        let (pair, values) = read_back(stored);
        let codec = &stored.codec;
        let bits = 8.0 * codec.bytes_per_row(cols) / cols as f64;
        let mut trip = RoundTrip::new(&pair, want, &values, cols, bits);
        let theory = |format| theory::nsr(format, want, cols);
        trip.theory_nsr = codec.format().and_then(theory);
        trip.rival_nsr = rival.and_then(|rival| NSR.measure(&read_back(rival).0));
        let shape = [want.len() / cols, cols];
        let of_pair = records(&blank, &pair, &shape);
        of_pair.chain(records(&blank, &trip, &shape)).collect::<Vec<_>>()
    };
    with_means(samples.iter().flat_map(one).collect())
}
