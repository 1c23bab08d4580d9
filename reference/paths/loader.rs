//! Loads the tensors of a path (the implementation of one kind of model). A dry run lists the tensors without loading them.

use std::marker::PhantomData;

use super::{Invalid, LoadError, Source, TensorSpec};
use crate::{Real, Tensor};

/// Loads tensors from [`Weights`](super::Weights) and converts them to the scalar of the model. Does not call hooks: if the
/// weights of a path are sites, the path itself passes each tensor to [`Numerics::site`](crate::Numerics::site).
pub struct Loader<'a, T> {
    /// Prefix that is added to the name of every tensor, e.g. `model.layers.0.`.
    pub prefix: String,
    /// Source of the tensors; `None` in a dry run, which only collects the names of the tensors.
    weights: Option<&'a mut Source<'a>>,
    asked: Vec<TensorSpec>,
    scalar: PhantomData<T>,
}

/// Maximum number of listed tensors. Longer lists are cut off after this number; no real checkpoint has so many tensors.
const MOST_TENSORS: usize = 1 << 20;

/// Runs `build` without weights (a dry run), and returns the list of the tensors that `build` requests, in the order of the
/// requests; at most 2²⁰ tensors. `build` gets tensors with a shape but without elements, which take no memory;
/// [`Loader::scalars`] returns zeros.
pub fn asked<T: Real, R>(build: impl FnOnce(&mut Loader<'_, T>) -> Result<R, LoadError>) -> Vec<TensorSpec> {
    let mut loader = Loader {
        prefix: String::new(),
        weights: None,
        asked: Vec::new(),
        scalar: PhantomData,
    };
    // Ignore the result: the only possible error is that the list is full.
    let _ = build(&mut loader);
    loader.asked
}

impl<'a, T: Real> Loader<'a, T> {
    /// Creates a loader for these weights, with an empty prefix.
    pub fn new(weights: &'a mut Source<'a>) -> Self {
        Self {
            prefix: String::new(),
            weights: Some(weights),
            asked: Vec::new(),
            scalar: PhantomData,
        }
    }

    /// Gets the elements of a tensor by calling `get` with the full name of the tensor, and checks the number of elements.
    /// Returns the full name and the elements. A dry run only records the tensor, and returns no elements.
    fn take<E>(
        &mut self,
        name: &str,
        shape: &[usize],
        integer: bool,
        get: impl FnOnce(&mut Source<'a>, &str) -> Result<Vec<E>, LoadError>,
    ) -> Result<(String, Vec<E>), LoadError> {
        let name = format!("{}{name}", self.prefix);
        let Some(weights) = &mut self.weights else {
            if self.asked.len() == MOST_TENSORS {
                return Err(Invalid::Tensor(format!("more than {MOST_TENSORS} tensors")).into());
            }
            let (name, shape) = (name.clone(), shape.to_vec());
            self.asked.push(TensorSpec { name, shape, integer });
            return Ok((String::new(), Vec::new()));
        };
        let values = get(&mut **weights, &name)?;
        let found = values.len();
        let expected = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        if Some(found) != expected {
            let expected = expected.map_or("more than can be counted".into(), |expected| expected.to_string());
            let message = format!("tensor '{name}' has {found} elements, expected {expected} of {shape:?}");
            return Err(Invalid::Tensor(message).into());
        }
        Ok((name, values))
    }

    /// Loads a tensor of this shape.
    ///
    /// # Errors
    /// Returns the errors of the weights, and an error if the number of elements is wrong.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<T>, LoadError> {
        let (_, values) = self.take(name, shape, false, |weights, name| weights.floats(name, shape))?;
        Ok(Tensor {
            shape: shape.to_vec(),
            data: values.into_iter().map(|x| T::from_f64(x.into())).collect(),
        })
    }

    /// Loads a table of indices below `limit`. `what` is the name of the indexed objects (e.g. `expert`) in error messages.
    ///
    /// # Errors
    /// Returns the errors of the weights, and an error if the number of elements is wrong or a number is not below the limit.
    pub fn table(&mut self, name: &str, shape: [usize; 2], what: &str, limit: usize) -> Result<Vec<u32>, LoadError> {
        let (name, table) = self.take(name, &shape, true, |weights, name| weights.integers(name, &shape))?;
        match table.iter().position(|&number| number as usize >= limit) {
            None => Ok(table),
            Some(at) => {
                let (found, index) = (table[at], [at / shape[1], at % shape[1]]);
                let message = format!("tensor '{name}' has {what} {found} at {index:?} of {limit} {what}s");
                Err(Invalid::Tensor(message).into())
            }
        }
    }

    /// Loads `N` numbers, a tensor of one dimension.
    ///
    /// # Errors
    /// Same as [`Loader::tensor`].
    pub fn scalars<const N: usize>(&mut self, name: &str) -> Result<[T; N], LoadError> {
        let values = self.vector(name, N)?;
        Ok(std::array::from_fn(|at| values.get(at).copied().unwrap_or(T::ZERO)))
    }

    /// Loads a tensor of one dimension.
    ///
    /// # Errors
    /// Same as [`Loader::tensor`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<T>, LoadError> {
        Ok(self.tensor(name, &[len])?.data)
    }

    /// Loads several tensors `[outputs, inputs]`, and concatenates them along the outputs.
    ///
    /// # Errors
    /// Same as [`Loader::tensor`].
    pub fn below(&mut self, names: &[String], outputs: usize, inputs: usize) -> Result<Tensor<T>, LoadError> {
        let mut data = Vec::new();
        for name in names {
            data.extend(self.tensor(name, &[outputs, inputs])?.data);
        }
        let shape = vec![names.len() * outputs, inputs];
        Ok(Tensor { shape, data })
    }

    /// Loads `count` linear layers that are stored as one tensor `[count, outputs, inputs]`.
    ///
    /// # Errors
    /// Same as [`Loader::tensor`].
    pub fn linears(&mut self, name: &str, [count, outputs, inputs]: [usize; 3]) -> Result<Vec<Tensor<T>>, LoadError> {
        let all = self.tensor(name, &[count, outputs, inputs])?;
        if all.data.is_empty() {
            return Ok(Vec::new());
        }
        let one = |data: &[T]| Tensor::new([outputs, inputs], data.to_vec());
        Ok(all.data.chunks_exact(outputs * inputs).map(one).collect())
    }
}
