//! Conversion of evidence (measurements from which metrics are computed) to one record per metric.

use ulplab_core::list::grouped;
use ulplab_core::metrics::{self, Evidence};
use ulplab_core::record::Record;

/// Returns a copy of `blank`, a record without a measurement, for this layer and site.
pub fn at(blank: &Record, layer: Option<u32>, site: impl Into<String>) -> Record {
    Record {
        layer,
        site: site.into(),
        ..blank.clone()
    }
}

/// Returns one record for each metric that can be computed from `evidence`: `blank` with the metric's value filled in. `shape` is
/// the shape of the tensor that contains the worst element. That element is stored in the record of the maximum absolute error.
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

/// Returns the records and, for every site that is measured layer by layer, one more record without a layer: the mean over the
/// layers.
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
