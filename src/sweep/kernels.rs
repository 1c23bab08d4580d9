//! Kernels on a device: every variant on every case of its operation, checked and then timed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::capsules::{Capsules, Left};
use super::execute::Text;
use super::experiment::{Experiment, Recipe};
use super::operations::{self, Operation};
use super::peers::Peers;
use super::plan::Cell;
use super::relations::relate;
use super::round_trip::{Sample, recorded};
use super::run::Hindrance;
use super::source::{Origin, Source};
use crate::backend::checks::failures;
use crate::backend::cuda::device::Module;
use crate::backend::cuda::guards::Checked;
use crate::backend::cuda::header::Factor;
use crate::backend::cuda::run::Running;
use crate::backend::cuda::time::{Ceilings, Stopwatch};
use crate::backend::cuda::{Device, Mutant, Plan, Source as KernelFile, Toolkit, Variant};
use crate::error::{Error, Result, did_you_mean};
use crate::kernels::judge::Measured;
use crate::kernels::{Case, Data, Op, Problem, Rows};
use crate::metrics::{self, Metric};
use crate::pattern::{matches, matches_nothing};
use crate::record::{Failure, Phase, Record};
use crate::shipped;

/// Site of the records of times.
pub const TIME: &str = "time";

/// A file that every folder of ulplab's kernels has. A project of a user's may well have a folder `kernels/` of its own.
const MARK: &str = "kernels/lib/common.cuh";

/// Folder of the kernels: $ULPLAB_KERNELS, or the first `kernels/` of ulplab's in [`shipped::places`].
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ULPLAB_KERNELS") {
        return Ok(folder.into());
    }
    let mark = shipped::find(MARK).ok_or_else(|| Error::Setup(format!("no {MARK} is found; set ULPLAB_KERNELS")))?;
    Ok(mark.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default())
}

/// The file of an operation's kernels.
pub fn file(op: &dyn Op) -> Result<KernelFile> {
    KernelFile::read(&folder()?.join(format!("{}.cu", op.name())))
}

/// Puts the variants that the experiment names and its programs in the place of recipes, and the cases of their operations
/// in that of windows.
pub fn fill(experiment: &mut Experiment, sources: &[KernelFile]) -> std::result::Result<(), (String, String)> {
    operations::check_definitions(experiment)?;
    let variants = sources.iter().flat_map(|source| {
        let variants = source.header.variants.iter();
        variants.map(|variant| (format!("{}.{}", source.op, variant.name), &variant.doc))
    });
    let all: Vec<_> = variants.collect();
    let chosen = |name: &str| experiment.kernels.iter().any(|pattern| matches(pattern, name));
    let named: Vec<_> = all.iter().filter(|(name, _)| chosen(name)).cloned().collect();
    let unmatched = experiment
        .kernels
        .iter()
        .find(|pattern| !named.iter().any(|(name, _)| matches(pattern, name)));
    if let Some(pattern) = unmatched {
        let names = all.iter().map(|(name, _)| name.as_str());
        return Err((pattern.clone(), matches_nothing("kernel", pattern, names)));
    }
    let commands = experiment
        .commands
        .iter()
        .map(|command| (command.recipe(), &command.doc));
    for (name, _) in &named {
        let op = name.split_once('.').map_or(name.as_str(), |(op, _)| op);
        Operation::find(experiment, op).map_err(|why| {
            let message = format!(
                "'{name}': {why}: a .cu file holds variants of an operation that ulplab has, as `ulplab describe OP` shows it; \
                 an operation of your own is an [[op]] with programs (docs/kernels.md, \"Your own operation\")"
            );
            (op.to_string(), message)
        })?;
    }
    let mut names = Vec::new();
    let mut recipes = Vec::new();
    for (name, doc) in named.into_iter().chain(commands) {
        let cases = operations::cases_of(experiment, &name)?
            .into_iter()
            .map(|case| case.name);
        names.extend(cases.filter(|name| !names.contains(name)).collect::<Vec<_>>());
        recipes.push(Recipe {
            name,
            doc: doc.clone(),
            ..Recipe::default()
        });
    }
    experiment.case_names = names;
    experiment.recipes.extend(recipes);
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

/// Cells of kernels, whatever runs them, and what their problems are made of.
pub struct Cells<'a> {
    pub experiment: &'a Experiment,
    pub data: &'a Data<'a>,
    pub done: &'a dyn Fn(&Cell, Vec<Record>) -> Result<()>,
    pub stop: &'a AtomicBool,
    /// Where what fails is kept.
    pub keep: Option<&'a Capsules>,
}

