//! Recipes made ready to run.

use std::collections::HashMap;
use std::sync::Arc;

use reference::paths::deepseek_v4::{Config, SITES};
use reference::{Role, Site, SiteKind};

use super::model::probe::TOPK;
use super::recurrence::Method;
use super::swap_ffn;
use crate::backend::rounding::Rounding;
use crate::experiment::source::{Origin, Source};
use crate::experiment::{Experiment, Kind, Recipe};
use crate::run::plan::REFERENCE;
use ulplab_core::formats::{Codec, codec};
use ulplab_core::pattern::{matches, matches_nothing};

/// What each recipe of an experiment does, by its name.
#[derive(Default)]
pub struct Ready {
    /// Of a model or a recall; the built-in reference too.
    pub roundings: HashMap<String, Rounding>,
    /// Of a round trip.
    pub codecs: HashMap<String, Arc<dyn Codec>>,
    /// Of a recurrence.
    pub methods: HashMap<String, Method>,
    /// Of Swap-FFN.
    pub swap_ffn: HashMap<String, swap_ffn::Method>,
}

impl Ready {
    /// Finds formats and sites, and that they fit together. The error is the offending text and what is wrong with it.
    pub fn resolve(experiment: &Experiment, config: Option<&Config>) -> Result<Self, (String, String)> {
        let of = |recipe: &Recipe, message: String| format!("recipe '{}': {message}", recipe.name);
        let mut ready = Self::default();
        ready.roundings.insert(REFERENCE.into(), Rounding::none());
        for recipe in &experiment.recipes {
            let name = recipe.name.clone();
            if experiment.kind == Kind::Recurrence {
                let method = Method::resolve(recipe, &experiment.sources)
                    .map_err(|(place, message)| (place, of(recipe, message)))?;
                ready.methods.insert(name, method);
                continue;
            }
            if experiment.kind == Kind::SwapFfn {
                let method = swap_ffn::Method::resolve(recipe, &experiment.sources)
                    .map_err(|(place, message)| (place, of(recipe, message)))?;
                ready.swap_ffn.insert(name, method);
                continue;
            }
            match (&recipe.format, config) {
                (Some(format), _) => {
                    let codec = codec(format).map_err(|message| (format.clone(), of(recipe, message)))?;
                    ready.codecs.insert(name, codec);
                }
                (None, Some(config)) => {
                    let rounding = Rounding::resolve(recipe, config, SITES, experiment.seed)
                        .map_err(|(place, message)| (place, of(recipe, message)))?;
                    ready.roundings.insert(name, rounding);
                }
                (None, None) => {}
            }
        }
        for source in &experiment.sources {
            ready.fits(source, experiment, config)?;
        }
        Ok(ready)
    }

    /// Whether a source is there, and every format can store its rows.
    fn fits(&self, source: &Source, experiment: &Experiment, config: Option<&Config>) -> Result<(), (String, String)> {
        let name = &source.name;
        let sites = match (&source.from, config) {
            (Origin::Site(at), Some(config)) => sites(at, experiment.kind, config)
                .map_err(|message| (at.clone(), format!("source '{name}': {message}")))?,
            _ => vec![("a row", experiment.shape[1])],
        };
        for recipe in &experiment.recipes {
            let Some(codec) = self.codecs.get(&recipe.name) else {
                continue;
            };
            for (site, cols) in &sites {
                codec.check(*cols).map_err(|message| {
                    let (recipe, message) = (&recipe.name, format!("{message} ({site} has {cols} channels)"));
                    (name.clone(), format!("source '{name}', recipe '{recipe}': {message}"))
                })?;
            }
        }
        Ok(())
    }
}

/// The sites of the model that a pattern means, each once, with the channels of a token there.
fn sites(at: &str, kind: Kind, config: &Config) -> Result<Vec<(&'static str, usize)>, String> {
    let usable = SITES.iter().filter(|site| match kind {
        Kind::Recall => site.name == TOPK,
        _ => site.kind == SiteKind::Tensor,
    });
    let places = usable.flat_map(|info| {
        let layers = (0..config.num_hidden_layers).map(Some).chain([None]);
        let here = layers.filter(|layer| config.has_site(*layer, info.name));
        here.map(|layer| Site {
            layer,
            name: info.name,
            role: Role::Both,
            first_row: 0,
        })
    });
    let places: Vec<Site> = places.collect();
    let matching = places.iter().filter(|place| matches(at, &place.to_string()));
    let mut found: Vec<_> = matching
        .map(|place| (place.name, config.token_cols(place.name)))
        .collect();
    found.dedup();
    if found.is_empty() {
        let names: Vec<String> = places.iter().map(Site::to_string).collect();
        return Err(matches_nothing("site", at, names.iter().map(String::as_str)));
    }
    Ok(found)
}
