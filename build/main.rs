//! Puts the digest of the sources that compute into the program.

#[path = "../src/sources.rs"]
mod sources;

use std::path::Path;

fn main() {
    let tree = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    for path in sources::FOLDERS.iter().chain(&["src/sources.rs", "Cargo.lock"]) {
        println!("cargo:rerun-if-changed={tree}/{path}");
    }
    let digest = sources::digest(Path::new(&tree)).expect("the sources are read by the compiler, too");
    println!("cargo:rustc-env=ULPLAB_SOURCES={digest}");
}
