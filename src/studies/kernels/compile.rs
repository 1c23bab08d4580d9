//! Kernels without a GPU: compiled, and their headers checked against the compiled code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::attest;
use super::of_op;
use crate::backend::cuda::cubin::{Entry, entries};
use crate::backend::cuda::plan::{Named, SMS, Step, Work};
use crate::backend::cuda::{Plan, Source, Toolkit, Variant};
use crate::run::plan::Cell;
use ulplab_core::error::{Error, Exit, Result, did_you_mean};
use ulplab_core::ops;
use ulplab_core::ops::{Case, Op, Problem, Scalar};

/// Architectures that are compiled for: those that kernels run on, and those to come.
const ARCHITECTURES: &[&str] = &["sm_90a", "sm_100a"];
/// Limits of all cards of these architectures.
const MOST_THREADS: u32 = 1024;
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MOST_BLOCK: [u32; 3] = [1024, 1024, 64];
const MOST_SHARED: u32 = 227 * 1024;

/// The kernels to compile.
pub struct Compile<'a> {
    pub sources: &'a [Source],
    /// The cells that are selected: files, variants and cases without one are left out.
    pub cells: &'a [Cell],
    /// Whether these are all that the experiment plans.
    pub whole: bool,
    /// Compiles every planted fault, too.
    pub faults: bool,
    pub json: bool,
}

/// Mistakes of a variant, and the cases in which they show.
type Findings = BTreeMap<String, BTreeSet<String>>;

