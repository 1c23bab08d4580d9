//! Which combinations of decisions launches of every variant have on the sizes that they can be given, and which of them no case has.
//!
//! Decisions are those of the expressions in a header (grid, block, cluster, shared memory, arguments) and of the conditions on sizes
//! in the kernel's source (`coverage/sources.rs`). A launch's comparisons and choices of `min` and `max` are combined; so are, apart
//! from them, what its `ceil`, `/` and `%` leave. A grid that is folded at the largest one counts its folds. Each entry point counts by
//! itself, since it is compiled by itself. A case is also run in batches, and its rows repeated (docs/kernels.md).
//!
//! Sizes are looked at from 1 to twice the largest of any case (rows: to [`ROWS`]): around each number of the expressions, and
//! where a decision changes. What has no case is listed with the reason in [`EXCUSED`], and the list must be exact.

#[path = "coverage/compositions.rs"]
mod compositions;
#[path = "coverage/decider.rs"]
mod decider;
#[path = "coverage/excused.rs"]
mod excused;
#[path = "coverage/large.rs"]
mod large;
#[path = "coverage/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use ulplab::backend::cuda::expr::eval;
use ulplab::backend::cuda::plan::{SMS, Work};
use ulplab::backend::cuda::{Plan, Source, Variant};
use ulplab::ops::{Case, Inputs};
use ulplab::studies::kernels::volume;

use super::batches::TOGETHER;
use super::ranges::{RANGES, Ranges};
use super::{problems_of, with_own_cases};
use decider::{Decided, Decider, FOLD, FOLLOWING};
use excused::{EXCUSED, FIXED};
use large::Large;
use sources::Conditions;

/// Rows are looked at up to this number, which repeated rows exceed.
const ROWS: i64 = 140_000;
/// The batches in which rows are run.
const BATCHES: [i64; 7] = [1, 2, 7, 8, 33, 64, 128];

/// The sizes of a case, and the multiprocessors of a card.
fn sizes(case: &Case) -> impl Fn(&str) -> Option<i64> {
    |name| case.size(name).or((name == "sms").then_some(SMS))
}

fn takes(variant: &Variant, case: &Case) -> bool {
    variant.needs.iter().all(|need| eval(need, &sizes(case)) == Ok(1))
}

/// Whether a card can make these launches: threads, shared memory, and the two dimensions of a grid that are short.
fn launches(variant: &Variant, case: &Case) -> bool {
    let Ok(Some(plan)) = Plan::new(variant, case, SMS) else {
        return false;
    };
    let mut steps = plan.prepare.steps.iter().chain(&plan.run.steps);
    steps.all(|step| match &step.work {
        Work::Kernel { shape, .. } => {
            let short = shape.grid[1..].iter().all(|blocks| i64::from(*blocks) <= FOLD);
            short && shape.block.iter().product::<u32>() <= 1024 && shape.shared <= 232_448
        }
        Work::Matmul(_) => true,
    })
}

