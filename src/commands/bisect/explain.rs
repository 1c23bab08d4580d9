//! Searches for culprits: smallest sets of places (sites in layers) at which wrong rounding alone makes a gate fail.

use std::collections::{BTreeMap, BTreeSet};

use reference::{Site, Tensor};
use serde::Serialize;

use super::bench::{Bench, Test};
use super::capsule::{Capture, Passage};
use super::mix::{Mix, Suspect, SuspectSet};
use super::search::{FailingSet, beginning, smallest};
use super::{Level, by_size};
use crate::backend::recipe::Ranges;
use crate::backend::rounding::Rounding;
use crate::experiment::{Mistake, Rule};
use crate::run::verdict::Verdict;
use crate::studies::model::Watch;
use ulplab_core::error::{Result, counted};
use ulplab_core::metrics::{Pair, RELATIVE_L2};
use ulplab_core::record::{Phase, Record};

/// The result of a search: the sites and formats that make a recipe fail its gates.
#[derive(Serialize)]
pub struct Explanation {
    pub recipe: String,
    /// Number of suspects: places and formats in which the right and the wrong recipe differ.
    pub suspects: usize,
    pub failed: Vec<Failed>,
    pub culprits: Vec<Culprit>,
    /// Reason why channels and tokens were not searched, although the options request it; `None` otherwise.
    pub undivided: Option<String>,
    /// True if the gates hold when the culprits (the places found) round like the right recipe and all other places like the
    /// wrong recipe; `None` if that was not tested.
    pub holds_without: Option<bool>,
    pub tests: Vec<Test>,
    pub cells: usize,
    pub seconds: f64,
    /// Recipe that rounds like the wrong recipe only at the culprits (the places that cause the failure), as TOML.
    pub toml: String,
    #[serde(skip)]
    pub wrong: SuspectSet,
    /// Tensors at the culprits (the places that cause the failure), before and after rounding.
    #[serde(skip)]
    pub taken: Vec<Passage>,
    /// Name of the window that the capsule's tensors are from.
    pub window: String,
}

/// A rule (gate) that the wrong recipe fails.
#[derive(Serialize)]
pub struct Failed {
    pub metric: String,
    #[serde(skip)]
    pub rule: Rule,
    pub message: String,
    /// The first layer and site at which the metric exceeds the bound, in the first window that showed the failure.
    pub first_beyond: Option<String>,
}

/// A culprit: places at which wrong rounding makes a gate fail, even if all other places round like the right recipe.
#[derive(Serialize)]
pub struct Culprit {
    pub places: Vec<WrongPlace>,
    /// Number of units in this culprit: layers, places or formats, depending on the level of the search.
    pub units: usize,
    /// True if tests showed that each unit is needed: the gates hold if any single unit rounds like the right recipe.
    pub minimal: bool,
    /// Channels whose errors alone make a gate fail; `None` if channels were not searched.
    pub channels: Option<Part>,
    pub tokens: Option<Part>,
    #[serde(skip)]
    pub wrong: SuspectSet,
}

#[derive(Serialize)]
pub struct WrongPlace {
    pub place: String,
    pub formats: Vec<String>,
}

/// The channels (or tokens) with the largest errors, as many as are needed to make a gate fail.
#[derive(Serialize)]
pub struct Part {
    pub numbers: String,
    pub count: usize,
    /// Number of all channels or tokens with an error other than 0.
    pub of: usize,
    /// True if tests showed that the count is minimal: all gates hold without the channel (or token) of the smallest error.
    pub fewest: bool,
}

impl Explanation {
    /// True if the search is complete: each culprit is minimal, and the gates hold if only the culprits round like the right
    /// recipe.
    pub fn whole(&self) -> bool {
        self.holds_without == Some(true) && self.culprits.iter().all(|culprit| culprit.minimal)
    }
}