impl Compile<'_> {
    /// Compiles the selected kernels, prints the resources of each, and reports the mistakes of headers; then compares the
    /// files with their attestations. A mistake of a header gives [`Exit::Usage`]. `why` they are compiled and not run.
    pub fn run(&self, why: &str) -> Result<Exit> {
        let toolkit = Toolkit::open()?;
        let (major, minor) = toolkit.version;
        if !self.json {
            outln!("{why}: kernels are compiled by NVRTC {major}.{minor}, not run");
        }
        let cells: Vec<&Cell> = self.cells.iter().collect();
        let selected = self
            .sources
            .iter()
            .filter(|source| !of_op(&source.op, &cells).is_empty());
        let selected: Vec<Source> = selected.cloned().collect();
        let mut works = Vec::new();
        for source in &selected {
            for arch in ARCHITECTURES {
                let faults = source.header.mutants.iter().filter(|_| self.faults);
                works.push((source, *arch, None));
                works.extend(faults.map(|fault| (source, *arch, Some(fault))));
            }
        }
        toolkit.compile_ahead(&works);
        let mut rows = Vec::new();
        let mut findings = Findings::new();
        for source in &selected {
            for arch in ARCHITECTURES {
                let cubin = toolkit.compile(source, arch, None)?;
                let found = entries(&cubin).map_err(|why| Error::data(&source.path, why))?;
                self.check(source, arch, &found, &mut findings)?;
                rows.extend(found.into_iter().map(|(name, entry)| (source, *arch, name, entry)));
                for mutant in source.header.mutants.iter().filter(|_| self.faults) {
                    toolkit.compile(source, arch, Some(mutant))?;
                }
            }
        }
        self.print(&rows);
        for (what, cases) in &findings {
            match self.json {
                true => outln!("{}", json!({"type": "finding", "what": what, "cases": cases})),
                false => outln!("FAIL {what}{}", shown(cases)),
            }
        }
        if !findings.is_empty() {
            return Ok(Exit::Usage);
        }
        attest::hold(&selected, self.whole, self.json)
    }

    /// Every launch of the selected variants and cases of a file.
    fn check(
        &self,
        source: &Source,
        arch: &str,
        entries: &BTreeMap<String, Entry>,
        findings: &mut Findings,
    ) -> Result<()> {
        let op = ops::find(&source.op).map_err(|why| Error::data(&source.path, why))?;
        let mut problems = BTreeMap::new();
        for variant in &source.header.variants {
            if variant.arch.as_ref().is_some_and(|only| only != arch) {
                continue;
            }
            let name = format!("{}.{}", source.op, variant.name);
            let ours = |case: &Case| {
                let id = format!("{name}/local/{}", case.name);
                self.cells.iter().any(|cell| cell.id == id)
            };
            for case in op.cases().into_iter().filter(ours) {
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
        if self.json {
            for (source, arch, name, entry) in rows {
                let file = source.path.display().to_string();
                outln!(
                    "{}",
                    json!({"type": "kernel", "file": file, "arch": arch, "entry": name, "compiled": entry})
                );
            }
            return;
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header([
            "kernel",
            "arch",
            "registers",
            "spilled",
            "stack",
            "shared",
            "max threads",
        ]);
        for (_, arch, name, entry) in rows {
            let numbers = [entry.registers, entry.spilled, entry.stack, entry.shared].map(|number| number.to_string());
            let threads = entry.max_threads.map_or("—".into(), |threads| threads.to_string());
            table.add_row(
                [name.clone(), arch.to_string()]
                    .into_iter()
                    .chain(numbers)
                    .chain([threads]),
            );
        }
        outln!("{table}");
    }
}

/// The smallest case without a model that has the same keys, or at least keys of the same names, so that its buffers have the same
/// names; the case itself if there is none.
fn named_by(op: &dyn Op, case: &Case) -> Case {
    let names = |case: &Case| case.keys.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let size = |case: &Case| case.dims.iter().map(|(_, size)| (*size).max(1) as f64).product::<f64>();
    let cases = op.cases().into_iter().filter(|other| !other.inputs.need_model());
    let alike = cases.filter(|other| names(other) == names(case));
    let first = alike.min_by(|a, b| {
        let other_keys = |of: &Case| of.keys != case.keys;
        other_keys(a).cmp(&other_keys(b)).then(size(a).total_cmp(&size(b)))
    });
    first.unwrap_or_else(|| case.clone())
}

/// ` (case 'a' and 3 others)`
fn shown(cases: &BTreeSet<String>) -> String {
    let first = cases.first().map_or("", String::as_str);
    match cases.len() {
        0 | 1 => format!(" (case '{first}')"),
        2 => format!(" (case '{first}' and another)"),
        many => format!(" (case '{first}' and {} others)", many - 1),
    }
}

/// Keys of a launch, and the words in messages that refer to them.
const KEYS: [(&str, &[&str]); 6] = [
    ("grid", &["grid: ", "grid is ", "grid has ", "a grid of "]),
    (
        "block",
        &["block: ", "block is ", "block has ", "a block of ", " threads, and "],
    ),
    ("cluster", &["cluster: ", "cluster is ", "cluster has "]),
    ("shared", &["shared: ", "shared is ", " of shared memory"]),
    ("entry", &["entry '", "no entry point "]),
    ("args", &["args has "]),
];

/// The header's line of a mistake: in its launch, the line of the key that the message names, or of a word that it quotes;
/// else the beginning of the variant.
fn line_of(source: &Source, variant: &Variant, what: &str) -> usize {
    let lines: Vec<&str> = source.text.lines().collect();
    let named = |line: &&str| line.trim_start().starts_with("name") && line.contains(&format!("\"{}\"", variant.name));
    let start = lines.iter().position(named).unwrap_or(0);
    let ends = |line: &&str| line.starts_with("[[variant]]") || line.starts_with("[[mutant]]") || line.contains("*/");
    let end = lines[start..]
        .iter()
        .position(ends)
        .map_or(lines.len(), |at| start + at);
    let key = KEYS
        .iter()
        .find(|(_, words)| words.iter().any(|word| what.contains(word)));
    let of_key = |line: &&str| {
        key.is_some_and(|(key, _)| {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            words.any(|word| word == *key) && line.contains('=')
        })
    };
    let quoted: Vec<&str> = what
        .split('\'')
        .skip(1)
        .step_by(2)
        .filter(|word| **word != *variant.name)
        .collect();
    let of_word = |line: &&str| quoted.iter().any(|word| line.contains(word));
    let (first, last) = launch_lines(variant, what, &lines[start..end]).unwrap_or((0, end - start));
    let launch = &lines[start + first..start + last];
    let in_launch = launch
        .iter()
        .position(of_key)
        .or_else(|| launch.iter().position(of_word));
    let anywhere = || {
        lines[start..]
            .iter()
            .take_while(|line| !line.contains("*/"))
            .position(of_word)
    };
    in_launch
        .map(|at| first + at)
        .or_else(anywhere)
        .map_or(start, |at| start + at)
        + 1
}

/// The lines of the launch that a message names, counted from the variant's name, if the launch is a table of its own.
fn launch_lines(variant: &Variant, what: &str, lines: &[&str]) -> Option<(usize, usize)> {
    let name = what.split("launch '").nth(1)?.split('\'').next()?;
    // Keys of the case replace those in braces.
    let fits = |template: &str| match (template.split_once('{'), template.rsplit_once('}')) {
        (Some((before, _)), Some((_, after))) => name.starts_with(before) && name.ends_with(after),
        _ => false,
    };
    let launches = || variant.launches.iter().map(|launch| launch.name());
    let number = launches()
        .position(|launch| launch == name)
        .or_else(|| launches().position(fits))?;
    let heads = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with("[[variant.launch]]"));
    let first = heads.map(|(at, _)| at).nth(number)?;
    let rest = lines[first + 1..].iter().position(|line| line.starts_with("[["));
    Some((first, rest.map_or(lines.len(), |at| first + 1 + at)))
}

/// The launches of a variant on a case, and the compiled entries to compare them with.
struct Launches<'a> {
    variant: &'a Variant,
    case: &'a Case,
    plan: &'a Plan,
    problem: &'a Problem,
    entries: &'a BTreeMap<String, Entry>,
}

