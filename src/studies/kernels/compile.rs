//! Checks of kernels without a GPU: kernels are compiled, and their headers are compared with the compiled code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::lines::line_of;
use super::units::Launched;
use super::{KernelStudy, attest, ops_of, volume};
use crate::backend::cuda::cubin::{Entry, entries};
use crate::backend::cuda::plan::{Named, SMS, Step, Work};
use crate::backend::cuda::{Plan, Source, Toolkit, Variant};
use crate::ops;
use crate::report::columns::fitted;
use crate::studies::study::Planned;
use ulplab_core::error::{Error, Exit, Result, did_you_mean};
use ulplab_core::list::distinct;
use ulplab_operations::ops::{Case, Op, Problem, Scalar};

/// Architectures to compile for by default: Hopper, on which the kernels run, and the later Blackwell.
pub const ARCHITECTURES: &[&str] = &["sm_90a", "sm_100a"];
/// Launch limits of all GPUs of these architectures: threads of a block, dimensions of the grid and of a block, and bytes of
/// shared memory of a block.
const MOST_THREADS: u32 = 1024;
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MOST_BLOCK: [u32; 3] = [1024, 1024, 64];
const MOST_SHARED: u32 = 227 * 1024;

/// Compiles the kernels of the planned cells (pairs of a variant and a case). Files, variants and cases without a planned cell
/// are skipped.
pub struct Compile<'a> {
    pub study: &'a KernelStudy,
    pub planned: &'a Planned<'a>,
}

/// Column heads of the table of entry points.
const HEADS: [&str; 7] = [
    "kernel",
    "arch",
    "registers",
    "spilled",
    "stack",
    "shared",
    "max threads",
];

/// Messages about mistakes in kernel headers, each with the names of the cases that show the mistake.
type Findings = BTreeMap<String, BTreeSet<String>>;

/// Compiled entry points, by name.
type Entries = BTreeMap<String, Entry>;

