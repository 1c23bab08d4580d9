//! Records the tensors at sites (named tensors) of a model while the model reads a text. The studies of formats and of kernels
//! use them as inputs.

use reference::{Numerics, Site, Tensor};

use super::run::from_start;
use crate::studies::study::Text;
use ulplab_core::error::Result;
use ulplab_core::pattern::matches;
use ulplab_operations::ops::Rows;

/// A tensor recorded at one site of one layer. `source` is the caller's name for the pattern that the site matches.
pub struct Sample {
    pub source: String,
    /// The tensor as a matrix: a row has all numbers of one token, e.g. of all heads.
    pub rows: Rows,
}

/// Records tensors while the reference reads a text. Each entry of `sites` is the name for the recorded tensors, and a pattern of
/// the sites to record under this name.
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
                let rows = Rows {
                    layer: site.layer.map(|layer| layer as u32),
                    cols: tensor.shape[1..].iter().product(),
                    values: tensor.data.clone(),
                };
                let source = source.to_string();
                self.samples.push(Sample { source, rows });
            }
        }
    }

    fn wants(&self, site: &Site) -> bool {
        let named = |(_, at): &(&str, &str)| at.ends_with(site.name) && matches(at, &site.to_string());
        self.sites.iter().any(named)
    }
}
