//! Mixtures of a right and a wrong recipe: they round like the wrong recipe at some places (sites in layers), and like the right
//! recipe elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use reference::Site;
use reference::paths::Config;

use crate::backend::recipe::{Ranges, Round};
use crate::backend::rounding::Rounding;
use crate::experiment::Mistake;
use crate::json;
use crate::studies::model::Recipe;
use ulplab_core::error::counted;

/// A layer and the name of a site in it. The layer is `None` for a site outside the layers.
pub type Place = (Option<usize>, &'static str);

/// A part of the wrong recipe that the search can turn on or off: all rounding at a place (site in a layer), or one of the
/// formats there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    pub layer: Option<usize>,
    pub site: &'static str,
    /// Formats to which the wrong recipe rounds the tensor at this place, in order; empty if only the right recipe rounds there.
    pub formats: Vec<String>,
    /// Indices of the rounding steps (`round` entries) of the wrong recipe that are applied if this suspect rounds wrongly.
    rounds: Vec<usize>,
}

impl Suspect {
    pub fn place(&self) -> Place {
        (self.layer, self.site)
    }

    /// Returns the name of the layer and site, such as `layers.37.output`.
    pub fn full(&self) -> String {
        Site::new(self.layer, self.site).to_string()
    }
}

/// A set of suspects (places and formats that round like the wrong recipe). A set of one suspect may be limited to some channels
/// or tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SuspectSet {
    pub suspects: BTreeSet<usize>,
    pub channels: Option<BTreeSet<usize>>,
    pub tokens: Option<BTreeSet<usize>>,
}

impl SuspectSet {
    pub fn at(suspects: BTreeSet<usize>) -> Self {
        Self {
            suspects,
            ..Self::default()
        }
    }
}

/// Two recipes, and the places (sites in layers) at which they differ.
pub struct Mix {
    pub right: Recipe,
    pub wrong: Recipe,
    seed: u64,
    /// Suspects (places and formats in question), in the order in which a model computes the tensors.
    pub suspects: Vec<Suspect>,
    /// Rounding steps of both recipes at each place (site in a layer).
    places: BTreeMap<Place, Rounds>,
    /// For the name of each site, the layers that have this site; `None` is the part of the model outside the layers.
    layers: BTreeMap<&'static str, Vec<Option<usize>>>,
}

/// Indices of the rounding steps (`round` entries) of each recipe at one place (site in a layer).
#[derive(Default)]
struct Rounds {
    right: Vec<usize>,
    wrong: Vec<usize>,
    /// Rounding steps of the wrong recipe that the right recipe also has, if the wrong recipe has all steps of the right recipe
    /// and only adds some; else `None`.
    common: Option<Vec<usize>>,
}

impl Mix {
    /// Finds the places (sites in layers) at which the recipes differ.
    ///
    /// # Errors
    /// Returns an error if a recipe is invalid, or if the recipes differ in keys other than `round`.
    pub fn new(right: Recipe, wrong: Recipe, config: &dyn Config, seed: u64) -> Result<Self, Mistake> {
        for recipe in [&right, &wrong] {
            let keys = json::keys(recipe);
            let mut beyond_rounds = ["kernels", "step", "chunk", "cuts", "against"].into_iter();
            if let Some(key) = beyond_rounds.find(|key| keys.contains_key(*key)) {
                let message = format!("'{key}' cannot be searched: bisect looks for places that are rounded");
                return Err(Mistake::at(key, message).of(format!("recipe '{}'", recipe.name)));
            }
        }
        if (right.noise, right.gain) != (wrong.noise, wrong.gain) && !right.rounds.is_empty() {
            let both = format!("'{}' and '{}'", right.name, wrong.name);
            let message = format!("{both} differ in the noise that they put in the place of rounding errors");
            return Err(Mistake::at("noise", message));
        }
        let mut places: BTreeMap<Place, Rounds> = BTreeMap::new();
        for (recipe, is_wrong) in [(&wrong, true), (&right, false)] {
            let rounding = recipe.resolve(config, seed)?;
            let message = format_args!("'{}' rounds weights, which bisect does not search", recipe.name);
            Mistake::refuse(rounding.rounds_weights, "round", message)?;
            for (round, layer, site) in rounding.covered(config) {
                let Rounds { right, wrong, .. } = places.entry((layer, site)).or_default();
                if is_wrong { wrong } else { right }.push(round);
            }
        }
        let path = config.path();
        let passed = |name: &str| path.sites.iter().position(|site| site.name == name);
        let mut order: Vec<Place> = places.keys().copied().collect();
        order.sort_by_key(|(layer, site)| (layer.is_none(), *layer, passed(site)));
        let mut mix = Self {
            layers: BTreeMap::new(),
            suspects: Vec::new(),
            places,
            right,
            wrong,
            seed,
        };
        for (info, layer) in config.places() {
            mix.layers.entry(info.name).or_default().push(layer);
        }
        for place in order {
            mix.add(place);
        }
        Ok(mix)
    }

