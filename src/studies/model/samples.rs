//! Tensors at sites of a model.

use reference::{Numerics, Site, Tensor};

use super::run::from_start;
use crate::studies::study::Text;
use ulplab_core::error::Result;
use ulplab_core::pattern::matches;

/// Numbers of one source.
pub struct Sample {
    pub source: String,
    pub layer: Option<u32>,
    /// Channels of a row; all that belongs to one token is one row.
    pub cols: usize,
    pub values: Vec<f32>,
}

/// Tensors at sites when the reference reads a text: each site's name as a source, and the pattern of its places.
pub fn recorded(sites: &[(&str, &str)], text: Text<'_>) -> Result<Vec<Sample>> {
    let mut collector = Collector {
        sites,
        samples: Vec::new(),
    };
    from_start(text.model, text.ids, &mut collector)?;
    Ok(collector.samples)
}

struct Collector<'a> {
    sites: &'a [(&'a str, &'a str)],
    samples: Vec<Sample>,
}

impl Numerics<f32> for Collector<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        for (source, at) in self.sites {
            if matches(at, &site.to_string()) && !tensor.data.is_empty() {
                self.samples.push(Sample {
                    source: source.to_string(),
                    layer: site.layer.map(|layer| layer as u32),
                    cols: tensor.shape[1..].iter().product(),
                    values: tensor.data.clone(),
                });
            }
        }
    }

    fn wants(&self, site: &Site) -> bool {
        let named = |(_, at): &(&str, &str)| at.ends_with(site.name) && matches(at, &site.to_string());
        self.sites.iter().any(named)
    }
}
