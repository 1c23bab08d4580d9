//! Kernels on a device: every variant on every case of its operation, checked and then timed.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::execute::Text;
use super::experiment::{Experiment, Recipe};
use super::peers::Peers;
use super::plan::Cell;
use super::round_trip::{Sample, recorded};
use super::run::Hindrance;
use super::source::{Origin, Source};
use crate::backend::cuda::device::Module;
use crate::backend::cuda::header::Factor;
use crate::backend::cuda::run::{Running, failures};
use crate::backend::cuda::time::{Ceilings, Stopwatch};
use crate::backend::cuda::{Device, Mutant, Plan, Source as KernelFile, Toolkit, Variant};
use crate::error::{Error, Result, did_you_mean};
use crate::kernels::judge::Measured;
use crate::kernels::{self, Case, Data, Op, Problem, Rows};
use crate::pattern::matches;
use crate::record::{Phase, Record};

/// Site of the records of times.
pub const TIME: &str = "time";

/// Folder of the kernels: $ULPLAB_KERNELS, or `kernels/` here or in a folder above.
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ULPLAB_KERNELS") {
        return Ok(folder.into());
    }
    above("kernels")?.ok_or_else(|| Error::Setup("no folder kernels/ here or above; set ULPLAB_KERNELS".into()))
}

/// The file of an operation's kernels.
pub fn file(op: &dyn Op) -> Result<KernelFile> {
    KernelFile::read(&folder()?.join(format!("{}.cu", op.name())))
}

/// The folder of that name here, or in the nearest folder above that has one.
pub fn above(name: &str) -> Result<Option<PathBuf>> {
    let here = std::env::current_dir().map_err(Error::io(".", "read"))?;
    let mut folders = here.ancestors().map(|folder| folder.join(name));
    Ok(folders.find(|folder| folder.is_dir()))
}

/// Puts the variants that the experiment names and its programs in the place of recipes, and the cases of their operations
/// in that of windows.
pub fn fill(experiment: &mut Experiment, sources: &[KernelFile]) -> std::result::Result<(), (String, String)> {
    let variants = sources.iter().flat_map(|source| {
        let variants = source.header.variants.iter();
        variants.map(|variant| (&source.op, format!("{}.{}", source.op, variant.name), &variant.doc))
    });
    let named = variants.filter(|(_, name, _)| experiment.kernels.iter().any(|pattern| matches(pattern, name)));
    let named: Vec<_> = named.collect();
    let unmatched = experiment
        .kernels
        .iter()
        .find(|pattern| !named.iter().any(|(_, name, _)| matches(pattern, name)));
    if let Some(pattern) = unmatched {
        return Err((pattern.clone(), format!("'{pattern}' matches no kernel")));
    }
    let commands = experiment
        .commands
        .iter()
        .map(|command| (&command.op, command.recipe(), &command.doc));
    for (op, name, doc) in named.into_iter().chain(commands) {
        let found = kernels::find(op).map_err(|why| (op.clone(), format!("'{name}': {why}")))?;
        let fresh = found.cases().into_iter().map(|case| case.name);
        let fresh: Vec<String> = fresh.filter(|name| !experiment.cases.contains(name)).collect();
        experiment.cases.extend(fresh);
        experiment.recipes.push(Recipe {
            name,
            doc: doc.clone(),
            ..Recipe::default()
        });
    }
    Ok(())
}

/// The variants that are for another device than this one, and why.
pub fn for_others(experiment: &Experiment, sources: &[KernelFile], device: &Device) -> BTreeMap<String, Hindrance> {
    let named = |(source, variant): (&KernelFile, &Variant)| {
        let name = format!("{}.{}", source.op, variant.name);
        let arch = variant.arch.as_ref().filter(|arch| **arch != device.arch)?;
        let why = format!("it is for {arch}, and this device is {}", device.arch);
        let tried = experiment.recipes.iter().any(|recipe| recipe.name == name);
        tried.then_some((name, Hindrance::OtherDevice(why)))
    };
    let of = |source| {
        let source: &KernelFile = source;
        source.header.variants.iter().map(move |variant| (source, variant))
    };
    sources.iter().flat_map(of).filter_map(named).collect()
}

