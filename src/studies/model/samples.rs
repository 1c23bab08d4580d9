//! Tensors recorded at sites of a model.

use reference::{Numerics, Site, Tensor};

use super::run::from_start;
use crate::studies::study::Text;
use ulplab_core::error::Result;
use ulplab_core::pattern::matches;

/// A tensor recorded at one site of one layer, under the name `source` that the experiment gives to the pattern of the site.
pub struct Sample {
    pub source: String,
    pub layer: Option<u32>,
    /// Number of channels of a row. All numbers of a token at the site form one row.
    pub cols: usize,
    pub values: Vec<f32>,
}

/// Records tensors while the reference reads a text. Each entry of `sites` is a source's name, and a pattern of the sites to
/// record under this name.
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
