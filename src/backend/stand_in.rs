//! Kernels that a recipe names to stand in for operations of the model.

use super::cuda::Source;
use super::cuda::runner::{Chosen, Worker};
use crate::experiment::Recipe;
use crate::studies::kernels::folder;
use ulplab_core::error::did_you_mean;
use ulplab_core::ops::call::{CALLED, StandIn};

/// Finds them; none where the recipe names none. The error is the offending text and what is wrong with it.
pub fn stand_in(recipe: &Recipe) -> Result<Option<StandIn>, (String, String)> {
    let chosen = chosen(recipe, &CALLED)?;
    Ok((!chosen.is_empty()).then(|| StandIn::new(Box::new(Worker::start(chosen)), recipe.dtype)))
}

/// The kernels that a recipe names, which must be of these operations.
pub fn chosen(recipe: &Recipe, ops: &[&str]) -> Result<Vec<Chosen>, (String, String)> {
    if recipe.kernels.is_empty() {
        return Ok(Vec::new());
    }
    let files = folder().and_then(|folder| Source::read_all(&folder));
    let files = files.map_err(|error| (recipe.name.clone(), error.to_string()))?;
    let mut all: Vec<Chosen> = Vec::new();
    for name in &recipe.kernels {
        let (op, variant) = name.split_once('.').unwrap_or((name, ""));
        let of = |source: &Source| {
            let variants = source.header.variants.iter();
            variants
                .map(|variant| format!("{}.{}", source.op, variant.name))
                .collect::<Vec<_>>()
        };
        let usable = || files.iter().filter(|source| ops.contains(&source.op.as_str()));
        let source = usable().find(|source| source.op == op);
        let Some((source, variant)) = source.and_then(|source| Some((source, source.variant(variant)?))) else {
            let names: Vec<String> = usable().flat_map(of).collect();
            let hint = did_you_mean(name, names.iter().map(String::as_str));
            let message = format!(
                "'{name}' is no kernel of an operation of the model ({}){hint}",
                ops.join(", ")
            );
            return Err((name.clone(), message));
        };
        match all.iter_mut().find(|chosen| chosen.source.op == op) {
            Some(chosen) => chosen.variants.push(variant.clone()),
            None => all.push(Chosen {
                source: source.clone(),
                variants: vec![variant.clone()],
            }),
        }
    }
    Ok(all)
}
