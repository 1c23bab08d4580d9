//! Input nobody meant to write: generated, mutated, and kept from earlier runs. It gets an error or a meaning that holds
//! together; never a panic, and no more memory than its size deserves.
//!
//! Cases are the same in every run. `ULPLAB_FUZZ_CASES=1000000` runs as many of each kind in the place of a few thousand.

#[path = "fuzz/experiments.rs"]
mod experiments;
#[path = "fuzz/files.rs"]
mod files;
#[path = "fuzz/formats.rs"]
mod formats;
#[path = "fuzz/kept.rs"]
mod kept;
#[path = "fuzz/layouts.rs"]
mod layouts;
#[path = "fuzz/memory.rs"]
mod memory;
#[path = "fuzz/partitions.rs"]
mod partitions;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

/// So many cases, or as many as the environment asks for.
fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("ULPLAB_FUZZ_CASES").ok();
    ProptestConfig {
        cases: asked.map_or(usual, |cases| cases.parse().expect("ULPLAB_FUZZ_CASES is a number")),
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A change of a sequence, at a place of it.
#[derive(Clone, Debug)]
enum Edit<T> {
    Overwrite(Index, T),
    Insert(Index, T),
    Remove(Index, Index),
    /// What lies between two places comes again after the second.
    Repeat(Index, Index),
    Cut(Index),
}

fn edits<T: Clone + std::fmt::Debug + 'static>(
    item: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Vec<Edit<T>>> {
    let at = any::<Index>;
    let edit = prop_oneof![
        6 => (at(), item.clone()).prop_map(|(at, item)| Edit::Overwrite(at, item)),
        4 => (at(), item).prop_map(|(at, item)| Edit::Insert(at, item)),
        2 => (at(), at()).prop_map(|(from, to)| Edit::Remove(from, to)),
        1 => (at(), at()).prop_map(|(from, to)| Edit::Repeat(from, to)),
        1 => at().prop_map(Edit::Cut),
    ];
    prop::collection::vec(edit, 0..5)
}

fn edited<T: Clone>(items: impl IntoIterator<Item = T>, edits: &[Edit<T>]) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    for edit in edits {
        let len = items.len();
        let span = |a: &Index, b: &Index| {
            let (a, b) = (a.index(len + 1), b.index(len + 1));
            a.min(b)..a.max(b)
        };
        match edit {
            Edit::Overwrite(at, item) if len > 0 => items[at.index(len)] = item.clone(),
            Edit::Overwrite(..) => {}
            Edit::Insert(at, item) => items.insert(at.index(len + 1), item.clone()),
            Edit::Remove(a, b) => drop(items.drain(span(a, b))),
            Edit::Repeat(a, b) => {
                let again = items[span(a, b)].to_vec();
                let at = span(a, b).end;
                items.splice(at..at, again);
            }
            Edit::Cut(at) => items.truncate(at.index(len + 1)),
        }
    }
    items
}
