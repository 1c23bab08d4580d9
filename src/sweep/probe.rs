//! Watching a run from its sites.

use std::collections::HashMap;

use reference::{Choice, Numerics, Real, Role, Site, Tensor};

use crate::backend::rounding::Rounding;
use crate::metrics::{self, Evidence, Pair};
use crate::record::{Phase, Record, Worst};

/// Tensor sites whose values are compared, besides the logits.
const COMPARED: [&str; 4] = ["attention.kv.window", "attention.kv.compressed", "attention.output", "output"];
const TOPK: &str = "attention.indexer.topk";
const MASS: &str = "attention.indexer.mass";
const ROUTER: &str = "moe.router";

type Place = (Option<usize>, &'static str);

/// What the reference computed for one window: everything candidates are compared with.
pub struct Trace<T> {
    tensors: HashMap<Place, Tensor<T>>,
    choices: HashMap<Place, Choice<T>>,
    pub logits: Tensor<T>,
}

/// Records a [`Trace`] while the reference runs.
pub struct Recorder<T> {
    tensors: HashMap<Place, Tensor<T>>,
    choices: HashMap<Place, Choice<T>>,
}

impl<T: Real> Recorder<T> {
    pub fn new() -> Self {
        Self { tensors: HashMap::new(), choices: HashMap::new() }
    }

    pub fn finish(self, logits: Tensor<T>) -> Trace<T> {
        Trace { tensors: self.tensors, choices: self.choices, logits }
    }
}

impl<T: Real> Numerics<T> for Recorder<T> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        if COMPARED.contains(&site.name) || site.name == MASS {
            self.tensors.insert((site.layer, site.name), tensor.clone());
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<T>) {
        self.choices.insert((site.layer, site.name), choice.clone());
    }

    fn wants(&self, site: &Site) -> bool {
        site.name == MASS
    }
}

/// A candidate's run: rounds by the recipe, feeds each layer the reference's input in the local phase, and measures.
pub struct Probe<'a, W> {
    rounding: &'a Rounding,
    want: &'a Trace<W>,
    phase: Phase,
    /// The record every measurement starts from: who is measured.
    cell: Record,
    records: Vec<Record>,
    /// Relative error of the streams that entered the layer, for the gain.
    entering: Option<f64>,
}

impl<'a, W: Real + Into<f64>> Probe<'a, W> {
    pub fn new(rounding: &'a Rounding, want: &'a Trace<W>, phase: Phase, cell: Record) -> Self {
        Self { rounding, want, phase, cell, records: Vec::new(), entering: None }
    }

    /// Measures the logits too and gives all records. `ids` are the tokens fed; each row's target is the next one.
    pub fn finish(mut self, logits: &Tensor<f32>, ids: &[u32]) -> Vec<Record> {
        let site = Site { layer: None, name: "logits", role: Role::Both, first_row: 0 };
        let pair = Pair::new(&self.want.logits.data, &logits.data);
        self.push(&site, &Evidence::Pair(&pair), Some(&logits.shape));
        let logits = metrics::Logits::new(&self.want.logits.data, &logits.data, logits.cols(), &ids[1..]);
        self.push(&site, &Evidence::Logits(&logits), None);
        self.records
    }

    /// Feeds a layer what the reference fed it: what left the layer before.
    fn force(&self, site: &Site, tensor: &mut Tensor<f32>) {
        let before = site.layer.and_then(|layer| layer.checked_sub(1));
        if let Some(want) = before.and_then(|layer| self.want.tensors.get(&(Some(layer), "output"))) {
            for (x, &want) in tensor.data.iter_mut().zip(&want.data) {
                *x = Into::<f64>::into(want) as f32;
            }
        }
    }

    /// Compares a tensor that passes with what passed in the reference.
    fn compare(&mut self, site: &Site, tensor: &Tensor<f32>) {
        let Some(want) = self.want.tensors.get(&(site.layer, site.name)) else { return };
        let pair = Pair::new(&want.data, &tensor.data);
        self.push(site, &Evidence::Pair(&pair), Some(&tensor.shape));
        if site.name == "output" && self.phase == Phase::Cumulative {
            let leaving = pair.relative_l2();
            if let Some(entering) = self.entering.replace(leaving) {
                self.push(site, &Evidence::Gain { entering, leaving }, None);
            }
        }
    }

    fn push(&mut self, site: &Site, evidence: &Evidence<'_>, shape: Option<&[usize]>) {
        for metric in metrics::METRICS {
            let Some(value) = metric.value(evidence) else { continue };
            let (nonfinite_want, nonfinite_got) = evidence.nonfinite();
            self.records.push(Record {
                layer: site.layer.map(|layer| layer as u32),
                site: site.name.to_string(),
                metric: metric.name.to_string(),
                value,
                n: evidence.count(),
                nonfinite_want,
                nonfinite_got,
                worst: shape.filter(|_| metric.name == "max_abs").and_then(|shape| worst(evidence, shape)),
                ..self.cell.clone()
            });
        }
    }
}

impl<W: Real + Into<f64>> Numerics<f32> for Probe<'_, W> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if self.phase == Phase::Local && site.name == "input" {
            self.force(site, tensor);
        }
        self.rounding.apply(site, tensor);
        // A tensor that passes once per role is compared in the role the recipe rounds.
        if site.role == Role::Both || self.rounding.touches(site) {
            self.compare(site, tensor);
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        let Some(want) = self.want.choices.get(&(site.layer, site.name)) else { return };
        let mass = self.want.tensors.get(&(site.layer, MASS)).filter(|_| site.name == TOPK);
        let evidence = metrics::Choice::new(want, choice, mass);
        self.push(site, &Evidence::Choice(&evidence), None);
    }

    fn splits(&self, site: &Site) -> bool {
        self.rounding.splits(site)
    }
}

fn worst(evidence: &Evidence<'_>, shape: &[usize]) -> Option<Worst> {
    let Evidence::Pair(pair) = evidence else { return None };
    let worst = pair.worst()?;
    let mut index = worst.index;
    let mut multi: Vec<u64> = shape.iter().rev().map(|&size| { let i = index % size; index /= size; i as u64 }).collect();
    multi.reverse();
    Some(Worst { index: multi, want: worst.want, got: worst.got })
}
