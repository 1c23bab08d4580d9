//! Records the tensors of a run and its choices (of experts or cache entries) at the model's sites (named tensors), and
//! compares them with those of the reference.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use reference::paths::Path;
use reference::sites::{Decision, Flow};
use reference::{Choice, Numerics, Operations, Real, Role, Site, SiteInfo, Tensor};

use super::resumed::Watch;
use crate::backend::rounding::Rounding;
use crate::studies::measure::{at, records};
use crate::studies::study::Text;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{self, Evidence, Gain, Logits, NATS, PERPLEXITY, Pair, Threshold, flips, nats};
use ulplab_core::record::{Phase, Record};

type Place = (Option<usize>, &'static str);

/// A top-k selection of the reference. `mass` is the attention weight of each selected entry, if it was recorded.
pub struct Selection<'a, T> {
    pub layer: Option<usize>,
    pub site: &'static str,
    pub choice: &'a Choice<T>,
    pub mass: Option<Vec<f32>>,
}

/// Tensors, top-k selections (experts, cache entries) and logits that the reference computed in one window of text. Quantized runs
/// are compared with them.
pub struct Trace<T> {
    path: &'static Path,
    tensors: HashMap<Place, Tensor<T>>,
    choices: HashMap<Place, Choice<T>>,
    pub logits: Tensor<T>,
}

impl<T: Real + Into<f64>> Trace<T> {
    /// Returns the residual stream after a layer; `None` if it was not recorded.
    pub fn stream(&self, layer: usize) -> Option<&Tensor<T>> {
        let site = self.path.stream()?;
        self.tensors.get(&(Some(layer), site.name))
    }

    /// Returns the selections of cache entries in all layers, ordered by layer.
    pub fn selected(&self) -> Vec<Selection<'_, T>> {
        let selected = self.choices.iter().filter(|((_, site), _)| selects(self.path, site));
        let selected = selected.map(|(&(layer, site), choice)| Selection {
            layer,
            site,
            choice,
            mass: self.mass((layer, site)),
        });
        let mut found: Vec<_> = selected.collect();
        found.sort_by_key(|selected| (selected.layer, selected.site));
        found
    }

    /// Returns the reference's attention weight of each selected entry; `None` if the weights were not recorded.
    fn mass(&self, (layer, site): Place) -> Option<Vec<f32>> {
        let mass = self.path.site(site).and_then(mass)?;
        let mass = self.tensors.get(&(layer, mass))?;
        Some(mass.data.iter().map(|&m| Into::<f64>::into(m) as f32).collect())
    }
}

/// Returns the name of the site that has the attention weights of the entries selected at `site`, if the model has such a site.
fn mass(site: &SiteInfo) -> Option<&'static str> {
    match site.decision() {
        Some(Decision::TopK { mass, .. }) => mass,
        _ => None,
    }
}

/// True if entries of a cache are selected at a site.
fn selects(path: &Path, site: &str) -> bool {
    let decision = path.site(site).and_then(SiteInfo::decision);
    matches!(decision, Some(Decision::TopK { .. }))
}

/// Returns the role of a site in the model: entry to a layer, exit from a layer, output of the model, or none of these.
fn flow(path: &Path, site: &Site) -> Flow {
    path.site(site.name).map_or(Flow::Inside, |site| site.flow)
}

/// Records a [`Trace`] while a model runs, with the values after `numerics` has rounded them.
pub struct Recorder<T, N> {
    numerics: N,
    trace: Trace<T>,
}

impl<T: Real, N: Numerics<T>> Recorder<T, N> {
    /// Returns a recorder for a model whose sites are defined by `path`, the model's implementation.
    pub fn new(numerics: N, path: &'static Path) -> Self {
        let trace = Trace {
            path,
            tensors: HashMap::new(),
            choices: HashMap::new(),
            logits: Tensor::new([0, 0], Vec::new()),
        };
        Self { numerics, trace }
    }

    /// True if the tensor at this site has the attention weights of selected entries.
    fn is_mass(&self, site: &Site) -> bool {
        self.trace.path.sites.iter().any(|other| mass(other) == Some(site.name))
    }

    pub fn finish(self, logits: Tensor<T>) -> Trace<T> {
        Trace { logits, ..self.trace }
    }
}

impl<T: Real, N: Numerics<T>> Numerics<T> for Recorder<T, N> {
    /// Records a tensor. Rows of a later call are appended to the rows of earlier calls.
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        self.numerics.site(site, tensor);
        let known = self.trace.path.site(site.name);
        let kept = known.is_some_and(|known| match known.flow {
            // Record this tensor: the local phase feeds it to the next layer.
            Flow::Leaves => true,
            // Do not record the logits: the run returns them.
            Flow::Output => false,
            Flow::Inside | Flow::Enters => known.compared,
        });
        if kept || self.is_mass(site) {
            match self.trace.tensors.entry((site.layer, site.name)) {
                Entry::Vacant(place) => _ = place.insert(tensor.clone()),
                Entry::Occupied(mut place) => append(place.get_mut(), tensor),
            }
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<T>) {
        self.numerics.choice(site, choice);
        match self.trace.choices.entry((site.layer, site.name)) {
            Entry::Vacant(place) => _ = place.insert(choice.clone()),
            Entry::Occupied(mut place) => {
                let all = place.get_mut();
                let candidates = all.scores.cols().max(choice.scores.cols());
                all.indices.extend(&choice.indices);
                widen(&mut all.scores, candidates);
                let mut scores = choice.scores.clone();
                widen(&mut scores, candidates);
                append(&mut all.scores, &scores);
            }
        }
    }

