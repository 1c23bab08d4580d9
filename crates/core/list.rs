//! Removes duplicates from lists, and groups items by key. The results are in the order in which items or keys first appear.

use std::collections::HashMap;
use std::hash::Hash;

/// Removes duplicates; the first of equal items stays.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

/// Groups values by key, with keys in the order of their first appearance.
pub fn grouped<K: Clone + Eq + Hash, V>(items: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let (mut places, mut groups) = (HashMap::new(), Vec::new());
    for (key, value) in items {
        let place = *places.entry(key.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[place].1.push(value);
    }
    groups
}
