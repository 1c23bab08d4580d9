use std::cmp::Ordering;

use ulplab::ops::{Case, Problem};

use super::{accepts_only, buffer, problems, values, violations};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Of equal scores those with the larger indices are taken.
    LastOfTies,
    /// -0 is less than 0.
    ZerosApart,
    /// NaN with a sign is the least.
    NanBySign,
    /// The output is in the order of scores.
    BestFirst,
    /// Scores after the count are candidates.
    CountIgnored,
}

/// Whether a score comes before another in the order of scores.
fn order(a: f32, b: f32, mistake: Mistake) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        _ if mistake == Mistake::NanBySign => b.total_cmp(&a),
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        _ if mistake == Mistake::ZerosApart => b.total_cmp(&a),
        _ => b.partial_cmp(&a).unwrap(),
    }
}

fn indices(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let (scores, k) = (values(problem, "scores"), case.dim("K"));
    let count = buffer(problem, "count");
    let counts = count.bytes.as_chunks::<4>().0;
    let mut out = Vec::new();
    for (scores, count) in scores.chunks(case.dim("N")).zip(counts) {
        let count = match mistake {
            Mistake::CountIgnored => scores.len(),
            _ => i32::from_le_bytes(*count) as usize,
        };
        let mut best: Vec<usize> = (0..count).collect();
        if mistake == Mistake::LastOfTies {
            best.reverse();
        }
        best.sort_by(|a, b| order(scores[*a], scores[*b], mistake));
        best.truncate(k);
        if mistake != Mistake::BestFirst {
            best.sort_unstable();
        }
        let found = best.iter().map(|index| *index as i32);
        let padded = found.chain(std::iter::repeat(-1)).take(k);
        out.extend(padded.flat_map(i32::to_le_bytes));
    }
    out
}

#[test]
fn top_k_wants_the_first_of_the_largest_in_order() {
    let problems = problems("top_k");
    for (case, problem) in &problems {
        accepts_only(case, problem, &[("indices", indices(case, problem, Mistake::None))]);
    }
    for mistake in [
        Mistake::LastOfTies,
        Mistake::ZerosApart,
        Mistake::NanBySign,
        Mistake::BestFirst,
        Mistake::CountIgnored,
    ] {
        // Not every case has ties, zeros or NaN, but those with eight rows of each kind have all of them.
        let noticed = |(case, problem): &&(Case, Problem)| {
            violations(problem, vec![("indices", indices(case, problem, mistake))]) >= 1.0
        };
        let of_eight = |case: &Case| case.name.starts_with("edges") && case.dim("B") >= 120;
        let edges = problems.iter().filter(|(case, _)| of_eight(case));
        assert_eq!(edges.filter(noticed).count(), 3, "{mistake:?}");
    }
}
