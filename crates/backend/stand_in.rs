//! Kernels that a recipe (the formats and kernels of an experiment) names, to compute operations of the model in place of the CPU
//! reference.

use std::path::PathBuf;

use super::cuda::runner::{ChosenVariants, Worker};
use super::cuda::shipped::folder;
use super::cuda::{Compositions, Source};
use ulplab_core::error::did_you_mean;
use ulplab_operations::ops::call::{CALLED, StandIn, Type};
use ulplab_run::experiment::Mistake;

/// Starts a worker thread for the kernels that a recipe names; returns `None` if the recipe names none.
///
/// # Errors
/// Returns a mistake at the recipe's `kernels`: an unknown kernel, or a kernel file that cannot be read.
pub fn stand_in(kernels: &[String], dtype: Type) -> Result<Option<StandIn>, Mistake> {
    let chosen = chosen(kernels, &CALLED, &[])?;
    Ok((!chosen.is_empty()).then(|| StandIn::new(Box::new(Worker::start(chosen)), dtype)))
}

/// Finds the kernels that a recipe names among the variants of the operations `ops`. `compositions` has the variants of these
/// operations whose launches are built in Rust.
///
/// # Errors
/// Same as [`stand_in`].
pub fn chosen(
    kernels: &[String],
    ops: &[&str],
    compositions: &[&Compositions],
) -> Result<Vec<ChosenVariants>, Mistake> {
    if kernels.is_empty() {
        return Ok(Vec::new());
    }
    let read = |folder: PathBuf| {
        let paths = ops.iter().map(|op| folder.join(format!("{op}.cu")));
        let there = paths.filter(|path| path.is_file());
        let read = there.map(|path| Source::read(&path, compositions));
        read.collect::<Result<Vec<_>, _>>()
    };
    let files = folder().and_then(read);
    let files = files.map_err(|error| Mistake::at("kernels", error.to_string()))?;
    let mut all: Vec<ChosenVariants> = Vec::new();
    for (at, name) in kernels.iter().enumerate() {
        let (op, variant) = name.split_once('.').unwrap_or((name, ""));
        let source = files.iter().find(|source| source.op == op);
        let Some((source, variant)) = source.and_then(|source| Some((source, source.variant(variant)?))) else {
            let names: Vec<String> = files.iter().flat_map(Source::kernels).map(|(name, _)| name).collect();
            let hint = did_you_mean(name, names.iter().map(String::as_str));
            let message = format!(
                "'{name}' is no kernel of an operation of the model ({}){hint}",
                ops.join(", ")
            );
            return Err(Mistake::new(message).within("kernels", at));
        };
        match all.iter_mut().find(|chosen| chosen.source.op == op) {
            Some(chosen) => chosen.variants.push(variant.clone()),
            None => all.push(ChosenVariants {
                source: source.clone(),
                variants: vec![variant.clone()],
            }),
        }
    }
    Ok(all)
}
