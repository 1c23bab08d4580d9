//! Checks the shapes of a call's tensors against the shapes at the start of the arguments' descriptions.
//!
//! A description begins with a shape, such as `[..., 2 I, C]`, or with several: `[N, D], or [T, N, D] if …`. A letter stands for
//! the same size in all shapes, `...` for any number of leading dimensions, and `2N + N*N` for the value of this expression.

use super::{Call, Kind, Tensor};

/// Sizes of a call's tensors, by the letters that stand for them in the descriptions of shapes.
#[derive(Clone, Debug, Default)]
pub struct Shapes<'a> {
    /// Sizes of the leading dimensions for which `...` stands.
    pub before: &'a [usize],
    sizes: Vec<(&'static str, usize)>,
}

impl Call {
    /// Determines the size of each letter from the shapes of all tensors of the call, required tensors first.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match its description.
    pub fn shapes(&self) -> Result<Shapes<'_>, String> {
        self.shapes_of(&[])
    }

    /// Same as [`Call::shapes`], but some tensors have other shapes than described: `stated` has pairs of a tensor's name and its
    /// shape. The shape "" allows any shape.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match.
    pub fn shapes_of(&self, stated: &[(&str, &'static str)]) -> Result<Shapes<'_>, String> {
        let mut shapes = Shapes::default();
        let takes = self.operation().takes;
        let (required, optional): (Vec<_>, Vec<_>) = takes.iter().partition(|takes| takes.kind == Kind::Tensor);
        for takes in required.into_iter().chain(optional) {
            let stated = stated.iter().find(|(name, _)| *name == takes.name);
            let described = described(stated.map_or(takes.doc, |(_, shape)| *shape));
            if let Some(tensor) = self.optional(takes.name).filter(|_| !described.is_empty()) {
                let fitting = described.iter().find_map(|dims| shapes.with(dims, tensor));
                shapes = fitting.ok_or_else(|| {
                    let expected: Vec<String> = described.iter().map(|dims| shapes.text(dims)).collect();
                    let (operation, name) = (self.operation().name, takes.name);
                    let expected = expected.join(" or ");
                    format!("{operation}: '{name}' is {:?}, expected {expected}", tensor.shape)
                })?;
            }
        }
        Ok(shapes)
    }
}

/// Parses the shapes at the start of a description into lists of dimensions.
fn described(doc: &'static str) -> Vec<Vec<&'static str>> {
    let mut shapes = Vec::new();
    let mut rest = doc;
    while let Some((shape, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        shapes.push(shape.split(", ").collect());
        rest = after.trim_start_matches(',').strip_prefix(" or ").unwrap_or_default();
    }
    shapes
}

impl<'a> Shapes<'a> {
    /// Returns the sizes of these letters, which the shapes of the call's tensors have determined.
    ///
    /// # Panics
    /// Panics if no given tensor has one of these letters in its shape.
    pub fn sizes<const N: usize>(&self, letters: [&str; N]) -> [usize; N] {
        letters.map(|letter| self.size(letter).unwrap_or_else(|| panic!("no shape has {letter}")))
    }

    /// Size for which a letter stands; `None` if no tensor of the call has the letter in its shape.
    pub fn size(&self, letter: &str) -> Option<usize> {
        let known = self.sizes.iter().find(|(known, _)| *known == letter);
        known.map(|(_, size)| *size)
    }

    /// Matches the described dimensions `dims` with the shape of `tensor`. Returns the known sizes and the new sizes by letter;
    /// `None` if the shape does not match.
    fn with(&self, dims: &[&'static str], tensor: &'a Tensor) -> Option<Self> {
        let mut all = self.clone();
        let mut own = &tensor.shape[..];
        let dims = match dims {
            ["...", last @ ..] => {
                // For a shape with `...`, a scalar counts as one row of one element.
                if own.is_empty() {
                    own = &[1];
                }
                let (before, rest) = own.split_at(own.len().checked_sub(last.len())?);
                let first = !self.sizes.iter().any(|(letter, _)| *letter == "...");
                if !first && before != self.before {
                    return None;
                }
                all.before = before;
                all.sizes.push(("...", before.len()));
                own = rest;
                last
            }
            _ => dims,
        };
        if dims.len() != own.len() {
            return None;
        }
        for (dim, size) in dims.iter().zip(own) {
            match all.value(dim) {
                Some(known) if known == *size => {}
                Some(_) => return None,
                None => {
                    let letter = dim.trim_start_matches("2").trim_start();
                    let factor = if letter == *dim { 1 } else { 2 };
                    all.sizes.push((letter, size / factor));
                    (size % factor == 0).then_some(())?;
                }
            }
        }
        Some(all)
    }

    /// Value of the expression of a dimension, such as `2N + N*N`; `None` if the size of a letter is unknown.
    fn value(&self, dim: &str) -> Option<usize> {
        let factor = |factor: &str| {
            let letter = factor.trim_start_matches(|c: char| c.is_ascii_digit());
            let number = &factor[..factor.len() - letter.len()];
            let number = if number.is_empty() { 1 } else { number.parse().ok()? };
            let letter = letter.trim_start();
            Some(number * if letter.is_empty() { 1 } else { self.size(letter)? })
        };
        let product = |term: &str| term.split('*').map(factor).product::<Option<usize>>();
        dim.split(" + ").map(product).sum()
    }

    /// Formats a shape for messages, with known sizes as numbers.
    fn text(&self, dims: &[&str]) -> String {
        let dim = |dim: &&str| self.value(dim).map_or((*dim).to_string(), |size| size.to_string());
        let mut words: Vec<String> = dims.iter().map(dim).collect();
        if dims[0] == "..." && self.size("...").is_some() {
            words.splice(..1, self.before.iter().map(ToString::to_string));
        }
        format!("[{}]", words.join(", "))
    }
}
