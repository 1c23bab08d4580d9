//! Finds the files that come with ulplab: data sets, kernels, experiments.

use std::path::{Path, PathBuf};

use crate::itself;

/// Finds a shipped file or folder, e.g. `experiments/kernels.toml`, in the first of [`places`] that has it.
pub fn find(name: &str) -> Option<PathBuf> {
    places().iter().map(|place| place.join(name)).find(|path| path.exists())
}

/// Returns the folders that may hold shipped files, in search order.
pub fn places() -> Vec<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    // This crate is two folders below the checkout.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    places_from(&current, itself::start().file.as_deref(), checkout)
}

/// Same as [`places`], but takes all inputs as arguments. The order is: the current folder and its parents, the folder of the
/// program's file, `share/ulplab` in the parents of that folder, and the checkout that the program was built from. The checkout
/// serves a program installed by `cargo install --path .`. An executable is in `bin/`, next to `share/`; a Python module is
/// several folders below the parent of `share/`.
pub fn places_from(current: &Path, program: Option<&Path>, checkout: Option<&Path>) -> Vec<PathBuf> {
    let beside = program.and_then(Path::parent);
    let share = program.into_iter().flat_map(|program| program.ancestors().skip(2));
    let above = current.ancestors().map(Path::to_path_buf);
    above
        .chain(beside.map(Path::to_path_buf))
        .chain(share.map(|folder| folder.join("share/ulplab")))
        .chain(checkout.map(Path::to_path_buf))
        .collect()
}
