//! Keys of an experiment file of the kind `kernels`, which select the kernels, the programs and the test cases.

use std::collections::BTreeSet;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::operations::{self, Operation, OwnCase, OwnOp};
use super::options::Options;
use super::power;
use super::ready::ReadyKernels;
use super::{TIME, check_mutant, folder};
use crate::backend::cuda::Source as KernelFile;
use crate::backend::program::Mode;
use crate::experiment::file::ExperimentFile;
use crate::experiment::{MOST_DRAWS, Mistake, Window, written_out};
use crate::gate::CHECKS;
use crate::ops::{self, OPS};
use crate::report::Show;
use crate::run::invocation::Invocation;
use crate::run::plan::{Cell, Plan, RecipePlan};
use crate::studies::limits::Parts;
use crate::studies::null::{Null, Wanted};
use crate::studies::study::{ReadyRecipes, Study};
use ulplab_core::error::{Result, did_you_mean};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::Phase;
use ulplab_operations::ops::sums::ACCUMULATORS;

/// Experiment with GPU kernels and programs: runs every variant on every case of its operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KernelStudy {
    /// The model that some cases read: a name in `datasets/manifest.toml`, or the path of a folder.
    pub model: Option<String>,
    /// Number of tokens in the window of text.
    pub tokens: usize,
    /// The text that the model reads: one window.
    #[serde(rename = "window", deserialize_with = "written_out")]
    pub windows: Vec<Window>,
    /// Patterns of variants, e.g. `rope.*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Programs to run as further variants.
    #[serde(rename = "command", skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// Operations that the user defines.
    #[serde(rename = "op", skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OwnOp>,
    /// Cases that the user defines.
    #[serde(rename = "case", skip_serializing_if = "Vec::is_empty")]
    pub own_cases: Vec<OwnCase>,
    /// Patterns of the cases to run; all cases of the operations if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    /// Number of random inputs for every case [default: 1], made with the seeds `seed`, `seed` + 1, …. The outputs must be right
    /// for all inputs. A case with inputs from a model has one input. Times are measured on the first input.
    pub draws: Option<u64>,
    /// Kernel variants that match the patterns, and all programs. Only a stored run has this list.
    #[serde(rename = "recipe", skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub variants: Vec<Described>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub case_names: Vec<String>,
    /// Options of the `ulplab kernels` command that runs the experiment.
    #[serde(skip)]
    pub options: Options,
    /// Kernel files whose variants were matched with the patterns in `kernels`.
    #[serde(skip)]
    pub sources: Vec<KernelFile>,
}

/// A kernel variant, a program or a planted fault: name and description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Name in the form `op.name`.
    pub name: String,
    /// Description in one line.
    pub doc: String,
}

/// A program that computes an operation: it reads a problem from one file and writes its outputs to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The operation.
    pub op: String,
    /// Name of the program, which appears in results as `op.name`.
    pub name: String,
    /// Description of the program, in one line.
    pub doc: String,
    /// The program and its arguments. In mode `once`, the paths of the input file and of the output file follow.
    pub run: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    /// Timeout in seconds for one run of a case, after which the program is killed.
    #[serde(default = "operations::timeout")]
    pub timeout: f64,
    /// Patterns of the cases to run the program on, in place of the experiment's `cases`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    /// Patterns of files that the program depends on, relative to the folder of the experiment file. A run is continued only if
    /// these files, and the files that `run` names, are unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
    /// Reason why the outputs of two runs may differ.
    pub nondeterministic: Option<String>,
    /// Accumulator of the program's sums of products: `f32` (the default), `wgmma` or `defined`. Only for operations that define
    /// the bits of these sums.
    pub accumulator: Option<String>,
}

impl Command {
    /// Returns the name of the program in results: `op.name`.
    pub fn recipe(&self) -> String {
        format!("{}.{}", self.op, self.name)
    }

    /// Returns the accumulator (`f32`, `wgmma` or `defined`) whose sums the program's outputs must match; `None` if the operation
    /// does not define the bits of its sums.
    pub fn sums(&self) -> Option<&str> {
        let defines = ops::find(&self.op).is_ok_and(|op| op.defines_sums());
        defines.then(|| self.accumulator.as_deref().unwrap_or(ACCUMULATORS[0].0))
    }
}

impl KernelStudy {
    /// Returns a copy of the study in which the patterns are resolved: `variants` lists the matching kernels and all programs,
    /// and `case_names` lists the cases that they run on.
    ///
    /// # Errors
    /// Returns an error if a pattern matches nothing, or a definition is wrong.
    pub fn resolved(&self, sources: &[KernelFile]) -> Result<Self, Mistake> {
        operations::check_definitions(self)?;
        let variants = sources.iter().flat_map(KernelFile::kernels);
        let all: Vec<_> = variants.map(|(name, variant)| (name, &variant.doc)).collect();
        let chosen = |name: &str| self.kernels.iter().any(|pattern| matches(pattern, name));
        let named: Vec<_> = all.iter().filter(|(name, _)| chosen(name)).cloned().collect();
        for (at, pattern) in self.kernels.iter().enumerate() {
            if !named.iter().any(|(name, _)| matches(pattern, name)) {
                let names = all.iter().map(|(name, _)| name.as_str());
                return Err(Mistake::new(matches_nothing("kernel", pattern, names)).within("kernels", at));
            }
        }
        for (name, _) in &named {
            Operation::find(self, operations::op_of(name)).map_err(|why| {
                let message = format!(
                    "'{name}': {why}: a .cu file holds variants of an operation that ulplab has, as `ulplab kernels describe OP` shows it; \
                     an operation of your own is an [[op]] with programs (docs/kernels.md, \"Your own operation\")"
                );
                Mistake::at("kernels", message)
            })?;
        }
        let commands = self.commands.iter().map(|command| (command.recipe(), &command.doc));
        let mut names = Vec::new();
        let mut variants = Vec::new();
        for (name, doc) in named.into_iter().chain(commands) {
            let cases = operations::cases_of(self, &name)?.into_iter().map(|case| case.name);
            names.extend(cases.filter(|name| !names.contains(name)).collect::<Vec<_>>());
            variants.push(Described { name, doc: doc.clone() });
        }
        Ok(Self {
            case_names: names,
            variants,
            ..self.clone()
        })
    }
}

