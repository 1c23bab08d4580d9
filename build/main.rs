//! Embeds digests of source files in the program: one of all sources that compute, and one for each operation of the sources that
//! judge its outputs.

#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

#[path = "../src/judgement.rs"]
mod judgement;
#[path = "../src/sources.rs"]
mod sources;

use std::path::Path;

fn main() {
    let tree = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    for path in sources::FOLDERS
        .iter()
        .chain(&["src/judgement.rs", "src/sources.rs", "Cargo.lock"])
    {
        println!("cargo:rerun-if-changed={tree}/{path}");
    }
    let digest = sources::digest(Path::new(&tree)).expect("the sources are read by the compiler, too");
    println!("cargo:rustc-env=ULPLAB_SOURCES={digest}");
    let texts = judgement::texts(Path::new(&tree)).expect("the sources are read by the compiler, too");
    let rows: Vec<(String, String)> = judgement::digests(&texts).into_iter().collect();
    let out = std::env::var("OUT_DIR").expect("cargo names a folder for what is built");
    std::fs::write(Path::new(&out).join("judgements.rs"), format!("&{rows:?}")).expect("the folder can be written");
}
