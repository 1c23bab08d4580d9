//! Shapes of a call's tensors, which are checked against those that the operation's descriptions begin with.
//!
//! A description begins with a shape, such as `[..., 2 I, C]`, or with several: `[N, D], or [T, N, D] if …`. A letter is one size in all
//! shapes, `...` any number of dimensions before the others, and `2N + N*N` what it says.

use super::{Call, Kind, Tensor};

/// The sizes of a call by the letters of its shapes.
#[derive(Clone, Debug, Default)]
pub struct Shapes<'a> {
    /// The dimensions that `...` stands for.
    pub before: &'a [usize],
    sizes: Vec<(&'static str, usize)>,
}

impl Call {
    /// The sizes of the tensors that are given, required ones first.
    ///
    /// # Errors
    /// If a tensor has another shape than its description.
    pub fn shapes(&self) -> Result<Shapes<'_>, String> {
        self.shapes_of(&[])
    }

    /// The sizes of the tensors that are given, some of which have these shapes in place of those of their descriptions; "" is any.
    ///
    /// # Errors
    /// If a tensor has another shape.
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

/// The shapes that a description begins with, each by its dimensions.
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
    /// The sizes of these letters.
    ///
    /// # Panics
    /// If no shape of a tensor that must be given has one of them.
    pub fn sizes<const N: usize>(&self, letters: [&str; N]) -> [usize; N] {
        letters.map(|letter| self.size(letter).unwrap_or_else(|| panic!("no shape has {letter}")))
    }

    /// The size of a letter, if a tensor has it.
    pub fn size(&self, letter: &str) -> Option<usize> {
        let known = self.sizes.iter().find(|(known, _)| *known == letter);
        known.map(|(_, size)| *size)
    }

    /// Extends these sizes by those of a tensor, if it has a shape of these dimensions.
    fn with(&self, dims: &[&'static str], tensor: &'a Tensor) -> Option<Self> {
        let mut all = self.clone();
        let mut own = &tensor.shape[..];
        let dims = match dims {
            ["...", last @ ..] => {
                // A tensor without dimensions is one row of one element.
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

    /// The size that a dimension says, if its letters are known.
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

    /// A shape in words, with the sizes that are known.
    fn text(&self, dims: &[&str]) -> String {
        let dim = |dim: &&str| self.value(dim).map_or((*dim).to_string(), |size| size.to_string());
        let mut words: Vec<String> = dims.iter().map(dim).collect();
        if dims[0] == "..." && self.size("...").is_some() {
            words.splice(..1, self.before.iter().map(ToString::to_string));
        }
        format!("[{}]", words.join(", "))
    }
}
