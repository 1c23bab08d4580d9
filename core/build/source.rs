//! Rust source as items with names: what a file defines, where names of a module lead, and which names an item mentions.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

use super::files::Files;

/// All modules and items of the crates that were read.
#[derive(Default)]
pub struct Tree {
    pub modules: Vec<Module>,
    pub items: Vec<Item>,
    /// Crates by name.
    crates: HashMap<String, usize>,
}

pub struct Module {
    /// Full path, e.g. `crate::kernels::rmsnorm`.
    pub path: String,
    parent: Option<usize>,
    root: usize,
    names: HashMap<String, Vec<Name>>,
    /// Modules of which all names are imported.
    globs: Vec<Vec<String>>,
    pub items: Vec<usize>,
}

/// Imports that are followed one after the other.
const MOST_IMPORTS: usize = 12;

/// What a name of a module means there.
#[derive(Clone)]
enum Name {
    Item(usize),
    Module(usize),
    /// Imported, or exported under this name.
    Use(Vec<String>),
}

pub struct Item {
    pub module: usize,
    pub file: PathBuf,
    /// Its name, or the header of an implementation.
    pub name: String,
    pub kind: Kind,
    written: TokenStream,
    tokens: OnceCell<TokenStream>,
    mentions: OnceCell<BTreeSet<Vec<String>>>,
}

impl Item {
    /// Without comments.
    pub fn tokens(&self) -> &TokenStream {
        self.tokens.get_or_init(|| without_comments(self.written.clone()))
    }

    /// The paths that it mentions.
    pub fn mentions(&self) -> &BTreeSet<Vec<String>> {
        self.mentions.get_or_init(|| mentions(self.tokens()))
    }
}

pub enum Kind {
    Trait,
    /// The type, and all of the header.
    Impl {
        of: TokenStream,
        header: TokenStream,
    },
    Macro,
    /// A macro is called, which may define anything.
    Call,
    Other,
}

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub enum Resolved {
    Items(BTreeSet<usize>),
    /// To a module, a local variable, or out of the crates that were read.
    Elsewhere,
    /// It begins in a crate that was read, and leads to nothing.
    Nowhere,
}

impl Tree {
    /// Reads a crate, from the file of its root on.
    pub fn read(&mut self, name: &str, files: &Files, file: &str) -> Result<(), String> {
        let id = self.module(name, None);
        self.crates.insert(name.into(), id);
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        self.file(files, Path::new(file), folder, id)
    }

    fn module(&mut self, path: &str, parent: Option<usize>) -> usize {
        let id = self.modules.len();
        self.modules.push(Module {
            path: path.into(),
            parent,
            root: parent.map_or(id, |parent| self.modules[parent].root),
            names: HashMap::new(),
            globs: Vec::new(),
            items: Vec::new(),
        });
        id
    }

    /// `folder` is where modules that the file declares are.
    fn file(&mut self, files: &Files, file: &Path, folder: &Path, module: usize) -> Result<(), String> {
        let parsed = files.parsed(file)?;
        self.scope(files, file, folder, module, &parsed.items)
    }

