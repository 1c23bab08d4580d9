//! The smallest set that fails, by tests of sets.
//!
//! Suspects are tried in the order of a rank. A wrong rank costs tests, and changes no answer: a set that is returned was tested,
//! and fails.

use std::collections::BTreeSet;

use ulplab_core::error::Result;

/// What a test of some suspects says: whether they fail; `None` if no more tests are allowed.
pub type Answer = Result<Option<bool>>;

/// A set that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub set: BTreeSet<usize>,
    /// Whether it passes without any one of its members, each of which was tested.
    pub minimal: bool,
}

/// Finds a set of suspects that fails, and passes without any one of them. All together fail, and none passes; both were tested.
///
/// The shortest beginning of the ranking that fails ends with a suspect that is needed; it is found by halving. The same is then
/// asked with it always in the set, and so on, until those that are needed fail alone (Zeller and Hildebrandt's minimal failing
/// set, found as Junker's QuickXplain finds it). For m of n suspects that takes about m · (log₂ n + 2) tests. Errors may cancel,
/// so a larger set may pass where a smaller fails: for this the last step leaves out each member once more.
///
/// # Errors
/// Those of the tests.
pub fn smallest(ranked: &[usize], fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer) -> Result<Found> {
    let mut needed = BTreeSet::new();
    let mut rest = ranked.to_vec();
    while !rest.is_empty() {
        let (shortest, sure) = beginning(&needed, &rest, fails)?;
        rest.truncate(shortest);
        if !sure {
            needed.extend(rest);
            return Ok(Found {
                set: needed,
                minimal: false,
            });
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
    let mut ends = [Some(low), Some(high.saturating_sub(1)).filter(|_| !needed.is_empty())]
        .into_iter()
        .flatten();
    while low < high {
        let middle = ends
            .next()
            .filter(|end| (low..high).contains(end))
            .unwrap_or(low.midpoint(high));
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
fn reduced(mut set: BTreeSet<usize>, fails: &mut impl FnMut(&BTreeSet<usize>) -> Answer) -> Result<Found> {
    let mut minimal = true;
    for member in set.clone() {
        if set.len() == 1 {
            break;
        }
        let mut without = set.clone();
        without.remove(&member);
        match fails(&without)? {
            Some(true) => set = without,
            Some(false) => {}
            None => {
                minimal = false;
                break;
            }
        }
    }
    Ok(Found { set, minimal })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search for a fault, and the number of its tests.
    fn search(n: usize, most: usize, fault: impl Fn(&BTreeSet<usize>) -> bool) -> (Found, usize) {
        let ranked: Vec<usize> = (0..n).collect();
        let mut tests = 0;
        let found = smallest(&ranked, &mut |set| {
            tests += 1;
            Ok((tests <= most).then(|| fault(set)))
        });
        (found.unwrap(), tests)
    }

    fn set(members: &[usize]) -> BTreeSet<usize> {
        members.iter().copied().collect()
    }

    #[test]
    fn one_fault_is_found_wherever_it_is_ranked() {
        for n in [1, 2, 3, 61, 122] {
            for fault in 0..n {
                let (found, tests) = search(n, usize::MAX, |set| set.contains(&fault));
                assert_eq!((found.set, found.minimal), (set(&[fault]), true), "{fault} of {n}");
                let most = 2 + (n as f64).log2().ceil() as usize;
                assert!(tests <= most, "{fault} of {n}: {tests} tests, at most {most}");
            }
        }
        assert_eq!(search(61, usize::MAX, |set| set.contains(&0)).1, 1);
    }

    #[test]
    fn faults_that_fail_only_together_are_found_together() {
        for (a, b) in [(0, 60), (3, 4), (17, 42), (0, 1), (59, 60)] {
            let (found, tests) = search(61, usize::MAX, |set| set.contains(&a) && set.contains(&b));
            assert_eq!((found.set, found.minimal), (set(&[a, b]), true));
            assert!(tests <= 2 * 8 + 2, "{a} and {b}: {tests} tests");
        }
    }

    #[test]
    fn errors_that_add_up_are_found_as_the_largest_that_suffice() {
        // Errors fall with the rank; the first ten are the fewest that exceed the bound.
        let error = |member: usize| 61.0 - member as f64;
        let bound: f64 = (0..10).map(error).sum();
        let over = |set: &BTreeSet<usize>| set.iter().map(|member| error(*member)).sum::<f64>() >= bound;
        let (found, tests) = search(61, usize::MAX, over);
        assert_eq!((found.set, found.minimal), ((0..10).collect(), true));
        assert!(tests <= 45, "{tests} tests");
    }

    /// Member 5 fails, unless 9 cancels it; without the last step 7 would be kept, which only cancels 9.
    #[test]
    fn errors_that_cancel_leave_a_set_that_fails() {
        let fault = |set: &BTreeSet<usize>| set.contains(&5) && (!set.contains(&2) || set.contains(&7));
        let (found, _) = search(61, usize::MAX, fault);
        assert!(fault(&found.set) && found.minimal, "{found:?}");
        for member in found.set.clone() {
            let mut without = found.set.clone();
            without.remove(&member);
            assert!(!fault(&without), "{found:?} needs no {member}");
        }
    }

    #[test]
    fn a_search_that_must_end_early_gives_a_set_that_was_tested() {
        let fault = |set: &BTreeSet<usize>| (20..30).all(|member| set.contains(&member));
        for most in 0..40 {
            let (found, _) = search(61, most, fault);
            assert!(fault(&found.set), "{most} tests: {found:?}");
            assert!(
                !found.minimal || found.set == (20..30).collect(),
                "{most} tests: {found:?}"
            );
        }
    }
}
