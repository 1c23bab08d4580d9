//! Every mistake gets an error that says what was found and what was expected.

use super::*;

#[track_caller]
fn refused<T>(outcome: Result<T, String>, words: &[&str]) {
    let error = outcome.err().expect("a mistake");
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

#[test]
fn mistakes_in_names_shapes_and_groups() {
    refused(
        Layout::find("blocked_128x8"),
        &["unknown layout", "did you mean 'blocked_128x4'?"],
    );
    refused(
        place("blocked_128x4", &[7], &[]),
        &["blocked_128x4", "[7]", "[experts, rows, cols]"],
    );
    refused(
        place("blocked_128x4_m_groups", &[2, 3, 4], &[3]),
        &["[2, 3, 4] is not [rows, cols]"],
    );
    refused(place("blocked_8x4", &[3, 4], &[3]), &["no groups", "1 ends"]);
    refused(
        place("blocked_128x4_k_groups", &[3, 4], &[]),
        &["no ends", "one group ends at column 4"],
    );
    refused(
        place("blocked_128x4_m_groups", &[9, 4], &[2, 5, 4, 9]),
        &["group 2 ends at row 4", "at 5"],
    );
    refused(place("blocked_128x4_k_groups", &[3, 4], &[2, 5]), &["column 5", "at 4"]);
    for shape in [[1 << 33, 1 << 33], [usize::MAX, 1], [1, usize::MAX], [0, usize::MAX]] {
        for layout in ["blocked_128x4", "mn_major_f32", "mn_major_ue8m0x4", "blocked_8x4"] {
            refused(place(layout, &shape, &[]), &["too large"]);
        }
    }
    refused(place("blocked_128x4", &[usize::MAX, 1, 1], &[]), &["too large"]);
    refused(place("blocked_128x4_m_groups", &[5, 1 << 62], &[5]), &["too large"]);
}

#[test]
fn mistakes_in_sizes_of_buffers() {
    let placement = place("blocked_128x4", &[130, 5], &[]).unwrap();
    assert_eq!((placement.matrix_len(), placement.len()), (650, 2048));
    refused(placement.forward(&[0; 649]), &["matrix has 649 bytes", "expected 650"]);
    refused(
        placement.inverse(&[0; 2049]),
        &["buffer has 2049 bytes", "expected 2048"],
    );
    refused(
        placement.forward_into(&[0; 650], &mut [0; 650]),
        &["buffer has 650 bytes", "expected 2048"],
    );
    refused(
        placement.inverse_into(&[0; 2048], &mut [0; 2048]),
        &["matrix has 2048 bytes", "expected 650"],
    );
}

/// However tall.
#[test]
fn matrices_without_columns_take_no_time() {
    for (layout, ends) in [
        ("blocked_128x4", &[][..]),
        ("blocked_128x4_m_groups", &[1 << 40, 1 << 50]),
        ("mn_major_f32", &[]),
    ] {
        let placement = place(layout, &[1 << 50, 0], ends).unwrap();
        assert_eq!(
            (placement.len(), placement.forward(&[]).unwrap()),
            (0, Vec::new()),
            "{layout}"
        );
        assert!(placement.inverse(&[]).unwrap().is_empty(), "{layout}");
    }
}
