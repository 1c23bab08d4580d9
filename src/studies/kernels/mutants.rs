//! Planted faults (mutants): kernels are run with one known fault at a time, to test that the checks notice it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Variants, of_op};
use crate::backend::cuda::plan::SMS;
use crate::backend::cuda::{Mutant, Plan, Source, Variant};
use crate::ops;
use crate::run::partition::Share;
use crate::run::plan::Cell;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::input;
use ulplab_operations::ops::checks::failures;
use ulplab_operations::ops::judge::Measured;
use ulplab_operations::ops::{Case, Op, Problem};

/// A planted fault in one variant, and the check that noticed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MutantResult {
    /// Name of the kernel, `op.variant`.
    pub kernel: String,
    pub mutant: String,
    pub doc: String,
    /// Case, output and number of violations of the first check that failed; `None` if no check noticed the fault.
    pub killed: Option<String>,
}

/// Results of a fault, stored as a file in the folder of a run. With this file, a continued or shared run plants each fault only
/// once.
#[derive(Serialize, Deserialize)]
struct Planted {
    /// Fingerprint of the run that planted the fault.
    run: String,
    /// One result for each variant that has the fault.
    results: Vec<MutantResult>,
}

/// Reads and writes the files with the results of planted faults in a run's folder.
pub struct MutantFiles {
    folder: PathBuf,
    run: String,
}

impl MutantFiles {
    /// Opens the results in a run's folder. `run` is the fingerprint of the run.
    pub fn new(folder: &Path, run: &str) -> Self {
        Self {
            folder: folder.join("mutants"),
            run: run.into(),
        }
    }

    pub fn file(&self, op: &str, fault: &str) -> PathBuf {
        self.folder.join(op).join(fault).with_added_extension("json")
    }

    pub fn write(&self, op: &str, fault: &str, results: Vec<MutantResult>) -> Result<()> {
        let run = self.run.clone();
        let folder = self.folder.join(op);
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        let planted = Planted { run, results };
        write_atomic(&self.file(op, fault), |out| {
            Ok(serde_json::to_writer_pretty(out, &planted)?)
        })
    }

    /// Reads the results of a fault; `None` if the fault was not planted yet.
    pub fn read(&self, op: &str, fault: &str) -> Result<Option<Vec<MutantResult>>> {
        let file = self.file(op, fault);
        if !file.is_file() {
            return Ok(None);
        }
        let planted: Planted =
            serde_json::from_slice(&input::bytes(&file)?).map_err(|why| Error::data(&file, why.to_string()))?;
        let why = format_args!("it is of the run {}, expected {}", planted.run, self.run);
        refuse(planted.run != self.run, why).map_err(|why| Error::data(&file, why))?;
        Ok(Some(planted.results))
    }

