//! A whole model, rounded at its sites and compared with itself.

pub mod probe;
mod run;
mod samples;
mod show;

use std::collections::HashMap;

use reference::paths::{Config, readers};
use reference::sites::When;
use reference::{Site, SiteInfo, SiteKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::limits::{Parts, halved_tokens};
use super::study::{Bench, Body, ReadyRecipes, Runs, Study, body_of, check_among, of_recipe};
use crate::backend::recipe::Round;
use crate::backend::rounding::Rounding;
use crate::backend::stand_in::stand_in;
use crate::experiment::{Mistake, Window};
use crate::report::Show;
use crate::run::RecipeInfo;
use crate::run::plan::{Cell, Plan, REFERENCE, RecipePlan};
use ulplab_core::error::{Error, Result};
use ulplab_core::ops::call::Type;
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::Phase;

pub use run::{finite, run_candidate, run_reference};
pub use samples::{Sample, recorded};

/// A whole model: rounded at its sites, compared with itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelStudy {
    /// Name of a checkpoint in `datasets/manifest.toml`, or the path of a folder with `config.json` and safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens in each window of text.
    #[serde(default)]
    pub tokens: usize,
    /// How the model is run: `local`, every layer fed what the reference fed it; `cumulative`, running free.
    #[serde(default)]
    pub phases: Vec<Phase>,
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    #[serde(default, rename = "recipe")]
    pub recipes: Vec<Recipe>,
}

/// A candidate to measure against the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Its description, in one line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy: size without structure.
    #[serde(default)]
    pub noise: bool,
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// Kernels that stand in for operations of the model, as `op.variant`; of several for one operation the first that takes
    /// the sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Type of the tensors that these read and write.
    #[serde(default, skip_serializing_if = "Type::is_f32")]
    pub dtype: Type,
}

impl Recipe {
    /// The recipe made ready to run.
    ///
    /// # Errors
    /// What is wrong, and where in the recipe.
    pub fn resolve(&self, config: &dyn Config, seed: u64) -> Result<Rounding, Mistake> {
        let kernels = stand_in(&self.kernels, self.dtype)?;
        Rounding::resolve(&self.rounds, self.noise.then_some(seed), kernels, config)
    }
}

impl Body for ModelStudy {
    const NAME: &'static str = "model";
    const DOC: &'static str = "A whole model: rounded at its sites, compared with itself.";
}

impl Study for ModelStudy {
    fn check(&self) -> Result<(), Mistake> {
        self.reading().check()?;
        if self.recipes.is_empty() {
            return Err(super::sources::no_recipe());
        }
        if self.model.is_none() {
            let message = "model is missing: expected a name that `ulplab list datasets` has, or a folder";
            return Err(Mistake::at("model", message));
        }
        super::sources::check_phases(&self.phases)?;
        if self.windows.is_empty() {
            let message = "[[window]] is missing: expected text = \"NAME\" and offset = BYTE, once or several times";
            return Err(Mistake::at("window", message));
        }
        for (at, recipe) in self.recipes.iter().enumerate() {
            if recipe.kernels.is_empty() && !recipe.dtype.is_f32() {
                let message = "'dtype' is the type that 'kernels' read and write, and there are none";
                return Err(Mistake::at("dtype", message).in_recipe(&recipe.name, at));
            }
        }
        Ok(())
    }

    fn plan(&self) -> Plan {
        let windows = self.windows.iter().map(Window::name).collect();
        let recipes = self.recipes.iter().map(|recipe| recipe.name.as_str());
        let mut plan = Plan::whole(&self.phases, windows, recipes);
        let own = RecipePlan {
            name: REFERENCE.into(),
            phases: vec![Phase::Cumulative],
            windows: None,
        };
        plan.recipes.insert(0, own);
        plan
    }

    fn recipes(&self) -> Vec<RecipeInfo> {
        let info = |recipe: &Recipe| RecipeInfo {
            noise: recipe.noise,
            ..RecipeInfo::new(&recipe.name, &recipe.doc)
        };
        self.recipes.iter().map(info).collect()
    }