    fn scope(
        &mut self,
        files: &Files,
        file: &Path,
        folder: &Path,
        module: usize,
        items: &[syn::Item],
    ) -> Result<(), String> {
        for item in items {
            if is_test(item) {
                continue;
            }
            match item {
                syn::Item::Use(item) => self.import(module, &item.tree, Vec::new()),
                syn::Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let id = self.module(&format!("{}::{name}", self.modules[module].path), Some(module));
                    self.name(module, &name, Name::Module(id));
                    let inside = folder.join(&name);
                    match &item.content {
                        Some((_, items)) => self.scope(files, file, &inside, id, items)?,
                        None => {
                            let beside = folder.join(format!("{name}.rs"));
                            let here = if files.has(&beside) {
                                beside
                            } else {
                                inside.join("mod.rs")
                            };
                            self.file(files, &here, &inside, id)?;
                        }
                    }
                }
                item => self.item(file, module, item),
            }
        }
        Ok(())
    }

    fn item(&mut self, file: &Path, module: usize, item: &syn::Item) {
        let id = self.items.len();
        let named = |ident: &syn::Ident| (ident.to_string(), Kind::Other);
        let (name, kind) = match item {
            syn::Item::Const(item) => named(&item.ident),
            syn::Item::Enum(item) => named(&item.ident),
            syn::Item::Fn(item) => named(&item.sig.ident),
            syn::Item::Static(item) => named(&item.ident),
            syn::Item::Struct(item) => named(&item.ident),
            syn::Item::Type(item) => named(&item.ident),
            syn::Item::Union(item) => named(&item.ident),
            syn::Item::Trait(item) => (item.ident.to_string(), Kind::Trait),
            syn::Item::Impl(item) => {
                let of = item.self_ty.to_token_stream();
                let header = item.trait_.iter().flat_map(|(_, path, _)| path.to_token_stream());
                let header: TokenStream = header.chain(of.clone()).collect();
                (format!("impl {}", plain(header.clone())), Kind::Impl { of, header })
            }
            syn::Item::Macro(item) => match &item.ident {
                Some(ident) => (ident.to_string(), Kind::Macro),
                None => ("a macro".into(), Kind::Call),
            },
            _ => ("something".into(), Kind::Call),
        };
        if matches!(kind, Kind::Other | Kind::Trait | Kind::Macro) {
            self.name(module, &name, Name::Item(id));
        }
        self.modules[module].items.push(id);
        self.items.push(Item {
            module,
            file: file.into(),
            name,
            kind,
            written: item.to_token_stream(),
            tokens: OnceCell::new(),
            mentions: OnceCell::new(),
        });
    }

    fn name(&mut self, module: usize, name: &str, meaning: Name) {
        let names = &mut self.modules[module].names;
        names.entry(name.into()).or_default().push(meaning);
    }

    fn import(&mut self, module: usize, tree: &syn::UseTree, mut path: Vec<String>) {
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(module, &tree.tree, path);
            }
            syn::UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.import(module, tree, path.clone()));
            }
            syn::UseTree::Glob(_) => self.modules[module].globs.push(path),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let name = path.last().cloned().unwrap_or_default();
                self.name(module, &name, Name::Use(path));
            }
            syn::UseTree::Name(name) => {
                path.push(name.ident.to_string());
                self.name(module, &name.ident.to_string(), Name::Use(path));
            }
            syn::UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                self.name(module, &rename.rename.to_string(), Name::Use(path));
            }
        }
    }

    /// Where a path that stands in a module leads.
    pub fn find(&self, module: usize, path: &[String]) -> Resolved {
        let mut items = BTreeSet::new();
        let ours = self.follow(module, path, &mut items, 0);
        match (items.is_empty(), ours) {
            (false, _) => Resolved::Items(items),
            (true, Some(false)) => Resolved::Nowhere,
            (true, _) => Resolved::Elsewhere,
        }
    }

    /// Whether the path leads somewhere; nothing if it does not begin in what was read.
    fn follow(&self, module: usize, path: &[String], items: &mut BTreeSet<usize>, depth: usize) -> Option<bool> {
        let (first, rest) = path.split_first()?;
        // `use half;` leads to itself, and so out of what was read.
        if depth > MOST_IMPORTS {
            return None;
        }
        match first.as_str() {
            "crate" => Some(self.inside(self.modules[module].root, rest, items, depth)),
            "self" => Some(self.inside(module, rest, items, depth)),
            "super" => Some(self.inside(self.modules[module].parent?, rest, items, depth)),
            "Self" => None,
            _ if self.knows(module, first, depth) => Some(self.inside(module, path, items, depth)),
            name => self.crates.get(name).map(|root| self.inside(*root, rest, items, depth)),
        }
    }

    fn knows(&self, module: usize, name: &str, depth: usize) -> bool {
        let path = [name.to_string()];
        self.modules[module].names.contains_key(name)
            || self
                .globs(module)
                .any(|from| self.inside(from, &path, &mut BTreeSet::new(), depth + 1))
    }

    /// The modules of which all names are imported.
    fn globs(&self, module: usize) -> impl Iterator<Item = usize> {
        let globs = self.modules[module].globs.iter();
        globs.filter_map(move |glob| self.module_at(module, glob))
    }

    /// Follows a path from a module on; whether it leads somewhere.
    fn inside(&self, module: usize, path: &[String], items: &mut BTreeSet<usize>, depth: usize) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return true;
        };
        if depth > MOST_IMPORTS {
            return false;
        }
        if first == "super" {
            return self.modules[module]
                .parent
                .is_some_and(|parent| self.inside(parent, rest, items, depth));
        }
        let mut found = false;
        for name in self.modules[module].names.get(first).into_iter().flatten() {
            found |= match name {
                Name::Item(item) => {
                    items.insert(*item);
                    true
                }
                Name::Module(module) => self.inside(*module, rest, items, depth),
                Name::Use(path) => {
                    let whole: Vec<String> = path.iter().chain(rest).cloned().collect();
                    // What is imported from other crates leads somewhere, too.
                    self.follow(module, &whole, items, depth + 1).unwrap_or(true)
                }
            };
        }
        found = found || self.globs(module).any(|from| self.inside(from, path, items, depth + 1));
        // What a macro defines bears its name there.
        let calls = self.modules[module].items.iter().copied();
        let calls = calls.filter(|item| !found && matches!(self.items[*item].kind, Kind::Call));
        let defining: Vec<usize> = calls
            .filter(|item| self.items[*item].mentions().iter().any(|path| path.contains(first)))
            .collect();
        items.extend(&defining);
        found || !defining.is_empty()
    }

    /// Items that are in scope in a module without being named: the traits it imports, whose methods may be called.
    pub fn imported(&self, module: usize) -> BTreeSet<usize> {
        let Module { names, globs, .. } = &self.modules[module];
        let mut found = BTreeSet::new();
        for path in names.values().flatten().filter_map(|name| match name {
            Name::Use(path) => Some(path),
            _ => None,
        }) {
            self.follow(module, path, &mut found, 0);
        }
        for from in self.globs(module) {
            found.extend(&self.modules[from].items);
        }
        found.retain(|item| matches!(self.items[*item].kind, Kind::Trait));
        // `use Kind::*`: the variants of an enumeration are named without it.
        for glob in globs {
            self.follow(module, glob, &mut found, 0);
        }
        found
    }

    /// The module that a path of a glob means.
    pub fn module_at(&self, module: usize, path: &[String]) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Some(self.modules[module].root),
            "self" => Some(module),
            "super" => self.modules[module].parent,
            name => self.child(module, name).or_else(|| self.crates.get(name).copied()),
        };
        rest.iter().try_fold(start?, |module, name| match name.as_str() {
            "super" => self.modules[module].parent,
            name => self.child(module, name),
        })
    }

    fn child(&self, module: usize, name: &str) -> Option<usize> {
        self.modules[module]
            .names
            .get(name)?
            .iter()
            .find_map(|name| match name {
                Name::Module(id) => Some(*id),
                _ => None,
            })
    }

    /// The macro of that name in the crate of a module.
    pub fn macro_of(&self, module: usize, name: &str) -> Option<usize> {
        let root = self.modules[module].root;
        (0..self.items.len()).find(|id| {
            let item = &self.items[*id];
            matches!(item.kind, Kind::Macro) && item.name == name && self.modules[item.module].root == root
        })
    }
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => return false,
    };
    attributes
        .iter()
        .any(|attribute| plain(attribute.meta.to_token_stream()) == "cfg (test)")
}

