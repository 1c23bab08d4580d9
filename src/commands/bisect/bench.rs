//! The test bench of `ulplab bisect`: tests mixtures of a right recipe (which passes the gates) and a wrong recipe (which fails
//! them). A test does not compute the first layers if the tested recipe rounds them like the right or the wrong recipe: it takes
//! their outputs from the stored run of that recipe.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use rayon::prelude::*;
use reference::paths::{Config, Model};
use serde::Serialize;

use super::mix::{Mix, SuspectSet};
use crate::experiment::{Mistake, Rule, Statistic};
use crate::gate::{Binding, explain, judge};
use crate::run::summary::summarize;
use crate::run::verdict::Verdict;
use crate::studies::Text;
use crate::studies::model::probe::{Probe, Trace};
use crate::studies::model::{Kept, Streams, Watch, run_finite, run_from};
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::Bound;
use ulplab_core::record::{Phase, Record, place};

/// Windows of text, the reference's tensors on each window, and the stored runs of the right and the wrong recipe.
pub struct Bench<'a> {
    pub config: &'a dyn Config,
    pub mix: &'a Mix,
    /// The rules (gates) that the wrong recipe fails.
    pub rules: Vec<&'a Rule>,
    windows: Vec<Window<'a>>,
    /// Indices of the windows on which each test runs the model: the windows that showed the failure.
    telling: BTreeSet<usize>,
    kept: HashMap<(Side, Phase, usize), Kept>,
    answers: HashMap<SuspectSet, bool>,
    /// Tests so far.
    pub tests: Vec<Test>,
    /// Number of cells run so far. A cell is a run of one recipe in one phase on one window.
    pub cells: usize,
    /// Maximum number of cells (runs of one recipe in one phase on one window) that the search may run.
    pub most: usize,
    progress: &'a (dyn Fn(usize, &str) + Sync),
    start: Instant,
}

struct Window<'a> {
    name: &'a str,
    text: Text<'a>,
    want: Trace<f32>,
}

/// The two recipes that the search mixes: `Right` passes the gates, `Wrong` fails them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Right,
    Wrong,
}

/// The result of a test of one recipe: a mixture of the right and the wrong recipe.
#[derive(Clone, Debug, Serialize)]
pub struct Test {
    /// Describes the places (sites in layers) at which the tested recipe rounds like the wrong recipe.
    pub wrong: String,
    pub fails: bool,
    /// Value of the statistic of the first rule (gate) that fails; if no rule fails, of the first rule.
    #[serde(with = "ulplab_core::record::nullable")]
    pub value: f64,
    pub cells: usize,
    /// Seconds since the search began.
    pub seconds: f64,
}

