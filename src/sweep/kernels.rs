//! Kernels on a device: every variant on every case of its operation, checked and then timed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use reference::{Numerics, Site, Tensor};

use super::execute::Text;
use super::experiment::{Experiment, Recipe};
use super::plan::Cell;
use crate::backend::cuda::device::Module;
use crate::backend::cuda::run::Running;
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Plan, Source, Toolkit, Variant};
use crate::error::{Error, Result, did_you_mean};
use crate::kernels::judge::Measured;
use crate::kernels::{self, Case, Data, Problem, Rows};
use crate::pattern::matches;
use crate::record::{Phase, Record};

/// Site of the records of times.
pub const TIME: &str = "time";

/// Folder of the kernels: $ULPLAB_KERNELS, or `kernels/` here or in a folder above.
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ULPLAB_KERNELS") {
        return Ok(folder.into());
    }
    let here = std::env::current_dir().map_err(Error::io(".", "read"))?;
    let found = here
        .ancestors()
        .map(|folder| folder.join("kernels"))
        .find(|folder| folder.is_dir());
    found.ok_or_else(|| Error::Setup("no folder kernels/ here or above; set ULPLAB_KERNELS".into()))
}

/// Puts the variants that the experiment names in the place of recipes, and the cases of their operations in that of windows.
pub fn fill(experiment: &mut Experiment, sources: &[Source]) -> std::result::Result<(), (String, String)> {
    for source in sources {
        let op = kernels::find(&source.op)
            .map_err(|why| (source.op.clone(), format!("{}: {why}", source.path.display())))?;
        let names = source
            .header
            .variants
            .iter()
            .map(|variant| (format!("{}.{}", source.op, variant.name), &variant.doc));
        let named = names.filter(|(name, _)| experiment.kernels.iter().any(|pattern| matches(pattern, name)));
        let before = experiment.recipes.len();
        experiment.recipes.extend(named.map(|(name, doc)| Recipe {
            name,
            doc: doc.clone(),
            ..Recipe::default()
        }));
        if experiment.recipes.len() > before {
            let fresh = op.cases().into_iter().map(|case| case.name);
            let fresh: Vec<String> = fresh.filter(|name| !experiment.cases.contains(name)).collect();
            experiment.cases.extend(fresh);
        }
    }
    let unmatched = experiment
        .kernels
        .iter()
        .find(|pattern| !experiment.recipes.iter().any(|recipe| matches(pattern, &recipe.name)));
    match unmatched {
        None => Ok(()),
        Some(pattern) => Err((pattern.clone(), format!("'{pattern}' matches no kernel"))),
    }
}

/// Whether an operation has a case.
pub fn has_case(recipe: &str, case: &str) -> bool {
    let op = recipe.split_once('.').map_or(recipe, |(op, _)| op);
    kernels::find(op).is_ok_and(|op| op.cases().iter().any(|other| other.name == case))
}