    fn wants(&self, site: &Site) -> bool {
        self.is_mass(site)
    }

    fn splits(&self, site: &Site) -> bool {
        self.numerics.splits(site)
    }

    fn operations(&self) -> &dyn Operations<T> {
        self.numerics.operations()
    }
}

/// Appends rows to a tensor.
pub fn append<T: Real>(all: &mut Tensor<T>, rows: &Tensor<T>) {
    all.shape[0] += rows.shape[0];
    all.data.extend(&rows.data);
}

/// Pads scores with −∞ to the given number of candidates, since a later call has more candidates than an earlier one.
fn widen<T: Real>(scores: &mut Tensor<T>, candidates: usize) {
    let (rows, cols) = (scores.rows(), scores.cols());
    if cols < candidates {
        let mut wide = Tensor::full([rows, candidates], T::NEG_INFINITY);
        for row in 0..rows {
            wide.row_mut(row)[..cols].copy_from_slice(scores.row(row));
        }
        *scores = wide;
    }
}

/// Runs and measures a candidate: rounds by the recipe, and compares with the reference. In the local phase, each layer gets the
/// reference's input.
pub struct Probe<'a, W> {
    rounding: &'a Rounding,
    want: &'a Trace<W>,
    /// The template of every record: cell, recipe and phase, without a measurement.
    cell: Record,
    records: Vec<Record>,
    /// Relative error of the residual streams at the input of the current layer. The layer's gain is the error at its output
    /// divided by this error.
    entering: Option<f64>,
    watch: Option<&'a mut dyn Watch>,
}

impl<'a, W: Real + Into<f64>> Probe<'a, W> {
    pub fn new(rounding: &'a Rounding, want: &'a Trace<W>, cell: Record) -> Self {
        Self {
            rounding,
            want,
            cell,
            records: Vec::new(),
            entering: None,
            watch: None,
        }
    }

    /// Sets the relative error of the residual streams before the first computed layer, for a run that does not start at layer
    /// 0.
    pub fn behind(self, entering: Option<f64>) -> Self {
        Self { entering, ..self }
    }

    /// Sets an observer of the run's tensors.
    pub fn watched(self, watch: &'a mut dyn Watch) -> Self {
        Self {
            watch: Some(watch),
            ..self
        }
    }

    /// Runs the model with the roundings on all tokens, and returns all records.
    ///
    /// # Errors
    /// Returns an error if the model, or a kernel that replaces one of its operations, fails.
    pub fn run(mut self, text: Text<'_>) -> Result<Vec<Record>> {
        let mut state = text.model.state(Vec::new()).map_err(Error::Reference)?;
        let logits = self.rounding.run(text.model, &mut *state, text.ids, &mut self)?;
        Ok(self.finish(&logits, text.ids))
    }

    /// Measures the logits, and returns all records. `ids` are the tokens of the text; the target of each row is the next token.
    pub fn finish(mut self, logits: &Tensor<f32>, ids: &[u32]) -> Vec<Record> {
        let site = Site::new(None, self.want.path.output().name);
        let (want, got, cols, targets) = (&self.want.logits.data, &logits.data, logits.cols(), &ids[1..]);
        self.push(&site, &with_ulps(want, got), &logits.shape);
        self.push(&site, &Logits::new(want, got, cols, targets), &[]);
        let blank = self.at(&site);
        let flips = flips::of_logits(want, got, cols, targets);
        let loss = nats::of_logits(got, cols, targets);
        let losses = loss.map(|nats| [(&NATS, nats), (&PERPLEXITY, nats.exp())]);
        let counted = flips.into_iter().chain(losses.into_iter().flatten());
        self.records.extend(counted.map(|(metric, value)| Record {
            metric: metric.name.into(),
            value,
            n: ids.len() as u64 - 1,
            ..blank.clone()
        }));
        self.records
    }

    /// Measures a recorded run. The sites are compared in the order in which a model computes them.
    pub fn replay(mut self, got: &Trace<f32>, ids: &[u32]) -> Vec<Record> {
        let mut places: Vec<Place> = got.tensors.keys().chain(got.choices.keys()).copied().collect();
        let order = |name: &str| got.path.sites.iter().position(|site| site.name == name);
        places.sort_unstable_by_key(|(layer, name)| (layer.is_none(), *layer, order(name)));
        for place in places {
            let site = Site::new(place.0, place.1);
            if let Some(tensor) = got.tensors.get(&place) {
                self.compare(&site, tensor);
            }
            if let Some(choice) = got.choices.get(&place) {
                self.choice(&site, &mut choice.clone());
            }
        }
        self.finish(&got.logits, ids)
    }

