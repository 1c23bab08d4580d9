//! Writes `docs/layouts.md` from the table of layouts.

use std::fmt::Write;

use super::table::{Groups, LAYOUTS, Layout};

const INTRODUCTION: &str = "# Scale layouts

This page lists the orders in which GEMMs want their scales in memory: for each, the byte at which a scale lies, and an example.

<!-- layouts::markdown() writes this page from the table in crates/core/layouts; change that, then run the tests with ULPLAB_BLESS=1. -->

A layout says at which byte of a GEMM's buffer the scale of row r and block c of a row-major matrix lies. All bytes that
hold no scale are 0. Division is that of integers, rounding down.

Groups follow one another along rows (M) or columns (K), given by their cumulative ends; a group may be empty, and of any
size. `starts` has one entry more than there are groups, as torchao returns it. What comes after the last group is not laid
out. A layout without groups takes `[experts, rows, cols]` too: one buffer per expert, one after another.
";

/// Returns the text of `docs/layouts.md`.
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    LAYOUTS.iter().for_each(|layout| describe(&mut out, layout));
    out
}

/// Writes the definition of a layout, and an example with offsets that [`Layout::place`] computes.
fn describe(out: &mut String, layout: &Layout) {
    let (name, doc, source, offset, bytes) = (layout.name, layout.doc, layout.source, layout.offset, layout.bytes);
    let (scale, plural) = (layout.scale, if layout.scale == 1 { "" } else { "s" });
    let _ = write!(
        out,
        "\n## `{name}`\n\n{doc}.\nSource: {source}. {scale} byte{plural} per scale.\n\n* Byte of scale (r, c): `{offset}`\n\
         * Bytes of the buffer: `{bytes}`\n"
    );
    let ends: &[usize] = match layout.groups {
        Groups::None => &[],
        Groups::Rows => &[30, 30, 130],
        Groups::Cols => &[2, 2, 7],
    };
    let Ok(placement) = layout.place(&[130, 7], ends) else {
        return;
    };
    let groups = match ends {
        [] => String::new(),
        _ => format!(", groups ending at {ends:?} (starts {:?})", placement.starts()),
    };
    let offsets = [(0, 0), (0, 1), (0, 4), (1, 0), (32, 0), (129, 6)]
        .into_iter()
        .filter_map(|(r, c)| Some(format!("({r}, {c}) at {}", placement.offset(r, c)?)));
    let _ = writeln!(
        out,
        "* Of 130 rows and 7 columns{groups}: {} bytes; {}",
        placement.len(),
        offsets.collect::<Vec<_>>().join(", ")
    );
}
