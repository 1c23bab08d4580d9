//! Scale layouts against other people's code, against their formulas, and against their own laws.

#[path = "layouts/docs.rs"]
mod docs;
#[path = "layouts/fixtures.rs"]
mod fixtures;
#[path = "layouts/mistakes.rs"]
mod mistakes;
#[path = "layouts/properties.rs"]
mod properties;
#[path = "layouts/words.rs"]
mod words;

use ulplab::layouts::{Layout, Placement};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/quant");

fn place(layout: &str, shape: &[usize], ends: &[usize]) -> Result<Placement, String> {
    Layout::find(layout)?.place(shape, ends)
}
