//! Digests of the sources that decide if an operation's outputs are correct: the cases, expected outputs and bounds of the
//! operation, the reference, the number formats and layouts, and the checks that run for every operation. The build script also
//! includes this file.
//!
//! A digest covers source files in whole units (`Room` in the code). A unit is a module of `core` or `operations`, a file or
//! folder in `crates/operations/ops` or of the compositions (launches built in Rust), a showcase, or all of `reference`. The
//! digest of an operation covers the operation's own unit and compositions, the checks, and each unit whose name appears in a
//! covered unit. Equal digests mean the same judgement. Different digests may also mean the same judgement, because some covered
//! files do not affect it: `kernels attest` then compares the inputs and verdicts themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::sources::find;

/// The folder of the operations.
const OPS: &str = "crates/operations/ops";
/// The folder of operations that compute expected results from a user's tensors. If kernels exist for an operation of this
/// folder, its file contains the line `kernels: true`.
const ON_TENSORS: &str = "crates/operations/expected";
/// The folder of compositions: the launches of operations that are built in Rust.
const COMPOSITIONS: &str = "crates/backend/compositions";
/// The folder of operations that have a Cargo package each. The package also contains the compositions (launches built in Rust).
const SHOWCASES: &str = "showcases";
/// Checks that are part of every judgement.
const CHECKS: [&str; 2] = ["crates/operations/ops/guards", "crates/operations/ops/checks"];
/// Source files and folders that no digest covers, because they do not affect a judgement: errors, texts, tensor files, and
/// models that no operation computes.
const OTHERS: [&str; 10] = [
    "crates/core/error",
    "crates/core/lib",
    "crates/core/tensorfile",
    "crates/core/text",
    "crates/operations/lib",
    "reference/paths/gqa",
    "reference/paths/hybrid",
    "reference/paths/keys",
    "reference/tensorfile",
    "reference/weights",
];

/// Returns the texts of the source files of `core`, `operations`, compositions, showcases and `reference`, by path without `.rs`.
///
/// # Errors
/// Returns an error if a folder or a file cannot be read.
pub fn texts(root: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut files = Vec::new();
    for folder in ["crates/core", "crates/operations", COMPOSITIONS, SHOWCASES, "reference"] {
        find(&root.join(folder), &["tests", "examples"], &mut files)?;
    }
    let mut texts = BTreeMap::new();
    for path in files.iter().filter(|path| !path.ends_with("Cargo.toml")) {
        let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
        let place = path.strip_prefix(root).unwrap_or(path).with_extension("");
        texts.insert(place.to_string_lossy().replace('\\', "/"), text);
    }
    Ok(texts)
}

