//! Numbers stored in a format and read back, from distributions and from a model.

pub mod theory;

use reference::{Numerics, Site, Tensor};

use super::execute::Text;
use super::model::probe::records;
use crate::experiment::Experiment;
use crate::experiment::source::{Origin, Source, draw};
use ulplab_core::random::stream;

use ulplab_core::error::{Error, Result};
use ulplab_core::formats::Codec;
use ulplab_core::metrics::{NSR, Pair, RoundTrip};
use ulplab_core::pattern::matches;
use ulplab_core::record::Record;

/// Numbers of one source.
pub struct Sample {
    pub source: String,
    pub layer: Option<u32>,
    /// Channels of a row; all that belongs to one token is one row.
    pub cols: usize,
    pub values: Vec<f32>,
}

/// What the drawn sources give in a window.
pub fn drawn(experiment: &Experiment, window: &str) -> Vec<Sample> {
    let drawn = experiment
        .sources
        .iter()
        .filter(|source| !matches!(source.from, Origin::Site(_)));
    let sample = |source: &Source| Sample {
        source: source.name.clone(),
        layer: None,
        cols: experiment.shape[1],
        values: draw(
            &source.from,
            experiment.shape,
            &mut stream(experiment.seed, &format!("{}/{window}", source.name)),
        ),
    };
    drawn.map(sample).collect()
}

/// What passes at the sites of the sources when the reference reads a text.
pub fn recorded(sources: &[Source], text: Text<'_>) -> Result<Vec<Sample>> {
    let mut collector = Collector {
        sources,
        samples: Vec::new(),
    };
    text.model
        .run(&mut text.model.state(), text.ids, &mut collector)
        .map_err(Error::Reference)?;
    Ok(collector.samples)
}

struct Collector<'a> {
    sources: &'a [Source],
    samples: Vec<Sample>,
}

impl Numerics<f32> for Collector<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        for source in self.sources {
            let here = matches!(&source.from, Origin::Site(at) if matches(at, &site.to_string()));
            if here && !tensor.data.is_empty() {
                self.samples.push(Sample {
                    source: source.name.clone(),
                    layer: site.layer.map(|layer| layer as u32),
                    cols: tensor.shape[1..].iter().product(),
                    values: tensor.data.clone(),
                });
            }
        }
    }

    fn wants(&self, site: &Site) -> bool {
        let named = |source: &Source| matches!(&source.from, Origin::Site(at) if at.ends_with(site.name) && matches(at, &site.to_string()));
        self.sources.iter().any(named)
    }
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

/// The records, and for every site measured by layer the mean over its layers, as a record without a layer.
pub fn with_means(mut records: Vec<Record>) -> Vec<Record> {
    let mut means: Vec<(Record, f64)> = Vec::new();
    for record in records.iter().filter(|record| record.layer.is_some()) {
        let same = |(mean, _): &&mut (Record, f64)| mean.site == record.site && mean.metric == record.metric;
        match means.iter_mut().find(same) {
            Some((mean, layers)) => {
                mean.value += record.value;
                mean.n += record.n;
                mean.nonfinite_want += record.nonfinite_want;
                mean.nonfinite_got += record.nonfinite_got;
                *layers += 1.0;
            }
            None => means.push((
                Record {
                    layer: None,
                    worst: None,
                    failure: None,
                    ..record.clone()
                },
                1.0,
            )),
        }
    }
    records.extend(means.into_iter().map(|(mean, layers)| Record {
        value: mean.value / layers,
        ..mean
    }));
    records
}
