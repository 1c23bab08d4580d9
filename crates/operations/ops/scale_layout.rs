//! Swizzles block scales [H, W] of one byte each into the layout that tensor cores read: tiles of 128 rows × 4 columns. The tiles
//! cover the whole matrix, or each group of rows or columns separately. The ends of groups are known only on the device.

use safetensors::Dtype;

use super::grid::named;
use super::{Batch, Buffer, Case, Data, Judge, KernelOp, Problem};
use ulplab_core::layouts::{Layout, Placement};

pub(super) const SCALE_LAYOUT: KernelOp = KernelOp {
    name: "scale_layout",
    doc: "swizzles block scales into tiles of 128 × 4: without groups, with groups of rows (m), with groups of columns (k)",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("plain", [8192, 4096], "one", true),
        case("plain", [2048, 1024], "one", true),
        case("plain", [384, 256], "one", false),
        case("plain", [1, 16], "one", false),
        case("plain", [130, 7], "one", false),
        case("plain", [400, 37], "one", false),
        case("plain", [259, 48], "one", false),
    ];
    for ends in ["even", "ragged"] {
        let rows = [[16384, 224], [131_072, 64], [131_072, 224]];
        cases.extend(rows.map(|shape| case("m", shape, ends, true)));
        for h in [2048, 5120, 7168, 8192] {
            cases.extend([1024, 2048, 4096].map(|w| case("k", [h, w], ends, true)));
        }
    }
    // This case has only one group. The test repeats groups together with their rows, and kernels whose threads loop over all
    // groups would be slow with many groups.
    cases.push(case("m", [8064, 512], "one", false));
    for groups in ["m", "k"] {
        let shapes = [
            ([130, 45], "empty"),
            ([400, 437], "empty"),
            ([400, 432], "empty"),
            ([528, 512], "many"),
            ([261, 304], "single"),
            ([384, 256], "one"),
        ];
        cases.extend(shapes.map(|(shape, ends)| case(groups, shape, ends, false)));
    }
    // Only in these cases, repeated rows give the same tiles again: they have one group, which consists of whole tiles.
    let large = ["plain.384x256.one", "m.8064x512.one", "k.384x256.one"];
    cases
        .iter_mut()
        .for_each(|case| case.large = large.contains(&&*case.name));
    cases
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [h, w] = case.sizes(["H", "W"]);
    let ends = ends(case.key("groups"), [h, w], case.key("ends"));
    let x = data.bytes("scale_layout/x", h * w);
    let want = placement(case.key("groups"), [h, w], &ends)?.forward(&x)?;
    let shape = [want.len()];
    let bytes = (x.len() + want.len()) as u64;
    let buffers = vec![
        Buffer::input("x", Dtype::U8, &[h, w], x),
        Buffer::integers("ends", 4, ends.iter().map(|end| *end as i64)),
    ];
    Ok(Problem {
        bytes,
        batch: batch(case.key("groups"), [h, w], &ends),
        ..Problem::new(buffers, vec![Judge::equal("y", Dtype::U8, &shape, want, WHY)])
    })
}

/// Describes how a test can repeat rows; `None` if a repetition would not append whole tiles to the stored layout. Rows must fill
/// whole tiles (of each group, if rows are grouped). If columns are grouped, there must be only one group that covers all
/// columns: the layout stores the tiles of a group of columns together for all rows, so repeated rows would lie between the
/// groups.
fn batch(groups: &str, [h, w]: [usize; 2], ends: &[usize]) -> Option<Batch> {
    let whole = |rows: &usize| rows.is_multiple_of(128);
    let fits = match groups {
        "m" => ends.iter().all(whole) && ends.last() == Some(&h),
        "k" => whole(&h) && ends == [w],
        _ => whole(&h),
    };
    let rows = Batch::new("H", &["x", "y"]).used("y", h * w.div_ceil(4) * 4);
    let rows = match groups {
        "m" => rows.together(h, &["G", "row_groups", "bytes"]).ends("ends", h),
        _ => rows.together(h, &["bytes"]),
    };
    fits.then_some(rows)
}

const WHY: &str = "bytes are moved and nothing is computed; padding is 0 (docs/layouts.md)";

fn case(groups: &'static str, [h, w]: [usize; 2], spread: &'static str, timed: bool) -> Case {
    let ends = ends(groups, [h, w], spread);
    let bytes = placement(groups, [h, w], &ends).map_or(0, |placement| placement.len());
    let count = |of: &str| if groups == of { ends.len() } else { 0 };
    Case {
        name: format!("{groups}.{h}x{w}.{spread}"),
        keys: vec![("groups", groups.into()), ("ends", spread.into())],
        dims: named(
            "H W G row_groups col_groups bytes",
            [h, w, ends.len(), count("m"), count("k"), bytes].map(|size| size as i64),
        ),
        timed,
        ..Case::default()
    }
}

fn placement(groups: &str, shape: [usize; 2], ends: &[usize]) -> Result<Placement, String> {
    let (name, ends) = match groups {
        "m" => ("blocked_128x4_m_groups", ends),
        "k" => ("blocked_128x4_k_groups", ends),
        _ => ("blocked_128x4", &[][..]),
    };
    Layout::find(name)?.place(&shape, ends)
}

/// Returns the end of each group of rows (`m`) or columns (`k`). Without groups, the only end is the number of rows.
fn ends(groups: &str, [h, w]: [usize; 2], spread: &str) -> Vec<usize> {
    let all = if groups == "k" { w } else { h };
    let even = [1, 3, 8, 9, 16, 21, 30, 32].map(|end| end * all / 32);
    match spread {
        // Eight groups of very different sizes, as in training.
        "even" => even.into(),
        "ragged" => even
            .iter()
            .zip([3, 10, 6, 2, 9, 5, 1, 0])
            .map(|(end, less)| end - less)
            .collect(),
        // Every other group is empty, and the last three rows or columns belong to no group.
        "empty" => (0..9).map(|g| g / 2 * (all - 3) / 4).collect(),
        // There are more groups than a warp has lanes.
        "many" => (1..=70).map(|g| g * all / 70).collect(),
        // Groups of a single row or column, including one after a whole tile and one at the end.
        "single" => vec![1, 2, 130, 131, all - 1, all],
        _ => vec![all],
    }
}
