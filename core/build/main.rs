//! Writes a digest of all that judges each operation's outputs into the program: `ops/mod.rs` includes it.

mod files;
mod judgement;
mod source;

use std::fmt::Write;
use std::path::Path;

fn main() {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    let root = Path::new(&package).parent().expect("the package is in a folder");
    for path in ["core", "reference"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    let out = std::env::var("OUT_DIR").expect("cargo names a folder for what is built");
    let text = match judgement::of_files(&files::Files::new(root), |_| true) {
        Ok(judgements) => {
            let mut rows = String::new();
            for (op, judgement) in &judgements {
                let _ = writeln!(rows, "    ({op:?}, {:?}),", judgement.digest);
            }
            format!("&[\n{rows}]\n")
        }
        // What does not parse is a mistake that the compiler explains better.
        Err(why) => format!("compile_error!({:?})\n", format!("the digests of judgement: {why}")),
    };
    std::fs::write(Path::new(&out).join("judgements.rs"), text).expect("the folder can be written");
}
