//! Measurement of a format on samples of numbers.

use super::RoundTripStudy;
use super::draw::draw;
use super::theory;
use crate::experiment::Source;
use crate::studies::measure::{records, with_means};
use crate::studies::model::Sample;
use ulplab_core::formats::Codec;
use ulplab_core::metrics::{NSR, Pair, RoundTrip};
use ulplab_core::random::stream;
use ulplab_core::record::Record;

/// The draws of the sources in a window.
pub fn drawn(study: &RoundTripStudy, seed: u64, window: &str) -> Vec<Sample> {
    let sample = |source: &Source<_>| {
        let mut rng = stream(seed, &format!("{}/{window}", source.name));
        Some(Sample {
            source: source.name.clone(),
            layer: None,
            cols: study.shape[1],
            values: draw(&source.from, study.shape, &mut rng)?,
        })
    };
    study.sources.iter().filter_map(sample).collect()
}

/// Measures one format on the samples of a window; `rival` is the one it is set against.
pub fn measure(blank: &Record, samples: &[Sample], codec: &dyn Codec, rival: Option<&dyn Codec>) -> Vec<Record> {
    let one = |sample: &Sample| {
        let blank = Record {
            layer: sample.layer,
            site: sample.source.clone(),
            ..blank.clone()
        };
        let round = |codec: &dyn Codec| {
            let mut values = sample.values.clone();
            codec.round(&mut values, sample.cols);
            (Pair::new(&sample.values, &values), values)
        };
        let (pair, values) = round(codec);
        let bits = 8.0 * codec.bytes_per_row(sample.cols) / sample.cols as f64;
        let mut trip = RoundTrip::new(&pair, &sample.values, &values, sample.cols, bits);
        let theory = |format| theory::nsr(format, &sample.values, sample.cols);
        trip.theory_nsr = codec.format().and_then(theory);
        trip.rival_nsr = rival.and_then(|rival| NSR.measure(&round(rival).0));
        let shape = [sample.values.len() / sample.cols, sample.cols];
        records(&blank, &pair, &shape)
            .chain(records(&blank, &trip, &shape))
            .collect::<Vec<_>>()
    };
    with_means(samples.iter().flat_map(one).collect())
}
