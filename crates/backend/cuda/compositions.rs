//! Variants whose launches are put together in Rust: models of many operations, and loops over events. Each has a head without launches
//! in the header of its operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::expr::words;
use super::graph::Graph;
use super::header::{Header, Number, Variant};
use ulplab_core::error::refuse;
use ulplab_core::input;

/// A function that puts the launches of a variant into a graph, for the case of the graph.
pub type Composition = fn(&mut Graph) -> Result<(), String>;

/// The variants of an operation that Rust puts together.
#[derive(Debug)]
pub struct Compositions {
    pub op: &'static str,
    /// Operations whose variants the compositions call, with spaces between them.
    pub calls: &'static str,
    /// Compositions by the names of their variants.
    pub variants: &'static [(&'static str, Composition)],
}

/// A composition, and the variants that it may call.
#[derive(Clone, Debug)]
pub struct Composed {
    pub composition: Composition,
    pub callable: Arc<Callable>,
}

/// Variants of other operations, by `OP.VARIANT`, each with the names in it.
#[derive(Debug, Default)]
pub struct Callable(pub(super) BTreeMap<String, (Variant, BTreeSet<String>)>);

impl Callable {
    /// Adds the variants of a file of kernels.
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
    /// All names in its launches, scratch and needs.
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
    /// Gives the variants of a header their compositions. `folder` has the files of the operations that are called.
    ///
    /// # Errors
    /// If a file cannot be read, or a variant is missing or lists launches of its own.
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
