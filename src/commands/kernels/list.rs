//! `ulplab kernels list`: lists operations, how their outputs are judged, and their kernels and planted faults.

use rayon::prelude::*;
use serde::Serialize;

use crate::backend::cuda::Source;
use crate::commands::kernels::describe::{JudgementLine, about, describe, judgements};
use crate::json;
use crate::ops::{self, Case, OPS};
use crate::report::columns::{fitted, wrapped};
use crate::studies::kernels::operations::smallest;
use crate::studies::kernels::power::Power;
use crate::studies::kernels::{Described, folder, power};
use ulplab_core::error::{Error, Exit, Result, counted, did_you_mean};
use ulplab_core::list::grouped;

/// List operations, one per line: description, number of variants and of cases, and how outputs are judged.
///
/// With OP, show how each output is judged, the smallest faults that are detected, the variants, and the faults that can be
/// planted. `ulplab kernels describe OP` also gives the reason for each judgement, and the buffers, sizes and keys.
#[derive(Debug, Default, clap::Args)]
pub struct ListArgs {
    /// Show only this operation.
    op: Option<String>,
    /// Show the details of every operation, as with OP.
    #[arg(long, conflicts_with = "op")]
    all: bool,
    /// Show the cases, too.
    #[arg(long)]
    cases: bool,
    /// Print JSON, with the cases.
    #[arg(long)]
    json: bool,
}

/// Maximum characters per line.
const WIDTH: usize = 100;

/// An operation, with its kernels and cases.
#[derive(Debug, Serialize)]
struct OperationEntry {
    op: String,
    doc: String,
    /// Source file of the kernels; `None` if the operation has none.
    file: Option<String>,
    outputs: Vec<JudgementLine>,
    /// The smallest faults that the checks of the outputs detect, as `ulplab kernels power` measured them.
    power: Vec<Power>,
    variants: Vec<Described>,
    mutants: Vec<Described>,
    cases: Vec<Case>,
}

pub fn run(args: &ListArgs) -> Result<Exit> {
    let (sources, broken) = Source::read_good(&folder()?, &ops::COMPOSITIONS)?;
    let mut names: Vec<&str> = OPS.iter().map(|op| op.name()).collect();
    names.extend(sources.iter().map(|source| &source.op[..]));
    names.sort_unstable();
    names.dedup();
    if let Some(op) = &args.op {
        if !names.contains(&&op[..]) {
            let near = did_you_mean(op, names.iter().copied());
            return Err(Error::Usage(format!("no operation '{op}'{near}")));
        }
        names.retain(|name| name == op);
    }
    let power = power::stored()?;
    let listed = names
        .par_iter()
        .map(|name| OperationEntry::new(name, &sources, &power, args.json));
    let listed = listed.collect::<Result<Vec<_>>>()?;
    match args.json {
        true => json::print(&listed)?,
        false if args.op.is_none() && !args.all && !args.cases => out!("{}", overview(&listed)),
        false => {
            let texts: Vec<String> = listed.iter().map(|listed| listed.text(args.cases)).collect();
            out!("{}", texts.join("\n"));
        }
    }
    Ok(if broken { Exit::Usage } else { Exit::Pass })
}

/// Formats a line for each operation.
fn overview(listed: &[OperationEntry]) -> String {
    // Counts are right-aligned below their headers.
    let rows = listed.iter().map(|entry| {
        let counts = [(entry.variants.len(), 8), (entry.cases.len(), 5)];
        let [variants, cases] = counts.map(|(count, width)| format!("{count:>width$}"));
        vec![entry.op.clone(), variants, cases, entry.judged_by(), entry.doc.clone()]
    });
    let heads = [
        "operation",
        "variants",
        "cases",
        "outputs are judged by",
        "what it computes",
    ];
    let lines = fitted(&heads, &rows.collect::<Vec<_>>(), &[], usize::MAX);
    lines.join("\n") + "\n\n`ulplab kernels list OP` says more of one, `--all` of every one.\n"
}

impl OperationEntry {
    /// Returns the rules that judge the outputs, for the overview: words such as `bytes` or `bounds`, separated by commas.
    fn judged_by(&self) -> String {
        let words = [
            ("equal", "bytes"),
            ("within", "bounds"),
            ("rms", "mean square"),
            ("admissible", "admissible codes"),
            ("finite", "finiteness"),
            ("custom", "own rule"),
        ];
        let has = |rule: &str| self.outputs.iter().any(|line| line.rule == rule);
        let found = words.iter().filter(|(rule, _)| has(rule)).map(|(_, word)| *word);
        found.collect::<Vec<&str>>().join(", ")
    }

