//! Matches the name prefixes of two checkpoints one to one, e.g. `model` of a text model with `model.language_model` of a
//! multimodal model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::place::Place;

/// The source prefix for each prefix of a checkpoint. An error means that the source prefix is ambiguous, and lists pairs of
/// prefixes that fit the same number of matrices.
pub type Prefixes = BTreeMap<String, Result<String, String>>;

/// A possible pair of a prefix and a source prefix: number of matrices that find a source under the source prefix, true if one
/// prefix ends with the other, and both prefixes.
type Pair = ((usize, bool), String, String);

/// Assigns to each prefix in `wanted` at most one prefix of the source: an equal prefix if there is one, else the prefix under
/// which most matrices find a source. `fits(prefix, at)` is true if matrix number `at` has a source under `prefix`.
pub fn assigned<'a>(
    wanted: &[(String, Place)],
    held: impl Iterator<Item = (&'a Place, &'a str)>,
    fits: impl Fn(&str, usize) -> bool,
) -> Prefixes {
    let mut within: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for (place, prefix) in held {
        within.entry(&place.within).or_default().insert(prefix);
    }
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (at, (own, place)) in wanted.iter().enumerate() {
        for prefix in within.get(place.within.as_str()).into_iter().flatten() {
            *counts.entry((own, prefix)).or_default() += usize::from(fits(prefix, at));
        }
    }
    let mut chosen = Prefixes::new();
    let mut open: Vec<Pair> = Vec::new();
    for ((own, other), count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        if own == other {
            chosen.insert(own.to_string(), Ok(own.into()));
        } else {
            open.push(((count, related(own, other)), own.into(), other.into()));
        }
    }
    let mut taken: BTreeSet<String> = chosen.keys().cloned().collect();
    loop {
        open.retain(|(_, own, other)| !chosen.contains_key(own) && !taken.contains(other));
        let Some((most, own, other)) = open.iter().max_by_key(|(count, ..)| *count).cloned() else {
            break;
        };
        let rivals = |(count, a, b): &&Pair| *count == most && (*a == own || *b == other);
        let same: Vec<Pair> = open.iter().filter(rivals).cloned().collect();
        let text = |(_, a, b): &Pair| format!("'{b}' for '{a}'");
        let texts = same.iter().map(text).collect::<Vec<_>>().join(", ");
        // If several pairs fit equally well, the choice is ambiguous: all prefixes of these pairs get an error.
        let is_open = same.len() > 1;
        for (_, own, other) in same {
            chosen.insert(own, if is_open { Err(texts.clone()) } else { Ok(other.clone()) });
            taken.insert(other);
        }
    }
    chosen
}

/// True if one prefix ends with the other, e.g. `encoder` and `model.encoder`.
fn related(one: &str, other: &str) -> bool {
    let ends = |long: &str, short: &str| !short.is_empty() && format!(".{long}").ends_with(&format!(".{short}"));
    ends(one, other) || ends(other, one)
}