    /// Looks at the sites of every model that could be meant: gates are checked before the model is read.
    fn check_site(&self, at: &str) -> Result<(), String> {
        let name = |site: &SiteInfo| match site.in_layers() {
            true => format!("layers.0.{}", site.name),
            false => site.name.to_string(),
        };
        let mut names: Vec<String> = Vec::new();
        for site in readers().iter().flat_map(|path| path.sites()).map(name) {
            if !names.contains(&site) {
                names.push(site);
            }
        }
        check_among(at, names.into_iter())
    }

    fn memory(&self, config: Option<&dyn Config>, threads: usize) -> Parts {
        let mut parts = Parts::default();
        if let Some(config) = config {
            let at_once = threads.min(self.recipes.len().max(1)) as f64;
            let trace = parts.of_trace(config, self.tokens, at_once);
            let weights = parts.weights(config);
            parts.add(
                format!("for '{REFERENCE}', the check in f64"),
                8.0 * weights + 2.0 * trace,
            );
        }
        parts
    }

    fn halved(&self) -> Option<(Box<dyn Study>, String)> {
        let (tokens, key) = halved_tokens(self.tokens)?;
        Some((Box::new(Self { tokens, ..self.clone() }), key))
    }

    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Runs<'a>, Mistake> {
        let config = config.ok_or_else(|| Mistake::at("model", "model is missing"))?;
        let mut roundings = HashMap::from([(REFERENCE, Rounding::none())]);
        let mut bytes = HashMap::new();
        for (at, recipe) in self.recipes.iter().enumerate() {
            let rounding = recipe
                .resolve(config, seed)
                .map_err(|mistake| mistake.in_recipe(&recipe.name, at))?;
            bytes.insert(recipe.name.as_str(), rounding.cache_bytes(config));
            roundings.insert(&recipe.name, rounding);
        }
        Ok(Runs::Windows(Box::new(ReadyModel { roundings, bytes })))
    }

    fn stands_in(&self) -> bool {
        self.recipes.iter().any(|recipe| !recipe.kernels.is_empty())
    }

    fn body(&self) -> Map<String, Value> {
        body_of(self)
    }
}

struct ReadyModel<'a> {
    roundings: HashMap<&'a str, Rounding>,
    bytes: HashMap<&'a str, (Option<f64>, Option<f64>)>,
}

impl ReadyRecipes for ReadyModel<'_> {
    fn window(&self, bench: &Bench, cells: &[&Cell]) -> Result<()> {
        let text = bench
            .text
            .ok_or_else(|| Error::Usage(format!("window '{}' has no text", bench.window)))?;
        let want = run_reference(text.model, text.ids)?;
        finite(&want.logits, bench.window)?;
        bench.each(cells, |cell, blank| {
            let rounding = of_recipe(&self.roundings, cell)?;
            if cell.recipe == REFERENCE {
                let exact = run_reference(&*(bench.load_f64)()?, text.ids)?;
                return run_candidate(text, rounding, &exact, blank);
            }
            run_candidate(text, rounding, &want, blank)
        })
    }

    fn bytes(&self, recipe: &str) -> (Option<f64>, Option<f64>) {
        self.bytes.get(recipe).copied().unwrap_or_default()
    }
}

/// The sites of a model that a pattern means, each once, with the channels of a token there.
///
/// # Errors
/// A pattern that means none of the `usable` sites.
pub fn sites_at(
    at: &str,
    usable: impl Fn(&SiteInfo) -> bool,
    config: &dyn Config,
) -> Result<Vec<(&'static str, usize)>, String> {
    let places = config.places().into_iter().filter(|(site, _)| usable(site));
    let places: Vec<_> = places
        .map(|(site, layer)| (site, Site::new(layer, site.name).to_string()))
        .collect();
    let matching = places.iter().filter(|(_, place)| matches(at, place));
    let mut found: Vec<_> = matching
        .map(|(site, _)| (site.name, config.cols_of_token(site)))
        .collect();
    found.dedup();
    if found.is_empty() {
        return Err(matches_nothing(
            "site",
            at,
            places.iter().map(|(_, place)| place.as_str()),
        ));
    }
    Ok(found)
}

/// Whether a tensor passes at a site when the model reads.
pub fn passes_tensor(site: &SiteInfo) -> bool {
    site.kind == SiteKind::Tensor && site.when == When::Run
}
