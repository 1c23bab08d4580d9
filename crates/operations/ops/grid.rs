//! Builder for lists of test cases. Each line of a list adds one case, or one case for each of several shapes.

use super::{Case, Inputs};

type Dims = Vec<(&'static str, i64)>;

/// List of cases that share a name prefix and keys (named settings). Most methods add cases; [`Grid::done`] returns the list.
pub struct Grid<'a, Shape> {
    prefix: String,
    keys: Vec<(&'static str, String)>,
    dims: Box<dyn Fn(Shape) -> Dims + 'a>,
    names: Box<dyn Fn(Shape) -> String + 'a>,
    cases: Vec<Case>,
}

impl<const N: usize> Grid<'static, [i64; N]> {
    /// Creates an empty list of cases whose shapes are arrays of N sizes; `sizes` holds the name of each size, in order.
    pub fn of(prefix: impl Into<String>, keys: &[(&'static str, &str)], sizes: [&'static str; N]) -> Self {
        Self::new(prefix, keys, move |shape| sizes.into_iter().zip(shape).collect())
    }
}

impl<'a, Shape: Copy + 'a> Grid<'a, Shape> {
    /// Creates an empty list of cases. A case is named `prefix.name`, or `name` if the prefix is empty; `dims` turns a shape into
    /// named sizes.
    pub fn new(prefix: impl Into<String>, keys: &[(&'static str, &str)], dims: impl Fn(Shape) -> Dims + 'a) -> Self {
        Self {
            prefix: prefix.into(),
            keys: keys.iter().map(|(key, value)| (*key, value.to_string())).collect(),
            dims: Box::new(dims),
            names: Box::new(|_| String::new()),
            cases: Vec::new(),
        }
    }

    /// Adds a size with the same value for all cases.
    pub fn also(self, name: &'static str, size: i64) -> Self {
        let dims = self.dims;
        Self {
            dims: Box::new(move |shape| [dims(shape), vec![(name, size)]].concat()),
            ..self
        }
    }

    /// Sets the function that names a shape; [`Grid::each`] uses the name in the names of cases.
    pub fn named(self, names: impl Fn(Shape) -> String + 'a) -> Self {
        Self {
            names: Box::new(names),
            ..self
        }
    }

    /// Adds a case whose inputs are random numbers.
    pub fn random(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Random)
    }

    /// Adds a case of random numbers. Its test also runs kernels with the rows repeated until buffers exceed 2³² elements.
    pub fn large(mut self, name: &str, shape: Shape) -> Self {
        self = self.random(name, shape);
        self.last().large = true;
        self
    }

    /// Adds a case of random numbers on which kernels are timed.
    pub fn timed(mut self, name: &str, shape: Shape) -> Self {
        self = self.random(name, shape);
        self.last().timed = true;
        self
    }

    /// Adds a case of edge values that kernels often get wrong.
    pub fn edges(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Edges)
    }

    /// Adds a case whose inputs are activations at a site of the model.
    pub fn site(self, name: &str, pattern: &'static str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Site(pattern))
    }

    /// Adds one case per shape with `add`. Cases are named `kind.shape`, or by the shape alone if `kind` is empty.
    pub fn each(self, kind: &str, shapes: &[Shape], add: fn(Self, &str, Shape) -> Self) -> Self {
        shapes.iter().fold(self, |grid, &shape| {
            let name = joined(kind, &(grid.names)(shape));
            add(grid, &name, shape)
        })
    }

    /// Changes the value of a key (a named setting) for all cases that are added after this call.
    pub fn key(mut self, name: &str, value: &str) -> Self {
        let key = self.keys.iter_mut().filter(|(key, _)| *key == name);
        key.for_each(|(_, set)| *set = value.into());
        self
    }

    /// Applies `add` only if the condition is true.
    pub fn when(self, condition: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if condition { add(self) } else { self }
    }

    /// Returns the cases in the order in which they were added.
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

/// Concatenates the cases `of(a, b)` of all pairs; `b` varies fastest.
pub(super) fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B], of: impl Fn(A, B) -> Vec<Case>) -> Vec<Case> {
    let all = first.iter().flat_map(|a| second.iter().map(|b| (*a, *b)));
    all.flat_map(|(a, b)| of(a, b)).collect()
}

/// Creates a grid of matrices `[T, C]`; shapes are named, for example, `37x1024`.
pub(super) fn matrices(prefix: impl Into<String>, keys: &[(&'static str, &str)]) -> Grid<'static, [i64; 2]> {
    Grid::of(prefix, keys, ["T", "C"]).named(|[rows, cols]| format!("{rows}x{cols}"))
}

/// Splits a string of size names at its spaces, and pairs each name with its value.
pub fn named(names: &'static str, sizes: impl IntoIterator<Item = i64>) -> Dims {
    names.split(' ').zip(sizes).collect()
}

fn joined(first: &str, second: &str) -> String {
    let dot = if first.is_empty() || second.is_empty() { "" } else { "." };
    format!("{first}{dot}{second}")
}

/// Number of bytes of an element of type `bf16` or `f32`.
pub(super) fn element_bytes(dtype: &str) -> i64 {
    if dtype == "bf16" { 2 } else { 4 }
}
