//! Places of the shipped files: data sets, kernels, experiments.

use std::path::{Path, PathBuf};

use crate::itself;

/// Finds a shipped file or folder, e.g. `experiments/kernels.toml`, in the first of [`places`] that has it.
pub fn find(name: &str) -> Option<PathBuf> {
    places().iter().map(|place| place.join(name)).find(|path| path.exists())
}

/// Folders that may hold shipped files, in the order of the search.
pub fn places() -> Vec<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    // This crate is two folders below it.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    places_from(&current, itself::start().file.as_deref(), checkout)
}

/// [`places`] with all inputs as arguments: the current folder and those above it, the folder of the file that has the program,
/// `share/ulplab` in the folders above that one, and the checkout that the program was built from, so that `cargo install
/// --path .` leaves a program that runs anywhere. `bin/` is next to `share/`; a Python module is as far below it as Python puts
/// modules.
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
