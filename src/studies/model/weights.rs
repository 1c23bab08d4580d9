//! Sizes in bytes of the weights that a recipe rounds.

use reference::paths::Config;
use reference::{Numerics, Operations, Site, Tensor};

use crate::backend::rounding::Rounding;
use crate::studies::limits::weights;
use ulplab_core::metrics::{Metric, WEIGHT_BITS, WEIGHT_MEGABYTES};
use ulplab_core::record::Record;

/// Rounds weights while a model is loaded, and adds up their bytes.
pub struct Weighing<'a> {
    rounding: &'a Rounding,
    elements: f64,
    /// Total bytes; `None` if the size is unknown because the rounding of some weight is not a storage format.
    bytes: Option<f64>,
}

impl<'a> Weighing<'a> {
    pub fn new(rounding: &'a Rounding) -> Self {
        Self {
            rounding,
            elements: 0.0,
            bytes: Some(0.0),
        }
    }

    /// Returns records of the bits per weight and of the model's size: `blank` with the measurement filled in. Returns no records
    /// if a weight has no storage format.
    pub fn records(&self, config: &dyn Config, blank: &Record) -> Vec<Record> {
        let Some(bytes) = self.bytes.filter(|_| self.elements > 0.0) else {
            return Vec::new();
        };
        let others = size_of::<u16>() as f64 * (weights(config) - self.elements);
        let sizes = [
            (&WEIGHT_BITS, 8.0 * bytes / self.elements),
            (&WEIGHT_MEGABYTES, (bytes + others) / 1e6),
        ];
        let record = |(metric, value): (&Metric, f64)| Record {
            site: config.path().output().name.into(),
            metric: metric.name.into(),
            value,
            n: self.elements as u64,
            ..blank.clone()
        };
        sizes.map(record).into()
    }
}

impl Numerics<f32> for Weighing<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if self.rounding.touches(site) && !tensor.data.is_empty() {
            let cols = tensor.cols();
            let rows = (tensor.data.len() / cols) as f64;
            let row = self.rounding.bytes_per_row(site, cols, 1);
            self.bytes = self.bytes.zip(row).map(|(sum, row)| sum + row * rows);
            self.elements += tensor.data.len() as f64;
        }
        self.rounding.apply(site, tensor);
    }

    fn splits(&self, site: &Site) -> bool {
        self.rounding.splits(site)
    }

    fn operations(&self) -> &dyn Operations<f32> {
        self.rounding.operations()
    }
}
