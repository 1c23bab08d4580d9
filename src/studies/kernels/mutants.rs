//! Planted faults: whether the checks notice each of them.

use super::{Variants, of_op};
use crate::backend::cuda::{Mutant, Source};
use crate::run::plan::Cell;
use ulplab_core::error::{Error, Result};
use ulplab_core::ops;
use ulplab_core::ops::Inputs;
use ulplab_core::ops::checks::failures;

/// A fault in one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Fate {
    /// `op.variant`
    pub kernel: String,
    pub mutant: String,
    pub doc: String,
    /// Case, output and number of violations of the first check that failed; none if the fault was not noticed.
    pub killed: Option<String>,
}

/// Prints what became of every fault; whether one went unnoticed.
pub fn print(fates: &[Fate]) -> bool {
    let width = fates
        .iter()
        .map(|fate| fate.kernel.len() + fate.mutant.len() + 1)
        .max()
        .unwrap_or(0);
    for fate in fates {
        let name = format!("{} {}", fate.kernel, fate.mutant);
        let end = fate.killed.as_deref().unwrap_or("UNNOTICED");
        outln!("{name:width$}  {}: {end}", fate.doc);
    }
    let unnoticed = fates.iter().filter(|fate| fate.killed.is_none()).count();
    if !fates.is_empty() {
        outln!(
            "{} of {} planted faults are noticed",
            fates.len() - unnoticed,
            fates.len()
        );
    }
    unnoticed > 0
}

impl Variants<'_> {
    /// Plants every fault in every variant that has it, in the files that have cells.
    pub fn mutants(&self, cells: &[&Cell]) -> Result<Vec<Fate>> {
        let mut fates = Vec::new();
        for source in self
            .sources
            .iter()
            .filter(|source| !of_op(&source.op, cells).is_empty())
        {
            for mutant in &source.header.mutants {
                fates.extend(self.fates(source, mutant)?);
            }
        }
        Ok(fates)
    }

    fn fates(&self, source: &Source, mutant: &Mutant) -> Result<Vec<Fate>> {
        let kernels = self.session.load_with(source, Some(mutant))?;
        let op = ops::find(&source.op).map_err(Error::Usage)?;
        // Large cases are for times; activations of the model are the slowest to come by and add little here.
        let cases: Vec<_> = op
            .cases()
            .into_iter()
            .filter(|case| !case.timed && !matches!(case.inputs, Inputs::Site(_)))
            .collect();
        let variants = source.header.variants.iter();
        let named = variants.filter(|variant| mutant.is_of(&variant.name) && self.session.runs(variant));
        let mut fates: Vec<_> = named
            .map(|variant| {
                let fate = Fate {
                    kernel: format!("{}.{}", source.op, variant.name),
                    mutant: mutant.name.clone(),
                    doc: mutant.doc.clone(),
                    killed: None,
                };
                (variant, fate)
            })
            .collect();
        for case in cases {
            if fates.iter().all(|(_, fate)| fate.killed.is_some()) {
                break;
            }
            let problem = op.problem(&case, self.cells.data).map_err(Error::Usage)?;
            let bench = kernels.case(&case, &problem);
            for (variant, fate) in fates.iter_mut().filter(|(_, fate)| fate.killed.is_none()) {
                let checked = bench.check(variant)?;
                let first = checked.and_then(|checked| failures(&checked.measured).next().cloned());
                fate.killed =
                    first.map(|first| format!("{}: {} of {} {}", case.name, first.value, first.n, first.output));
            }
        }
        Ok(fates.into_iter().map(|(_, fate)| fate).collect())
    }
}