    /// Replaces a layer's input with the reference's output of the previous layer.
    fn force(&self, site: &Site, tensor: &mut Tensor<f32>) {
        let before = site.layer.and_then(|layer| layer.checked_sub(1));
        let left = before.zip(self.want.path.stream());
        if let Some(want) = left.and_then(|(layer, left)| self.want.tensors.get(&(Some(layer), left.name))) {
            for (x, &want) in tensor.data.iter_mut().zip(&want.data) {
                *x = Into::<f64>::into(want) as f32;
            }
        }
    }

    /// Compares a tensor at a site with the reference's tensor.
    fn compare(&mut self, site: &Site, tensor: &Tensor<f32>) {
        let Some(want) = self.want.tensors.get(&(site.layer, site.name)) else {
            return;
        };
        // Count ULPs only for the residual streams that leave a layer: these have the type of the computation, while cached
        // tensors have a coarser type.
        let leaves = flow(self.want.path, site) == Flow::Leaves;
        let pair = match leaves {
            true => with_ulps(&want.data, &tensor.data),
            false => Pair::new(&want.data, &tensor.data),
        };
        self.push(site, &pair, &tensor.shape);
        if leaves && self.cell.phase == Phase::Cumulative {
            let leaving = metrics::RELATIVE_L2.measure(&pair).unwrap_or(f64::NAN);
            if let Some(entering) = self.entering.replace(leaving) {
                let n = pair.n;
                self.push(site, &Gain { entering, leaving, n }, &[]);
            }
        }
    }

    /// Returns a record for a site, without a measurement.
    fn at(&self, site: &Site) -> Record {
        at(&self.cell, site.layer.map(|layer| layer as u32), site.name)
    }

    /// Adds a record, at a site, for every metric that can be computed from `evidence`, e.g. from a pair of tensors.
    fn push<E: Evidence>(&mut self, site: &Site, evidence: &E, shape: &[usize]) {
        let blank = self.at(site);
        self.records.extend(records(&blank, evidence, shape));
    }
}

/// Compares a choice (of cache entries or of experts) with the reference's choice, and returns records of the agreement.
/// `selects` is true for a choice of cache entries: the records then also have the agreement that theory predicts from the
/// errors of the scores. A router has too few experts for this prediction.
pub fn decision<W: Real + Into<f64>>(
    blank: &Record,
    selects: bool,
    want: &Choice<W>,
    got: &Choice<f32>,
    mass: Option<&[f32]>,
) -> Vec<Record> {
    let (k, candidates) = (want.k, want.scores.cols());
    let choice = metrics::Choice::new(&want.indices, &got.indices, k, &want.scores.data, candidates, mass);
    let mut measured: Vec<Record> = records(blank, &choice, &[]).collect();
    // Kernels that compute a whole step return their selections, but not the scores.
    if selects && got.scores.cols() == candidates {
        let threshold = Threshold::new(&want.scores.data, &got.scores.data, candidates, k, &choice);
        measured.extend(records(blank, &threshold, &[]));
    }
    measured
}

impl<W: Real + Into<f64>> Numerics<f32> for Probe<'_, W> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if let Some(watch) = &mut self.watch {
            watch.before(site, tensor);
        }
        if self.cell.phase == Phase::Local && flow(self.want.path, site) == Flow::Enters {
            self.force(site, tensor);
        }
        self.rounding.apply(site, tensor);
        // A tensor may pass a site several times, once for each role (key or value) in which attention reads it. Then compare
        // only the pass in a role that the recipe rounds.
        if site.role == Role::Both || self.rounding.touches(site) {
            self.compare(site, tensor);
        }
        if let Some(watch) = &mut self.watch {
            watch.after(site, tensor);
        }
    }

    fn choice(&mut self, site: &Site, got: &mut Choice<f32>) {
        let Some(want) = self.want.choices.get(&(site.layer, site.name)) else {
            return;
        };
        let mass = self.want.mass((site.layer, site.name));
        let blank = self.at(site);
        let selects = selects(self.want.path, site.name);
        let measured = decision(&blank, selects, want, got, mass.as_deref());
        self.records.extend(measured);
    }

    fn splits(&self, site: &Site) -> bool {
        self.rounding.splits(site)
    }

    fn operations(&self) -> &dyn Operations<f32> {
        self.rounding.operations()
    }
}

/// Returns the pair of tensors, with the distance of each element in ULPs of f32. An f64 reference is rounded to f32 for this.
fn with_ulps<W: Real + Into<f64>>(want: &[W], got: &[f32]) -> Pair {
    let rounded = want.iter().map(|&x| u64::from((Into::<f64>::into(x) as f32).to_bits()));
    Pair::new(want, got).with_ulps_of_codes(32, rounded, got.iter().map(|y| u64::from(y.to_bits())))
}