impl Compile<'_> {
    /// Compiles the selected kernels, prints the resources of each, and reports mistakes in headers. `why` is the printed reason
    /// why kernels are not run. Returns [`Exit::Usage`] if a header has a mistake; else compares the files with their
    /// attestations (stored results of runs on a GPU).
    pub fn run(&self, why: &str) -> Result<Exit> {
        let toolkit = Toolkit::open()?;
        let (major, minor) = toolkit.version;
        let Planned {
            manifest, cells, json, ..
        } = self.planned;
        if !json {
            outln!("{why}: kernels are compiled by NVRTC {major}.{minor}, not run");
        }
        let options = &self.study.options;
        let ops = ops_of(cells.iter());
        let selected = self.study.sources.iter().filter(|source| ops.contains(&&*source.op));
        let selected: Vec<Source> = selected.cloned().collect();
        let architectures: Vec<&str> = match &options.architectures[..] {
            [] => ARCHITECTURES.to_vec(),
            named => named.iter().map(String::as_str).collect(),
        };
        let mut launched = Vec::new();
        for source in &selected {
            let selects = |variant: &Variant, case: &Case| self.selects(source, variant, case);
            for &arch in &architectures {
                launched.extend(Launched::all(source, arch, options.mutants, &selects));
            }
        }
        toolkit.compile_ahead(&launched.iter().flat_map(Launched::units).collect::<Vec<_>>());
        let mut rows = Vec::new();
        let mut findings = Findings::new();
        for launched in &launched {
            let (source, arch) = (launched.source, launched.arch);
            let mut found = BTreeMap::new();
            for unit in launched.units() {
                let cubin = toolkit.compile(unit)?;
                found.extend(entries(&cubin).map_err(|why| Error::data(&source.path, why))?);
            }
            if launched.fault.is_none() {
                self.check(source, arch, &found, &mut findings)?;
                rows.extend(found.into_iter().map(|(name, entry)| (source, arch, name, entry)));
            }
        }
        self.print(&rows);
        for (what, cases) in &findings {
            match json {
                true => outln!("{}", json!({"type": "finding", "what": what, "cases": cases})),
                false => outln!("FAIL {what}{}", shown(cases)),
            }
        }
        if !findings.is_empty() {
            return Ok(Exit::Usage);
        }
        attest::hold(&selected, manifest.left_out.is_empty(), *json)
    }

    fn selects(&self, source: &Source, variant: &Variant, case: &Case) -> bool {
        let id = format!("{}/local/{}", source.full_name(&variant.name), case.name);
        self.planned.cells.iter().any(|cell| cell.id == id)
    }

    /// Checks every launch of a file's selected variants and cases.
    fn check(&self, source: &Source, arch: &str, entries: &Entries, findings: &mut Findings) -> Result<()> {
        let op = ops::find(&source.op).map_err(|why| Error::data(&source.path, why))?;
        let mut problems = BTreeMap::new();
        for variant in source.variants_for(arch) {
            let selects = |case: &Case| self.selects(source, variant, case);
            for case in op.cases().into_iter().filter(selects) {
                let wrong = match Plan::new(variant, &case, SMS) {
                    Err(why) => vec![why.replace(&format!(", case '{}'", case.name), "")],
                    Ok(None) => Vec::new(),
                    Ok(Some(plan)) => {
                        let small = named_by(op, &case);
                        if !problems.contains_key(&small.name) {
                            let problem = ops::problem(op, &small).map_err(|why| Error::data(&source.path, why))?;
                            problems.insert(small.name.clone(), problem);
                        }
                        let launches = Launches {
                            source,
                            variant,
                            case: &case,
                            plan: &plan,
                            problem: &problems[&small.name],
                            entries,
                        };
                        launches.mistakes()
                    }
                };
                for what in wrong {
                    let line = line_of(source, variant, &what);
                    let place = format!("{}:{line}: {what}", source.path.display());
                    findings.entry(place).or_default().insert(case.name.clone());
                }
            }
        }
        Ok(())
    }

    fn print(&self, rows: &[(&Source, &str, String, Entry)]) {
        if self.planned.json {
            for (source, arch, name, entry) in rows {
                let file = source.path.display().to_string();
                let row = json!({"type": "kernel", "file": file, "arch": arch, "entry": name, "compiled": entry});
                outln!("{row}");
            }
            return;
        }
        let row = |(_, arch, name, entry): &(&Source, &str, String, Entry)| {
            let numbers = [entry.registers, entry.spilled, entry.stack, entry.shared].map(|number| number.to_string());
            let threads = entry.max_threads.map_or("—".into(), |threads| threads.to_string());
            let names = [name.clone(), arch.to_string()];
            names.into_iter().chain(numbers).chain([threads]).collect()
        };
        let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
        let lines = fitted(&HEADS, &rows, &[], usize::MAX);
        lines.iter().for_each(|line| outln!("{line}"));
    }
}

/// Returns a small case to check launches with: its buffers have the same names as the buffers of `case`, but its inputs are
/// made quickly. This is the smallest case that needs no model and has the same keys (e.g. `dtype`) with the same values as
/// `case`; else the smallest case with the same keys; else `case` itself.
pub fn named_by(op: &dyn Op, case: &Case) -> Case {
    let names = |case: &Case| case.keys.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let cases = op.cases().into_iter().filter(|other| !other.inputs.need_model());
    let alike = cases.filter(|other| names(other) == names(case));
    let rank = |of: &Case| (of.keys != case.keys, volume(of));
    let first = alike.min_by(|a, b| rank(a).partial_cmp(&rank(b)).expect("sizes are numbers"));
    first.unwrap_or_else(|| case.clone())
}

/// Returns a text such as ` (case 'a' and 3 others)`.
fn shown(cases: &BTreeSet<String>) -> String {
    let first = cases.first().map_or("", String::as_str);
    let others = match cases.len() {
        0 | 1 => String::new(),
        2 => " and another".into(),
        many => format!(" and {} others", many - 1),
    };
    format!(" (case '{first}'{others})")
}

/// The launches of a variant on a case, and the compiled entry points to compare them with.
pub struct Launches<'a> {
    pub source: &'a Source,
    pub variant: &'a Variant,
    pub case: &'a Case,
    pub plan: &'a Plan,
    pub problem: &'a Problem,
    pub entries: &'a Entries,
}

