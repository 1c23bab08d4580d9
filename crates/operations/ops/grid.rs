//! Lists of cases, written with one line per case or per row of shapes.

use super::{Case, Inputs};

type Dims = Vec<(&'static str, i64)>;

/// Cases that share a prefix of their names, and keys. Most methods add cases; [`Grid::done`] returns the list.
pub struct Grid<'a, Shape> {
    prefix: String,
    keys: Vec<(&'static str, String)>,
    dims: Box<dyn Fn(Shape) -> Dims + 'a>,
    names: Box<dyn Fn(Shape) -> String + 'a>,
    cases: Vec<Case>,
}

impl<const N: usize> Grid<'static, [i64; N]> {
    /// Cases whose shapes are these sizes, in this order.
    pub fn of(prefix: impl Into<String>, keys: &[(&'static str, &str)], sizes: [&'static str; N]) -> Self {
        Self::new(prefix, keys, move |shape| sizes.into_iter().zip(shape).collect())
    }
}

impl<'a, Shape: Copy + 'a> Grid<'a, Shape> {
    /// Cases named `prefix.name`, or `name` if the prefix is empty; `dims` turns a shape into named sizes.
    pub fn new(prefix: impl Into<String>, keys: &[(&'static str, &str)], dims: impl Fn(Shape) -> Dims + 'a) -> Self {
        Self {
            prefix: prefix.into(),
            keys: keys.iter().map(|(key, value)| (*key, value.to_string())).collect(),
            dims: Box::new(dims),
            names: Box::new(|_| String::new()),
            cases: Vec::new(),
        }
    }

    /// Adds a size that all cases have.
    pub fn also(self, name: &'static str, size: i64) -> Self {
        let dims = self.dims;
        Self {
            dims: Box::new(move |shape| [dims(shape), vec![(name, size)]].concat()),
            ..self
        }
    }

    /// Sets the names of shapes, which [`Grid::each`] uses.
    pub fn named(self, names: impl Fn(Shape) -> String + 'a) -> Self {
        Self {
            names: Box::new(names),
            ..self
        }
    }

    /// Adds a case of random numbers.
    pub fn random(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Random)
    }

    /// Adds a case of random numbers that also runs with its rows repeated past 2³² elements.
    pub fn large(mut self, name: &str, shape: Shape) -> Self {
        self = self.random(name, shape);
        self.last().large = true;
        self
    }

    /// Adds a case of random numbers that is timed.
    pub fn timed(mut self, name: &str, shape: Shape) -> Self {
        self = self.random(name, shape);
        self.last().timed = true;
        self
    }

    /// Adds a case of edge values, which kernels easily get wrong.
    pub fn edges(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Edges)
    }

    /// Adds a case of activations at a site of the model.
    pub fn site(self, name: &str, pattern: &'static str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Site(pattern))
    }

    /// Adds a case for each shape, called `kind.name`, or by the name of its shape if the kind is empty.
    pub fn each(self, kind: &str, shapes: &[Shape], add: fn(Self, &str, Shape) -> Self) -> Self {
        shapes.iter().fold(self, |grid, &shape| {
            let name = joined(kind, &(grid.names)(shape));
            add(grid, &name, shape)
        })
    }

    /// Sets a key of the cases that are added later.
    pub fn key(mut self, name: &str, value: &str) -> Self {
        let key = self.keys.iter_mut().filter(|(key, _)| *key == name);
        key.for_each(|(_, set)| *set = value.into());
        self
    }

    /// Adds cases only if the condition holds.
    pub fn when(self, condition: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if condition { add(self) } else { self }
    }

    /// The cases in the order in which they were added.
    pub fn done(self) -> Vec<Case> {
        self.cases
    }

    fn add(mut self, name: &str, shape: Shape, inputs: Inputs) -> Self {
        self.cases.push(Case {
            name: joined(&self.prefix, name),
            keys: self.keys.clone(),
            dims: (self.dims)(shape),
            inputs,
            ..Case::default()
        });
        self
    }

    fn last(&mut self) -> &mut Case {
        self.cases.last_mut().expect("a case was added")
    }
}

/// The cases of all pairs, of the second kind one after the other.
pub(super) fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B], of: impl Fn(A, B) -> Vec<Case>) -> Vec<Case> {
    let all = first.iter().flat_map(|a| second.iter().map(|b| (*a, *b)));
    all.flat_map(|(a, b)| of(a, b)).collect()
}

/// A grid of matrices `[T, C]`, whose shapes are called `TxC`.
pub(super) fn matrices(prefix: impl Into<String>, keys: &[(&'static str, &str)]) -> Grid<'static, [i64; 2]> {
    Grid::of(prefix, keys, ["T", "C"]).named(|[rows, cols]| format!("{rows}x{cols}"))
}

/// Sizes with their names, which have spaces between them.
pub fn named(names: &'static str, sizes: impl IntoIterator<Item = i64>) -> Dims {
    names.split(' ').zip(sizes).collect()
}

fn joined(first: &str, second: &str) -> String {
    let dot = if first.is_empty() || second.is_empty() { "" } else { "." };
    format!("{first}{dot}{second}")
}

/// Bytes of an element of type `bf16` or `f32`.
pub(super) fn element_bytes(dtype: &str) -> i64 {
    if dtype == "bf16" { 2 } else { 4 }
}
