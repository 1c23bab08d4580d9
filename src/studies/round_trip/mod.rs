//! Study of the error of numbers that are stored in a format and read back. The numbers are random, or come from a model.

mod draw;
mod measure;
mod show;
pub mod theory;

use std::collections::HashMap;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::{Parts, site_cols};
use super::model::{passes_tensor, recorded, sites_at};
use super::null::{self, Candidate, Null, Wanted};
use super::sources::{check_recipes, check_sources_and_windows, draw_names, site_names};
use super::study::{ReadyRecipes, Study, by_window, check_among};
use crate::backend::rounding::Noise;
use crate::experiment::{Mistake, Source, Window, written_out};
use crate::report::Show;
use crate::run::plan::Plan;
use ulplab_core::error::did_you_mean;
use ulplab_core::formats::{Codec, codec};
use ulplab_core::record::Phase;

pub use draw::{Numbers, draw};
pub use measure::{Stored, measure};

/// Experiment with number formats: numbers from each source are stored in a format and read back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RoundTripStudy {
    /// The model that sources with `site` read: a name in `datasets/manifest.toml`, or the path of a folder.
    pub model: Option<String>,
    /// Number of tokens in each window of text.
    pub tokens: usize,
    /// Number of independent random samples of each random source. Each sample is measured by itself, like a window of text.
    pub draws: usize,
    /// Numbers of rows and of columns in a random sample.
    pub shape: [usize; 2],
    #[serde(rename = "window", deserialize_with = "written_out")]
    pub windows: Vec<Window>,
    #[serde(rename = "source")]
    pub sources: Vec<Source<Numbers>>,
    #[serde(rename = "recipe")]
    pub recipes: Vec<Recipe>,
}

/// A format to try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Description of the recipe, in one line.
    pub doc: String,
    /// The format that stores numbers: a named format (`nvfp4`), a format string (`e2m1/b16:e4m3/t:f32`) or a KV record.
    pub format: String,
    /// Replace each rounding error by Gaussian noise of the same energy. The noise has the error's size, but not its structure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noise: bool,
    /// The size of the noise, in multiples of the rounding error.
    pub gain: Option<f64>,
    /// Name of the recipe that this recipe is compared with on the same numbers, by the metric `sqnr_gain`.
    pub against: Option<String>,
}

impl Candidate for Recipe {
    fn name(&self) -> &str {
        &self.name
    }

    fn with_noise(&self, name: String, gain: f64) -> Self {
        let mut noisy = self.clone();
        (noisy.name, noisy.noise, noisy.gain) = (name, true, Some(gain));
        noisy
    }

    fn against(&self) -> Option<&str> {
        self.against.as_deref()
    }
}

impl RoundTripStudy {
    /// Checks that all sources can be stored in the format of a recipe.
    fn check_fit(&self, recipe: &Recipe, codec: &dyn Codec, config: Option<&dyn Config>) -> Result<(), Mistake> {
        for (at, source) in self.sources.iter().enumerate() {
            let name = &source.name;
            let wrong = |key: &str, message: String| Mistake::at(key, message).within("source", at);
            let rows = match (&source.from, config) {
                (Numbers::Site(site), Some(config)) => sites_at(site, passes_tensor, config)
                    .map_err(|message| wrong("from", format!("source '{name}': {message}")))?,
                _ => vec![("a row", self.shape[1])],
            };
            for (site, cols) in rows {
                codec.check(cols).map_err(|message| {
                    let message = format!("{message} ({site} has {cols} channels)");
                    wrong("name", format!("source '{name}', recipe '{}': {message}", recipe.name))
                })?;
            }
        }
        Ok(())
    }

    fn check_against(&self, recipe: &Recipe) -> Result<(), Mistake> {
        let Some(against) = &recipe.against else {
            return Ok(());
        };
        let names = self.recipes.iter().map(|other| other.name.as_str());
        let others: Vec<&str> = names.filter(|other| *other != recipe.name).collect();
        let hint = did_you_mean(against, others.iter().copied());
        let message = format_args!("'{against}' is no other recipe with a format{hint}");
        Mistake::refuse(!others.contains(&against.as_str()), "against", message)
    }
}

impl Study for RoundTripStudy {
    fn check(&self) -> Result<(), Mistake> {
        check_recipes(&self.recipes)?;
        let draws = (self.draws, self.shape);
        let sites = check_sources_and_windows(&self.sources, Numbers::check, Numbers::is_site, draws, self.reading())?;
        let message = "a model is run for sources at its sites, and there is none";
        Mistake::refuse(self.model.is_some() && !sites, "model", message)?;
        let check = |recipe: &Recipe| {
            self.check_against(recipe)?;
            Noise::asked(recipe.noise, recipe.gain, 0)
        };
        null::each(&self.recipes, check).map(drop)
    }

    fn plan(&self) -> Plan {
        let windows = draw_names(self.draws).chain(self.windows.iter().map(Window::name));
        null::plan(&[Phase::Local], windows, &self.recipes)
    }

    fn check_site(&self, at: &str) -> Result<(), String> {
        check_among(at, site_names(&self.sources, Numbers::is_site))
    }

    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, at_once: f64) {
        let texts = config.filter(|_| !self.windows.is_empty());
        if let Some(config) = texts {
            parts.weights(config);
        }
        let [rows, cols] = self.shape.map(|size| size as f64);
        for source in &self.sources {
            let mut add = |what, bytes| parts.of_source(&source.name, what, bytes);
            if let Numbers::Site(at) = &source.from {
                let values = texts.map_or(0.0, |config| self.tokens as f64 * site_cols(config, at));
                add("the values", 4.0 * values);
            } else {
                add("the values", 4.0 * rows * cols);
                add("the values that threads round", 8.0 * rows * cols * at_once);
            }
        }
    }

    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        // Resolve each recipe to its codec, its noise, and the name of the recipe that it is compared with, if any.
        let stores = null::each(&self.recipes, |recipe| {
            let codec = codec(&recipe.format).map_err(|message| Mistake::at("format", message))?;
            let noise = Noise::asked(recipe.noise, recipe.gain, seed)?;
            Ok((Stored { codec, noise }, recipe.against.as_deref()))
        })?;
        for recipe in &self.recipes {
            self.check_fit(recipe, &*stores[recipe.name.as_str()].0.codec, config)?;
        }
        let sites = self.sources.iter();
        let sites = sites.filter_map(|source| Some((source.name.as_str(), source.from.site()?)));
        let sites: Vec<_> = sites.collect();
        Ok(by_window(self, HashMap::new(), move |bench, cells| {
            let samples = match bench.text {
                Some(text) => recorded(&sites, text)?,
                None => measure::drawn(self, seed, bench.window),
            };
            bench.each(cells, &stores, |(candidate, against), blank| {
                let rival = against.and_then(|name| stores.get(name));
                Ok(measure(&blank, &samples, candidate, rival.map(|(rival, _)| rival)))
            })
        }))
    }

    fn null(&self, draws: usize, _phases: &[Phase], wanted: &[Wanted]) -> Result<Null, String> {
        Ok(Null::new(wanted, &self.recipes, |recipes| Self {
            draws: draws * self.draws,
            windows: null::redrawn(&self.windows, draws),
            recipes,
            ..self.clone()
        }))
    }
}
