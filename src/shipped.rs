//! Where the files are that come with ulplab: data sets, kernels, experiments.

use std::path::{Path, PathBuf};

/// Finds a file or folder that comes with ulplab, e.g. `experiments/kernels.toml`, in the first of [`places`] that has it.
pub fn find(name: &str) -> Option<PathBuf> {
    places().iter().map(|place| place.join(name)).find(|path| path.exists())
}

/// Folders that may hold what comes with ulplab, in the order in which they are looked through.
pub fn places() -> Vec<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    places_from(&current, std::env::current_exe().ok().as_deref(), Some(checkout))
}

/// [`places`] with all that it looks at passed in: the current folder and those above it, the folder of the executable,
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