impl Study for KernelStudy {
    fn check(&self) -> Result<(), Mistake> {
        self.reading().check()?;
        let message = format_args!("kernels are tried on one window, and {} are given", self.windows.len());
        Mistake::refuse(self.windows.len() > 1, "window", message)?;
        let message = "there is nothing to try: expected kernels = [\"PATTERN\", …] or [[command]]";
        Mistake::refuse(self.variants.is_empty(), "kernels", message)?;
        let draws = self.draws.unwrap_or(1);
        let message = format_args!("draws = {draws}, expected 1 to {MOST_DRAWS}");
        Mistake::refuse(!(1..=MOST_DRAWS as u64).contains(&draws), "draws", message)?;
        operations::check_cases(self)?;
        let reads = operations::cells(self, |operation, case| operation.reads_site(case))?;
        let message = "some cases are what passes in a model that reads a window of text; both are needed, or `cases` without \
                       these";
        let lacks = self.model.is_none() || self.windows.is_empty();
        Mistake::refuse(!reads.is_empty() && lacks, "model", message)
    }

    fn plan(&self) -> Plan {
        let planned = |variant: &Described| {
            let cases = operations::names_of(self, &variant.name);
            let windows = (0..self.case_names.len()).filter(|at| cases.contains(&self.case_names[*at]));
            RecipePlan {
                name: variant.name.clone(),
                phases: vec![Phase::Local],
                windows: Some(windows.collect()),
                cost: 1,
            }
        };
        Plan {
            phases: vec![Phase::Local],
            windows: self.case_names.clone(),
            recipes: self.variants.iter().map(planned).collect(),
        }
    }

    /// Always returns an error: calibration of gates needs runs of correct kernels, which need a GPU. Instead, the message states
    /// the smallest faults that the checks of outputs notice, which were measured without a GPU.
    fn null(&self, _draws: usize, _phases: &[Phase], _wanted: &[Wanted]) -> Result<Null, String> {
        let power = power::stored().map_err(|error| error.to_string())?;
        let patterns = || self.kernels.iter().filter_map(|pattern| pattern.split('.').next());
        let shipped = OPS.iter().map(|op| op.name());
        let shipped = shipped.filter(|op| patterns().any(|pattern| matches(pattern, op)));
        let of_programs = self.commands.iter().map(|command| &command.op[..]);
        let ops: BTreeSet<&str> = shipped.chain(of_programs).collect();
        Err(format!(
            "right kernels run on a GPU, and a bound that is derived fails none; of those that ship, attestations say that it held \
             (`ulplab kernels attest --check`). The power of judgements is {} (`ulplab kernels list OP`)",
            power::known(&Vec::from_iter(ops), &power)
        ))
    }

    /// Checks that the pattern `at` of a gate matches a site (a name in records): a check, the measured times, or an output of an
    /// operation. Accepts any pattern if an operation's list of outputs is incomplete.
    fn check_site(&self, at: &str) -> Result<(), String> {
        if CHECKS.iter().chain([&TIME]).any(|site| matches(at, site)) {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        for operation in operations::of_recipes(self) {
            let outputs = operation.outputs().map_err(|why| format!("'{at}': {why}"))?;
            if !outputs.all || outputs.names.iter().any(|name| matches(at, name)) {
                return Ok(());
            }
            names.extend(outputs.names);
        }
        let hint = did_you_mean(at, names.iter().map(String::as_str));
        let all: Vec<&str> = names.iter().map(String::as_str).chain(CHECKS).collect();
        let why = format!("'{at}' matches no output of the operations{hint}");
        Err(format!("{why}; measured at {}, {TIME}", all.join(", ")))
    }

    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, _at_once: f64) {
        if let Some(config) = config.filter(|_| !self.windows.is_empty()) {
            parts.weights(config);
        }
    }

    fn ready<'a>(&'a self, seed: u64, _config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        Ok(Box::new(ReadyKernels {
            study: self,
            seed,
            invocation: Invocation::default(),
            peers: None,
            device: None,
        }))
    }

    fn resolve(&self, file: &ExperimentFile) -> Result<Option<Box<dyn Study>>> {
        let sources = KernelFile::read_all(&folder()?, &ops::COMPOSITIONS)?;
        if let Some(mutant) = &self.options.mutant {
            check_mutant(mutant, &sources)?;
        }
        let resolved = self.resolved(&sources).map_err(|mistake| file.error(&mistake))?;
        Ok(Some(Box::new(Self { sources, ..resolved })))
    }

    fn selectable(&self, plan: &Plan) -> Result<Vec<Cell>, Mistake> {
        let mut cells = plan.cells();
        if self.options.timed {
            let timed = operations::cells(self, |_, case| case.timed)?;
            cells.retain(|cell| timed.contains(&format!("{}/{}", cell.recipe, self.case_names[cell.window])));
        }
        Ok(cells)
    }

    fn uses_gpu(&self) -> bool {
        true
    }
}
