//! Digests of the sources that this program was built from.

use std::path::Path;

use crate::run::Program;
use crate::{itself, sources};

/// Digest of this program's sources that compute results; `sources.rs` computes it when the program is built.
pub const SOURCES: &str = env!("ULPLAB_SOURCES");

/// Names of operations, each with the digest of the sources that decide if its outputs are right ([`crate::judgement`]).
const JUDGEMENTS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/judgements.rs"));

/// Returns the digest of the sources that decide if the outputs of the operation `op` are correct; `None` for an unknown
/// operation.
pub fn judgement(op: &str) -> Option<&'static str> {
    let known = JUDGEMENTS.iter().find(|(name, _)| *name == op);
    known.map(|(_, digest)| *digest)
}

/// Returns the commit of the sources of this program, with `+` behind it if the tree has uncommitted changes; `None` if the tree
/// is not on this machine, is not a git repository, or now has other sources.
fn commit() -> Option<String> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let same = sources::digest(tree).is_ok_and(|digest| digest == SOURCES);
    same.then(|| itself::commit_of(tree)).flatten()
}

/// Describes this program on this machine: digest of its sources, commit and vector instructions.
pub fn program() -> Program {
    Program {
        sources: SOURCES.into(),
        commit: commit(),
        vectors: itself::vectors().into(),
    }
}
