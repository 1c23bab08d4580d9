//! Choices of experts.

use ulplab_operations::expected::routing::{MOST_CHOICES, admissible};

/// Every set that some scores within their errors choose, and no other. Also: scores without errors, with one far wider than the rest.
#[test]
fn choices_are_those_that_some_scores_make() {
    let wide = [(10.0, 5.0), (8.0, 0.1), (7.95, 0.2), (6.0, 0.5), (1.0, 0.0)];
    let mut found = admissible(&wide, 2);
    found.iter_mut().for_each(|set| set.sort_unstable());
    found.sort_unstable();
    // The fourth is surely below the second and the third.
    assert_eq!(found, [vec![0, 1], vec![0, 2], vec![1, 2]]);
    assert_eq!(admissible(&[(3.0, 0.0), (2.0, 0.0), (1.0, 0.0)], 2), [vec![0, 1]]);
    assert_eq!(admissible(&[(1.0, 0.0); 4], 2).len(), 6);
    assert_eq!(admissible(&[(1.0, 0.0); 12], 4).len(), MOST_CHOICES + 1);
}
