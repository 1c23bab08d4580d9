//! Runs that begin behind layers in which another run did the same.

use reference::paths::Path;
use reference::{Site, Tensor};

use super::probe::{Probe, Trace};
use crate::backend::rounding::Rounding;
use crate::studies::study::Text;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::RELATIVE_L2;
use ulplab_core::record::Record;

/// Looks at what passes at the sites of a run, and changes nothing.
pub trait Watch {
    /// A tensor as it comes to a site.
    fn before(&mut self, _site: &Site, _tensor: &Tensor<f32>) {}

    /// A tensor as it leaves a site.
    fn after(&mut self, _site: &Site, _tensor: &Tensor<f32>) {}
}

/// Looks at nothing.
impl Watch for () {}

/// A run's records, and the streams that left its layers.
pub struct Kept {
    pub records: Vec<Record>,
    pub streams: Streams,
}

/// The streams that left the layers of a run, from the first on.
pub struct Streams {
    site: Option<&'static str>,
    left: Vec<Tensor<f32>>,
}

impl Streams {
    /// Keeps what leaves the layers of a model of that path.
    pub fn new(path: &Path) -> Self {
        Self {
            site: path.stream().map(|site| site.name),
            left: Vec::new(),
        }
    }

    /// The streams of the reference, which were kept to compare with.
    pub fn of_reference(path: &Path, want: &Trace<f32>) -> Self {
        let left = (0..).map_while(|layer| want.stream(layer).cloned());
        Self {
            left: left.collect(),
            ..Self::new(path)
        }
    }
}

impl Watch for Streams {
    fn after(&mut self, site: &Site, tensor: &Tensor<f32>) {
        if Some(site.name) == self.site {
            self.left.push(tensor.clone());
        }
    }
}

/// Runs the model with roundings, and compares it with the reference. `start` is a run that did the same in the layers before
/// one: where the path can begin in the middle, these are not computed again, and their records are those of that run.
///
/// # Errors
/// If the reference fails.
pub fn run_from(
    text: Text<'_>,
    rounding: &Rounding,
    want: &Trace<f32>,
    blank: Record,
    start: Option<(&Kept, usize)>,
    watch: &mut dyn Watch,
) -> Result<Vec<Record>> {
    let before = |layer: usize, record: &Record| record.layer.is_some_and(|own| (own as usize) < layer);
    let stream = start.and_then(|(kept, layer)| Some((kept, layer, kept.streams.left.get(layer.checked_sub(1)?)?)));
    if let Some((kept, layer, stream)) = stream {
        let left = kept.records.iter().find(|record| {
            record.layer == Some(layer as u32 - 1)
                && Some(record.site.as_str()) == kept.streams.site
                && record.metric == RELATIVE_L2.name
        });
        let probe = Probe::new(rounding, want, blank.clone()).behind(left.map(|record| record.value));
        let mut probe = probe.watched(watch);
        if let Some(logits) = text.model.resume(layer, stream.clone(), text.ids, &mut probe) {
            let logits = logits.map_err(Error::Reference)?;
            let earlier = kept.records.iter().filter(|record| before(layer, record));
            // A record names the cell that it is used in.
            let mut records: Vec<Record> = earlier
                .map(|record| Record {
                    cell: blank.cell.clone(),
                    ..record.clone()
                })
                .collect();
            records.extend(probe.finish(&logits, text.ids));
            return Ok(records);
        }
    }
    Probe::new(rounding, want, blank).watched(watch).run(text)
}