/// A case with other sizes.
fn with(case: &Case, changed: &[(&'static str, i64)]) -> Case {
    let mut case = case.clone();
    for (name, size) in changed {
        case.dims
            .iter_mut()
            .filter(|(dim, _)| dim == name)
            .for_each(|(_, old)| *old = *size);
    }
    case
}

/// An operation: its variants that list launches, its cases, and which of their sizes are looked at.
struct Operation<'a> {
    ranges: &'static Ranges,
    deciders: Vec<(&'a Variant, Vec<Decider<'a>>)>,
    cases: Vec<Case>,
    together: bool,
    large: Vec<Large>,
}

impl<'a> Operation<'a> {
    fn new(source: &'a Source) -> Self {
        let op = ulplab::ops::find(&source.op).unwrap();
        let conditions = Conditions::new(source);
        let cases = op.cases();
        let deciders = source
            .header
            .variants
            .iter()
            .filter(|variant| variant.composed.is_none())
            .map(|variant| {
                let launches = variant
                    .prepare
                    .iter()
                    .chain(&variant.launches)
                    .filter(|launch| launch.entry.is_some());
                let deciders = launches.map(|launch| Decider::new(launch, &conditions, &cases[0]));
                (variant, deciders.collect())
            });
        let large = cases.iter().filter(|case| case.large).cloned();
        Self {
            ranges: RANGES.iter().find(|ranges| ranges.op == source.op).unwrap(),
            deciders: deciders.collect(),
            together: TOGETHER.iter().any(|(name, ..)| *name == source.op),
            large: problems_of(&source.op, large)
                .into_iter()
                .filter_map(|(case, problem)| Large::new(case, &problem))
                .collect(),
            cases,
        }
    }

    /// The sizes with which a variant runs on a case: its own, those of batches, and those of repeated rows.
    fn runs(&self, variant: &Variant, case: &Case) -> Vec<Case> {
        let rows = self.ranges.extents[0];
        let batches = BATCHES.iter().filter(|_| !self.together && !case.timed);
        let mut runs: Vec<Case> = batches.map(|size| with(case, &[(rows, *size)])).collect();
        runs.push(case.clone());
        let large = self.large.iter().find(|large| large.case.name == case.name);
        runs.extend(large.and_then(|large| large.repeated(variant)));
        runs.retain(|case| takes(variant, case));
        runs
    }

    /// What launches decide on cases, by entry point.
    fn covered<'c>(&self, cases: impl IntoIterator<Item = &'c Case>) -> BTreeSet<(String, Decided)> {
        let mut covered = BTreeSet::new();
        for case in cases {
            for (variant, deciders) in &self.deciders {
                for run in self.runs(variant, case) {
                    for decider in deciders {
                        let decided = decider.decided(&run).into_iter().flatten();
                        covered.extend(decided.map(|decided| (decider.entry(&run), decided)));
                    }
                }
            }
        }
        covered
    }

    /// Sizes that are only what cases have.
    fn fixed(&self) -> &'static [&'static str] {
        let fixed = FIXED.iter().find(|(op, ..)| *op == self.ranges.op);
        fixed.map_or(&[], |(_, names, _)| names)
    }

    /// One case of each kind: the smallest of those with the same keys and switches. All kinds of the same switches come together.
    fn kinds(&self) -> BTreeMap<Vec<i64>, Vec<Case>> {
        let mut cases: Vec<&Case> = self.cases.iter().filter(|case| !case.timed).collect();
        cases.sort_by(|a, b| volume(a).total_cmp(&volume(b)));
        let switches = self
            .ranges
            .others
            .iter()
            .chain(self.fixed())
            .filter(|name| !FOLLOWING.contains(name));
        let mut kinds: BTreeMap<Vec<i64>, Vec<Case>> = BTreeMap::new();
        for case in cases {
            let kind = kinds
                .entry(switches.clone().filter_map(|name| case.size(name)).collect())
                .or_default();
            if kind.iter().all(|other| other.keys != case.keys) {
                kind.push(Case {
                    inputs: Inputs::Random,
                    ..case.clone()
                });
            }
        }
        kinds
    }

    /// Every combination that a variant's launches have on sizes that it takes, by launch, with the smallest sizes that have it.
    fn reachable(&self, (variant, deciders): &(&Variant, Vec<Decider>), base: &Case) -> Vec<BTreeMap<Decided, Case>> {
        let texts: Vec<&String> = deciders
            .iter()
            .flat_map(|decider| &decider.texts)
            .chain(&variant.needs)
            .collect();
        let named = |name: &&&str| {
            let words = |text: &&String| {
                text.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .any(|word| word == **name)
            };
            texts.iter().any(|text| words(&text))
        };
        let of_dim = |name: &&'static str| {
            (
                *name,
                self.telling(name, self.around(name, &texts, base), variant, deciders, base),
            )
        };
        let free = self.ranges.extents.iter().filter(|name| !self.fixed().contains(name));
        let dims: Vec<(&'static str, Vec<i64>)> = free.filter(named).map(of_dim).collect();
        let count: usize = dims.iter().map(|(_, values)| values.len()).product();
        assert!(
            count < 1_000_000,
            "{}.{}: {count} combinations of sizes",
            self.ranges.op,
            variant.name
        );
        let case = |mut at: usize| {
            let changed = dims.iter().map(|(name, values)| {
                let value = values[at % values.len()];
                at /= values.len();
                (*name, value)
            });
            with(base, &changed.collect::<Vec<_>>())
        };
        let none = || vec![BTreeMap::new(); deciders.len()];
        let add = |mut found: Vec<BTreeMap<Decided, Case>>, case: Case| {
            if takes(variant, &case) {
                for (decider, found) in deciders.iter().zip(&mut found) {
                    for decided in decider.decided(&case).into_iter().flatten() {
                        let smaller = found.get(&decided).is_none_or(|known| volume(&case) < volume(known));
                        if smaller && launches(variant, &case) {
                            found.insert(decided, case.clone());
                        }
                    }
                }
            }
            found
        };
        let merge = |mut all: Vec<BTreeMap<Decided, Case>>, more: Vec<BTreeMap<Decided, Case>>| {
            for (all, more) in all.iter_mut().zip(more) {
                for (decided, case) in more {
                    if all.get(&decided).is_none_or(|known| volume(&case) < volume(known)) {
                        all.insert(decided, case);
                    }
                }
            }
            all
        };
        (0..count).into_par_iter().map(case).fold(none, add).reduce(none, merge)
    }

    /// Values of a size around all numbers of some texts, in steps of what they must be a multiple of.
    fn around(&self, name: &str, texts: &[&String], base: &Case) -> BTreeSet<i64> {
        let most = self.cases.iter().filter_map(|case| case.size(name)).max().unwrap_or(1) * 2;
        let most = if name == self.ranges.extents[0] {
            most.max(ROWS)
        } else {
            most
        };
        let numbers: BTreeSet<i64> = texts.iter().flat_map(|text| sources::numbers(text)).collect();
        let mut powers = (0..62)
            .map(|power| 1 << power)
            .flat_map(|power: i64| [power, power / 2 * 3]);
        let mut values: BTreeSet<i64> = powers.by_ref().take_while(|value| *value <= most).collect();
        values.extend(numbers.iter().flat_map(|number| [*number, 2 * number]));
        values.extend(
            numbers
                .iter()
                .filter(|number| **number <= 4096)
                .map(|number| number * 64),
        );
        values.insert(most);
        let near: Vec<i64> = values.iter().flat_map(|value| [value - 1, *value, value + 1]).collect();
        values.extend(near);
        let parts = texts.iter().filter_map(|text| {
            let rest = text.split(&format!("{name} % ")).nth(1)?.split_whitespace().next()?;
            eval(rest.trim_end_matches(')'), &sizes(base)).ok()
        });
        for part in parts.filter(|part| *part > 0) {
            let multiples: Vec<i64> = values
                .iter()
                .flat_map(|value| [value / part * part, (value / part + 1) * part])
                .collect();
            values.extend(multiples);
        }
        values.retain(|value| (1..=most).contains(value));
        values
    }

    /// Those values of a size that tell something, where other sizes are those of cases: where decisions change, and the smallest of
    /// each kind.
    fn telling(
        &self,
        name: &'static str,
        mut values: BTreeSet<i64>,
        variant: &Variant,
        deciders: &[Decider],
        base: &Case,
    ) -> Vec<i64> {
        let mut contexts: Vec<Case> = self
            .cases
            .iter()
            .filter(|case| !case.timed)
            .map(|case| {
                let free = self.ranges.extents.iter().filter(|name| !self.fixed().contains(name));
                let free = free.filter_map(|name| Some((*name, case.size(name)?)));
                with(base, &free.collect::<Vec<_>>())
            })
            .collect();
        contexts.sort_by(|a, b| volume(a).total_cmp(&volume(b)));
        contexts.dedup_by(|a, b| a.dims == b.dims);
        let profile = |value: i64| -> Vec<Option<Vec<[Decided; 2]>>> {
            let of = |context: &Case| {
                let case = with(context, &[(name, value)]);
                let decided = || {
                    deciders
                        .iter()
                        .map(|decider| decider.decided(&case))
                        .collect::<Option<Vec<_>>>()
                };
                takes(variant, &case).then(decided).flatten()
            };
            contexts.iter().map(of).collect()
        };
        let chosen = |value: i64| -> Vec<Vec<Decided>> {
            let of = |context: &Case| {
                let case = with(context, &[(name, value)]);
                deciders
                    .iter()
                    .filter_map(|decider| decider.decided(&case))
                    .map(|[chosen, _]| chosen)
                    .collect()
            };
            contexts.iter().map(of).collect()
        };
        let all: Vec<i64> = values.iter().copied().collect();
        for pair in all.windows(2) {
            let (mut low, mut high) = (pair[0], pair[1]);
            let (before, after) = (chosen(low), chosen(high));
            while high - low > 1 && before != after {
                let middle = low.midpoint(high);
                if chosen(middle) == before {
                    low = middle
                } else {
                    high = middle
                }
            }
            if before != after {
                values.extend([low, high, high + 1]);
            }
        }
        let mut seen: BTreeMap<_, usize> = BTreeMap::new();
        let fresh = |value: &i64| {
            let count = seen.entry(profile(*value)).or_default();
            *count += 1;
            *count <= 1
        };
        values.into_iter().filter(fresh).collect()
    }
}

