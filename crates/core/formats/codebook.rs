//! Codebooks: element types whose codes are indices into a table of values.

use std::sync::Mutex;

use super::cast::Cast;
use super::element::{Element, Repr};

/// Values in ascending order; a code is the index of its value.
///
/// A number is rounded to the nearest value. The border between two neighbouring values is their midpoint rounded to f32. A
/// number on the border becomes the smaller value, as in bitsandbytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codebook {
    values: &'static [f32],
    /// Borders (rounded midpoints) between neighbouring values, one fewer than values.
    borders: &'static [f32],
}

/// Allowed lengths of a table: 2^bits for codes of 2, 3, 4 and 8 bits, so that every code has a value.
const LENGTHS: [usize; 4] = [4, 8, 16, 256];

/// The 16 values of NF4, from bitsandbytes 0.50, `functional.get_4bit_type`.
const NF4_TABLE: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

pub(super) const NF4_VALUES: Codebook = Codebook {
    values: &NF4_TABLE,
    borders: &borders::<16, 15>(&NF4_TABLE),
};

/// Returns the midpoints between neighbouring values.
const fn borders<const N: usize, const BORDERS: usize>(values: &[f32; N]) -> [f32; BORDERS] {
    let mut borders = [0.0; BORDERS];
    let mut i = 0;
    while i < BORDERS {
        borders[i] = (values[i] + values[i + 1]) / 2.0;
        i += 1;
    }
    borders
}

impl Codebook {
    /// Returns the values in ascending order.
    pub fn values(&self) -> &'static [f32] {
        self.values
    }

    /// Returns the largest magnitude of all values.
    pub(super) fn max(&self) -> f32 {
        self.values.iter().fold(0.0, |max: f32, value| max.max(value.abs()))
    }

    /// Returns the table with a length known at compile time, so that loops vectorise; `None` if the length is not `N`.
    pub(super) fn sized<const N: usize>(&self) -> Option<Table<N>> {
        let values: [f32; N] = self.values.try_into().ok()?;
        // `borders` has one entry more than `self.borders`: infinity, which no number exceeds, so it does not change a code.
        let mut borders = [f32::INFINITY; N];
        borders[..N - 1].copy_from_slice(self.borders);
        Some(Table { values, borders })
    }
}

impl Cast for Codebook {
    // Codebooks of 4 and 16 values are cast as a [`Table`], so this cast is only for codes of 3 and 8 bits.
    const WIDTHS: &'static [u32] = &[3, 8];

    /// Returns the code of the nearest value; a NaN gets the code of the first value.
    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        self.borders.partition_point(|border| x > *border) as u32
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        self.values[code as usize & (self.values.len() - 1)]
    }
}

/// A [`Codebook`] whose number of values, `N`, is known at compile time.
#[derive(Clone, Copy)]
pub(super) struct Table<const N: usize> {
    values: [f32; N],
    borders: [f32; N],
}

impl<const N: usize> Cast for Table<N> {
    const WIDTHS: &'static [u32] = &[N.ilog2()];

    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        self.borders.iter().map(|border| u32::from(x > *border)).sum()
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        self.values[code as usize % N]
    }
}

/// Returns the element `lut(…)` for a table of comma-separated numbers. Equal tables give the same element.
pub(super) fn element(numbers: &str) -> Result<&'static Element, String> {
    // Elements are `'static`, so each distinct table is leaked once.
    static ELEMENTS: Mutex<Vec<&'static Element>> = Mutex::new(Vec::new());
    let values = values(numbers)?;
    let name = values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    let name = format!("lut({name})");
    let mut elements = ELEMENTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(element) = elements.iter().find(|element| element.name == name) {
        return Ok(element);
    }
    let borders: Vec<f32> = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    let element: &'static Element = Box::leak(Box::new(Element {
        name: name.leak(),
        doc: "table of values; a number becomes the nearest, on a midpoint the smaller",
        bits: values.len().ilog2(),
        repr: Repr::Codebook(Codebook {
            values: values.leak(),
            borders: borders.leak(),
        }),
    }));
    elements.push(element);
    Ok(element)
}

/// Parses the numbers of a table and checks them.
fn values(numbers: &str) -> Result<Vec<f32>, String> {
    let parse = |text: &str| {
        let value = text.trim().parse().ok().filter(|value: &f32| value.is_finite());
        // −0 becomes +0, so that a table cannot have both zeros as two values.
        value
            .map(|value| value + 0.0)
            .ok_or_else(|| format!("'{text}' in a table is no number of f32"))
    };
    let values = numbers.split(',').map(parse).collect::<Result<Vec<f32>, _>>()?;
    if !LENGTHS.contains(&values.len()) {
        let found = values.len();
        return Err(format!("a table has 4, 8, 16 or 256 values, not {found}"));
    }
    if let Some(pair) = values.windows(2).find(|pair| pair[0] >= pair[1]) {
        let [first, second] = [pair[0], pair[1]];
        return Err(format!(
            "the values of a table ascend, but {first} comes before {second}"
        ));
    }
    let max = values.iter().fold(0.0, |max: f32, value| max.max(value.abs()));
    // In this range, the sums of two values do not overflow, and 1/max is a normal number.
    if (2f32.powi(-100)..=2f32.powi(100)).contains(&max) {
        Ok(values)
    } else {
        Err(format!(
            "the largest magnitude of a table is 2^-100 to 2^100, not {max:e}"
        ))
    }
}
