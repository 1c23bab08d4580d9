//! Lists of cases, written with one line per case or per row of shapes.

use super::{Case, Inputs};

/// Cases that share a prefix of their names, and keys. Each method adds a case; [`Grid::done`] returns the list.
pub struct Grid<'a, Shape> {
    prefix: String,
    keys: Vec<(&'static str, String)>,
    dims: Box<dyn Fn(Shape) -> Vec<(&'static str, i64)> + 'a>,
    cases: Vec<Case>,
}

impl<'a, Shape> Grid<'a, Shape> {
    /// Cases named `prefix.name`, or `name` alone if the prefix is empty; `dims` turns a shape into named sizes.
    pub fn new(
        prefix: impl Into<String>,
        keys: &[(&'static str, &str)],
        dims: impl Fn(Shape) -> Vec<(&'static str, i64)> + 'a,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            keys: keys.iter().map(|(key, value)| (*key, value.to_string())).collect(),
            dims: Box::new(dims),
            cases: Vec::new(),
        }
    }

    /// Adds a case of random numbers.
    pub fn random(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Random, false)
    }

    /// Adds a case of random numbers that is timed.
    pub fn timed(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Random, true)
    }

    /// Adds a case of edge values, which kernels easily get wrong.
    pub fn edges(self, name: &str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Edges, false)
    }

    /// Adds a case of activations at a site of the model.
    pub fn site(self, name: &str, pattern: &'static str, shape: Shape) -> Self {
        self.add(name, shape, Inputs::Site(pattern), false)
    }

    /// Adds cases only if the condition holds.
    pub fn when(self, condition: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if condition { add(self) } else { self }
    }

    /// The cases in the order in which they were added.
    pub fn done(self) -> Vec<Case> {
        self.cases
    }

    fn add(mut self, name: &str, shape: Shape, inputs: Inputs, timed: bool) -> Self {
        let dot = if self.prefix.is_empty() { "" } else { "." };
        self.cases.push(Case {
            name: format!("{}{dot}{name}", self.prefix),
            keys: self.keys.clone(),
            dims: (self.dims)(shape),
            inputs,
            timed,
        });
        self
    }
}

/// Cases of matrices `[T, C]`, called `prefix.kind.TxC`.
pub(super) struct Rows(Matrices);

type Matrices = Grid<'static, (i64, i64)>;

impl Rows {
    /// `others` are sizes besides `T` and `C`.
    pub fn new(prefix: impl Into<String>, keys: &[(&'static str, &str)], others: &[(&'static str, i64)]) -> Self {
        let others = others.to_vec();
        let dims = move |(rows, cols)| [&[("T", rows), ("C", cols)], &others[..]].concat();
        Self(Grid::new(prefix, keys, dims))
    }

    /// Adds cases of random numbers.
    pub fn random(self, shapes: &[(i64, i64)]) -> Self {
        self.each("random", shapes, Grid::random)
    }

    /// Adds cases of random numbers that are timed; `kind` becomes part of their names.
    pub fn timed(self, kind: &str, shapes: &[(i64, i64)]) -> Self {
        self.each(kind, shapes, Grid::timed)
    }

    /// Adds cases of edge values, which kernels easily get wrong; `kind` becomes part of their names.
    pub fn edges(self, kind: &str, shapes: &[(i64, i64)]) -> Self {
        self.each(kind, shapes, Grid::edges)
    }

    /// Adds a case of activations at a site of the model; `kind` becomes part of its name.
    pub fn site(self, kind: &str, pattern: &'static str, shape: (i64, i64)) -> Self {
        self.each(kind, &[shape], |grid, name, shape| grid.site(name, pattern, shape))
    }

    /// Sets a key of the cases that are added later.
    pub fn key(mut self, name: &str, value: &str) -> Self {
        for (key, set) in &mut self.0.keys {
            if *key == name {
                *set = value.into();
            }
        }
        self
    }

    /// Adds cases only if the condition holds.
    pub fn when(self, condition: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if condition { add(self) } else { self }
    }

    /// The cases in the order in which they were added.
    pub fn done(self) -> Vec<Case> {
        self.0.done()
    }

    fn each(mut self, kind: &str, shapes: &[(i64, i64)], add: impl Fn(Matrices, &str, (i64, i64)) -> Matrices) -> Self {
        for &(rows, cols) in shapes {
            self.0 = add(self.0, &format!("{kind}.{rows}x{cols}"), (rows, cols));
        }
        self
    }
}

/// Bytes of an element of type `bf16` or `f32`.
pub(super) fn element_bytes(dtype: &str) -> i64 {
    if dtype == "bf16" { 2 } else { 4 }
}
