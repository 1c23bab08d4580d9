//! The groups of sites (named tensors) to which a search assigns formats, and their size in bytes.

use std::collections::BTreeMap;

use reference::paths::Config;
use reference::{Numerics, Site, Tensor};

use super::search::Assignment;
use crate::backend::recipe::{Ranges, Round};
use crate::backend::rounding::Rounding;
use crate::studies::model::Recipe;
use ulplab_core::error::{Error, Result};
use ulplab_core::pattern::{matches, matches_nothing};

/// Records the size of every tensor that a model passes to its [`Numerics`]: site, number of rows and number of columns.
#[derive(Default)]
pub struct Sizes(Vec<(Site, usize, usize)>);

impl Numerics<f32> for &mut Sizes {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        let cols = tensor.cols();
        self.0.push((*site, tensor.data.len() / cols.max(1), cols));
    }
}

/// The tensors that one pattern matches in one layer.
pub struct Group {
    /// Index of the pattern.
    pattern: usize,
    layer: Option<usize>,
    /// Name: the pattern with the number of the layer in it.
    pub name: String,
    /// Number of elements; for tensors that are not weights, per token.
    pub elements: usize,
    /// Size in bytes in each format; for tensors that are not weights, per token.
    pub bytes: Vec<f64>,
}

/// All groups of tensors, and the formats that a search may assign to them.
pub struct Groups {
    patterns: Vec<String>,
    /// Formats, the cheapest first.
    pub formats: Vec<String>,
    pub all: Vec<Group>,
    /// True if the rounded tensors are weights.
    pub weights: bool,
}

impl Groups {
    /// Groups the sites by pattern and layer. `loaded` has the tensors that [`Sizes`] recorded while the model was loaded, and
    /// `run` the tensors that it recorded while the model read `tokens` tokens.
    ///
    /// # Errors
    /// Returns an error if a pattern matches nothing, matches both weights and other tensors, or overlaps another pattern; or if
    /// a format does not fit a tensor.
    pub fn new(
        patterns: &[String],
        formats: &[String],
        (loaded, run): (&Sizes, &Sizes),
        tokens: usize,
        config: &dyn Config,
    ) -> Result<Self> {
        let sites = loaded.0.iter().chain(&run.0);
        let names: Vec<String> = sites.map(|(site, ..)| site.to_string()).collect();
        let mut groups: BTreeMap<(usize, Option<usize>), Vec<(&Site, usize, usize)>> = BTreeMap::new();
        let mut kinds = Vec::new();
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for (at, pattern) in patterns.iter().enumerate() {
            if !names.iter().any(|name| matches(pattern, name)) {
                let why = matches_nothing("site", pattern, names.iter().map(String::as_str));
                return Err(Error::Usage(format!("--at: {why}")));
            }
            for (sizes, is_weight) in [(loaded, true), (run, false)] {
                for (site, rows, cols) in sizes.0.iter().filter(|(site, ..)| matches(pattern, &site.to_string())) {
                    if let Some(other) = taken.insert(site.to_string(), at).filter(|other| *other != at) {
                        let message = format!("--at: '{site}' is matched by '{}' and by '{pattern}'", patterns[other]);
                        return Err(Error::Usage(message));
                    }
                    kinds.push((is_weight, site.to_string()));
                    groups.entry((at, site.layer)).or_default().push((site, *rows, *cols));
                }
            }
        }
        let weights = kinds.iter().any(|(is_weight, _)| *is_weight);
        if let Some((_, other)) = kinds.iter().find(|(is_weight, _)| *is_weight != weights) {
            let why = "others are: bytes of weights and bytes by token do not add up";
            return Err(Error::Usage(format!("--at: '{other}' is not a weight, and {why}")));
        }
        // Weights count with their whole size. Activations and cache entries grow with the number of tokens, so they count per
        // token.
        let share = if weights { 1.0 } else { 1.0 / tokens as f64 };
        let mut all: Vec<Group> = Vec::new();
        for ((at, layer), sites) in groups {
            let mut bytes = Vec::new();
            for format in formats {
                let round = Round {
                    at: patterns[at].clone(),
                    format: format.clone(),
                    ..Round::default()
                };
                let wrong = |why: String| Error::Usage(format!("--formats: {why}"));
                let rounding = Rounding::resolve(&[round], None, None, config);
                let rounding = rounding.map_err(|mistake| wrong(mistake.message))?;
                let of = |(site, rows, cols): &(&Site, usize, usize)| {
                    Some(rounding.bytes_per_row(site, *cols, 1)? * *rows as f64)
                };
                let sum: Option<f64> = sites.iter().map(of).sum();
                let sum = sum.ok_or_else(|| wrong(format!("{format} does not store '{}'", patterns[at])))?;
                bytes.push(sum * share);
            }
            let elements: usize = sites.iter().map(|(_, rows, cols)| rows * cols).sum();
            all.push(Group {
                pattern: at,
                layer,
                name: match layer {
                    Some(layer) => patterns[at].replacen("layers.*", &format!("layers.{layer}"), 1),
                    None => patterns[at].clone(),
                },
                elements: (elements as f64 * share).round() as usize,
                bytes,
            });
        }
        let mut groups = Self {
            patterns: patterns.to_vec(),
            formats: formats.to_vec(),
            all,
            weights,
        };
        groups.order()?;
        Ok(groups)
    }

    /// Sorts the formats by their size in bytes. Returns an error if the order is not the same in all groups.
    fn order(&mut self) -> Result<()> {
        let total = |format: usize| -> f64 { self.all.iter().map(|group| group.bytes[format]).sum() };
        let mut order: Vec<usize> = (0..self.formats.len()).collect();
        order.sort_by(|a, b| total(*a).total_cmp(&total(*b)));
        self.formats = order.iter().map(|at| self.formats[*at].clone()).collect();
        for group in &mut self.all {
            group.bytes = order.iter().map(|at| group.bytes[*at]).collect();
            if let Some(at) = group.bytes.windows(2).position(|pair| pair[0] >= pair[1]) {
                let [a, b] = [at, at + 1].map(|at| format!("{} takes {} bytes", self.formats[at], group.bytes[at]));
                let (name, expected) = (
                    &group.name,
                    "expected formats of which each takes more than the one before",
                );
                return Err(Error::Usage(format!("--formats: in '{name}' {a} and {b}; {expected}")));
            }
        }
        Ok(())
    }

    /// Returns the number of elements of all groups.
    pub fn elements(&self) -> usize {
        self.all.iter().map(|group| group.elements).sum()
    }

    /// Returns the recipe of an assignment (a format for each group), with one rounding step (`round`) for each pattern and
    /// format.
    pub fn recipe(&self, name: &str, doc: &str, assignment: &Assignment) -> Recipe {
        let mut layers: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (group, format) in self.all.iter().zip(assignment) {
            layers.entry((group.pattern, *format)).or_default().extend(group.layer);
        }
        let rounds = layers.into_iter().map(|((pattern, format), layers)| Round {
            at: self.patterns[pattern].clone(),
            format: self.formats[format].clone(),
            layers: (!layers.is_empty()).then(|| Ranges::of(layers).to_string()),
            ..Round::default()
        });
        Recipe {
            name: name.into(),
            doc: doc.into(),
            rounds: rounds.collect(),
            ..Recipe::default()
        }
    }
}
