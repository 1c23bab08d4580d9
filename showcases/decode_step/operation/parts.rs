//! Compares outputs with expected values, and gives access to the intermediate values that kernels output.

use reference::Bounded;
use safetensors::Dtype;
use ulplab_operations::ops::data::{f32_values, i32_bytes, i32_values};
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Buffer, Outputs};

use super::WHY;

const WHY_RECORDS: &str = "a record's bytes follow from the vector that is stored (docs/formats.md), which was kept; all other bytes \
                           must be as they were";

/// An expected value, and the largest allowed distance from this value.
pub(super) type Expected = (f64, f64);

/// Returns these numbers as expected values with a tolerance of 0.
pub(super) fn as_is(values: &[f32]) -> Vec<Expected> {
    values.iter().map(|x| (f64::from(*x), 0.0)).collect()
}

/// Overwrites the first elements of `expected` with the values and error bounds of `numbers`.
pub(super) fn expect<'a>(expected: &mut [Expected], numbers: impl IntoIterator<Item = &'a Bounded>) {
    let pairs = expected.iter_mut().zip(numbers);
    pairs.for_each(|(expected, x)| *expected = (x.value(), x.error()));
}

/// Place of a row of values in an output buffer: indices of the run (decode step), of the layer, and of the row (sequence) of the
/// batch.
pub(super) type Place = [usize; 3];

/// Contents of an output buffer `[S, layers, B, cols]` as f32; indices (i32) are converted to whole numbers.
pub(super) struct Kept {
    pub values: Vec<f32>,
    /// Indices of the layers (within the model) that have a section in the buffer.
    pub layers: Vec<usize>,
    rows: usize,
    pub cols: usize,
}

impl Kept {
    /// Reads the bytes of a buffer whose elements have the type `dtype`.
    pub fn new(bytes: &[u8], dtype: Dtype, layers: Vec<usize>, [rows, cols]: [usize; 2]) -> Self {
        let values = match dtype {
            Dtype::I32 => i32_values(bytes).into_iter().map(|x| x as f32).collect(),
            _ => f32_values(bytes, dtype),
        };
        Self {
            values,
            layers,
            rows,
            cols,
        }
    }

    /// Returns the position of a layer in [`Self::layers`]; `None` if the buffer has no section for it.
    pub fn number(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|other| *other == layer)
    }

    /// Returns the index of the first element of a row; `None` if the buffer lacks the layer.
    pub fn at(&self, [run, layer, row]: Place) -> Option<usize> {
        let number = self.number(layer)?;
        Some(((run * self.layers.len() + number) * self.rows + row) * self.cols)
    }

    /// Returns the values of a row of the batch in a run and a layer.
    ///
    /// # Panics
    /// Panics if the buffer lacks the layer.
    pub fn row(&self, place: Place) -> &[f32] {
        let at = self.at(place).expect("the layer has the site");
        &self.values[at..][..self.cols]
    }
}

/// Compares an output (numbers, or the indices of a choice) with its expected values.
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

/// Checks that an output buffer of records equals `buffer`, byte for byte.
pub(super) fn of_bytes(buffer: Buffer, outputs: &Outputs) -> Part {
    let judge = Judge::equal(buffer.name, Dtype::U8, &buffer.shape, buffer.bytes, WHY_RECORDS);
    judge.of(outputs)
}

/// Checks that an output of integers equals `want`.
pub(super) fn equal(name: &'static str, shape: &[usize], want: &[i32], outputs: &Outputs) -> Part {
    Judge::equal(name, Dtype::I32, shape, i32_bytes(want), WHY).of(outputs)
}
