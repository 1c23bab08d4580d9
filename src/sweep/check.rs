//! What can be told wrong of an experiment before any data is read.

use super::experiment::{Experiment, Kind, Recipe, Window};
use super::operations;
use super::plan::REFERENCE;
use super::recurrence::CHECKPOINT;
use super::source::Origin;

/// More draws, or numbers in one, are a slip: they would not end, or not fit memory.
const MOST_DRAWS: usize = 1 << 20;
const MOST_NUMBERS: usize = 1 << 32;
const MOST_HEADS: usize = 1024;
const MOST_TOKENS: usize = 4096;

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
            return wrong("recipe", "no recipe is given");
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
        if self.kind != Kind::Kernels && !self.commands.is_empty() {
            return wrong("command", "programs are for kind = \"kernels\"");
        }
        let own = [
            ("op", self.ops.is_empty()),
            ("case", self.own_cases.is_empty()),
            ("cases", self.cases.is_empty()),
        ];
        if self.kind != Kind::Kernels
            && let Some((key, _)) = own.iter().find(|(_, none)| !none)
        {
            return wrong(key, format!("'{key}' is for kind = \"kernels\""));
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
        for (what, missing) in [
            ("model", self.model.is_none()),
            ("phases", self.phases.is_empty()),
            ("window", self.windows.is_empty()),
        ] {
            if missing {
                return wrong(what, format!("no {what} is given"));
            }
        }
        if self.draws > 0 || !self.sources.is_empty() {
            return wrong(
                "source",
                "draws and sources are for kind = \"round_trip\", \"recall\", \"recurrence\" or \"swap_ffn\"",
            );
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
        match (self.kind, self.phases.is_empty()) {
            (Kind::SwapFfn, true) => return wrong("phases", "no phases is given"),
            (Kind::SwapFfn, false) | (_, true) => {}
            (_, false) => return wrong("phases", "only a model has phases"),
        }
        if self.sources.is_empty() {
            return wrong("source", "no source is given");
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
        if (self.draws > 0 && !drawn) || (!self.windows.is_empty() && !sites) {
            return wrong("draws", "draws and windows need a source each that they are of");
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
                let hint = crate::error::did_you_mean(against, others());
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
