//! Laws of layouts, on generated shapes and groups.

use proptest::collection::vec;
use proptest::prelude::*;
use ulplab::layouts::{Groups, LAYOUTS};

use super::*;

/// The formulas of the layouts without groups, as their authors write them.
fn formula(layout: &str, (rows, cols): (usize, usize), (r, c): (usize, usize)) -> usize {
    let (across, aligned) = (cols.div_ceil(4), rows.div_ceil(4) * 4);
    match layout {
        "blocked_128x4" => ((r >> 7) * across + (c >> 2)) * 512 + (r & 31) * 16 + ((r >> 5) & 3) * 4 + (c & 3),
        "blocked_8x4" => ((r >> 3) * across + (c >> 2)) * 32 + (r & 7) * 4 + (c & 3),
        "mn_major_f32" => 4 * (c * aligned + r),
        "mn_major_ue8m0x4" => 4 * ((c >> 2) * aligned + r) + (c & 3),
        other => panic!("no formula of {other}"),
    }
}

/// The same of a matrix with groups: begin and start of the group, then the formula within it.
fn expected(layout: &Layout, shape: (usize, usize), ends: &[usize], (r, c): (usize, usize)) -> Option<usize> {
    let (rows, cols) = shape;
    let position = match layout.groups {
        Groups::None => return Some(formula(layout.name, shape, (r, c))),
        Groups::Rows => r,
        Groups::Cols => c,
    };
    let group = ends.iter().position(|end| position < *end)?;
    let mut begins = vec![0];
    begins.extend(ends);
    let sizes = (0..group).map(|g| begins[g + 1] - begins[g]);
    Some(if layout.groups == Groups::Rows {
        let start: usize = sizes.map(|rows| 128 * rows.div_ceil(128)).sum();
        let inside = (r - begins[group], c);
        start * 4 * cols.div_ceil(4) + formula("blocked_128x4", (ends[group] - begins[group], cols), inside)
    } else {
        let start: usize = sizes.map(|cols| 4 * cols.div_ceil(4)).sum();
        let inside = (r, c - begins[group]);
        start * 128 * rows.div_ceil(128) + formula("blocked_128x4", (rows, ends[group] - begins[group]), inside)
    })
}

/// Bytes of the buffer.
fn size(layout: &str, (rows, cols): (usize, usize), groups: usize) -> usize {
    match layout {
        "blocked_128x4" => rows.div_ceil(128) * cols.div_ceil(4) * 512,
        "blocked_128x4_m_groups" => (rows + 128 * groups) * 4 * cols.div_ceil(4),
        "blocked_128x4_k_groups" => 128 * rows.div_ceil(128) * (cols + 4 * groups),
        "blocked_8x4" => rows.div_ceil(8) * cols.div_ceil(4) * 32,
        "mn_major_f32" => 16 * cols * rows.div_ceil(4),
        "mn_major_ue8m0x4" => 16 * cols.div_ceil(4) * rows.div_ceil(4),
        other => panic!("no size of {other}"),
    }
}

/// Lengths that meet edges of tiles, lines and words.
fn length(longest: usize) -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..=longest, 1 => Just(1), 1 => Just(4), 1 => Just(64), 1 => Just(128), 1 => Just(256)]
}

/// Rows, columns, and cuts in thousandths of either; the same cut twice makes an empty group.
fn matrices() -> impl Strategy<Value = ((usize, usize), Vec<usize>)> {
    let cuts = vec(prop_oneof![3 => 0..=1000usize, 1 => Just(0), 1 => Just(1000)], 1..9);
    ((length(300), length(200)), cuts)
}

