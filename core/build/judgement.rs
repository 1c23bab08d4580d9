//! Digests of all that says whether an operation's outputs are right: its cases, its expected outputs and bounds, the reference,
//! formats and layouts that they come from, and the checks that the runner makes.
//!
//! What belongs to an operation is found, not listed: from its type on, every item of this package and of `reference` that the
//! items found so far name, with all implementations for the types among them. Where a name leads is part of the digest, and
//! so a re-export that leads elsewhere changes it; comments, blank lines and tests do not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::files::Files;
use super::source::{Kind, Resolved, Tree, mentions, plain};

/// Where the list of operations is.
const LIST: [&str; 3] = ["ulplab_core", "ops", "OPS"];
/// The module whose items are part of every judgement: what is checked around and in the buffers.
const CHECKS: [&str; 3] = ["ulplab_core", "ops", "guards"];
/// What says nothing of right or wrong, and is left out with all that only it names: what models are compiled for, which checkpoints
/// a path loads, how their configurations are read, the paths that no operation computes, files of weights, which kernels and
/// reference read in the same way, the texts of errors,
/// the list of metrics, of which those that judge (`violations`, `bound_ratio`) are named by themselves, and files of tensors, which
/// only cases of the user's read.
const BESIDE: [&str; 10] = [
    "reference::paths::model::sealed::",
    "reference::paths::Path",
    "reference::paths::deepseek_v4::read::",
    "reference::paths::gqa::",
    "reference::paths::hybrid::",
    "reference::paths::keys::",
    "reference::weights::",
    "ulplab_core::error::",
    "ulplab_core::metrics::METRICS",
    "ulplab_core::tensorfile::",
];

/// All that judges an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// blake3, in hexadecimal.
    pub digest: String,
    /// The files in which it is.
    pub files: BTreeSet<PathBuf>,
}

/// The judgement of every operation that is wanted, by the name of its module.
pub fn of_files(files: &Files, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Judgement>, String> {
    let mut tree = Tree::default();
    tree.read("reference", files, "reference/lib.rs")?;
    tree.read("ulplab_core", files, "core/lib.rs")?;
    let lib = tree
        .modules
        .iter()
        .position(|module| module.path == "ulplab_core")
        .expect("it was read");
    let path = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let Resolved::Items(list) = tree.find(lib, &path(&LIST)) else {
        return Err(format!("there is no {}", LIST.join("::")));
    };
    let checks = tree.module_at(lib, &path(&CHECKS));
    let checks = checks.ok_or_else(|| format!("there is no {}", CHECKS.join("::")))?;
    let targets: Vec<Option<Targets>> = (0..tree.items.len()).map(|item| targets(&tree, item)).collect();
    let mut judgements = BTreeMap::new();
    for list in list {
        let module = tree.items[list].module;
        for mention in tree.items[list].mentions() {
            // `rmsnorm::RmsNorm`; the other names are those of the list itself.
            let ([op, _], Resolved::Items(found)) = (&mention[..], tree.find(module, mention)) else {
                continue;
            };
            if !wanted(op) {
                continue;
            }
            let mut closure = Closure::new(&tree, &targets);
            closure.reach(found);
            closure.reach(tree.modules[checks].items.iter().copied());
            judgements.insert(op.clone(), closure.finish(files)?);
        }
    }
    Ok(judgements)
}

/// The items that the type of an implementation names, and those that its whole header does.
type Targets = [BTreeSet<usize>; 2];

/// Nothing for what implements nothing.
fn targets(tree: &Tree, item: usize) -> Option<Targets> {
    let here = &tree.items[item];
    let named = |tokens| {
        let mut all = BTreeSet::new();
        for path in mentions(tokens) {
            if let Resolved::Items(items) = tree.find(here.module, &path) {
                all.extend(items);
            }
        }
        all
    };
    match &here.kind {
        Kind::Impl { of, header } => Some([named(of), named(header)]),
        Kind::Call => Some([BTreeSet::new(), named(here.tokens())]),
        _ => None,
    }
}

/// Items that were reached, and what was read on the way.
struct Closure<'a> {
    tree: &'a Tree,
    targets: &'a [Option<Targets>],
    reached: BTreeSet<usize>,
    modules: BTreeSet<usize>,
    /// Items, and the modules in which their names are to be looked up.
    pending: Vec<(usize, usize)>,
    /// Where names lead: module, path, and what it is.
    edges: BTreeSet<String>,
    included: BTreeSet<PathBuf>,
}

