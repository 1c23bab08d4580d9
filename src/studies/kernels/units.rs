//! The entry points of a kernel file that its variants (kernel implementations) launch. They are compiled one by one.

use std::collections::BTreeSet;

use crate::backend::cuda::plan::SMS;
use crate::backend::cuda::toolkit::Unit;
use crate::backend::cuda::{Mutant, Plan, Source, Variant};
use crate::ops;
use ulplab_operations::ops::Case;

/// The entry points that a file's variants launch, with or without a planted fault.
pub struct Launched<'a> {
    pub source: &'a Source,
    pub arch: &'a str,
    pub fault: Option<&'a Mutant>,
    pub entries: BTreeSet<String>,
}

impl<'a> Launched<'a> {
    /// Collects the entry points that a file's variants launch on an architecture, for the cases that `selects` accepts. The
    /// first result is without a fault. If `faults` is set, one result per planted fault follows, with the entry points of the
    /// variants that have the fault. Launches that cannot be planned are skipped.
    pub fn all(
        source: &'a Source,
        arch: &'a str,
        faults: bool,
        selects: &dyn Fn(&Variant, &Case) -> bool,
    ) -> Vec<Self> {
        let cases = ops::find(&source.op).map_or_else(|_| Vec::new(), |op| op.cases());
        let of_variant = |variant: &'a Variant| {
            let selected = cases.iter().filter(|case| selects(variant, case));
            let plans = selected.filter_map(|case| Plan::new(variant, case, SMS).ok()?);
            let entries = plans.flat_map(|plan| plan.entries().map(String::from).collect::<Vec<_>>());
            (&variant.name, entries.collect())
        };
        let of_variants: Vec<(&String, BTreeSet<String>)> = source.variants_for(arch).map(of_variant).collect();
        let launched = |fault: Option<&'a Mutant>| {
            let has = |variant: &str| fault.is_none_or(|fault| fault.is_of(variant));
            let have = of_variants.iter().filter(|(variant, _)| has(variant));
            Self {
                source,
                arch,
                fault,
                entries: have.flat_map(|(_, entries)| entries.clone()).collect(),
            }
        };
        let faults = source.header.mutants.iter().filter(|_| faults);
        std::iter::once(None).chain(faults.map(Some)).map(launched).collect()
    }

    /// Returns the units to compile: each entry point by itself, or the whole file if it cannot be divided.
    pub fn units(&self) -> impl Iterator<Item = Unit<'_>> {
        let units = self.source.units(self.entries.iter().map(String::as_str));
        units.into_iter().map(|entry| Unit {
            source: self.source,
            arch: self.arch,
            fault: self.fault,
            entry,
        })
    }
}
