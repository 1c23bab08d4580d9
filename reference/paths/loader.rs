//! What paths load their tensors by.

use std::marker::PhantomData;

use super::{Invalid, Weights};
use crate::ops::linear::Linear;
use crate::{Real, Tensor};

/// Takes tensors from [`Weights`] in the scalar of the model. A path whose weights are sites passes each tensor on to
/// [`Numerics::site`](crate::Numerics::site).
pub struct Loader<'a, T, W: ?Sized> {
    /// Where they come from.
    pub weights: &'a mut W,
    /// What stands before the name of every tensor, with its dot.
    pub prefix: String,
    scalar: PhantomData<T>,
}

impl<'a, T: Real, W: Weights + ?Sized> Loader<'a, T, W>
where
    Invalid: Into<W::Error>,
{
    /// Nothing stands before the names.
    pub fn new(weights: &'a mut W) -> Self {
        Self {
            weights,
            prefix: String::new(),
            scalar: PhantomData,
        }
    }

    /// A tensor of this shape.
    ///
    /// # Errors
    /// Those of the weights, and another number of elements.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<T>, W::Error> {
        let name = format!("{}{name}", self.prefix);
        let values = self.weights.floats(&name, shape)?;
        has_length(&name, values.len(), shape).map_err(Into::into)?;
        let values = values.into_iter().map(|x| T::from_f64(x.into()));
        Ok(Tensor::new(shape, values.collect()))
    }

    /// A table of numbers below `limit`, which is how many `what` there are.
    ///
    /// # Errors
    /// Those of the weights, another number of elements, and numbers from the limit on.
    pub fn table(&mut self, name: &str, shape: [usize; 2], what: &str, limit: usize) -> Result<Vec<u32>, W::Error> {
        let name = format!("{}{name}", self.prefix);
        let table = self.weights.integers(&name, &shape)?;
        has_length(&name, table.len(), &shape).map_err(Into::into)?;
        match table.iter().position(|&number| number as usize >= limit) {
            None => Ok(table),
            Some(at) => {
                let (found, index) = (table[at], [at / shape[1], at % shape[1]]);
                let message = format!("tensor '{name}' has {what} {found} at {index:?} of {limit} {what}s");
                Err(Invalid::Tensor(message).into())
            }
        }
    }

    /// A tensor of one dimension.
    ///
    /// # Errors
    /// As of [`Loader::tensor`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<T>, W::Error> {
        Ok(self.tensor(name, &[len])?.data)
    }

    /// A tensor `[outputs, inputs]` to multiply by.
    ///
    /// # Errors
    /// As of [`Loader::tensor`].
    pub fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear<T>, W::Error> {
        let weight = self.tensor(name, &[outputs, inputs])?;
        Ok(Linear { weight })
    }

    /// A stack `[count, outputs, inputs]` of them, one tensor in the file.
    ///
    /// # Errors
    /// As of [`Loader::tensor`].
    pub fn linears(
        &mut self,
        name: &str,
        count: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<Vec<Linear<T>>, W::Error> {
        let all = self.tensor(name, &[count, outputs, inputs])?;
        let one = |data: &[T]| Linear {
            weight: Tensor::new([outputs, inputs], data.to_vec()),
        };
        Ok(all.data.chunks_exact(outputs * inputs).map(one).collect())
    }
}

fn has_length(name: &str, found: usize, shape: &[usize]) -> Result<(), Invalid> {
    let expected = shape.iter().product::<usize>();
    match found == expected {
        true => Ok(()),
        false => Err(Invalid::Tensor(format!(
            "tensor '{name}' has {found} elements, expected {expected} of {shape:?}"
        ))),
    }
}