impl<'a> Closure<'a> {
    fn new(tree: &'a Tree, targets: &'a [Option<Targets>]) -> Self {
        Self {
            tree,
            targets,
            reached: BTreeSet::new(),
            modules: BTreeSet::new(),
            pending: Vec::new(),
            edges: BTreeSet::new(),
            included: BTreeSet::new(),
        }
    }

    fn reach(&mut self, items: impl IntoIterator<Item = usize>) {
        for item in items {
            let module = self.tree.items[item].module;
            if BESIDE.iter().any(|beside| self.key(item).starts_with(beside)) {
                continue;
            }
            if self.reached.insert(item) {
                self.pending.push((item, module));
            }
            if self.modules.insert(module) {
                self.reach(self.tree.imported(module));
            }
        }
    }

    fn finish(mut self, files: &Files) -> Result<Judgement, String> {
        loop {
            while let Some((item, module)) = self.pending.pop() {
                self.read(item, module)?;
            }
            let before = self.reached.len();
            let implementations: Vec<usize> = (0..self.tree.items.len()).filter(|item| self.applies(*item)).collect();
            self.reach(implementations);
            if self.reached.len() == before {
                return self.digest(files);
            }
        }
    }

    /// Reaches what an item names, looked up in a module: its own, or that which calls a macro.
    fn read(&mut self, item: usize, module: usize) -> Result<(), String> {
        let tree = self.tree;
        let here = &tree.items[item];
        for mut path in here.mentions().iter().cloned() {
            let call = path.last().is_some_and(|last| last == "!") && path.pop().is_some();
            let mut found = match tree.find(module, &path) {
                Resolved::Items(items) => items,
                Resolved::Elsewhere => BTreeSet::new(),
                // A name in a macro may lead nowhere where the macro is defined, and be a name of what calls it.
                Resolved::Nowhere if matches!(here.kind, Kind::Macro | Kind::Call) => BTreeSet::new(),
                Resolved::Nowhere => {
                    let (file, name) = (here.file.display(), &here.name);
                    return Err(format!(
                        "{file}: '{name}' names {}, which is not found",
                        path.join("::")
                    ));
                }
            };
            if call && let Some(called) = path.last().and_then(|name| tree.macro_of(module, name)) {
                found.insert(called);
                // Its names are those of the caller, too; a macro that calls itself is read once.
                if called != item && !self.reached.contains(&called) {
                    self.pending.push((called, module));
                }
            }
            let names = found.iter().map(|found| self.key(*found)).collect::<Vec<_>>().join(" ");
            if !found.is_empty() {
                self.edges
                    .insert(format!("{} {} = {names}", tree.modules[module].path, path.join("::")));
            }
            self.reach(found);
        }
        Ok(())
    }

    /// Whether an implementation is for a type, or else of a trait, that was reached; what a call of a macro defines counts
    /// as such.
    fn applies(&self, item: usize) -> bool {
        let Some([of, header]) = &self.targets[item] else {
            return false;
        };
        let called = matches!(self.tree.items[item].kind, Kind::Call);
        let named = if of.is_empty() { header } else { of };
        !self.reached.contains(&item)
            && (!named.is_disjoint(&self.reached) || called && self.modules.contains(&self.tree.items[item].module))
    }

    /// What an item is called in the digest.
    fn key(&self, item: usize) -> String {
        let item = &self.tree.items[item];
        format!("{}::{}", self.tree.modules[item.module].path, item.name)
    }

    fn digest(mut self, files: &Files) -> Result<Judgement, String> {
        let mut parts: Vec<[String; 2]> = Vec::new();
        let mut read = BTreeSet::new();
        for id in &self.reached {
            let item = &self.tree.items[*id];
            let text = plain(item.tokens().clone());
            for name in ["include_str", "include_bytes"] {
                for (_, rest) in text
                    .match_indices(&format!("{name} ! ("))
                    .map(|(at, found)| (at, &text[at + found.len()..]))
                {
                    let file = rest
                        .trim_start()
                        .trim_start_matches('"')
                        .split('"')
                        .next()
                        .unwrap_or_default();
                    self.included.insert(item.file.with_file_name(file));
                }
            }
            parts.push([self.key(*id), text]);
            read.insert(item.file.clone());
        }
        parts.extend(self.edges.iter().map(|edge| [edge.clone(), String::new()]));
        for file in &self.included {
            parts.push([
                file.display().to_string(),
                blake3::hash(&files.bytes(file)?).to_hex().to_string(),
            ]);
            read.insert(file.clone());
        }
        parts.sort();
        let mut hasher = blake3::Hasher::new();
        for text in parts.iter().flatten() {
            hasher
                .update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        }
        Ok(Judgement {
            digest: hasher.finalize().to_hex().to_string(),
            files: read,
        })
    }
}
