//! Files that the user's programs and cases depend on. A run can be continued only if these files are unchanged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::KernelStudy;
use crate::experiment::Mistake;
use ulplab_core::error::{Error, Result};
use ulplab_core::input;
use ulplab_core::pattern::matches;

/// Largest number of files that a pattern may match. A pattern with more matches is refused as a mistake: reading the files would
/// take longer than the run.
const MOST: usize = 10_000;

/// Returns path and blake3 digest of every existing file that the user's programs and cases name.
pub fn files(study: &KernelStudy) -> Result<Vec<(String, String)>> {
    let runs = study.commands.iter().map(|command| &command.run);
    let runs = runs.chain(study.ops.iter().map(|op| &op.reference)).flatten();
    let tensors = study.own_cases.iter().filter_map(|case| case.tensors.as_ref());
    let files: BTreeSet<&String> = runs.chain(tensors).filter(|name| Path::new(name).is_file()).collect();
    let digest = |name: &&String| Ok((name.to_string(), digest(name.as_ref())?));
    files.iter().map(digest).collect()
}

/// Returns path and blake3 digest of every file that a `watch` pattern matches, relative to `home`, the folder of the experiment
/// file.
pub fn watched(study: &KernelStudy, home: &Path) -> Result<Vec<(String, String)>, Mistake> {
    let mut all = BTreeSet::new();
    for (at, command) in study.commands.iter().enumerate() {
        let (found, who) = (watch(home, &command.watch), format!("command '{}'", command.recipe()));
        all.extend(found.map_err(|mistake| mistake.of(who).within("command", at))?);
    }
    for (at, op) in study.ops.iter().enumerate() {
        let (found, who) = (watch(home, &op.watch), format!("operation '{}'", op.name));
        all.extend(found.map_err(|mistake| mistake.of(who).within("op", at))?);
    }
    let wrong = |error: Error| Mistake::new(error.to_string());
    let digest = |name: String| Ok((format!("watched {name}"), digest(&home.join(&name)).map_err(wrong)?));
    all.into_iter().map(digest).collect()
}

/// Returns the files that match the patterns; an error if a pattern matches none.
fn watch(home: &Path, patterns: &[String]) -> Result<BTreeSet<String>, Mistake> {
    let mut all = BTreeSet::new();
    for (at, pattern) in patterns.iter().enumerate() {
        let wrong = |why: String| Mistake::new(format!("watch: '{pattern}' {why}")).within("watch", at);
        let found = matching(home, pattern).map_err(wrong)?;
        if found.is_empty() {
            return Err(wrong(format!("matches no file below {}", home.display())));
        }
        all.extend(found);
    }
    Ok(all)
}

fn digest(file: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let read = hasher.update_reader(input::open(file)?);
    read.map_err(Error::io(file, "read"))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Returns the files that match a pattern: `*` stands for any part of a name, `**` for any folders. Wildcards do not match hidden
/// files and `__pycache__`, because editors and Python create and change such files on their own.
pub fn matching(home: &Path, pattern: &str) -> Result<BTreeSet<String>, String> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let mut found = BTreeSet::new();
    walk(home, PathBuf::new(), &parts, &mut found)?;
    Ok(found)
}

fn walk(home: &Path, at: PathBuf, parts: &[&str], found: &mut BTreeSet<String>) -> Result<(), String> {
    let Some((part, rest)) = parts.split_first() else {
        return Ok(());
    };
    if !part.contains('*') {
        // An absolute path, split at '/', begins with an empty part.
        let next = at.join(if part.is_empty() { "/" } else { part });
        if rest.is_empty() {
            return keep(home, next, found);
        }
        return walk(home, next, rest, found);
    }
    let deep = *part == "**";
    if deep && !rest.is_empty() {
        walk(home, at.clone(), rest, found)?;
    }
    let Ok(entries) = std::fs::read_dir(home.join(&at)) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot be looked for: {error}"))?;
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        let passed_over = text.starts_with('.') || text == "__pycache__";
        if passed_over || !(deep || matches(&part.replace('*', "**"), text)) {
            continue;
        }
        let next = at.join(text);
        // Do not follow links to folders: they may form cycles.
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match (folder, deep) {
            (true, true) => walk(home, next, parts, found)?,
            (true, false) => walk(home, next, rest, found)?,
            (false, _) if rest.is_empty() => keep(home, next, found)?,
            (false, _) => {}
        }
    }
    Ok(())
}

fn keep(home: &Path, at: PathBuf, found: &mut BTreeSet<String>) -> Result<(), String> {
    if home.join(&at).is_file() {
        found.insert(at.display().to_string());
    }
    match found.len() {
        ..=MOST => Ok(()),
        _ => Err(format!("matches more than {MOST} files")),
    }
}
