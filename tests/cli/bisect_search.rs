//! The search for the smallest set that fails.

use std::collections::BTreeSet;

use ulplab::commands::bisect::search::{FailingSet, smallest};

/// The search for a fault, and the number of its tests.
fn search(n: usize, most: usize, fault: impl Fn(&BTreeSet<usize>) -> bool) -> (FailingSet, usize) {
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