impl<'a> Bench<'a> {
    /// Creates the test bench. Runs the reference on every window, and keeps its tensors.
    ///
    /// # Errors
    /// Returns an error if the reference fails.
    pub fn new(
        model: &'a dyn Model<f32>,
        mix: &'a Mix,
        windows: &'a [(String, Vec<u32>)],
        progress: &'a (dyn Fn(usize, &str) + Sync),
    ) -> Result<Self> {
        let start = Instant::now();
        let traced = windows.par_iter().map(|(name, ids)| {
            let want = run_finite(model, ids, name)?;
            let text = Text { model, ids };
            Ok(Window { name, text, want })
        });
        Ok(Self {
            config: model.config(),
            mix,
            rules: Vec::new(),
            windows: traced.collect::<Result<_>>()?,
            telling: (0..windows.len()).collect(),
            kept: HashMap::new(),
            answers: HashMap::new(),
            tests: Vec::new(),
            cells: 0,
            most: usize::MAX,
            progress,
            start,
        })
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Runs the wrong recipe on all windows. Stores the rules that the recipe fails, and the outputs of all layers. `rules` are
    /// the gates on the wrong recipe.
    ///
    /// # Errors
    /// Returns an error if the reference fails, a rule matches no measurement, or the recipe fails no rule.
    pub fn wrong(&mut self, rules: &[&'a Rule]) -> Result<Vec<Verdict>> {
        self.rules = rules.to_vec();
        let records = self.keep(Side::Wrong, &SuspectSet::at(self.mix.all()))?;
        let mut failed = self.verdicts(&records)?;
        let said: Vec<&str> = failed.iter().map(|verdict| &*verdict.message).collect();
        let (recipe, said) = (&self.mix.wrong.name, said.join("; "));
        let message = format_args!("recipe '{recipe}' fails no gate, so there is nothing to search: {said}");
        Error::refuse(!failed.iter().any(Verdict::fails), message)?;
        self.note(&SuspectSet::at(self.mix.all()), &failed);
        failed.retain(Verdict::fails);
        let fails = |rule: &&Rule| failed.iter().any(|verdict| verdict.rule == **rule);
        self.rules.retain(fails);
        self.tell(&failed);
        Ok(failed)
    }

    /// Runs the right recipe, which must pass the rules that the wrong recipe fails.
    ///
    /// # Errors
    /// Returns an error if the reference fails, or the right recipe fails a rule.
    pub fn right(&mut self) -> Result<()> {
        let records = self.keep(Side::Right, &SuspectSet::default())?;
        let verdicts = self.verdicts(&records)?;
        if let Some(verdict) = verdicts.iter().find(|verdict| !verdict.passes()) {
            let (name, recipe, why) = (&self.mix.right.name, &self.mix.wrong.name, &verdict.message);
            let message =
                format!("'{name}' does not pass what '{recipe}' fails, so no search can begin from it: {why}");
            return Err(Error::Usage(message));
        }
        self.note(&SuspectSet::default(), &verdicts);
        Ok(())
    }

    /// Runs the right or the wrong recipe on all windows, in each phase. Stores the records and the outputs of the layers for
    /// later tests.
    fn keep(&mut self, side: Side, wrong: &SuspectSet) -> Result<Vec<Record>> {
        let rounding = self.mix.rounding(wrong, self.config).map_err(Mistake::usage)?;
        let exact = self.mix.recipe(wrong).rounds.is_empty();
        (self.progress)(self.cells, &self.mix.words(wrong));
        let each = self.pairs(&(0..self.windows.len()).collect());
        let run = |&(phase, at): &(Phase, usize)| {
            let (window, path) = (&self.windows[at], self.config.path());
            let blank = self.blank(phase, window);
            // A recipe that rounds nothing is the reference: compute its records from the stored tensors, without a run of the
            // model.
            if exact {
                let records = Probe::new(&rounding, &window.want, blank).replay(&window.want, window.text.ids);
                let streams = Streams::of_reference(path, &window.want);
                return Ok(((side, phase, at), Kept { records, streams }));
            }
            let mut streams = Streams::new(path);
            let records = run_from(window.text, &rounding, &window.want, blank, None, &mut streams)?;
            Ok(((side, phase, at), Kept { records, streams }))
        };
        let kept: Vec<_> = each.par_iter().map(run).collect::<Result<_>>()?;
        self.cells += if exact { 0 } else { each.len() };
        let records = kept.iter().flat_map(|(_, kept)| kept.records.clone()).collect();
        self.kept.extend(kept);
        Ok(records)
    }

    /// Tests the recipe that rounds like the wrong recipe at the suspects `wrong` (places and formats) and like the right
    /// recipe elsewhere. Returns true if a gate fails; `None` if the limit on cells (runs on one window) is reached. Uses only
    /// the windows that showed the failure.
    ///
    /// # Errors
    /// Returns an error if the reference fails.
    pub fn fails(&mut self, wrong: &SuspectSet) -> Result<Option<bool>> {
        if let Some(answer) = self.answers.get(wrong) {
            return Ok(Some(*answer));
        }
        let telling = self.telling.clone();
        Ok(self.test(wrong, &telling)?.map(|failed| !failed.is_empty()))
    }

    /// Same as [`Self::fails`], but tests all windows. If a gate fails, later calls of [`Self::fails`] test only the windows that
    /// show this failure.
    ///
    /// # Errors
    /// Returns an error if the reference fails.
    pub fn fails_anywhere(&mut self, wrong: &SuspectSet) -> Result<Option<bool>> {
        let all = (0..self.windows.len()).collect();
        let failed = self.test(wrong, &all)?;
        if let Some(failed) = failed.as_ref().filter(|failed| !failed.is_empty()) {
            self.tell(failed);
            self.answers.clear();
            self.answers.insert(wrong.clone(), true);
        }
        Ok(failed.map(|failed| !failed.is_empty()))
    }

    /// Runs a recipe on these windows, and returns the verdicts of the gates that it fails. Returns `None` if the run needs more
    /// cells than the limit allows.
    fn test(&mut self, wrong: &SuspectSet, windows: &BTreeSet<usize>) -> Result<Option<Vec<Verdict>>> {
        if self.cells + self.pairs(windows).len() > self.most {
            return Ok(None);
        }
        (self.progress)(self.cells, &self.mix.words(wrong));
        let records = self.records(wrong, windows)?;
        let mut verdicts = self.verdicts(&records)?;
        self.note(wrong, &verdicts);
        verdicts.retain(Verdict::fails);
        Ok(Some(verdicts))
    }

    /// Runs a recipe on these windows. Does not compute first layers that the right or the wrong recipe rounds in the same way:
    /// takes their outputs from the stored run of that recipe.
    fn records(&mut self, wrong: &SuspectSet, windows: &BTreeSet<usize>) -> Result<Vec<Record>> {
        let config = self.config;
        let rounding = self.mix.rounding(wrong, config).map_err(Mistake::usage)?;
        let ends = [(Side::Right, BTreeSet::new()), (Side::Wrong, self.mix.all())];
        let ends = ends.map(|(side, those)| (self.mix.first_difference(wrong, &those, config.layers()), side));
        let each: Vec<_> = self.pairs(windows);
        self.cells += each.len();
        let runs = each.par_iter().map(|&(phase, at)| {
            let window = &self.windows[at];
            let starts = ends
                .iter()
                .filter_map(|(layer, side)| Some((self.kept.get(&(*side, phase, at))?, *layer)));
            let start = starts.max_by_key(|(_, layer)| *layer);
            let blank = self.blank(phase, window);
            run_from(window.text, &rounding, &window.want, blank, start, &mut ())
        });
        Ok(runs.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Runs a recipe on the first window that showed the failure, and passes all tensors of the run to `watch`. Runs the whole
    /// model, or each layer by itself if `phase` is local.
    ///
    /// # Errors
    /// Returns an error if the reference fails.
    pub fn watch(&mut self, wrong: &SuspectSet, phase: Phase, watch: &mut (dyn Watch + Send)) -> Result<Vec<Record>> {
        let rounding = self.mix.rounding(wrong, self.config).map_err(Mistake::usage)?;
        (self.progress)(self.cells, &self.mix.words(wrong));
        self.cells += 1;
        let window = &self.windows[self.window()];
        let blank = self.blank(phase, window);
        run_from(window.text, &rounding, &window.want, blank, None, watch)
    }

    /// Returns the first layer and site at which the wrong recipe exceeds a rule's bound, in the first window that showed the
    /// failure.
    pub fn first_beyond(&self, rule: &Rule) -> Option<String> {
        let bound: Bound = rule.require.parse().ok()?;
        let kept = self.kept.get(&(Side::Wrong, rule.phase, self.window()))?;
        let beyond = |record: &&Record| {
            let here = rule.looks_at(&record.metric, record.layer, &record.site);
            record.layer.is_some() && here && !bound.admits(record.value)
        };
        let first = kept.records.iter().find(beyond)?;
        Some(place(first.layer, &first.site))
    }

    /// Returns the index of the first window that showed the failure.
    fn window(&self) -> usize {
        self.telling.first().copied().unwrap_or(0)
    }

    pub fn window_name(&self) -> &'a str {
        self.windows[self.window()].name
    }

    fn blank(&self, phase: Phase, window: &Window) -> Record {
        let recipe = &self.mix.wrong.name;
        let cell = format!("{recipe}/{phase}/{}", window.name);
        Record::blank(&cell, recipe, phase, window.name)
    }

    /// Returns the cells of a test: all pairs of a phase that a rule judges and one of these windows.
    fn pairs(&self, windows: &BTreeSet<usize>) -> Vec<(Phase, usize)> {
        let phases: BTreeSet<Phase> = self.rules.iter().map(|rule| rule.phase).collect();
        let of_phase = |phase: Phase| windows.iter().map(move |at| (phase, *at));
        phases.into_iter().flat_map(of_phase).collect()
    }

    fn verdicts(&self, records: &[Record]) -> Result<Vec<Verdict>> {
        let bindings = self.rules.iter().map(|rule| Binding::whole(rule, &self.mix.wrong.name));
        let bindings: Vec<Binding> = bindings.collect();
        let mut verdicts = judge(&bindings, &summarize(records)).map_err(Error::Usage)?;
        explain(&mut verdicts, records);
        Ok(verdicts)
    }

    /// Selects the windows for later tests: all windows or, if each failed gate bounds a minimum or maximum, only the worst
    /// window of each gate.
    fn tell(&mut self, failed: &[Verdict]) {
        let alone = |verdict: &Verdict| matches!(verdict.rule.statistic, Statistic::Min | Statistic::Max);
        let index = |verdict: &Verdict| {
            let name = verdict.window.as_ref().filter(|_| alone(verdict))?;
            self.windows.iter().position(|window| window.name == name)
        };
        let found: Option<BTreeSet<usize>> = failed.iter().map(index).collect();
        self.telling = found.unwrap_or_else(|| (0..self.windows.len()).collect());
    }

    /// Stores the result of a test, so that the same recipe is not run again.
    fn note(&mut self, wrong: &SuspectSet, verdicts: &[Verdict]) {
        let failed = verdicts.iter().find(|verdict| verdict.fails());
        self.answers.insert(wrong.clone(), failed.is_some());
        self.tests.push(Test {
            wrong: self.mix.words(wrong),
            fails: failed.is_some(),
            value: failed.or(verdicts.first()).map_or(f64::NAN, |verdict| verdict.value),
            cells: self.cells,
            seconds: self.seconds(),
        });
    }
}
