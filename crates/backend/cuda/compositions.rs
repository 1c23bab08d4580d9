//! Compositions: Rust functions that build the launches of a variant (a kernel implementation of an operation), e.g. for models
//! of many operations and for launches in a loop. The header in the operation's kernel file names such a variant, but lists no
//! launches for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::expr::words;
use super::graph::Graph;
use super::header::{Header, Number, Variant};
use ulplab_core::error::refuse;
use ulplab_core::input;

/// A function that adds the launches of a variant to a graph, for the sizes of the graph's test case.
pub type Composition = fn(&mut Graph) -> Result<(), String>;

/// The variants of an operation whose launches are built in Rust.
#[derive(Debug)]
pub struct Compositions {
    pub op: &'static str,
    /// Names of the operations whose variants the compositions call, separated by spaces.
    pub calls: &'static str,
    /// Name of each variant, with the function that builds its launches.
    pub variants: &'static [(&'static str, Composition)],
}

/// A composition (the function that builds a variant's launches), and the variants of other operations that it may call.
#[derive(Clone, Debug)]
pub struct Composed {
    pub composition: Composition,
    pub callable: Arc<Callable>,
}

/// The variants of other operations that a composition may call, by `OP.VARIANT`. The set stored with a variant has all
/// identifiers in its launches, scratch sizes and conditions: names that a call may replace.
#[derive(Debug, Default)]
pub struct Callable(pub(super) BTreeMap<String, (Variant, BTreeSet<String>)>);

impl Callable {
    /// Adds the variants in `text`, the content of the kernel file of `op`.
    pub fn add(&mut self, op: &str, text: &str) -> Result<(), String> {
        let header = Header::parse(text).map_err(|why| format!("{op}.cu: {why}"))?;
        for variant in header.variants {
            let names = variant.words();
            self.0.insert(format!("{op}.{}", variant.name), (variant, names));
        }
        Ok(())
    }
}

impl Variant {
    /// Returns all identifiers in the variant's launches, scratch sizes and conditions (`needs`).
    fn words(&self) -> BTreeSet<String> {
        let launches = self.prepare.iter().chain(&self.launches).flat_map(|launch| {
            let lists = [&launch.grid, &launch.block].into_iter().chain(&launch.cluster);
            let numbers = lists.flatten().chain(&launch.shared);
            let numbers = numbers.chain(&launch.bytes).chain(&launch.flops);
            let numbers = numbers.filter_map(|number| match number {
                Number::Expression(text) => Some(text),
                Number::Plain(_) => None,
            });
            numbers.chain(&launch.entry).chain(&launch.args)
        });
        let scratch = self.scratch.iter().map(|scratch| &scratch.bytes);
        let texts = launches.chain(scratch).chain(&self.needs);
        texts.flat_map(|text| words(text)).map(String::from).collect()
    }
}

impl Compositions {
    /// Stores each composition in the header's variant with the same name. `folder` has the kernel files of the called
    /// operations.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, if the header lacks a variant, or if the header lists launches for a variant
    /// that a composition builds.
    pub fn put(&self, header: &mut Header, folder: &Path) -> Result<(), String> {
        let mut callable = Callable::default();
        for op in self.calls.split_whitespace() {
            let text = input::text(&folder.join(format!("{op}.cu"))).map_err(|error| error.to_string())?;
            callable.add(op, &text)?;
        }
        let callable = Arc::new(callable);
        for &(name, composition) in self.variants {
            let variant = header.variants.iter_mut().find(|variant| variant.name == name);
            let variant =
                variant.ok_or_else(|| format!("header: no variant '{name}'; expected the head of its composition"))?;
            let why = format_args!("header: variant '{name}' has launches, and a composition; expected one of them");
            refuse(!variant.launches.is_empty(), why)?;
            let callable = Arc::clone(&callable);
            variant.composed = Some(Composed { composition, callable });
        }
        Ok(())
    }
}