/// What kernels are run with.
pub struct Bench<'a> {
    pub experiment: &'a Experiment,
    pub sources: &'a [Source],
    pub device: &'a Device,
    pub toolkit: &'a Toolkit,
    pub data: &'a Data<'a>,
    /// The fault to plant, as `op.mutant`.
    pub mutant: Option<&'a str>,
    pub done: &'a dyn Fn(&Cell, Vec<Record>) -> Result<()>,
    pub stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Runs cells, operation by operation and case by case: the inputs of a case are made once.
    pub fn run(&self, cells: &[&Cell]) -> Result<()> {
        let watch = Stopwatch::new(self.device)?;
        let copy = watch.copy_bandwidth()?;
        for source in self.sources {
            let of_op: Vec<&Cell> = cells
                .iter()
                .copied()
                .filter(|cell| cell.recipe.split_once('.').is_some_and(|(op, _)| op == source.op))
                .collect();
            if of_op.is_empty() {
                continue;
            }
            let cubin = self
                .toolkit
                .compile(source, &self.device.arch, &self.defines(source)?)?;
            let module = Module::load(&cubin.bytes)?;
            let op = kernels::find(&source.op).map_err(Error::Usage)?;
            for case in op.cases() {
                let here: Vec<&Cell> = of_op
                    .iter()
                    .copied()
                    .filter(|cell| self.experiment.cases[cell.window] == case.name)
                    .collect();
                if here.is_empty() {
                    continue;
                }
                let problem = match op.problem(&case, self.data) {
                    Ok(problem) => problem,
                    Err(why) => {
                        eprintln!("{} case {}: {why}", source.op, case.name);
                        here.iter()
                            .try_for_each(|cell| (self.done)(cell, vec![unknown(cell, &case)]))?;
                        continue;
                    }
                };
                for cell in here {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                    let variant = cell.recipe.split_once('.').and_then(|(_, name)| source.variant(name));
                    let variant = variant.ok_or_else(|| Error::Usage(format!("no variant {}", cell.recipe)))?;
                    let records = self.cell(cell, variant, &module, &case, &problem, (&watch, copy));
                    // A launch that is refused leaves the device as it was; one that went astray does not.
                    let records = records.or_else(|why| {
                        self.device.wait().map_err(|_| why.to_string()).map_err(Error::Setup)?;
                        eprintln!("{why}");
                        Ok(vec![unknown(cell, &case)])
                    })?;
                    (self.done)(cell, records)?;
                }
            }
        }
        Ok(())
    }

    /// What plants the fault, where it is one of this file's.
    fn defines(&self, source: &Source) -> Result<Vec<String>> {
        let Some((op, name)) = self
            .mutant
            .and_then(|mutant| mutant.split_once('.'))
            .filter(|(op, _)| *op == source.op)
        else {
            return Ok(Vec::new());
        };
        let mutants = &source.header.mutants;
        let found = mutants.iter().find(|mutant| mutant.name == name).ok_or_else(|| {
            let near = did_you_mean(name, mutants.iter().map(|mutant| mutant.name.as_str()));
            Error::Usage(format!("--mutant: {op} has no mutant '{name}'{near}"))
        })?;
        Ok(vec![found.define()])
    }

    fn cell(
        &self,
        cell: &Cell,
        variant: &Variant,
        module: &Module,
        case: &Case,
        problem: &Problem,
        (watch, copy): (&Stopwatch, f64),
    ) -> Result<Vec<Record>> {
        let blank = Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name);
        let place = |error: Error| Error::Setup(format!("{}: {error}", cell.id));
        let Some(plan) = self.plan(variant, case)? else {
            return Ok(Vec::new());
        };
        let running = Running::new(self.device, module, case, problem, &plan).map_err(place)?;
        let mut measured = check(&running, variant, problem).map_err(place)?;
        if case.timed && self.mutant.is_none() && failures(&measured).next().is_none() {
            measured.extend(timed(&running, problem, watch, copy).map_err(place)?);
        }
        Ok(measured.into_iter().map(|measured| record(&blank, measured)).collect())
    }

    /// What the checks say of a variant on a case; none where it does not take it.
    pub fn checked(
        &self,
        variant: &Variant,
        module: &Module,
        case: &Case,
        problem: &Problem,
    ) -> Result<Option<Vec<Measured>>> {
        let Some(plan) = self.plan(variant, case)? else {
            return Ok(None);
        };
        let running = Running::new(self.device, module, case, problem, &plan)?;
        check(&running, variant, problem).map(Some)
    }

    fn plan(&self, variant: &Variant, case: &Case) -> Result<Option<Plan>> {
        if variant.arch.as_ref().is_some_and(|arch| *arch != self.device.arch) {
            return Ok(None);
        }
        Plan::new(variant, case, self.device.sms).map_err(Error::Usage)
    }
}

fn check(running: &Running, variant: &Variant, problem: &Problem) -> Result<Vec<Measured>> {
    let checked = running.check(variant.nondeterministic.is_none())?;
    let mut measured = checked.measured;
    measured.extend((problem.judge)(&checked.outputs));
    Ok(measured)
}

/// What says that a kernel is wrong.
pub fn failures(measured: &[Measured]) -> impl Iterator<Item = &Measured> {
    measured
        .iter()
        .filter(|measured| measured.metric == "violations" && measured.value != 0.0)
}

/// Of a cell that could not be run: no gate passes a NaN.
fn unknown(cell: &Cell, case: &Case) -> Record {
    Record {
        site: "launch".into(),
        metric: "violations".into(),
        ..Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name)
    }
}

fn timed(running: &Running, problem: &Problem, watch: &Stopwatch, copy: f64) -> Result<Vec<Measured>> {
    let times = watch.time(&|| running.launch())?;
    let megabytes = problem.bytes as f64 / 1e6;
    let mut all = vec![
        ("us_cold", times.cold.median),
        ("us_cold_p10", times.cold.p10),
        ("us_cold_p90", times.cold.p90),
        ("us_hot", times.hot.median),
        ("megabytes", megabytes),
        ("of_copy", problem.bytes as f64 / times.cold.median / copy),
    ];
    all.extend(times.graph.map(|graph| ("us_graph", graph.median)));
    let measured = |(metric, value)| Measured {
        output: TIME,
        metric,
        value,
        n: 1,
        worst: None,
    };
    Ok(all.into_iter().map(measured).collect())
}

fn record(blank: &Record, measured: Measured) -> Record {
    Record {
        site: measured.output.into(),
        metric: measured.metric.into(),
        value: measured.value,
        n: measured.n,
        worst: measured.worst,
        ..blank.clone()
    }
}

/// What passes at the sites a pattern means when the model reads a text.
pub fn sites(text: Text<'_>, pattern: &str) -> std::result::Result<Vec<Rows>, String> {
    let mut collector = Collector {
        pattern,
        found: Vec::new(),
    };
    text.model.run(&mut text.model.state(), text.ids, &mut collector)?;
    if collector.found.is_empty() {
        return Err(format!("'{pattern}' matches no site of the model"));
    }
    Ok(collector.found)
}

struct Collector<'a> {
    pattern: &'a str,
    found: Vec<Rows>,
}

impl Numerics<f32> for Collector<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if matches(self.pattern, &site.to_string()) && !tensor.data.is_empty() {
            self.found.push(Rows {
                layer: site.layer.map(|layer| layer as u32),
                cols: tensor.shape[1..].iter().product(),
                values: tensor.data.clone(),
            });
        }
    }
}