/// Searches for culprits (places that cause the failure). The search divides layers into smaller units, down to the level
/// `down_to`. `bench` has already run both recipes; `failed` are the verdicts that the wrong recipe failed.
///
/// # Errors
/// Returns an error if the reference fails.
pub fn explain(bench: &mut Bench, failed: &[Verdict], down_to: Level) -> Result<Explanation> {
    let failed = failed.iter().map(|verdict| Failed {
        metric: verdict.rule.metric.clone(),
        rule: verdict.rule.clone(),
        message: verdict.message.clone(),
        first_beyond: bench.first_beyond(&verdict.rule),
    });
    let failed = failed.collect();
    let rank = Rank::measure(bench)?;
    let mut culprits: Vec<Culprit> = Vec::new();
    let mut left = bench.mix.all();
    let holds_without = loop {
        if !culprits.is_empty() {
            match bench.fails_anywhere(&SuspectSet::at(left.clone()))? {
                Some(true) => {}
                Some(false) => break Some(true),
                None => break None,
            }
        }
        let found = rank.drill(bench, &left, down_to)?;
        left.retain(|suspect| !found.set.contains(suspect));
        culprits.push(Culprit::new(bench.mix, found, down_to));
    };
    // Each culprit alone makes a gate fail, but the errors of several culprits may cancel. If the gates hold with all culprits
    // together, use only the first one.
    let first = culprits[0].wrong.clone();
    let mut wrong = first.clone();
    let suspects = culprits.iter().flat_map(|culprit| &culprit.wrong.suspects);
    wrong.suspects.extend(suspects);
    if culprits.len() > 1 && bench.fails(&wrong)? != Some(true) {
        wrong = first;
    }
    let mut taken = Vec::new();
    if down_to >= Level::Sites {
        let mut capture = Capture::new(bench.mix, &wrong, bench.config)?;
        let phase = bench.rules.first().map_or(Phase::Cumulative, |rule| rule.phase);
        bench.watch(&wrong, phase, &mut capture)?;
        taken = capture.taken;
    }
    let undivided = undivided(bench, &culprits, taken.len()).filter(|_| down_to >= Level::Channels);
    if let (None, [culprit], [taken]) = (&undivided, &mut culprits[..], &mut taken[..]) {
        culprit.divide(bench, taken, down_to)?;
        wrong = culprit.wrong.clone();
        let rounding = bench.mix.rounding(&wrong, bench.config).map_err(Mistake::usage)?;
        taken.got = rounding.applied(&taken.site, &taken.input);
    }
    Ok(Explanation {
        recipe: bench.mix.wrong.name.clone(),
        suspects: bench.mix.suspects.len(),
        toml: super::output::recipe(&bench.mix.recipe(&wrong)),
        window: bench.window_name().into(),
        tests: bench.tests.clone(),
        cells: bench.cells,
        seconds: bench.seconds(),
        failed,
        culprits,
        undivided,
        holds_without,
        wrong,
        taken,
    })
}

impl Culprit {
    fn new(mix: &Mix, found: FailingSet, down_to: Level) -> Self {
        let place = |suspect: &usize| {
            let suspect = &mix.suspects[*suspect];
            WrongPlace {
                place: suspect.full(),
                formats: suspect.formats.clone(),
            }
        };
        Self {
            places: found.set.iter().map(place).collect(),
            units: groups(mix, &found.set, down_to).len(),
            minimal: found.minimal,
            channels: None,
            tokens: None,
            wrong: SuspectSet::at(found.set),
        }
    }

    /// Finds the channels, and then the tokens, whose errors alone make a gate fail. Callers use this function only for a culprit
    /// of a single format at a single place (site in a layer).
    fn divide(&mut self, bench: &mut Bench, taken: &Passage, down_to: Level) -> Result<()> {
        let energies = taken.energies();
        let parts = [(Level::Channels, energies.channels), (Level::Tokens, energies.tokens)];
        for (level, energies) in parts.into_iter().filter(|(level, _)| *level <= down_to) {
            // A channel or token whose error is NaN counts as erroneous.
            let ranked = ranked(&energies, |at| energies[*at] != 0.0);
            let whole = self.wrong.clone();
            let part = |numbers: &BTreeSet<usize>| {
                let (mut wrong, numbers) = (whole.clone(), Some(numbers.clone()));
                match level {
                    Level::Channels => wrong.channels = numbers,
                    _ => wrong.tokens = numbers,
                }
                wrong
            };
            let mut fails = |numbers: &BTreeSet<usize>| bench.fails(&part(numbers));
            let (count, fewest) = beginning(&BTreeSet::new(), &ranked, &mut fails)?;
            let numbers: BTreeSet<usize> = ranked[..count].iter().copied().collect();
            self.wrong = part(&numbers);
            let found = Some(Part {
                numbers: Ranges::of(numbers).to_string(),
                count,
                of: ranked.len(),
                fewest,
            });
            match level {
                Level::Channels => self.channels = found,
                _ => self.tokens = found,
            }
        }
        Ok(())
    }
}

/// Returns the reason why the channels and tokens of the culprits cannot be searched; `None` if they can. `tensors` is the number
/// of tensors that were captured at the culprits' places.
fn undivided(bench: &Bench, culprits: &[Culprit], tensors: usize) -> Option<String> {
    let suspects = culprits.iter().flat_map(|culprit| &culprit.wrong.suspects);
    let suspects: Vec<usize> = suspects.copied().collect();
    match (&suspects[..], tensors) {
        (&[suspect], 1) => bench.mix.undivided(suspect, bench.config),
        ([_], tensors) => Some(format!("{} pass there, not one", counted(tensors, "tensor"))),
        (several, _) => Some(format!("{} places or formats were found, not one", several.len())),
    }
}

/// Returns the indices of the numbers that `keep` selects, the largest number first. NaN counts as infinity.
fn ranked(numbers: &[f64], keep: impl Fn(&usize) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..numbers.len()).filter(keep).collect();
    order.sort_by(|a, b| by_size(numbers[*b], numbers[*a]));
    order
}

/// Errors by which the search ranks layers and suspects (places and formats in question), measured with the reference's tensors
/// as inputs.
struct Rank {
    /// Relative error of the output of each layer.
    layers: BTreeMap<usize, f64>,
    /// Relative error that each suspect (place and format in question) makes when it rounds the tensor at its place.
    own: Vec<f64>,
}