impl Launches<'_> {
    fn mistakes(&self) -> Vec<String> {
        let steps = self.plan.prepare.iter().chain(&self.plan.steps);
        let of_step = |step: &Step| {
            let place = format!("variant '{}', launch '{}': ", self.variant.name, step.name);
            let wrong = self.names(step).into_iter().chain(self.kernel(step));
            wrong.map(|what| format!("{place}{what}")).collect::<Vec<_>>()
        };
        steps.flat_map(of_step).collect()
    }

    /// Bytes of an argument; none if its name is unknown.
    fn bytes(&self, name: &str) -> Option<u32> {
        let name = match Named::new(name) {
            Named::Number(_) => return Some(4),
            Named::Whole(name) | Named::Part(name, _) => name,
        };
        let buffer = self.problem.buffers.iter().any(|buffer| buffer.name == name);
        let scratch = self.plan.scratch.iter().any(|(scratch, ..)| scratch == name);
        let scalar = self.problem.scalars.iter().find(|(scalar, _)| *scalar == name);
        match scalar {
            _ if buffer || scratch => Some(8),
            Some((_, Scalar::I64(_))) => Some(8),
            Some(_) => Some(4),
            None => self.case.dims.iter().any(|(dim, _)| *dim == name).then_some(4),
        }
    }

    fn names(&self, step: &Step) -> Vec<String> {
        let known = || {
            let buffers = self.problem.buffers.iter().map(|buffer| buffer.name);
            let scratch = self.plan.scratch.iter().map(|(name, ..)| name.as_str());
            let scalars = self.problem.scalars.iter().map(|(name, _)| *name);
            let dims = self.case.dims.iter().map(|(name, _)| *name);
            buffers.chain(scratch).chain(scalars).chain(dims)
        };
        let unknown = step.arguments().into_iter().filter(|name| self.bytes(name).is_none());
        let wrong = |name: &str| {
            let near = did_you_mean(name, known());
            format!("'{name}' is no buffer, scratch, scalar or size of the operation{near}")
        };
        unknown.map(wrong).collect()
    }

    /// The entry point, its parameters, and the limits of a launch.
    fn kernel(&self, step: &Step) -> Vec<String> {
        let Work::Kernel {
            entry,
            shape,
            arguments,
            taps,
        } = &step.work
        else {
            return Vec::new();
        };
        let Some(compiled) = self.entries.get(entry) else {
            let near = did_you_mean(entry, self.entries.keys().map(String::as_str));
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
        let numbers = taps.iter().filter(|tap| self.bytes(tap) == Some(4));
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"/*
[[variant]]
name = "a"
doc = "x"
[[variant.launch]]
entry = "first_{dtype}"
grid = ["T"]
block = [128]

[[variant.launch]]
entry = "second"
shared = 16
grid = ["T", 1]
block = [256]
*/
"#;

    /// The mistake of the variant on a case of rmsnorm, and the line in the message.
    fn wrong(change: [&str; 2]) -> (usize, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rmsnorm.cu");
        std::fs::write(&file, TEXT.replacen(change[0], change[1], 1)).unwrap();
        let source = Source::read(&file).unwrap();
        let variant = &source.header.variants[0];
        let case = ops::find("rmsnorm").unwrap().cases().remove(0);
        let what = Plan::new(variant, &case, SMS).unwrap_err();
        (line_of(&source, variant, &what), what)
    }

    #[test]
    fn a_mistake_is_told_with_the_line_of_its_key() {
        for (change, line, words) in [
            (
                ["[128]", "[\"T +\"]"],
                8,
                "launch 'first_{dtype}': block: expression 'T +': it ends too early",
            ),
            (["[128]", "[0]"], 8, "block is 0, expected 1 to"),
            (
                ["[\"T\", 1]", "[\"5 / 0\"]"],
                13,
                "launch 'second': grid: expression '5 / 0': 5 / 0 has no value",
            ),
            (["[\"T\", 1]", "[\"1\", \"T - T\"]"], 13, "grid is 0 by 'T - T'"),
            (
                ["= 16", "= 5000000000000"],
                12,
                "shared is 5000000000000, expected bytes from 0 to 4294967295",
            ),
            (["= 16", "= \"K\""], 12, "shared: expression 'K': no size 'K'"),
            (
                ["second", "second_{dtyp}"],
                11,
                "entry 'second_{dtyp}' has a key the case does not",
            ),
        ] {
            let (at, what) = wrong(change);
            assert!(what.contains(words), "'{words}' is not in: {what}");
            assert_eq!(at, line, "{what}");
        }
    }
}
