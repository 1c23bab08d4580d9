//! Shares of a run, as a user or a scheduler writes them.

use proptest::prelude::*;
use proptest::sample::select;
use ulplab::run::partition::PartitionArg;

use super::{cases, edited, edits};

const GIVEN: [&str; 8] = [
    "slice:1/4",
    "hash:3/8",
    "op:rope:2/3",
    "op:rmsnorm",
    "slice",
    "slice:18446744073709551615/18446744073709551615",
    "hash:1/1",
    "slice:0/0",
];

proptest! {
    #![proptest_config(cases(2_000))]

    /// A text is a share or an error that quotes it; a share is its own text again.
    #[test]
    fn a_share_is_read_or_refused(given in select(GIVEN.to_vec()), edits in edits(any::<char>())) {
        let text: String = edited(given.chars(), &edits).into_iter().collect();
        match text.parse::<PartitionArg>() {
            Ok(PartitionArg::Given(share)) => {
                let again: PartitionArg = share.to_string().parse().unwrap();
                prop_assert!(matches!(again, PartitionArg::Given(same) if same == share), "{text:?}");
            }
            Ok(PartitionArg::FromEnvironment(_)) => {}
            Err(why) => prop_assert!(!why.to_string().is_empty()),
        }
    }
}
