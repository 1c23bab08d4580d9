//! Scale layouts of shapes no matrix has.

use proptest::collection::vec;
use proptest::prelude::*;
use ulplab::layouts::LAYOUTS;

use super::{cases, memory};

/// Mostly small; sometimes near where a product of two or three leaves 64 bits.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..300usize,
        1 => (0..64u32, -2..3isize).prop_map(|(power, more)| (1usize << power).wrapping_add_signed(more)),
    ]
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// A placement that is given, small as it is, places its first and last scale within its buffer; one that is not says
    /// of which layout.
    #[test]
    fn absurd_shapes(shape in vec(size(), 0..5), mut ends in vec(size(), 0..4), sorted in any::<bool>()) {
        if sorted {
            ends.sort_unstable();
        }
        for layout in LAYOUTS {
            let (placement, peak) = memory::peak(|| layout.place(&shape, &ends));
            prop_assert!(peak < 4096, "{} of {shape:?} {ends:?}: {peak} bytes", layout.name);
            let placement = match placement {
                Ok(placement) => placement,
                Err(error) => {
                    prop_assert!(error.starts_with(&format!("{}: ", layout.name)), "{error}");
                    continue;
                }
            };
            let [.., rows, cols] = shape[..] else { panic!("{shape:?} is no matrix") };
            let rows = rows * if shape.len() == 3 { shape[0] } else { 1 };
            prop_assert_eq!(placement.matrix_len(), rows * cols * layout.scale);
            for (r, c) in [(0, 0), (rows.wrapping_sub(1), cols.wrapping_sub(1)), (rows / 2, cols / 2)] {
                let inside = r < rows && c < cols && (ends.is_empty() || ends.last().is_some_and(|end| r.min(c) < *end));
                let offset = placement.offset(r, c);
                prop_assert!(offset.is_none_or(|offset| inside && offset + layout.scale <= placement.len()));
                prop_assert!(offset.is_some() || !ends.is_empty() || !inside);
            }
        }
    }
}
