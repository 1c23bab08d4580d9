//! Changes the arguments of a call, to simulate faults: many faulty kernels give the result of the correct operation on changed
//! arguments.

use super::{Call, Given, Tensor};

impl Call {
    /// Removes an argument.
    pub fn leave_out(&mut self, name: &str) {
        self.given.remove(name);
    }

    /// Sets a number argument.
    pub fn set(&mut self, name: &str, number: f64) {
        self.given.insert(name.into(), Given::Number(number));
    }

    /// Sets a number argument to 1 if it is 0, else to 0.
    pub fn toggle(&mut self, name: &str) {
        self.set(name, f64::from(u8::from(!self.flag(name))));
    }

    /// Changes a tensor in place, if the call has it.
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Tensor)) {
        if let Some(Given::Tensor(tensor)) = self.given.get_mut(name) {
            edit(tensor);
        }
    }

    /// Changes every row of a tensor in place.
    pub fn edit_rows(&mut self, name: &str, edit: impl Fn(&mut [f64])) {
        self.edit(name, |tensor| {
            let (_, cols) = slices(tensor, 0);
            tensor.data.chunks_exact_mut(cols).for_each(edit);
        });
    }

    /// Replaces every element x of a tensor by `change(x)`.
    pub fn map(&mut self, name: &str, change: impl Fn(f64) -> f64) {
        self.edit(name, |tensor| tensor.data.iter_mut().for_each(|x| *x = change(*x)));
    }

    /// Sets all elements of a tensor to one value.
    pub fn fill(&mut self, name: &str, value: f64) {
        self.map(name, |_| value);
    }

    /// Replaces each slice along a dimension by the next slice, and the last slice by the first. `dim` counts from the end: 0
    /// is the last dimension.
    pub fn roll(&mut self, name: &str, dim: usize) {
        self.rotate(name, dim, |slice, _| slice);
    }

    /// Swaps the two halves of a tensor along a dimension. `dim` counts from the end: 0 is the last dimension.
    pub fn exchange_halves(&mut self, name: &str, dim: usize) {
        self.rotate(name, dim, |_, all| all / 2);
    }

    /// Rotates a tensor to the left along a dimension. `by` returns the number of elements to rotate by; its arguments are the
    /// stride of the dimension, and this stride times the dimension's size.
    fn rotate(&mut self, name: &str, dim: usize, by: impl Fn(usize, usize) -> usize) {
        self.edit(name, |tensor| {
            let (slice, all) = slices(tensor, dim);
            let parts = tensor.data.chunks_exact_mut(all);
            parts.for_each(|slices| slices.rotate_left(by(slice, all)));
        });
    }

    /// Replaces each row by the next row, and the last row by the first. A row consists of the last `dims` dimensions.
    pub fn roll_rows(&mut self, name: &str, dims: usize) {
        self.edit(name, |tensor| {
            let row = slices(tensor, dims).0.min(tensor.data.len());
            tensor.data.rotate_left(row);
        });
    }

    /// Replaces all slices along a dimension by the first slice. `dim` counts from the end: 0 is the last dimension.
    pub fn repeat_first(&mut self, name: &str, dim: usize) {
        self.edit(name, |tensor| {
            let (slice, all) = slices(tensor, dim);
            for slices in tensor.data.chunks_exact_mut(all) {
                let (first, rest) = slices.split_at_mut(slice);
                rest.chunks_exact_mut(slice)
                    .for_each(|slice| slice.copy_from_slice(first));
            }
        });
    }

    /// Swaps two tensors.
    pub fn exchange(&mut self, names: [&str; 2]) {
        let given = names.map(|name| self.given.remove(name));
        for (name, given) in names.into_iter().rev().zip(given) {
            self.given.extend(given.map(|given| (name.to_string(), given)));
        }
    }
}

/// Returns the stride of a dimension, and the stride times the dimension's size; both at least 1. `dim` counts from the end: 0 is
/// the last dimension.
fn slices(tensor: &Tensor, dim: usize) -> (usize, usize) {
    let dims = tensor.shape.len();
    let count = |from: usize| tensor.shape[from..].iter().product::<usize>().max(1);
    (count(dims.saturating_sub(dim)), count(dims.saturating_sub(dim + 1)))
}