impl Launches<'_> {
    pub fn mistakes(&self) -> Vec<String> {
        let launches = self.plan.prepare.each().chain(self.plan.run.each());
        let of_launch = |(step, arguments): (&Step, &[Named])| {
            let place = format!("variant '{}', launch '{}': ", self.variant.name, step.name);
            let wrong = self.names(arguments).into_iter().chain(self.kernel(step, arguments));
            wrong.map(|what| format!("{place}{what}")).collect::<Vec<_>>()
        };
        // List each mistake once: repeated launches of a step all have the same mistakes.
        distinct(launches.flat_map(of_launch))
    }

    /// Returns the size in bytes of a launch argument; `None` if its name is unknown.
    fn bytes(&self, argument: &Named) -> Option<u32> {
        let Some(name) = argument.name() else { return Some(4) };
        let buffer = self.problem.buffers.iter().any(|buffer| buffer.name == name);
        let scalar = self.problem.scalars.iter().find(|(scalar, _)| *scalar == name);
        match scalar {
            _ if buffer || self.plan.scratch(name).is_some() => Some(8),
            Some((_, Scalar::I64(_))) => Some(8),
            Some(_) => Some(4),
            None => self.case.dims.iter().any(|(dim, _)| *dim == name).then_some(4),
        }
    }

    fn names(&self, arguments: &[Named]) -> Vec<String> {
        let known = || {
            let buffers = self.problem.buffers.iter().map(|buffer| buffer.name);
            let scratch = self.plan.scratch.iter().map(|scratch| scratch.name.as_str());
            let scalars = self.problem.scalars.iter().map(|(name, _)| *name);
            let dims = self.case.dims.iter().map(|(name, _)| *name);
            buffers.chain(scratch).chain(scalars).chain(dims)
        };
        let unknown = arguments.iter().filter(|argument| self.bytes(argument).is_none());
        let wrong = |name: &Named| {
            let near = did_you_mean(&name.to_string(), known());
            format!("'{name}' is no buffer, scratch, scalar or size of the operation{near}")
        };
        unknown.map(wrong).collect()
    }

    /// Checks the entry point of a launch, its parameters, and the launch limits. Returns the mistakes.
    fn kernel(&self, step: &Step, arguments: &[Named]) -> Vec<String> {
        let Work::Kernel { entry, shape } = &step.work else {
            return Vec::new();
        };
        let Some(compiled) = self.entries.get(entry) else {
            let declared = self.source.declared(&self.case.keys);
            let known = self.entries.keys().chain(&declared).map(String::as_str);
            let near = did_you_mean(entry, known);
            return vec![format!("the file has no entry point '{entry}'{near}")];
        };
        let mut wrong = Vec::new();
        let (given, taken) = (arguments.len(), compiled.parameters.len());
        if given != taken {
            wrong.push(format!("args has {given} arguments, and '{entry}' takes {taken}"));
        } else {
            let pairs = arguments.iter().zip(&compiled.parameters);
            wrong.extend(pairs.filter_map(|(name, taken)| {
                let given = self.bytes(name).filter(|given| given != taken)?;
                Some(format!("'{name}' has {given} bytes, and '{entry}' takes {taken} there"))
            }));
        }
        let taps = step.taps.iter().filter_map(|at| arguments.get(*at));
        let numbers = taps.filter(|tap| self.bytes(tap) == Some(4));
        wrong.extend(numbers.map(|tap| format!("'{tap}' of taps is a number, and keeps nothing")));
        let threads = shape.block.iter().fold(1, |all: u32, size| all.saturating_mul(*size));
        let most = compiled.max_threads.map_or(MOST_THREADS, |most| most.min(MOST_THREADS));
        if threads > most {
            wrong.push(format!(
                "a block has {threads} threads, and '{entry}' takes at most {most}"
            ));
        }
        let above = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).any(|(size, most)| *size > most);
        if above(shape.block, MOST_BLOCK) {
            wrong.push(format!("a block of {:?} threads, at most {MOST_BLOCK:?}", shape.block));
        }
        if above(shape.grid, MOST_BLOCKS) {
            wrong.push(format!("a grid of {:?} blocks, at most {MOST_BLOCKS:?}", shape.grid));
        }
        let shared = compiled.shared.saturating_add(shape.shared);
        if shared > MOST_SHARED {
            wrong.push(format!(
                "a block has {shared} bytes of shared memory, at most {MOST_SHARED}"
            ));
        }
        wrong
    }
}