fn ends_of(layout: &Layout, (rows, cols): (usize, usize), cuts: &[usize]) -> Vec<usize> {
    let length = match layout.groups {
        Groups::None => return Vec::new(),
        Groups::Rows => rows,
        Groups::Cols => cols,
    };
    let mut ends: Vec<usize> = cuts.iter().map(|cut| length * cut / 1000).collect();
    ends.sort_unstable();
    ends
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Every scale has its own place, the one the formula says; forward puts it there, and 0 wherever no scale is, over
    /// whatever was there before; inverse takes it from there, and nothing else.
    #[test]
    fn a_bijection_with_zero_padding((shape, cuts) in matrices(), seed in any::<u8>()) {
        let (rows, cols) = shape;
        for layout in LAYOUTS {
            let ends = ends_of(layout, shape, &cuts);
            let placement = layout.place(&[rows, cols], &ends).unwrap();
            prop_assert_eq!(placement.len(), size(layout.name, shape, ends.len()), "{}", layout.name);

            let unit = layout.scale;
            let matrix: Vec<u8> = (0..placement.matrix_len()).map(|i| 1 + ((i * 7 + i / 251 + usize::from(seed)) % 255) as u8).collect();
            let mut want = vec![0; placement.len()];
            let mut kept = vec![0; matrix.len()];
            for r in 0..rows {
                for c in 0..cols {
                    let offset = placement.offset(r, c);
                    prop_assert_eq!(offset, expected(layout, shape, &ends, (r, c)), "{} ({}, {})", layout.name, r, c);
                    let Some(offset) = offset else { continue };
                    let at = (r * cols + c) * unit;
                    prop_assert_eq!(&want[offset..offset + unit], &[0; 4][..unit], "{} ({}, {}): taken", layout.name, r, c);
                    want[offset..offset + unit].copy_from_slice(&matrix[at..at + unit]);
                    kept[at..at + unit].copy_from_slice(&matrix[at..at + unit]);
                }
            }
            let mut got = vec![0xee; placement.len()];
            placement.forward_into(&matrix, &mut got).unwrap();
            prop_assert!(got == want, "{} {:?} {:?}: forward", layout.name, shape, ends);
            prop_assert!(placement.forward(&matrix).unwrap() == want);
            prop_assert!(placement.inverse(&got).unwrap() == kept, "{} {:?} {:?}: inverse", layout.name, shape, ends);

            // Padding is not read.
            let noise: Vec<u8> = want.iter().map(|byte| if *byte == 0 { 0xee } else { *byte }).collect();
            prop_assert!(placement.inverse(&noise).unwrap() == kept);
            prop_assert_eq!(placement.offset(rows, 0), None);
            prop_assert_eq!(placement.offset(0, cols), None);
        }
    }

    /// Three dimensions are as many buffers of two.
    #[test]
    fn experts_are_laid_out_one_by_one(experts in 0..4usize, rows in length(200), cols in length(80)) {
        for layout in LAYOUTS.iter().filter(|layout| layout.groups == Groups::None) {
            let one = layout.place(&[rows, cols], &[]).unwrap();
            let all = layout.place(&[experts, rows, cols], &[]).unwrap();
            let matrix: Vec<u8> = (0..all.matrix_len()).map(|i| (i * 13 + i / 256) as u8).collect();
            let mut want = Vec::new();
            for expert in 0..experts {
                want.extend(one.forward(&matrix[expert * one.matrix_len()..][..one.matrix_len()]).unwrap());
                if rows > 0 && cols > 0 {
                    let offset = one.offset(rows - 1, cols - 1).unwrap() + expert * one.len();
                    prop_assert_eq!(all.offset(expert * rows + rows - 1, cols - 1), Some(offset));
                }
            }
            prop_assert!(all.forward(&matrix).unwrap() == want, "{}", layout.name);
            prop_assert!(all.inverse(&want).unwrap() == matrix, "{}", layout.name);
        }
    }

    /// One group is no groups, but for the room after it.
    #[test]
    fn one_group_is_the_whole(rows in length(300), cols in length(100)) {
        let matrix: Vec<u8> = (0..rows * cols).map(|i| (i * 11) as u8).collect();
        let whole = place("blocked_128x4", &[rows, cols], &[]).unwrap().forward(&matrix).unwrap();
        for (layout, end, start) in [
            ("blocked_128x4_m_groups", rows, rows.next_multiple_of(128)),
            ("blocked_128x4_k_groups", cols, cols.next_multiple_of(4)),
        ] {
            let placement = place(layout, &[rows, cols], &[end]).unwrap();
            prop_assert_eq!(placement.starts(), &[0, start]);
            prop_assert!(placement.forward(&matrix).unwrap().starts_with(&whole), "{}", layout);
        }
    }
}