/// Whether there is a fault of that name, `op.mutant`.
pub fn check_mutant(name: &str, sources: &[KernelFile]) -> Result<()> {
    let of = |source: &KernelFile| -> Vec<String> {
        let mutants = source.header.mutants.iter();
        mutants.map(|mutant| format!("{}.{}", source.op, mutant.name)).collect()
    };
    let names: Vec<String> = sources.iter().flat_map(of).collect();
    if names.iter().any(|other| other == name) {
        return Ok(());
    }
    let near = did_you_mean(name, names.iter().map(String::as_str));
    Err(Error::Usage(format!(
        "--mutant: there is no fault '{name}'{near}; `ulplab list kernels` has them"
    )))
}

/// Names of the cases of the operation that a recipe is of.
pub fn cases_of(recipe: &str) -> HashSet<String> {
    let op = recipe.split_once('.').map_or(recipe, |(op, _)| op);
    let cases = kernels::find(op).map_or_else(|_| Vec::new(), Op::cases);
    cases.into_iter().map(|case| case.name).collect()
}

/// All cases whose time is taken, as `op/case`.
pub fn timed() -> HashSet<String> {
    let timed = |op: &&'static dyn Op| {
        let name = op.name();
        let cases = op.cases().into_iter().filter(|case| case.timed);
        cases.map(move |case| format!("{name}/{}", case.name))
    };
    kernels::OPS.iter().flat_map(timed).collect()
}

/// Cells of kernels, whatever runs them, and what their problems are made of.
pub struct Cells<'a> {
    pub experiment: &'a Experiment,
    pub data: &'a Data<'a>,
    pub done: &'a dyn Fn(&Cell, Vec<Record>) -> Result<()>,
    pub stop: &'a AtomicBool,
}

impl Cells<'_> {
    /// Runs those of an operation case by case: the inputs of a case are made once.
    pub fn each(
        &self,
        op: &dyn Op,
        cells: &[&Cell],
        run: impl Fn(&Cell, &Case, &Problem) -> Result<Vec<Record>>,
    ) -> Result<()> {
        for case in op.cases() {
            let named = |cell: &&Cell| self.experiment.cases[cell.window] == case.name;
            let here: Vec<&Cell> = cells.iter().copied().filter(named).collect();
            if here.is_empty() {
                continue;
            }
            let problem = op.problem(&case, self.data);
            if let Err(why) = &problem {
                errln!("{} case {}: {why}", op.name(), case.name);
            }
            for cell in here {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                let records = match &problem {
                    Ok(problem) => run(cell, &case, problem)?,
                    Err(_) => vec![unknown(cell, &case, "inputs")],
                };
                (self.done)(cell, records)?;
            }
        }
        Ok(())
    }
}

/// The cells of an operation.
pub fn of_op<'a>(op: &str, cells: &[&'a Cell]) -> Vec<&'a Cell> {
    cells.iter().copied().filter(|cell| cell.kernel().0 == op).collect()
}

/// What kernels are run with.
pub struct Bench<'a> {
    pub cells: Cells<'a>,
    pub sources: &'a [KernelFile],
    pub device: &'a Device,
    /// What times are shares of.
    pub ceilings: Option<Ceilings>,
    pub toolkit: &'a Toolkit,
    /// The fault to plant, as `op.mutant`.
    pub mutant: Option<&'a str>,
    /// Whose times are set beside.
    pub peers: Option<&'a Peers>,
}

