//! What can be told wrong of an experiment before any data is read.

use super::kernels::operations;
use super::recurrence::CHECKPOINT;
use crate::experiment::source::Origin;
use crate::experiment::{Experiment, Kind, Recipe, Window};
use crate::run::plan::REFERENCE;

/// More draws, or numbers in one, are a slip: they would not end, or not fit memory.
const MOST_DRAWS: usize = 1 << 20;
const MOST_NUMBERS: usize = 1 << 32;
const MOST_HEADS: usize = 1024;
const MOST_TOKENS: usize = 4096;

const NO_PHASES: &str = "phases is missing: expected phases = [\"local\", \"cumulative\"], or one of the two";

/// The offending text, and what is wrong with it.
type Wrong = (String, String);

fn wrong<T>(place: &str, message: impl Into<String>) -> Result<T, Wrong> {
    Err((place.to_string(), message.into()))
}

impl Experiment {
    /// Finds what no model is needed to find.
    pub fn check(&self) -> Result<(), Wrong> {
        if !self.windows.is_empty() && self.tokens < 2 {
            let message = format!("tokens = {}: a window needs at least 2", self.tokens);
            return wrong("tokens", message);
        }
        if self.recipes.is_empty() {
            let (key, given) = match self.kind {
                Kind::Kernels => ("kernels", "kernels = [\"PATTERN\", …] or [[command]]"),
                _ => ("recipe", "[[recipe]]"),
            };
            return wrong(key, format!("there is nothing to try: expected {given}"));
        }
        if let Some(name) = repeated(self.windows.iter().map(Window::name)) {
            return wrong(&name, format!("window '{name}' is given twice"));
        }
        // Kernels are named `op.variant`.
        let marks = if self.kind == Kind::Kernels { "_-." } else { "_-" };
        let plain =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c));
        let recipes = self.recipes.iter().map(|recipe| &recipe.name);
        let names = [&self.name].into_iter().chain(recipes.clone());
        for name in names.chain(self.sources.iter().map(|source| &source.name)) {
            if !plain(name) {
                return wrong(
                    name,
                    format!("'{name}' is not a name: letters, digits, '_' and '-' only"),
                );
            }
        }
        if let Some(name) = repeated(recipes.cloned().chain([REFERENCE.to_string()])) {
            return wrong(&name, format!("recipe name '{name}' is taken"));
        }
        match self.kind {
            Kind::Model => self.check_model()?,
            Kind::RoundTrip | Kind::Recall => self.check_sources()?,
            Kind::Recurrence => {
                self.check_sources()?;
                self.check_steps()?;
            }
            Kind::SwapFfn => {
                self.check_sources()?;
                self.check_tokens()?;
            }
            Kind::Kernels => return self.check_kernels(),
        }
        self.recipes.iter().try_for_each(|recipe| self.check_recipe(recipe))
    }

    fn check_model(&self) -> Result<(), Wrong> {
        if self.model.is_none() {
            let message = "model is missing: expected a name that `ulplab list datasets` has, or a folder";
            return wrong("model", message);
        }
        if self.phases.is_empty() {
            return wrong("phases", NO_PHASES);
        }
        if self.windows.is_empty() {
            let message = "[[window]] is missing: expected text = \"NAME\" and offset = BYTE, once or several times";
            return wrong("window", message);
        }
        Ok(())
    }

    fn check_kernels(&self) -> Result<(), Wrong> {
        operations::check_cases(self)?;
        let reads = operations::reading_sites(self)?;
        if !reads.is_empty() && (self.model.is_none() || self.windows.is_empty()) {
            return wrong(
                "model",
                "some cases are what passes in a model that reads a window of text; both are needed, or `cases` without these",
            );
        }
        Ok(())
    }

    fn check_sources(&self) -> Result<(), Wrong> {
        if self.kind == Kind::SwapFfn && self.phases.is_empty() {
            return wrong("phases", NO_PHASES);
        }
        if self.sources.is_empty() {
            return wrong(
                "source",
                "[[source]] is missing: expected name = \"NAME\" and from = ORIGIN, once or several times",
            );
        }
        if let Some(name) = repeated(self.sources.iter().map(|source| source.name.clone())) {
            return wrong(&name, format!("source '{name}' is given twice"));
        }
        for source in &self.sources {
            let name = &source.name;
            if !source.from.suits(self.kind) {
                return wrong(name, format!("source '{name}' is not for an experiment of this kind"));
            }
            source
                .from
                .check(self.shape[1])
                .map_err(|message| (name.clone(), format!("source '{name}': {message}")))?;
        }
        let sites = self.sources.iter().any(|source| matches!(source.from, Origin::Site(_)));
        let drawn = self
            .sources
            .iter()
            .any(|source| !matches!(source.from, Origin::Site(_)));
        if drawn && (self.draws == 0 || self.shape.contains(&0)) {
            let shape = match self.kind {
                Kind::Recurrence => "[heads, steps]",
                Kind::SwapFfn => "[sequences, tokens]",
                _ => "[rows, columns]",
            };
            let message = format!("drawn sources need draws = N and shape = {shape}");
            return wrong("draws", message);
        }
        if self.draws > MOST_DRAWS {
            return wrong("draws", format!("draws = {}: at most {MOST_DRAWS}", self.draws));
        }
        let [rows, cols] = self.shape;
        if rows.checked_mul(cols).is_none_or(|numbers| numbers > MOST_NUMBERS) {
            let message = format!("shape = [{rows}, {cols}]: a draw has at most {MOST_NUMBERS} numbers");
            return wrong("shape", message);
        }
        if sites && (self.model.is_none() || self.windows.is_empty()) {
            return wrong("model", "sources at sites of a model need a model and windows of text");
        }
        if self.kind == Kind::Recall && self.model.is_none() {
            return wrong(
                "model",
                "recipes of a recall name sites of a model, and no model is given",
            );
        }
        if (self.draws > 0 || self.shape != [0, 0]) && !drawn {
            return wrong("draws", "draws and shape are of drawn sources, and there is none");
        }
        if !self.windows.is_empty() && !sites {
            return wrong(
                "window",
                "windows of text are read by sources at sites of a model, and there is none",
            );
        }
        if self.kind == Kind::RoundTrip && self.model.is_some() && !sites {
            return wrong("model", "a model is run for sources at its sites, and there is none");
        }
        Ok(())
    }

    fn check_steps(&self) -> Result<(), Wrong> {
        let [heads, steps] = self.shape;
        if steps % CHECKPOINT != 0 || !(steps / CHECKPOINT).is_power_of_two() || steps < 4 * CHECKPOINT {
            let message =
                format!("shape = [{heads}, {steps}]: {steps} steps, expected {CHECKPOINT} doubled twice or more often");
            return wrong("shape", message);
        }
        if heads > MOST_HEADS {
            let message = format!("shape = [{heads}, {steps}]: {heads} heads, expected at most {MOST_HEADS}");
            return wrong("shape", message);
        }
        Ok(())
    }

    fn check_tokens(&self) -> Result<(), Wrong> {
        let [sequences, tokens] = self.shape;
        match tokens.is_power_of_two() && tokens <= MOST_TOKENS && sequences <= MOST_HEADS {
            true => Ok(()),
            false => wrong(
                "shape",
                format!(
                    "shape = [{sequences}, {tokens}]: expected at most {MOST_HEADS} sequences, and of tokens a power of two up \
                     to {MOST_TOKENS}"
                ),
            ),
        }
    }

    fn check_recipe(&self, recipe: &Recipe) -> Result<(), Wrong> {
        let name = &recipe.name;
        let [rounds, kernels, format, noise, form, router] = [
            !recipe.rounds.is_empty(),
            !recipe.kernels.is_empty(),
            recipe.format.is_some(),
            recipe.score_noise.is_some(),
            recipe.form.is_some(),
            recipe.router.is_some() || recipe.margin.is_some(),
        ];
        let suits = match self.kind {
            Kind::SwapFfn if kernels => !rounds && recipe.router.is_none() && !noise && !recipe.noise && !form,
            Kind::SwapFfn => !format && !noise && !recipe.noise && !form,
            _ if router => false,
            Kind::Model => !format && !noise && !form,
            Kind::RoundTrip => format && !rounds && !kernels && !noise && !recipe.noise && !form,
            Kind::Recall => !format && !kernels && rounds != noise && !form,
            Kind::Recurrence => form && !format && !kernels && !noise && !recipe.noise,
            Kind::Kernels => true,
        };
        if !suits {
            let needs = match self.kind {
                Kind::Model => "'round' and 'kernels' only",
                Kind::RoundTrip => "'format' only",
                Kind::Recall => "either 'round' or 'score_noise'",
                Kind::Recurrence => "a 'form', and 'round'",
                Kind::SwapFfn => "'round', 'router' and 'margin', or 'kernels', 'format' and 'margin'",
                Kind::Kernels => "nothing",
            };
            return wrong(
                name,
                format!("recipe '{name}': an experiment of this kind takes {needs}"),
            );
        }
        let directed = recipe.rounds.iter().any(|round| !round.direction.is_nearest());
        if directed && self.kind != Kind::Recurrence {
            let message = format!("recipe '{name}': 'direction' is for kind = \"recurrence\"");
            return wrong("direction", message);
        }
        if recipe.noise && noise {
            let message = format!("recipe '{name}': 'noise' is for 'round', and 'score_noise' is noise already");
            return wrong(name, message);
        }
        if !kernels && !recipe.dtype.is_f32() {
            let message =
                format!("recipe '{name}': 'dtype' is the type that 'kernels' read and write, and there are none");
            return wrong(name, message);
        }
        if recipe.against.is_some() && self.kind != Kind::RoundTrip {
            let message = format!("recipe '{name}': 'against' is for kind = \"round_trip\"");
            return wrong("against", message);
        }
        if let Some(size) = recipe.score_noise.filter(|size| !(size.is_finite() && *size >= 0.0)) {
            return wrong(name, format!("recipe '{name}': score_noise = {size} is not a size"));
        }
        let others = || {
            self.recipes
                .iter()
                .map(|other| other.name.as_str())
                .filter(|other| other != name)
        };
        match &recipe.against {
            Some(against) if !format || !others().any(|other| other == against) => {
                let hint = ulplab_core::error::did_you_mean(against, others());
                wrong(
                    against,
                    format!("recipe '{name}': '{against}' is no other recipe with a format{hint}"),
                )
            }
            _ => Ok(()),
        }
    }
}

/// The first name that occurs a second time.
fn repeated(names: impl Iterator<Item = String>) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().find(|name| !seen.insert(name.clone()))
}
