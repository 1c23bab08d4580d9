//! Search for a minimal failing set of suspects: each step tests whether a subset fails.
//!
//! Suspects are tried in the order of a ranking. A wrong ranking costs more tests, but cannot make the answer wrong: every returned
//! set was tested and fails.

use std::collections::BTreeSet;

use ulplab_core::error::Result;

/// The result of a test: true if the suspects fail; `None` if no more tests are allowed.
pub type Answer = Result<Option<bool>>;

/// A set that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingSet {
    pub set: BTreeSet<usize>,
    /// True if it passes without any one of its members. Each was tested.
    pub minimal: bool,
}

/// Finds a set of suspects that fails, and passes without any one of them. All together fail, and none passes; both were tested.
///
/// The shortest beginning of the ranking that fails ends with a suspect that is needed; it is found by halving. The search is then
/// repeated with it always in the set, and so on, until those that are needed fail alone (Zeller and Hildebrandt's minimal failing
/// set, found as Junker's QuickXplain finds it). For m of n suspects that takes about m · (log₂ n + 2) tests. Errors may cancel,
/// so a larger set may pass where a smaller fails: for this the last step leaves out each member again.
///
/// # Errors
/// If a test fails to run.
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
        // Those needed fail alone if the shortest beginning is none.
        needed.extend(rest.pop());
        if shortest == 0 {
            break;
        }
    }
    reduced(needed, fails)
}

/// Finds the shortest beginning of a ranking that fails together with what is needed, and whether no shorter one does. The whole
/// ranking fails.
pub fn beginning(
    needed: &BTreeSet<usize>,
    ranked: &[usize],
    fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer,
) -> Result<(usize, bool)> {
    // Shorter than `low` passes, and `high` fails.
    let (mut low, mut high) = (usize::from(needed.is_empty()), ranked.len());
    // First whether it is one alone, then whether it is all of them: the two ends are what faults and spread errors look like.
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

/// Leaves out members until the set passes without any one.
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