impl Cells<'_> {
    /// Runs those of an operation case by case: the inputs of a case are made once.
    pub fn each(
        &self,
        op: &str,
        cells: &[&Cell],
        run: impl Fn(&Cell, &Case, &Problem) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let operation = Operation::find(self.experiment, op).map_err(Error::Usage)?;
        for case in operation.cases().map_err(|(_, why)| Error::Usage(why))? {
            let named = |cell: &&Cell| self.experiment.case_names[cell.window] == case.name;
            let here: Vec<&Cell> = cells.iter().copied().filter(named).collect();
            if here.is_empty() {
                continue;
            }
            let problem = operation.problem(&case, self.data, self.stop)?;
            if let Err(why) = &problem {
                errln!("{op} case {}: {why}", case.name);
            }
            for cell in here {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                let records = match &problem {
                    Ok(problem) => run(cell, &case, problem)?,
                    Err(why) => vec![unknown(cell, &case, "inputs", why)],
                };
                (self.done)(cell, records)?;
            }
        }
        Ok(())
    }

    /// Keeps what a cell left, if anything is wrong with it and that is asked for.
    pub fn keep_failed(&self, cell: &Cell, case: &Case, problem: &Problem, checked: &Checked) -> Result<()> {
        match self.keep {
            Some(capsules) if failures(&checked.measured).next().is_some() => {
                capsules.keep(cell, case, problem, &Left::Outputs(checked))
            }
            _ => Ok(()),
        }
    }

    /// Keeps what there is of a cell that left nothing to judge, and why, if that is asked for.
    pub fn keep_unjudged(
        &self,
        cell: &Cell,
        case: &Case,
        problem: &Problem,
        why: &str,
        file: Option<&[u8]>,
    ) -> Result<()> {
        self.keep.map_or(Ok(()), |capsules| {
            capsules.keep(cell, case, problem, &Left::Nothing { why, file })
        })
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
            self.cells.each(&source.op, &here, |cell, case, problem| {
                let variant = source.variant(cell.kernel().1);
                let variant = variant.ok_or_else(|| Error::Usage(format!("no variant {}", cell.recipe)))?;
                let records = self.cell(cell, variant, &module, case, problem, &watch);
                // A launch that is refused leaves the device as it was; one that went astray does not.
                records.or_else(|why| {
                    self.device.wait().map_err(|_| why.to_string()).map_err(Error::Setup)?;
                    errln!("{why}");
                    let why = why.to_string();
                    self.cells.keep_unjudged(cell, case, problem, &why, None)?;
                    Ok(vec![unknown(cell, case, "launch", &why)])
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
        let mut checked = running.judged(variant.nondeterministic.is_none()).map_err(place)?;
        relate(problem, &checked.outputs, &mut checked.measured);
        self.cells.keep_failed(cell, case, problem, &checked)?;
        let mut measured = checked.measured;
        if case.timed && self.mutant.is_none() && failures(&measured).next().is_none() {
            let times = self.timed(&running, problem, plan.products, watch).map_err(place)?;
            let cold = times.iter().find(|time| time.metric == &metrics::US_COLD);
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
        let all: [(&Metric, Option<f64>); 10] = [
            (&metrics::US_COLD, Some(times.cold.median)),
            (&metrics::US_COLD_P10, Some(times.cold.p10)),
            (&metrics::US_COLD_P90, Some(times.cold.p90)),
            (&metrics::US_HOT, Some(times.hot.median)),
            (&metrics::US_GRAPH, times.graph.map(|graph| graph.median)),
            (&metrics::US_ROTATED, rotated),
            (&metrics::MEGABYTES, Some(problem.bytes as f64 / 1e6)),
            (&metrics::OF_COPY, share(times.cold.median)),
            (&metrics::OF_COPY_ROTATED, rotated.and_then(share)),
            (&metrics::OF_MATMUL, flops(times.cold.median)),
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
        let checked = running.judged(variant.nondeterministic.is_none())?;
        Ok(Some(checked.measured))
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

/// What is recorded of a cell that could not be run, and why it could not: no gate passes a NaN.
pub fn unknown(cell: &Cell, case: &Case, site: &str, why: &str) -> Record {
    let message = why.to_string();
    Record {
        site: site.into(),
        metric: metrics::VIOLATIONS.name.into(),
        failure: Some(Box::new(Failure {
            message,
            ..Failure::default()
        })),
        ..Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name)
    }
}

/// One of the numbers that a time gives.
pub fn time(metric: &'static Metric, value: f64) -> Measured {
    Measured {
        output: TIME,
        metric,
        value,
        n: 1,
        worst: None,
        failure: None,
    }
}

/// What was measured of a cell.
pub fn records(cell: &Cell, case: &Case, measured: Vec<Measured>) -> Vec<Record> {
    let blank = Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name);
    let record = |measured: Measured| Record {
        site: measured.output.into(),
        metric: measured.metric.name.into(),
        value: measured.value,
        n: measured.n,
        worst: measured.worst,
        failure: measured.failure,
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
