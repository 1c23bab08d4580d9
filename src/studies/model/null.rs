//! Recipes of the null experiment of models: computations that are known to be correct. The bounds of gates (pass/fail checks)
//! are calibrated on their results.

use reference::Site;
use reference::paths::PATHS;
use reference::sites::Growth;

use super::Recipe;
use super::recipe::MOST_LAYERS;
use crate::backend::recipe::Round;
use crate::run::plan::REFERENCE;
use crate::studies::null::Candidate;
use ulplab_core::error::refuse;
use ulplab_core::pattern;
use ulplab_core::record::Phase;

/// Operations whose kernels always read and write bf16, even if the recipe sets another type.
const BF16_ONLY: [&str; 1] = ["mhc_pre"];

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

    fn right(&self, phase: Phase) -> Result<(Self, bool), String> {
        let right = reordered(self, phase)?;
        let rounds = !right.rounds.is_empty();
        Ok((right, rounds))
    }
}

/// True if a rounding applies to a recurrent state of any known model.
fn is_of_a_state(round: &Round) -> bool {
    let sites = PATHS.iter().flat_map(|path| path.sites);
    let mut states = sites.filter(|site| site.cache.is_some_and(|cache| cache.growth == Growth::State));
    states.any(|site| {
        let mut places = (0..MOST_LAYERS).map(|layer| Site::new(Some(layer), site.name).to_string());
        places.any(|place| pattern::matches(&round.at, &place))
    })
}

/// Returns the recipe as correct CPU code computes it, without kernels. The text is divided into calls of random sizes, so that
/// the order of sums differs from window to window. It is not divided at random if this would change more than the order of sums.
/// Returns an error if the recipe's kernels read codes or round to a type in a way that CPU code does not.
pub fn reordered(recipe: &Recipe, phase: Phase) -> Result<Recipe, String> {
    let codes = recipe.step.is_some() && (recipe.weights.is_some() || recipe.index.is_some());
    let why = "kernels read weights or index keys as codes, which nothing on the CPU does";
    refuse(codes, why)?;
    let rounds_anyway = |kernel: &String| kernel.split_once('.').is_some_and(|(op, _)| BF16_ONLY.contains(&op));
    let rounds = !recipe.kernels.is_empty() && !recipe.dtype.is_f32() || recipe.kernels.iter().any(rounds_anyway);
    refuse(
        rounds,
        "its kernels round to another type, which nothing on the CPU does",
    )?;
    // A recurrent state is rounded after every call, so the recipe must keep its own division into calls.
    let kept = recipe.rounds.iter().any(is_of_a_state);
    let plain = Recipe {
        chunk: recipe.chunk.filter(|_| kept),
        cuts: None,
        step: None,
        kernels: Vec::new(),
        ..recipe.clone()
    };
    // Do not divide the text in the local phase. Do not divide it either if a rounding applies only to keys or only to values
    // (`role`): such a recipe reads all tokens in one call.
    let whole = phase == Phase::Local || recipe.rounds.iter().any(|round| round.role.is_some());
    if whole || kept || recipe.name == REFERENCE {
        return Ok(plain);
    }
    Ok(Recipe {
        name: format!("{}.null", recipe.name),
        cuts: Some(1),
        ..plain
    })
}