/// Tokens without documentation, and without the commas at the end of lists that come and go with line breaks.
pub fn without_comments(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept: Vec<TokenTree> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let inner = usize::from(is_punct(tokens.get(at + 1), '!'));
        let attribute = is_punct(tokens.get(at), '#')
            .then(|| tokens.get(at + 1 + inner))
            .flatten();
        let document = |group: &proc_macro2::Group| {
            let first = group.stream().into_iter().next();
            group.delimiter() == Delimiter::Bracket && matches!(first, Some(TokenTree::Ident(word)) if word == "doc")
        };
        if matches!(attribute, Some(TokenTree::Group(group)) if document(group)) {
            at += 2 + inner;
            continue;
        }
        kept.push(match &tokens[at] {
            TokenTree::Group(group) => TokenTree::Group(proc_macro2::Group::new(
                group.delimiter(),
                without_comments(group.stream()),
            )),
            other => other.clone(),
        });
        at += 1;
    }
    if is_punct(kept.last(), ',') {
        kept.pop();
    }
    kept.into_iter().collect()
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Tokens as text, the same however they were spaced.
pub fn plain(tokens: TokenStream) -> String {
    tokens.to_string()
}

/// The paths that tokens mention, fields and methods aside: of `use a::{b, c}` both `a::b` and `a::c`. That of a macro which
/// is called ends in `!`.
pub fn mentions(tokens: &TokenStream) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    scan(tokens.clone(), &[], &mut found);
    found
}

fn scan(tokens: TokenStream, before: &[String], found: &mut BTreeSet<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let colons = |at: usize| is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':');
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                scan(group.stream(), &[], found);
                at += 1;
            }
            TokenTree::Ident(word) => {
                let after = |sign| at > 0 && is_punct(tokens.get(at - 1), sign);
                let field = after('.') && !(at > 1 && is_punct(tokens.get(at - 2), '.'));
                let continued = after(':') && at > 1 && is_punct(tokens.get(at - 2), ':');
                let fresh = !field && !continued && !after('\'') && (!after('$') || word == "crate");
                let mut path: Vec<String> = before.to_vec();
                path.push(word.to_string());
                at += 1;
                while colons(at) {
                    match tokens.get(at + 2) {
                        Some(TokenTree::Ident(word)) => path.push(word.to_string()),
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            scan(group.stream(), &path, found);
                            at += 3;
                            break;
                        }
                        _ => break,
                    }
                    at += 3;
                }
                if is_punct(tokens.get(at), '!') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                    path.push("!".into());
                }
                if fresh {
                    found.insert(path);
                }
            }
            _ => at += 1,
        }
    }
}