    /// Reads the results of all faults of the operations that `cells` contain, in the order of `sources`.
    ///
    /// # Errors
    /// Returns an error if a result is missing or damaged.
    pub fn all(&self, sources: &[Source], cells: &[&Cell]) -> Result<Vec<MutantResult>> {
        let folder = self.folder.display();
        let missing = |fault: String| Error::Incomplete(format!("{folder}: the fault {fault} was not planted"));
        let results = self.each(sources, cells)?.into_iter();
        let results = results.map(|(fault, results)| results.ok_or_else(|| missing(fault)));
        Ok(results.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Reads the results of the faults that were already planted.
    ///
    /// # Errors
    /// Returns an error if a result is damaged.
    pub fn found(&self, sources: &[Source], cells: &[&Cell]) -> Result<Vec<MutantResult>> {
        let results = self.each(sources, cells)?.into_iter();
        Ok(results.flat_map(|(_, results)| results.unwrap_or_default()).collect())
    }

    /// Reads the results of every fault of the operations that `cells` contain. A fault is named `op.mutant`; its results are
    /// `None` if it was not planted.
    fn each(&self, sources: &[Source], cells: &[&Cell]) -> Result<Vec<(String, Option<Vec<MutantResult>>)>> {
        let mut all = Vec::new();
        for source in sources.iter().filter(|source| !of_op(&source.op, cells).is_empty()) {
            for mutant in &source.header.mutants {
                let name = source.full_name(&mutant.name);
                all.push((name, self.read(&source.op, &mutant.name)?));
            }
        }
        Ok(all)
    }
}

/// A case and its problem (inputs and expected outputs). The problem is made when a fault is first tried on the case.
type Prepared = (Case, RefCell<Option<Problem>>);

/// Prints each fault with the check that noticed it. Returns true if at least one fault was not noticed.
pub fn print(results: &[MutantResult]) -> bool {
    let name = |result: &MutantResult| format!("{} {}", result.kernel, result.mutant);
    let width = results.iter().map(|result| name(result).len()).max().unwrap_or(0);
    for result in results {
        let end = result.killed.as_deref().unwrap_or("UNNOTICED");
        outln!("{:width$}  {}: {end}", name(result), result.doc);
    }
    let noticed = results.iter().filter(|result| result.killed.is_some()).count();
    if !results.is_empty() {
        outln!("{noticed} of {} planted faults are noticed", results.len());
    }
    noticed < results.len()
}

/// Returns each pair of a fault and a variant that has the fault, with the first case that the variant supports. Only the
/// launches of these cases are compiled in advance, because most faults are noticed on the first case.
fn first_uses<'a>(
    source: &'a Source,
    mutants: &[&'a Mutant],
    cases: &'a [Prepared],
) -> Vec<(Option<&'a Mutant>, &'a Variant, &'a Case)> {
    let takes = |variant: &Variant, case: &Case| matches!(Plan::new(variant, case, SMS), Ok(Some(_)));
    let mut uses = Vec::new();
    for variant in &source.header.variants {
        let Some((case, _)) = cases.iter().find(|(case, _)| takes(variant, case)) else {
            continue;
        };
        let faults = mutants.iter().filter(|mutant| mutant.is_of(&variant.name));
        uses.extend(faults.map(|fault| (Some(*fault), variant, case)));
    }
    uses
}

impl Variants<'_> {
    /// Tests all planted faults of the operations `ops`, each in every variant that has the fault. Tests only the faults that
    /// `share` assigns to this process, and skips faults that already have results.
    pub fn mutants(&self, ops: &[&str], share: Share, files: &MutantFiles) -> Result<()> {
        for source in self.sources.iter().filter(|source| ops.contains(&source.op.as_str())) {
            let mut mutants = Vec::new();
            for mutant in share.of(&source.header.mutants) {
                if files.read(&source.op, &mutant.name)?.is_none() {
                    mutants.push(mutant);
                }
            }
            let op = ops::find(&source.op).map_err(Error::Usage)?;
            // Try slow cases last (timed cases, which are large, and cases that read activations of a model): the fast cases
            // reveal most faults.
            let mut cases = op.cases();
            cases.sort_by_key(|case| case.timed || case.inputs.need_model());
            // Each problem is made when a fault first needs it, and reused for later faults.
            let cases: Vec<Prepared> = cases.into_iter().map(|case| (case, RefCell::default())).collect();
            let uses = first_uses(source, &mutants, &cases);
            self.session.compile_ahead(source, &uses);
            for mutant in mutants {
                let results = self.results(source, mutant, op, &cases)?;
                files.write(&source.op, &mutant.name, results)?;
            }
        }
        Ok(())
    }

    /// Runs every variant that has the fault on one case after another, until the checks have noticed the fault in all of these
    /// variants. Returns one result per variant.
    fn results(&self, source: &Source, mutant: &Mutant, op: &dyn Op, cases: &[Prepared]) -> Result<Vec<MutantResult>> {
        let kernels = self.session.load(source, Some(mutant));
        let variants = source.header.variants.iter();
        let named = variants.filter(|variant| mutant.is_of(&variant.name) && self.session.runs(variant));
        let result = |variant: &Variant| MutantResult {
            kernel: source.full_name(&variant.name),
            mutant: mutant.name.clone(),
            doc: mutant.doc.clone(),
            killed: None,
        };
        let mut results: Vec<_> = named.map(|variant| (variant, result(variant))).collect();
        // Try large buffers last: a case with large buffers takes seconds, and few faults need large buffers to be noticed.
        for large in [false, true] {
            for (case, prepared) in cases.iter().filter(|(case, _)| case.large || !large) {
                if results.iter().all(|(_, result)| result.killed.is_some()) {
                    break;
                }
                let mut prepared = prepared.borrow_mut();
                let problem = match &mut *prepared {
                    Some(problem) => problem,
                    none => none.insert(ops::problem_with(op, case, self.cells.data).map_err(Error::Usage)?),
                };
                problem.large = large;
                let bench = kernels.case(case, problem);
                for (variant, result) in results.iter_mut().filter(|(_, result)| result.killed.is_none()) {
                    let checked = bench.check(variant)?;
                    let first = checked.and_then(|checked| failures(&checked.measured).next().cloned());
                    let said = |first: Measured| format!("{} of {} {}", first.value, first.n, first.output);
                    result.killed = first.map(|first| format!("{}: {}", case.name, said(first)));
                }
            }
        }
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}
