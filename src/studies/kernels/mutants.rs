//! Planted faults: whether the checks notice each of them.

use std::cell::OnceCell;

use super::{Variants, of_op};
use crate::backend::cuda::{Mutant, Source};
use crate::run::plan::Cell;
use ulplab_core::error::{Error, Result};
use ulplab_core::ops;
use ulplab_core::ops::checks::failures;
use ulplab_core::ops::{Case, Op, Problem};

/// A fault in one variant, and whether it was noticed.
#[derive(Clone, Debug, PartialEq)]
pub struct MutantResult {
    /// `op.variant`
    pub kernel: String,
    pub mutant: String,
    pub doc: String,
    /// Case, output and number of violations of the first check that failed; none if the fault was not noticed.
    pub killed: Option<String>,
}

/// Prints whether each fault was noticed. True if one was not.
pub fn print(results: &[MutantResult]) -> bool {
    let width = results
        .iter()
        .map(|result| result.kernel.len() + result.mutant.len() + 1)
        .max()
        .unwrap_or(0);
    for result in results {
        let name = format!("{} {}", result.kernel, result.mutant);
        let end = result.killed.as_deref().unwrap_or("UNNOTICED");
        outln!("{name:width$}  {}: {end}", result.doc);
    }
    let unnoticed = results.iter().filter(|result| result.killed.is_none()).count();
    if !results.is_empty() {
        outln!(
            "{} of {} planted faults are noticed",
            results.len() - unnoticed,
            results.len()
        );
    }
    unnoticed > 0
}

impl Variants<'_> {
    /// Plants every fault in every variant that has it, in the files that have cells.
    pub fn mutants(&self, cells: &[&Cell]) -> Result<Vec<MutantResult>> {
        let mut results = Vec::new();
        for source in self
            .sources
            .iter()
            .filter(|source| !of_op(&source.op, cells).is_empty())
        {
            let op = ops::find(&source.op).map_err(Error::Usage)?;
            // The large cases that are timed, and activations of the model, come last: few faults get as far.
            let mut cases = op.cases();
            cases.sort_by_key(|case| case.timed || case.inputs.need_model());
            // Problems are made at the first fault that gets as far, and kept for the others.
            let cases: Vec<_> = cases.into_iter().map(|case| (case, OnceCell::new())).collect();
            self.session.compile_faults(source);
            for mutant in &source.header.mutants {
                results.extend(self.results(source, mutant, op, &cases)?);
            }
        }
        Ok(results)
    }

    /// What the cases show of a fault.
    fn results(
        &self,
        source: &Source,
        mutant: &Mutant,
        op: &dyn Op,
        cases: &[(Case, OnceCell<Problem>)],
    ) -> Result<Vec<MutantResult>> {
        let kernels = self.session.load_with(source, Some(mutant))?;
        let variants = source.header.variants.iter();
        let named = variants.filter(|variant| mutant.is_of(&variant.name) && self.session.runs(variant));
        let mut results: Vec<_> = named
            .map(|variant| {
                let result = MutantResult {
                    kernel: format!("{}.{}", source.op, variant.name),
                    mutant: mutant.name.clone(),
                    doc: mutant.doc.clone(),
                    killed: None,
                };
                (variant, result)
            })
            .collect();
        for (case, problem) in cases {
            if results.iter().all(|(_, result)| result.killed.is_some()) {
                break;
            }
            let problem = match problem.get() {
                Some(problem) => problem,
                None => {
                    let made = ops::problem_with(op, case, self.cells.data).map_err(Error::Usage)?;
                    problem.get_or_init(|| made)
                }
            };
            let bench = kernels.case(case, problem);
            for (variant, result) in results.iter_mut().filter(|(_, result)| result.killed.is_none()) {
                let checked = bench.check(variant)?;
                let first = checked.and_then(|checked| failures(&checked.measured).next().cloned());
                result.killed =
                    first.map(|first| format!("{}: {} of {} {}", case.name, first.value, first.n, first.output));
            }
        }
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}