    /// Adds the suspects of a place (site in a layer): the formats that may cause the failure. Adds none if the recipes do not
    /// differ there.
    fn add(&mut self, (layer, site): Place) {
        let Some(here) = self.places.get_mut(&(layer, site)) else {
            return;
        };
        let of = |recipe: &Recipe, round: usize| Round {
            at: String::new(),
            layers: None,
            ..recipe.rounds[round].clone()
        };
        let mut right = here.right.iter().map(|round| of(&self.right, *round)).peekable();
        let (mut common, mut added) = (Vec::new(), Vec::new());
        for &round in &here.wrong {
            match right.next_if(|right| *right == of(&self.wrong, round)) {
                Some(_) => common.push(round),
                None => added.push(round),
            }
        }
        let each = match right.peek() {
            // At this place the wrong recipe has all rounding steps of the right recipe, and additional ones. Each additional
            // step is a suspect of its own.
            None => {
                here.common = Some(common);
                added.into_iter().map(|round| vec![round]).collect()
            }
            Some(_) => vec![here.wrong.clone()],
        };
        let format = |round: &usize| self.wrong.rounds[*round].format.clone();
        self.suspects.extend(each.into_iter().map(|rounds| Suspect {
            layer,
            site,
            formats: rounds.iter().map(format).collect(),
            rounds,
        }));
    }

    /// Returns the indices of all suspects.
    pub fn all(&self) -> BTreeSet<usize> {
        (0..self.suspects.len()).collect()
    }

    /// Returns the reason why the channels and tokens of a suspect (format at a place) cannot be searched: the right recipe also
    /// rounds there, or rounding a part of the tensor is invalid. Returns `None` if they can be searched.
    pub fn undivided(&self, suspect: usize, config: &dyn Config) -> Option<String> {
        let at = &self.suspects[suspect];
        if !self.places[&at.place()].right.is_empty() {
            return Some(format!("'{}' rounds at {}, too", self.right.name, at.full()));
        }
        let part = SuspectSet {
            channels: Some(BTreeSet::from([0])),
            ..SuspectSet::at(BTreeSet::from([suspect]))
        };
        self.rounding(&part, config).err().map(|mistake| mistake.message)
    }

    /// Returns the first layer in which two sets of suspects (places and formats) differ. The sets differ at each suspect that
    /// only one of them has; if `these` is limited to some channels or tokens, also at each suspect of `these`. Returns
    /// `layers`, the number of layers, if the sets do not differ.
    pub fn first_difference(&self, these: &SuspectSet, those: &BTreeSet<usize>, layers: usize) -> usize {
        let part = these.channels.is_some() || these.tokens.is_some();
        let differing = these.suspects.symmetric_difference(those);
        let differing = differing.chain(these.suspects.iter().filter(|_| part));
        let layers_of = differing.map(|suspect| self.suspects[*suspect].layer.unwrap_or(layers));
        layers_of.min().unwrap_or(layers)
    }

