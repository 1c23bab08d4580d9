//! Changes of a call: faults that compute the right operation on wrong inputs.

use super::{Call, Given, Tensor};

impl Call {
    /// Leaves something out.
    pub fn leave_out(&mut self, name: &str) {
        self.given.remove(name);
    }

    /// Sets a number.
    pub fn set(&mut self, name: &str, number: f64) {
        self.given.insert(name.into(), Given::Number(number));
    }

    /// Sets a number to 1 that is 0, and to 0 any other.
    pub fn toggle(&mut self, name: &str) {
        self.set(name, f64::from(u8::from(!self.flag(name))));
    }

    /// Changes a tensor, if it is given.
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Tensor)) {
        if let Some(Given::Tensor(tensor)) = self.given.get_mut(name) {
            edit(tensor);
        }
    }

    /// Changes every element of a tensor.
    pub fn map(&mut self, name: &str, change: impl Fn(f64) -> f64) {
        self.edit(name, |tensor| tensor.data.iter_mut().for_each(|x| *x = change(*x)));
    }

    /// Gives all elements of a tensor one value.
    pub fn fill(&mut self, name: &str, value: f64) {
        self.map(name, |_| value);
    }

    /// Puts the next slice along a dimension in the place of each, and the first in the place of the last. Dimensions are counted from the
    /// last, which is 0.
    pub fn roll(&mut self, name: &str, dim: usize) {
        self.rotate(name, dim, |slice, _| slice);
    }

    /// Exchanges the halves of a tensor along a dimension, counted from the last.
    pub fn exchange_halves(&mut self, name: &str, dim: usize) {
        self.rotate(name, dim, |_, all| all / 2);
    }

    /// Rotates all slices along a dimension by so many elements, which follow from those of a slice and of all.
    fn rotate(&mut self, name: &str, dim: usize, by: impl Fn(usize, usize) -> usize) {
        self.edit(name, |tensor| {
            let (slice, all) = tensor.slices(dim);
            let parts = tensor.data.chunks_exact_mut(all);
            parts.for_each(|slices| slices.rotate_left(by(slice, all)));
        });
    }

    /// Puts the next row in the place of each, and the first in the place of the last. A row has so many of the last dimensions.
    pub fn roll_rows(&mut self, name: &str, dims: usize) {
        self.edit(name, |tensor| {
            let row = tensor.slices(dims).0.min(tensor.data.len());
            tensor.data.rotate_left(row);
        });
    }

    /// Puts the first slice along a dimension, counted from the last, in the place of all.
    pub fn repeat_first(&mut self, name: &str, dim: usize) {
        self.edit(name, |tensor| {
            let (slice, all) = tensor.slices(dim);
            for slices in tensor.data.chunks_exact_mut(all) {
                let (first, rest) = slices.split_at_mut(slice);
                rest.chunks_exact_mut(slice)
                    .for_each(|slice| slice.copy_from_slice(first));
            }
        });
    }

    /// Exchanges two tensors.
    pub fn exchange(&mut self, names: [&str; 2]) {
        let given = names.map(|name| self.given.remove(name));
        for (name, given) in names.into_iter().rev().zip(given) {
            self.given.extend(given.map(|given| (name.to_string(), given)));
        }
    }
}

impl Tensor {
    /// The number of elements of a slice at one index of a dimension, counted from the last, and of all its slices; at least 1 each.
    fn slices(&self, dim: usize) -> (usize, usize) {
        let dims = self.shape.len();
        let count = |from: usize| self.shape[from..].iter().product::<usize>().max(1);
        (count(dims.saturating_sub(dim)), count(dims.saturating_sub(dim + 1)))
    }
}