    /// Returns the entry of an operation. Only if `whole`, it has the reasons of judgements in all sizes, which take more cases to find:
    /// texts do not show them.
    fn new(name: &str, sources: &[Source], power: &[Power], whole: bool) -> Result<Self> {
        let source = sources.iter().find(|source| source.op == name);
        let named = |one: &str, doc: &String| Described {
            name: format!("{name}.{one}"),
            doc: doc.clone(),
        };
        let (doc, outputs, cases) = match ops::find(name) {
            Ok(op) => {
                let cases = op.cases();
                let outputs = match whole {
                    true => describe(op).map(|described| described.judgements),
                    false => smallest(op, &cases).map(|samples| judgements(&samples)),
                };
                (op.doc().into(), outputs.map_err(Error::Usage)?, cases)
            }
            Err(_) => ("not an operation of ulplab".into(), Vec::new(), Vec::new()),
        };
        let headers = || source.iter().map(|source| &source.header);
        let variants = headers().flat_map(|header| &header.variants);
        let mutants = headers().flat_map(|header| &header.mutants);
        Ok(Self {
            op: name.into(),
            doc,
            file: source.map(|source| source.path.display().to_string()),
            outputs,
            power: power.iter().filter(|power| power.op == name).cloned().collect(),
            variants: variants.map(|one| named(&one.name, &one.doc)).collect(),
            mutants: mutants.map(|one| named(&one.name, &one.doc)).collect(),
            cases,
        })
    }

    /// Returns one line for each output and rule. If an output is judged by several rules in different cases, each line names an
    /// example case.
    fn judged(&self) -> Vec<(&str, String)> {
        let lines = self.outputs.iter();
        let kinds = grouped(lines.map(|line| ((&line.output, &line.short), &line.such_as)));
        let several = |output: &str| kinds.iter().filter(|((other, _), _)| *other == output).count() > 1;
        let rows = kinds.iter().map(|((output, short), such_as)| {
            let such_as = such_as[0].as_ref().filter(|_| several(output));
            let such_as = such_as.map_or(String::new(), |case| format!(" (e.g. {case})"));
            (output.as_str(), format!("{short}{such_as}"))
        });
        rows.collect()
    }

    fn text(&self, cases: bool) -> String {
        let mut lines = hanging(&format!("{}: ", self.op), &self.doc, 2);
        lines.extend(section("outputs", &self.judged()));
        let noticed: Vec<(String, String)> = self.power.iter().map(|power| (power.place(), power.text())).collect();
        let heading = "least faults that are noticed, in the best case and in the middle one";
        lines.extend(section(heading, &noticed));
        let named = |all: &'_ [Described]| {
            let lines = all.iter().map(|one| (one.name.clone(), one.doc.clone()));
            lines.collect::<Vec<_>>()
        };
        lines.extend(section("variants", &named(&self.variants)));
        lines.extend(section("faults that can be planted", &named(&self.mutants)));
        if cases {
            let rows = self.cases.iter().map(|case| (case.name.clone(), about(case)));
            lines.extend(section("cases", &rows.collect::<Vec<_>>()));
        } else if let count @ 1.. = self.cases.len() {
            lines.push(format!("  {}", counted(count, "case")));
        }
        lines.join("\n") + "\n"
    }
}

/// Formats names and descriptions below a heading; empty if there are no names.
fn section<N: AsRef<str>>(heading: &str, rows: &[(N, String)]) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let wide = rows.iter().map(|(name, _)| name.as_ref().chars().count()).max();
    let wide = wide.unwrap_or(0);
    let row = |(name, text): &(N, String)| hanging(&format!("    {:wide$}  ", name.as_ref()), text, wide + 6);
    let rows = rows.iter().flat_map(row);
    std::iter::once(format!("  {heading}")).chain(rows).collect()
}

/// Wraps a text that follows a name to lines of [`WIDTH`] characters. All lines except the first are indented by `indent` spaces.
fn hanging(name: &str, text: &str, indent: usize) -> Vec<String> {
    // Wraps the text after spaces in place of the name; the name then replaces these spaces.
    let first = name.chars().count();
    let mut lines = wrapped(text, WIDTH, first);
    if first != indent && lines.len() > 1 {
        let rest = lines.split_off(1).join(" ");
        lines.extend(wrapped(&rest, WIDTH, indent));
    }
    match lines.first_mut() {
        Some(line) => *line = name.to_string() + line.trim_start(),
        None => lines.push(name.trim_end().into()),
    }
    lines
}