    /// Returns the recipe that rounds like the wrong recipe at the given suspects (places and formats), and like the right recipe
    /// elsewhere.
    pub fn recipe(&self, wrong: &SuspectSet) -> Recipe {
        let part = wrong.channels.is_some() || wrong.tokens.is_some();
        // Layers that use each rounding step. Parts of the key: true if the step is the wrong recipe's; index of the step; site;
        // true if only some channels or tokens are rounded.
        let mut used: BTreeMap<(bool, usize, &'static str, bool), Vec<Option<usize>>> = BTreeMap::new();
        for (&(layer, site), here) in &self.places {
            let suspects = wrong.suspects.iter().map(|suspect| &self.suspects[*suspect]);
            let chosen: Vec<&Suspect> = suspects.filter(|suspect| suspect.place() == (layer, site)).collect();
            let is_suspect = !chosen.is_empty();
            let rounds: Vec<(bool, usize)> = match &here.common {
                Some(common) => {
                    let is_chosen = |round: &usize| chosen.iter().any(|suspect| suspect.rounds.contains(round));
                    let kept = |round: &&usize| common.contains(round) || is_chosen(round);
                    here.wrong.iter().filter(kept).map(|round| (true, *round)).collect()
                }
                None if is_suspect => here.wrong.iter().map(|round| (true, *round)).collect(),
                None => here.right.iter().map(|round| (false, *round)).collect(),
            };
            for (is_wrong, round) in rounds {
                let key = (is_wrong, round, site, part && is_suspect);
                used.entry(key).or_default().push(layer);
            }
        }
        let mut rounds = Vec::new();
        for ((is_wrong, round, site, part), layers) in used {
            let of = if is_wrong { &self.wrong } else { &self.right };
            let ranges = |numbers: &Option<BTreeSet<usize>>| {
                let numbers = numbers.as_ref().filter(|_| part)?;
                Some(Ranges::of(numbers.iter().copied()).to_string())
            };
            let original = &of.rounds[round];
            let mut round = Round {
                layers: None,
                channels: ranges(&wrong.channels).or_else(|| original.channels.clone()),
                tokens: ranges(&wrong.tokens).or_else(|| original.tokens.clone()),
                ..original.clone()
            };
            let every = self.layers.get(site).is_some_and(|passed| *passed == layers);
            let numbers: Vec<usize> = layers.iter().flatten().copied().collect();
            round.at = match numbers[..] {
                [] => site.to_string(),
                [layer] => Site::new(Some(layer), site).to_string(),
                _ => format!("layers.*.{site}"),
            };
            if numbers.len() > 1 && !every {
                round.layers = Some(Ranges::of(numbers).to_string());
            }
            rounds.push(round);
        }
        Recipe {
            name: format!("{}_explained", self.wrong.name),
            doc: format!("what fails of '{}', and else '{}'", self.wrong.name, self.right.name),
            noise: self.wrong.noise,
            gain: self.wrong.gain,
            rounds,
            ..Recipe::default()
        }
    }

    /// Converts the recipe of [`Self::recipe`] to the rounding steps at each site of the model `config`.
    ///
    /// # Errors
    /// Returns an error if the recipe does not resolve.
    pub fn rounding(&self, wrong: &SuspectSet, config: &dyn Config) -> Result<Rounding, Mistake> {
        self.recipe(wrong).resolve(config, self.seed)
    }

    /// Describes a set of suspects: the places that round like the wrong recipe or, if this is shorter, "all but" and the places
    /// that round like the right recipe.
    pub fn words(&self, wrong: &SuspectSet) -> String {
        let rest: BTreeSet<usize> = self.all().difference(&wrong.suspects).copied().collect();
        let mut words = match (wrong.suspects.len(), rest.len()) {
            (0, _) => return "nothing".into(),
            (2.., 0) => "everything".into(),
            (1, _) => self.named(&wrong.suspects),
            (some, others) if others < some => format!("all but {}", self.named(&rest)),
            _ => self.named(&wrong.suspects),
        };
        for (numbers, what) in [(&wrong.channels, "channel"), (&wrong.tokens, "token")] {
            if let Some(numbers) = numbers {
                words += &format!(", {}", counted(numbers.len(), what));
            }
        }
        words
    }

    /// Returns `layers 3,5-9` if the set has all suspects of these layers; else the names of the first few places (sites in
    /// layers).
    fn named(&self, suspects: &BTreeSet<usize>) -> String {
        const SHOWN: usize = 3;
        let of = |suspect: &usize| &self.suspects[*suspect];
        let layers: BTreeSet<Option<usize>> = suspects.iter().map(|suspect| of(suspect).layer).collect();
        let whole = (0..self.suspects.len()).all(|at| !layers.contains(&of(&at).layer) || suspects.contains(&at));
        let numbers: Vec<usize> = layers.iter().flatten().copied().collect();
        if whole && numbers.len() == layers.len() && suspects.len() > 1 {
            let noun = if numbers.len() > 1 { "layers" } else { "layer" };
            return format!("{noun} {}", Ranges::of(numbers));
        }
        let name = |suspect: &usize| {
            let suspect = of(suspect);
            let here = self.suspects.iter().filter(|other| other.place() == suspect.place());
            match here.count() {
                1 => suspect.full(),
                _ => format!("{} as {}", suspect.full(), suspect.formats.join(", ")),
            }
        };
        let mut names: Vec<String> = suspects.iter().take(SHOWN).map(name).collect();
        if suspects.len() > SHOWN {
            names.push(format!("{} more", suspects.len() - SHOWN));
        }
        names.join(", ")
    }
}