impl Bench<'_> {
    /// Runs cells, operation by operation.
    pub fn run(&self, cells: &[&Cell]) -> Result<()> {
        let watch = Stopwatch::new(self.device)?;
        for source in self.sources {
            let here = of_op(&source.op, cells);
            if here.is_empty() {
                continue;
            }
            let cubin = self.toolkit.compile(source, &self.device.arch, &self.defines(source))?;
            let module = Module::load(&cubin.bytes)?;
            let op = kernels::find(&source.op).map_err(Error::Usage)?;
            self.cells.each(op, &here, |cell, case, problem| {
                let variant = source.variant(cell.kernel().1);
                let variant = variant.ok_or_else(|| Error::Usage(format!("no variant {}", cell.recipe)))?;
                let records = self.cell(cell, variant, &module, case, problem, &watch);
                // A launch that is refused leaves the device as it was; one that went astray does not.
                records.or_else(|why| {
                    self.device.wait().map_err(|_| why.to_string()).map_err(Error::Setup)?;
                    errln!("{why}");
                    Ok(vec![unknown(cell, case, "launch")])
                })
            })?;
        }
        Ok(())
    }

    /// What plants the fault, where it is one of this file's.
    fn defines(&self, source: &KernelFile) -> Vec<String> {
        let named = |mutant: &&Mutant| self.mutant == Some(format!("{}.{}", source.op, mutant.name).as_str());
        source.header.mutants.iter().filter(named).map(Mutant::define).collect()
    }

    fn cell(
        &self,
        cell: &Cell,
        variant: &Variant,
        module: &Module,
        case: &Case,
        problem: &Problem,
        watch: &Stopwatch,
    ) -> Result<Vec<Record>> {
        let place = |error: Error| Error::Setup(format!("{}: {error}", cell.id));
        let Some(plan) = self.plan(variant, case)? else {
            return Ok(Vec::new());
        };
        let running = Running::new(self.device, module, case, problem, &plan).map_err(place)?;
        let mut measured = running.judged(variant.nondeterministic.is_none()).map_err(place)?;
        if case.timed && self.mutant.is_none() && failures(&measured).next().is_none() {
            let times = self.timed(&running, problem, plan.products, watch).map_err(place)?;
            let cold = times.iter().find(|time| time.metric == "us_cold");
            if let (Some(peers), Some(cold)) = (self.peers, cold) {
                measured.extend(peers.beside(cell.kernel().0, &case.name, cold.value));
            }
            measured.extend(times);
        }
        Ok(records(cell, case, measured))
    }

    fn timed(
        &self,
        running: &Running,
        problem: &Problem,
        products: Factor,
        watch: &Stopwatch,
    ) -> Result<Vec<Measured>> {
        let times = running.time(watch)?;
        let rotated = times.rotated.map(|rotated| rotated.median);
        let share = |us: f64| {
            let copy = self.ceilings.map(|ceilings| ceilings.copy_gb_s * 1e3);
            copy.map(|copy| problem.bytes as f64 / us / copy)
        };
        let flops = |us: f64| {
            let rate = self.ceilings.and_then(|ceilings| ceilings.products(products));
            let rate = rate.filter(|_| problem.flops > 0);
            rate.map(|rate| problem.flops as f64 / us / (rate * 1e6))
        };
        let all = [
            ("us_cold", Some(times.cold.median)),
            ("us_cold_p10", Some(times.cold.p10)),
            ("us_cold_p90", Some(times.cold.p90)),
            ("us_hot", Some(times.hot.median)),
            ("us_graph", times.graph.map(|graph| graph.median)),
            ("us_rotated", rotated),
            ("megabytes", Some(problem.bytes as f64 / 1e6)),
            ("of_copy", share(times.cold.median)),
            ("of_copy_rotated", rotated.and_then(share)),
            ("of_matmul", flops(times.cold.median)),
        ];
        let measured = all.into_iter();
        Ok(measured
            .filter_map(|(metric, value)| Some(time(metric, value?)))
            .collect())
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
        running.judged(variant.nondeterministic.is_none()).map(Some)
    }

    /// Whether a variant is for this device.
    pub fn runs(&self, variant: &Variant) -> bool {
        variant.arch.as_ref().is_none_or(|arch| *arch == self.device.arch)
    }

    fn plan(&self, variant: &Variant, case: &Case) -> Result<Option<Plan>> {
        if !self.runs(variant) {
            return Ok(None);
        }
        Plan::new(variant, case, self.device.sms).map_err(Error::Usage)
    }
}

/// Of a cell that could not be run, for what was amiss: no gate passes a NaN.
pub fn unknown(cell: &Cell, case: &Case, site: &str) -> Record {
    Record {
        site: site.into(),
        metric: "violations".into(),
        ..Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name)
    }
}

/// One of the numbers that a time gives.
pub fn time(metric: &'static str, value: f64) -> Measured {
    Measured {
        output: TIME,
        metric,
        value,
        n: 1,
        worst: None,
    }
}

/// What was measured of a cell.
pub fn records(cell: &Cell, case: &Case, measured: Vec<Measured>) -> Vec<Record> {
    let blank = Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name);
    let record = |measured: Measured| Record {
        site: measured.output.into(),
        metric: measured.metric.into(),
        value: measured.value,
        n: measured.n,
        worst: measured.worst,
        failure: None,
        ..blank.clone()
    };
    measured.into_iter().map(record).collect()
}

/// What passes at the sites a pattern means when the model reads a text.
pub fn sites(text: Text<'_>, pattern: &str) -> std::result::Result<Vec<Rows>, String> {
    let source = Source {
        name: pattern.into(),
        from: Origin::Site(pattern.into()),
    };
    let found = recorded(&[source], text).map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err(format!("'{pattern}' matches no site of the model"));
    }
    let rows = |sample: Sample| Rows {
        layer: sample.layer,
        cols: sample.cols,
        values: sample.values,
    };
    Ok(found.into_iter().map(rows).collect())
}