fn with_launches() -> Vec<Source> {
    let folder = Path::new(crate::ROOT).join("kernels");
    let mut sources = Source::read_all(&folder, &ulplab::ops::COMPOSITIONS).unwrap();
    let own: BTreeSet<&str> = with_own_cases().map(|op| op.name()).collect();
    let listed = |source: &Source| source.header.variants.iter().any(|variant| variant.composed.is_none());
    sources.retain(|source| own.contains(&source.op[..]) && listed(source));
    sources
}

#[test]
fn every_combination_of_decisions_has_a_case_or_a_reason() {
    let mut excused = vec![0; EXCUSED.len()];
    let mut without = Vec::new();
    for source in &with_launches() {
        let operation = Operation::new(source);
        let covered = operation.covered(&operation.cases);
        let kinds = operation.kinds();
        let mut missing: Vec<(String, String, Decided, Case)> = Vec::new();
        for of_variant in &operation.deciders {
            let name = source.full_name(&of_variant.0.name);
            let (mut all, mut lacking) = (BTreeSet::new(), 0);
            for kind in kinds.values() {
                let reachable = operation.reachable(of_variant, &kind[0]);
                for (decider, reachable) in of_variant.1.iter().zip(&reachable) {
                    for (decided, case) in reachable {
                        for keys in kind.iter().map(|kind| &kind.keys) {
                            let case = Case {
                                keys: keys.clone(),
                                ..case.clone()
                            };
                            let one = (decider.entry(&case), decided.clone());
                            if all.insert(one.clone()) && !covered.contains(&one) {
                                lacking += 1;
                                missing.push((name.clone(), one.0, one.1, case));
                            }
                        }
                    }
                }
            }
            let reason = |case: &Case| {
                EXCUSED
                    .iter()
                    .position(|(of, when, _)| (*of == name || *of == source.op) && eval(when, &sizes(case)) == Ok(1))
            };
            assert!(!all.is_empty(), "{name}: no sizes are known that it takes");
            let mut stated = 0;
            missing.retain(|(of, _, _, case)| {
                *of != name
                    || reason(case).is_none_or(|at| {
                        excused[at] += 1;
                        stated += 1;
                        false
                    })
            });
            println!(
                "{name}: {} combinations, {} have cases, {stated} have a reason",
                all.len(),
                all.len() - lacking
            );
        }
        // The smallest first; a case also has what its batches have.
        missing.sort_by(|a, b| volume(&a.3).total_cmp(&volume(&b.3)));
        while let Some((name, entry, decided, case)) = missing.first().cloned() {
            let also = operation.covered([&case]);
            let before = missing.len();
            missing.retain(|(_, entry, decided, _)| !also.contains(&(entry.clone(), decided.clone())));
            assert!(
                missing.len() < before,
                "{name}: {entry} {decided:?} is not what {case:?} has"
            );
            let extents = operation.ranges.extents.iter().filter_map(|name| case.size(name));
            let extents: Vec<i64> = extents.collect();
            without.push(format!(
                "{name} {entry}: {extents:?} {:?}, {} combinations",
                case.keys,
                before - missing.len()
            ));
        }
    }
    assert!(
        without.is_empty(),
        "no case has these, and no reason is given: {without:#?}"
    );
    let needless = EXCUSED.iter().zip(&excused).filter(|(_, count)| **count == 0);
    let needless: Vec<_> = needless.map(|((of, when, _), _)| (of, when)).collect();
    assert!(needless.is_empty(), "cases have these: strike them off: {needless:#?}");
}
