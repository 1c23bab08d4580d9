//! Variants whose launches are built in Rust choose kernels, clusters and shared memory by the number of rows, too.

use std::collections::BTreeSet;
use std::path::Path;

use ulplab::backend::cuda::plan::{SMS, Work};
use ulplab::backend::cuda::{Plan, Source, Variant};
use ulplab::ops::Case;

use super::{BATCHES, TOGETHER, excused::COMPOSED, launches, with};

/// Entry points, blocks, clusters and shared memory of all launches of a variant on a case.
fn shapes(variant: &Variant, case: &Case) -> Option<Vec<(String, [u32; 3], Option<[u32; 3]>, u32)>> {
    let plan = Plan::new(variant, case, SMS).unwrap()?;
    let steps = plan.prepare.steps.iter().chain(&plan.run.steps);
    let kernels = steps.filter_map(|step| match &step.work {
        Work::Kernel { entry, shape } => Some((entry.clone(), shape.block, shape.cluster, shape.shared)),
        Work::Matmul(_) => None,
    });
    Some(kernels.collect())
}

/// Numbers of rows that are looked at: those around which a choice may change.
const ROWS: [i64; 12] = [1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128];

#[test]
fn every_choice_by_the_rows_of_a_composition_has_a_case_or_a_reason() {
    let sources = Source::read_all(&Path::new(crate::ROOT).join("kernels"), &ulplab::ops::COMPOSITIONS).unwrap();
    let mut found = BTreeSet::new();
    for source in &sources {
        let op = ulplab::ops::find(&source.op).unwrap();
        let cases: Vec<Case> = op
            .cases()
            .into_iter()
            .filter(|case| case.size("B").is_some() && !case.timed)
            .collect();
        let together = TOGETHER.iter().any(|(name, ..)| *name == source.op);
        for variant in source
            .header
            .variants
            .iter()
            .filter(|variant| variant.composed.is_some())
        {
            // Cases that differ only in their rows choose by the rows alone. The first that a variant takes stand for the others.
            let of_rows = |case: &Case| with(case, &[("B", 0)]).dims;
            let kinds: BTreeSet<_> = cases.iter().map(|case| (of_rows(case), case.keys.clone())).collect();
            for (dims, keys) in kinds {
                let kind: Vec<&Case> = cases
                    .iter()
                    .filter(|case| of_rows(case) == dims && case.keys == keys)
                    .collect();
                let rows = |case: &&Case| {
                    let batches = BATCHES.iter().filter(|_| !together && !case.timed);
                    batches.copied().chain(case.size("B")).collect::<Vec<_>>()
                };
                let run: BTreeSet<i64> = kind.iter().flat_map(rows).collect();
                let at = |rows: i64| {
                    let case = with(kind[0], &[("B", rows)]);
                    shapes(variant, &case).filter(|_| launches(variant, &case))
                };
                let have: BTreeSet<_> = run.into_iter().filter_map(at).collect();
                if have.is_empty() {
                    continue;
                }
                let first = ROWS
                    .into_iter()
                    .find(|rows| at(*rows).is_some_and(|shape| !have.contains(&shape)));
                if let Some(rows) = first {
                    found.insert((source.full_name(&variant.name), rows));
                }
                break;
            }
        }
    }
    let known: BTreeSet<(String, i64)> = COMPOSED
        .iter()
        .map(|(name, rows, _)| (name.to_string(), *rows))
        .collect();
    assert_eq!(
        found, known,
        "no case has launches as on so many rows, or it has: strike the reason off"
    );
}
