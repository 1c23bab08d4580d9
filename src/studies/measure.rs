//! From evidence to records.

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
            None => {
                let mut mean = at(record, None, record.site.clone());
                (mean.worst, mean.failure) = (None, None);
                means.push((mean, 1.0));
            }
        }
    }
    records.extend(means.into_iter().map(|(mean, layers)| Record {
        value: mean.value / layers,
        ..mean
    }));
    records
}
