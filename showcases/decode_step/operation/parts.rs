//! Outputs with what is expected of them, and the numbers in them.

use reference::Bounded;
use safetensors::Dtype;
use ulplab_operations::ops::data::{f32_values, i32_bytes, i32_values};
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Buffer, Outputs};

use super::WHY;

const WHY_RECORDS: &str = "a record's bytes follow from the vector that is stored (docs/formats.md), which was kept; all other bytes \
                           must be as they were";

/// An expected number, and the bound on the error of a right one.
pub(super) type Expected = (f64, f64);

/// Expects these numbers, without an error.
pub(super) fn as_is(values: &[f32]) -> Vec<Expected> {
    values.iter().map(|x| (f64::from(*x), 0.0)).collect()
}

/// Expects numbers within their errors, at the beginning of `expected`.
pub(super) fn expect<'a>(expected: &mut [Expected], numbers: impl IntoIterator<Item = &'a Bounded>) {
    let pairs = expected.iter_mut().zip(numbers);
    pairs.for_each(|(expected, x)| *expected = (x.value(), x.error()));
}

/// A run, a layer of the model, and a row of the batch.
pub(super) type Place = [usize; 3];

/// The rows that a kernel has kept in a buffer `[S, layers, B, cols]`; choices are whole numbers.
pub(super) struct Kept {
    pub values: Vec<f32>,
    /// The layers of the model that the buffer has rows of.
    pub layers: Vec<usize>,
    rows: usize,
    pub cols: usize,
}

impl Kept {
    /// Reads a buffer of numbers of this type.
    pub fn new(bytes: &[u8], dtype: Dtype, layers: Vec<usize>, [rows, cols]: [usize; 2]) -> Self {
        let values = match dtype {
            Dtype::I32 => i32_values(bytes).into_iter().map(|x| x as f32).collect(),
            _ => f32_values(bytes, dtype.bitsize() / 8),
        };
        Self {
            values,
            layers,
            rows,
            cols,
        }
    }

    /// The position of a layer among those that the buffer has rows of.
    pub fn number(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|other| *other == layer)
    }

    /// The first element of a row; none if the buffer lacks the layer.
    pub fn at(&self, [run, layer, row]: Place) -> Option<usize> {
        let number = self.number(layer)?;
        Some(((run * self.layers.len() + number) * self.rows + row) * self.cols)
    }

    /// A row.
    ///
    /// # Panics
    /// If the buffer lacks the layer.
    pub fn row(&self, place: Place) -> &[f32] {
        let at = self.at(place).expect("the layer has the site");
        &self.values[at..][..self.cols]
    }
}

/// An output of numbers, or of a choice, with what is expected of it.
pub(super) fn part(
    name: &'static str,
    dtype: Dtype,
    shape: &[usize],
    expected: Vec<Expected>,
    why: &'static str,
    outputs: &Outputs,
) -> Part {
    if dtype == Dtype::I32 {
        let want: Vec<i32> = expected.iter().map(|(value, _)| *value as i32).collect();
        return equal(name, shape, &want, outputs);
    }
    let (want, bounds): (Vec<f64>, Vec<f64>) = expected.into_iter().unzip();
    let judge = Judge::within(name, dtype, shape, want, move |at, _| bounds[at], why).without_metrics();
    judge.of(outputs)
}

/// The bytes that a buffer of records must have.
pub(super) fn of_bytes(buffer: Buffer, outputs: &Outputs) -> Part {
    let judge = Judge::equal(buffer.name, Dtype::U8, &buffer.shape, buffer.bytes, WHY_RECORDS);
    judge.of(outputs)
}

/// An output of whole numbers, which must be these.
pub(super) fn equal(name: &'static str, shape: &[usize], want: &[i32], outputs: &Outputs) -> Part {
    Judge::equal(name, Dtype::I32, shape, i32_bytes(want), WHY).of(outputs)
}
