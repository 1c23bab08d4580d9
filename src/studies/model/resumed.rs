//! Runs that start at a later layer, because another run computed the same values in all layers before it.

use reference::paths::Path;
use reference::{Site, Tensor};

use super::probe::{Probe, Trace};
use crate::backend::rounding::Rounding;
use crate::studies::study::Text;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::RELATIVE_L2;
use ulplab_core::record::Record;

/// An observer of a run: it reads the tensors at the sites, and does not change the tensors.
pub trait Watch {
    /// Called with a tensor before it is rounded at a site.
    fn before(&mut self, _site: &Site, _tensor: &Tensor<f32>) {}

    /// Called with a tensor after it is rounded at a site.
    fn after(&mut self, _site: &Site, _tensor: &Tensor<f32>) {}
}

/// An observer that ignores all tensors.
impl Watch for () {}

/// The records of a run, and the residual streams after its layers.
pub struct Kept {
    pub records: Vec<Record>,
    pub streams: Streams,
}

/// The residual streams after the layers of a run, beginning with layer 0.
pub struct Streams {
    site: Option<&'static str>,
    left: Vec<Tensor<f32>>,
}

impl Streams {
    /// Returns an empty list that collects the residual streams of a model with the sites of `path`.
    pub fn new(path: &Path) -> Self {
        Self {
            site: path.stream().map(|site| site.name),
            left: Vec::new(),
        }
    }

    /// Returns the residual streams of the reference, from its trace.
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

/// Runs the model with roundings, and compares it with the reference. `start` is an earlier run, and a layer before which both
/// runs compute the same values. If the model can start at this layer, the layers before it are not computed again: their records
/// are copied from the earlier run.
///
/// # Errors
/// Returns an error if the model, or a kernel that replaces one of its operations, fails.
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
            // Copy the records of the earlier layers under the id of this run's cell.
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
