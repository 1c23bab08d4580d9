//! Places of the shipped files: data sets, kernels, experiments.

use std::path::{Path, PathBuf};

/// Finds a shipped file or folder, e.g. `experiments/kernels.toml`, in the first of [`places`] that has it.
pub fn find(name: &str) -> Option<PathBuf> {
    places().iter().map(|place| place.join(name)).find(|path| path.exists())
}

/// Folders that may hold shipped files, in the order of the search.
pub fn places() -> Vec<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    places_from(&current, std::env::current_exe().ok().as_deref(), Some(checkout))
}

/// [`places`] with all inputs as arguments: the current folder and those above it, the folder of the executable,
/// `share/ulplab` beside that folder, and the checkout that the program was built from, so that `cargo install --path .`
/// leaves a program that runs anywhere.
pub fn places_from(current: &Path, executable: Option<&Path>, checkout: Option<&Path>) -> Vec<PathBuf> {
    let beside = executable.and_then(Path::parent);
    let share = beside.and_then(Path::parent).map(|prefix| prefix.join("share/ulplab"));
    let above = current.ancestors().map(Path::to_path_buf);
    above
        .chain(beside.map(Path::to_path_buf))
        .chain(share)
        .chain(checkout.map(Path::to_path_buf))
        .collect()
}