impl Rank {
    /// Measures the errors in one run of the wrong recipe, in which the input of every layer is the reference's tensor.
    fn measure(bench: &mut Bench) -> Result<Self> {
        let (mix, config) = (bench.mix, bench.config);
        let right = mix.rounding(&SuspectSet::default(), config).map_err(Mistake::usage)?;
        let single = |at| mix.rounding(&SuspectSet::at(BTreeSet::from([at])), config);
        let singles = (0..mix.suspects.len()).map(single);
        let mut errors = Errors {
            mix,
            right,
            singles: singles.collect::<Result<_, _>>().map_err(Mistake::usage)?,
            own: vec![0.0; mix.suspects.len()],
        };
        let records = bench.watch(&SuspectSet::at(mix.all()), Phase::Local, &mut errors)?;
        let stream = config.path().stream().map(|site| site.name);
        let of_stream = |record: &&Record| Some(&*record.site) == stream && record.metric == RELATIVE_L2.name;
        let layers = records.iter().filter(of_stream);
        let layers = layers.filter_map(|record| Some((record.layer? as usize, record.value)));
        Ok(Self {
            layers: layers.collect(),
            own: errors.own,
        })
    }

    /// Finds a smallest set of suspects (places and formats) that makes a gate fail: searches layers, then places in these
    /// layers, then formats.
    fn drill(&self, bench: &mut Bench, among: &BTreeSet<usize>, down_to: Level) -> Result<FailingSet> {
        let (mut set, mut minimal) = (among.clone(), true);
        for level in [Level::Layers, Level::Sites, Level::Formats] {
            let groups = groups(bench.mix, &set, level);
            if level > down_to || groups.len() < 2 {
                continue;
            }
            let scores: Vec<f64> = groups.iter().map(|group| self.score(bench.mix, group, level)).collect();
            let union = |chosen: &BTreeSet<usize>| chosen.iter().flat_map(|at| groups[*at].iter().copied()).collect();
            let mut fails = |chosen: &BTreeSet<usize>| bench.fails(&SuspectSet::at(union(chosen)));
            let found = smallest(&ranked(&scores, |_| true), &mut fails)?;
            set = union(&found.set);
            minimal &= found.minimal;
        }
        Ok(FailingSet { set, minimal })
    }

    /// Returns the score by which the search ranks a group of suspects (places and formats). The score of a place or format is
    /// the largest error that its suspects make alone. The score of a layer is the error of the layer's output; it is reduced in
    /// proportion if the layer's largest error is from a suspect outside of the group.
    fn score(&self, mix: &Mix, group: &BTreeSet<usize>, level: Level) -> f64 {
        let largest = |suspects: &mut dyn Iterator<Item = usize>| suspects.map(|at| self.own[at]).fold(0.0, f64::max);
        let own = largest(&mut group.iter().copied());
        let layer = group.first().and_then(|suspect| mix.suspects[*suspect].layer);
        let of_layer = layer.filter(|_| level == Level::Layers);
        let of_layer = of_layer.and_then(|layer| self.layers.get(&layer));
        let Some(of_layer) = of_layer else { return own };
        let all = largest(&mut (0..self.own.len()).filter(|at| mix.suspects[*at].layer == layer));
        if all > 0.0 { of_layer * own / all } else { *of_layer }
    }
}

/// Groups suspects (places and formats in question) into the units of a level: layers, places or formats.
fn groups(mix: &Mix, set: &BTreeSet<usize>, level: Level) -> Vec<BTreeSet<usize>> {
    let mut groups: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for &at in set {
        let suspect = &mix.suspects[at];
        let key = match level {
            Level::Layers => (suspect.layer, None, 0),
            Level::Sites => (suspect.layer, Some(suspect.site), 0),
            _ => (suspect.layer, Some(suspect.site), at),
        };
        groups.entry(key).or_default().insert(at);
    }
    groups.into_values().collect()
}

/// Watches a run of the model, and measures the error that each suspect (place and format in question) alone makes when it rounds
/// a tensor.
struct Errors<'a> {
    mix: &'a Mix,
    right: Rounding,
    singles: Vec<Rounding>,
    own: Vec<f64>,
}

impl Watch for Errors<'_> {
    fn before(&mut self, site: &Site, tensor: &Tensor<f32>) {
        let here = |suspect: &Suspect| suspect.place() == (site.layer, site.name);
        let suspects = self.mix.suspects.iter().enumerate();
        for (at, _) in suspects.filter(|(_, suspect)| here(suspect)) {
            let [right, wrong] = [&self.right, &self.singles[at]].map(|rounding| rounding.applied(site, tensor));
            let error = RELATIVE_L2.measure(&Pair::new(&right.data, &wrong.data));
            let error = error.unwrap_or(0.0);
            if by_size(error, self.own[at]).is_gt() {
                self.own[at] = error;
            }
        }
    }
}
