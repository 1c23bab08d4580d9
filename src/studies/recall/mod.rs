//! Study of top-k selections: measures which of the largest entries are lost if the scores have an error.

mod measure;
mod show;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use measure::{drawn, of_vectors};

use super::limits::Parts;
use super::model::probe::Probe;
use super::model::{run_finite, sites_at};
use super::null::{self, Candidate, Null, Wanted};
use super::sources::{check_recipes, check_sources_and_windows, draw_names, site_names};
use super::study::{ReadyRecipes, Study, by_window, check_among};
use crate::backend::recipe::Round;
use crate::backend::rounding::{Noise, Rounding, multiplied, selection};
use crate::experiment::{Mistake, Source, Window, written_out};
use crate::report::Show;
use crate::run::plan::Plan;
use ulplab_core::record::Phase;

/// Experiment with top-k selections: selects the largest scores of each source, with and without an error in the scores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecallStudy {
    /// The model whose indexer makes the selections, as a name in `datasets/manifest.toml` or the path of a folder.
    pub model: Option<String>,
    /// Number of tokens in each window of text.
    pub tokens: usize,
    /// Number of independent random samples of each random source. Each sample is measured by itself, like a window of text.
    pub draws: usize,
    /// Numbers of queries and of entries in a random sample.
    pub shape: [usize; 2],
    #[serde(rename = "window", deserialize_with = "written_out")]
    pub windows: Vec<Window>,
    #[serde(rename = "source")]
    pub sources: Vec<Source<Scores>>,
    #[serde(rename = "recipe")]
    pub recipes: Vec<Recipe>,
}

/// The origin of a source's scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scores {
    /// Dot products of random queries and entries with this many N(0, 1) channels; the `top` largest are selected.
    Vectors { channels: usize, top: usize },
    /// The model's selection at these sites, on each window of text. Results are given for each layer and as means over the
    /// layers.
    Site(String),
}

impl Scores {
    fn is_site(&self) -> bool {
        matches!(self, Self::Site(_))
    }

    /// Returns an error if the parameters do not fit random samples of `entries` entries.
    fn check(&self, entries: usize) -> Result<(), String> {
        match *self {
            Self::Vectors { channels, top } if channels == 0 || top == 0 || top >= entries => Err(format!(
                "vectors: {channels} channels, top {top}: at least one of each, and fewer than the {entries} entries"
            )),
            _ => Ok(()),
        }
    }
}

/// Error in the scores: either roundings (`round`) or noise (`score_noise`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Description of the recipe, in one line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy. The noise has the error's size, but not its structure.
    #[serde(default)]
    pub noise: bool,
    /// The size of the noise, in multiples of the rounding error.
    pub gain: Option<f64>,
    /// Roundings of tensors from which the scores are computed.
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// Gaussian noise added to the scores, in standard deviations of the row's scores.
    pub score_noise: Option<f64>,
}

impl Recipe {
    fn check(&self) -> Result<(), Mistake> {
        let message = "an experiment of this kind takes either 'round' or 'score_noise'";
        Mistake::refuse(self.rounds.is_empty() != self.score_noise.is_some(), "name", message)?;
        let message = "'noise' is for 'round', and 'score_noise' is noise already";
        Mistake::refuse(self.noise && self.score_noise.is_some(), "noise", message)?;
        Noise::asked(self.noise, self.gain, 0)?;
        let size = self.score_noise.unwrap_or(1.0);
        let message = format_args!("score_noise = {size} is not a size above 0");
        Mistake::refuse(!(size.is_finite() && size > 0.0), "score_noise", message)
    }
}

impl Candidate for Recipe {
    fn name(&self) -> &str {
        &self.name
    }

    fn with_noise(&self, name: String, gain: f64) -> Self {
        let mut noisy = self.clone();
        noisy.name = name;
        match &mut noisy.score_noise {
            Some(size) => *size *= gain,
            None => (noisy.noise, noisy.gain) = (true, Some(gain)),
        }
        noisy
    }
}

impl Study for RecallStudy {
    fn check(&self) -> Result<(), Mistake> {
        check_recipes(&self.recipes)?;
        let check = |scores: &Scores| scores.check(self.shape[1]);
        let draws = (self.draws, self.shape);
        check_sources_and_windows(&self.sources, check, Scores::is_site, draws, self.reading())?;
        let message = "recipes of a recall name sites of a model, and no model is given";
        Mistake::refuse(self.model.is_none(), "model", message)?;
        null::each(&self.recipes, Recipe::check).map(drop)
    }

    fn plan(&self) -> Plan {
        let windows = draw_names(self.draws).chain(self.windows.iter().map(Window::name));
        null::plan(&[Phase::Local], windows, &self.recipes)
    }

    fn check_site(&self, at: &str) -> Result<(), String> {
        check_among(at, site_names(&self.sources, Scores::is_site))
    }

    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, at_once: f64) {
        if let Some(config) = config.filter(|_| !self.windows.is_empty()) {
            parts.weights(config);
            parts.of_trace(config, self.tokens, at_once);
        }
        let [queries, entries] = self.shape.map(|size| size as f64);
        for source in &self.sources {
            if let Scores::Vectors { channels, .. } = source.from {
                let scores = queries * entries;
                let vectors = (queries + entries) * channels as f64;
                parts.of_source(&source.name, "queries, entries and scores", 4.0 * (scores + vectors));
                parts.of_source(&source.name, "the scores of all threads", 2.0 * 4.0 * scores * at_once);
            }
        }
    }

    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        let config = config.ok_or_else(|| Mistake::at("model", "model is missing"))?;
        for (at, source) in self.sources.iter().enumerate() {
            if let Scores::Site(site) = &source.from {
                let wrong = |message| Mistake::at("from", format!("source '{}': {message}", source.name));
                sites_at(site, |info| selection(info).is_some(), config)
                    .map_err(|why| wrong(why).within("source", at))?;
            }
        }
        let selection = multiplied(config).next().ok_or_else(|| {
            let message = "the model selects no entries of a cache, and a recall is about what is selected";
            Mistake::at("model", message)
        })?;
        let rows = self.tokens.max(self.shape[0]).max(self.shape[1]);
        let recipes = null::each(&self.recipes, |recipe| {
            let noise = Noise::asked(recipe.noise, recipe.gain, seed)?;
            let rounding = Rounding::resolve(&recipe.rounds, noise, None, config)?;
            rounding.check_window(config, rows)?;
            Ok((recipe, rounding))
        })?;
        let bytes = recipes
            .iter()
            .map(|(name, (_, rounding))| (*name, rounding.cache_bytes(config)));
        Ok(by_window(self, bytes.collect(), move |bench, cells| {
            let Some(text) = bench.text else {
                let drawn = measure::drawn(self, seed, bench.window);
                return bench.each(cells, &recipes, |(recipe, rounding), blank| {
                    Ok(of_vectors(&blank, seed, recipe, rounding, selection, &drawn))
                });
            };
            let want = run_finite(text.model, text.ids, bench.window)?;
            bench.each(cells, &recipes, |(recipe, rounding), blank| {
                let got = match recipe.score_noise {
                    Some(size) => measure::of_noise(&blank, seed, size, &want),
                    None => Probe::new(rounding, &want, blank).run(text)?,
                };
                Ok(measure::by_source(&self.sources, &got))
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