/// Returns a digest (blake3, in hexadecimal) for every operation, by the name of the operation's module. It covers the sources
/// that decide if the operation's outputs are correct.
pub fn digests(texts: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut rooms: BTreeMap<String, Room> = BTreeMap::new();
    let is_other = |place: &str| OTHERS.iter().any(|other| Path::new(place).starts_with(other));
    for (place, text) in texts.iter().filter(|(place, _)| !is_other(place)) {
        rooms.entry(room(place)).or_default().files.push((place, text));
    }
    let hall = format!("{OPS}/mod");
    let list = texts.get(&hall).and_then(|text| text.split("pub const OPS").nth(1));
    let list = list.and_then(|text| text.split("];").next()).unwrap_or_default();
    let list: BTreeSet<String> = paths(list).into_iter().map(|[_, word]| word).collect();
    let drawn = texts.iter().filter(|(_, text)| text.contains("\n    kernels: true,\n"));
    let drawn = drawn.filter_map(|(place, _)| place.strip_prefix(ON_TENSORS)?.strip_prefix('/'));
    let drawn: BTreeSet<String> = drawn.map(String::from).collect();
    let named = rooms.keys().filter_map(|room| room.rsplit_once('/'));
    let named = named.filter(|(folder, name)| *folder == SHOWCASES || *folder == OPS && list.contains(*name));
    let operations: Vec<String> = named
        .map(|(_, name)| name.into())
        .chain(drawn.iter().cloned())
        .collect();
    let names: BTreeSet<String> = rooms.keys().cloned().collect();
    for (name, room) in rooms.iter_mut().filter(|(name, _)| *name != "reference") {
        let words: BTreeSet<[String; 2]> = room.files.iter().flat_map(|(_, text)| paths(text)).collect();
        let by_word = words.iter().flat_map(|[before, word]| {
            // A word names an operation only in files of operations, or after `ops::`: other folders have modules with the same
            // names.
            let of_ops = name.starts_with(OPS) || name.starts_with(SHOWCASES) || before == "ops";
            let of_ops = of_ops.then(|| format!("{OPS}/{word}"));
            let homes = ["core", "operations"].map(|home| format!("crates/{home}/{word}"));
            homes.into_iter().chain(of_ops)
        });
        let known = by_word.filter(|room| names.contains(room));
        // `ops/mod` names all operations. These names do not count: otherwise every digest would cover every operation.
        let leads = |room: &String| *name != hall || !operations.iter().any(|op| *room == format!("{OPS}/{op}"));
        room.leads_to = known.filter(leads).collect();
        room.leads_to.extend(["reference".to_string(), hall.clone()]);
    }
    let digest = |op: &String| {
        let mut pending: Vec<String> = CHECKS.map(String::from).to_vec();
        pending.extend([OPS, COMPOSITIONS, SHOWCASES].map(|folder| format!("{folder}/{op}")));
        if drawn.contains(op) {
            pending.extend([ON_TENSORS.into(), format!("{OPS}/drawn")]);
        }
        let mut reached = BTreeSet::new();
        while let Some(name) = pending.pop() {
            if let Some(room) = rooms.get(&name).filter(|_| reached.insert(name.clone())) {
                pending.extend(room.leads_to.iter().cloned());
            }
        }
        let mut hasher = blake3::Hasher::new();
        for name in &reached {
            hasher.update(name.as_bytes()).update(rooms[name].digest().as_bytes());
        }
        (op.clone(), hasher.finalize().to_hex().to_string())
    };
    operations.iter().map(digest).collect()
}

/// Source files that a digest covers as one unit, such as a module or a folder, and the names of the units to which they refer.
#[derive(Default)]
struct Room<'a> {
    files: Vec<(&'a str, &'a str)>,
    leads_to: BTreeSet<String>,
}

impl Room<'_> {
    fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for part in self.files.iter().flat_map(|(place, text)| [place, text]) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize()
    }
}

/// Returns the name of the unit (`Room`) to which a file belongs.
fn room(place: &str) -> String {
    let parts: Vec<&str> = place.split('/').collect();
    match parts[..] {
        ["crates", "operations", "ops", part, ..] => format!("{OPS}/{part}"),
        ["crates", "backend", "compositions", part, ..] => format!("{COMPOSITIONS}/{part}"),
        ["showcases", part, ..] => format!("{SHOWCASES}/{part}"),
        ["crates", home, part, ..] => format!("crates/{home}/{part}"),
        _ => "reference".into(),
    }
}

/// Finds the names that a source text uses in paths and in the braces of imports. Returns each name with the path segment before
/// it. Skips paths into `reference`, because every digest covers all files of `reference`.
fn paths(text: &str) -> Vec<[String; 2]> {
    let mut found = Vec::new();
    let (mut import, mut root, mut last, mut outer) = (false, "", "", "");
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        import |= ["use ", "pub use ", "pub(crate) use "]
            .iter()
            .any(|start| line.trim_start().starts_with(start));
        let mut rest = line;
        while let Some(at) = rest.find(|c: char| c.is_alphanumeric() || c == '_') {
            let length = rest[at..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let end = length.map_or(rest.len(), |length| at + length);
            let (before, word, after) = (&rest[..at], &rest[at..end], &rest[end..]);
            let inner = before.ends_with("::");
            if if import { last == "use" } else { !inner } {
                root = word;
            }
            if before.contains("::{") {
                outer = last;
            }
            if root != "reference" && (import || inner || after.starts_with("::")) {
                let above = if inner { last } else { outer };
                found.push([above.to_string(), word.to_string()]);
            }
            (last, rest) = (word, after);
        }
        if line.contains(';') {
            (import, root, outer) = (false, "", "");
        }
    }
    found
}
