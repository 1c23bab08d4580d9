//! From evidence to records.

use ulplab_core::list::grouped;
use ulplab_core::metrics::{self, Evidence};
use ulplab_core::record::Record;

/// A blank record of the same cell at a site.
pub fn at(blank: &Record, layer: Option<u32>, site: impl Into<String>) -> Record {
    Record {
        layer,
        site: site.into(),
        ..blank.clone()
    }
}

/// A record of every metric that is defined on the evidence, each `blank` except for the measurement; `shape` is that of the
/// tensor with the worst element, which is stored with the metric of its error.
pub fn records<E: Evidence>(blank: &Record, evidence: &E, shape: &[usize]) -> impl Iterator<Item = Record> {
    let (nonfinite_want, nonfinite_got) = evidence.nonfinite();
    metrics::measure_all(evidence).map(move |(metric, value)| {
        let worst = evidence.worst().filter(|_| metric == &metrics::MAX_ABS);
        Record {
            metric: metric.name.to_string(),
            value,
            n: evidence.n(),
            nonfinite_want,
            nonfinite_got,
            worst: worst.map(|worst| worst.in_shape(shape)),
            failure: None,
            ..blank.clone()
        }
    })
}

/// The records, and for every site measured by layer the mean over its layers, as a record without a layer.
pub fn with_means(mut records: Vec<Record>) -> Vec<Record> {
    let layered = records.iter().filter(|record| record.layer.is_some());
    let groups = grouped(layered.map(|record| ((&record.site, &record.metric), record)));
    let mean = |((site, _), layers): ((&String, _), Vec<&Record>)| {
        let mut mean = at(layers[0], None, site);
        (mean.worst, mean.failure) = (None, None);
        for record in &layers[1..] {
            mean.value += record.value;
            mean.n += record.n;
            mean.nonfinite_want += record.nonfinite_want;
            mean.nonfinite_got += record.nonfinite_got;
        }
        mean.value /= layers.len() as f64;
        mean
    };
    let means: Vec<Record> = groups.into_iter().map(mean).collect();
    records.extend(means);
    records
}
