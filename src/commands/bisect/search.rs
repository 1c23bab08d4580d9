//! Search for a minimal failing set of suspects (places and formats). In the test of a set, the suspects of the set round like
//! the wrong recipe, and everything else like the right recipe. The set fails if a gate fails.
//!
//! Suspects are tested in the order of a ranking, the most suspicious first. A poor ranking costs more tests, but the answer
//! stays correct: every returned set was tested and fails.

use std::collections::BTreeSet;

use ulplab_core::error::Result;

/// The result of a test: true if a gate fails when only this set of suspects rounds like the wrong recipe; `None` if the limit on
/// tests is reached.
pub type Answer = Result<Option<bool>>;

/// A set that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingSet {
    pub set: BTreeSet<usize>,
    /// True if the set passes as soon as any one member is removed. Each removal was tested.
    pub minimal: bool,
}

/// Finds a minimal set of suspects (places and formats): a gate fails if exactly these round wrongly, and passes without any one
/// of them. The caller has tested that all suspects together fail and that the empty set passes.
///
/// A halving search finds the shortest prefix of the ranking that fails; the last suspect of this prefix is needed. The search is
/// repeated with the needed suspects always in the set, until they fail alone. (The result is Zeller and Hildebrandt's minimal
/// failing set, found as in Junker's QuickXplain.) Finding m of n suspects takes about m · (log₂ n + 2) tests. Errors may cancel,
/// so a larger set may pass where a smaller one fails. For this reason the last step tries to remove each member again.
///
/// # Errors
/// Returns an error if a test fails to run.
pub fn smallest(ranked: &[usize], fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer) -> Result<FailingSet> {
    let mut needed = BTreeSet::new();
    let mut rest = ranked.to_vec();
    while !rest.is_empty() {
        let (shortest, sure) = beginning(&needed, &rest, fails)?;
        rest.truncate(shortest);
        if !sure {
            needed.extend(rest);
            let (set, minimal) = (needed, false);
            return Ok(FailingSet { set, minimal });
        }
        // The shortest failing prefix is empty if the needed suspects (places and formats) fail alone.
        needed.extend(rest.pop());
        if shortest == 0 {
            break;
        }
    }
    reduced(needed, fails)
}

/// Searches for the shortest prefix of a ranking of suspects that makes a gate fail together with the suspects in `needed`.
/// Returns the length of the shortest failing prefix found, and true if it is proven to be the shortest; false means that the
/// limit on tests ended the search. The whole ranking, together with `needed`, must make a gate fail.
pub fn beginning(
    needed: &BTreeSet<usize>,
    ranked: &[usize],
    fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer,
) -> Result<(usize, bool)> {
    // Invariant: the prefixes of the ranking that are shorter than `low` pass, and the prefix of length `high` fails.
    let (mut low, mut high) = (usize::from(needed.is_empty()), ranked.len());
    // Tests the shortest prefix first, and then the whole ranking without its last suspect. These tests soon decide two common
    // cases: one faulty suspect that is ranked first, and an error to which all suspects contribute.
    let last = (!needed.is_empty()).then(|| high.saturating_sub(1));
    let mut ends = std::iter::once(low).chain(last);
    while low < high {
        let end = ends.next().filter(|end| (low..high).contains(end));
        let middle = end.unwrap_or(low.midpoint(high));
        let set = needed.iter().chain(&ranked[..middle]).copied().collect();
        match fails(&set)? {
            Some(true) => high = middle,
            Some(false) => low = middle + 1,
            None => return Ok((high, false)),
        }
    }
    Ok((high, true))
}

/// Removes members that are not needed, until the set passes if any one of the remaining members is removed.
fn reduced(mut set: BTreeSet<usize>, fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer) -> Result<FailingSet> {
    for member in set.clone() {
        if set.len() == 1 {
            break;
        }
        let mut without = set.clone();
        without.remove(&member);
        match fails(&without)? {
            Some(true) => set = without,
            Some(false) => {}
            None => return Ok(FailingSet { set, minimal: false }),
        }
    }
    Ok(FailingSet { set, minimal: true })
}
