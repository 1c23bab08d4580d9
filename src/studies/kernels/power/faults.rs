//! Faults of a known size, applied to the output numbers of a correct kernel.

use rand_distr::{Distribution, StandardNormal};
use ulplab_core::random::stream;

/// Kind of fault with an adjustable magnitude, called its size `s`.
pub struct Fault {
    /// Name of this kind of fault in files.
    pub name: &'static str,
    /// Description of the change, given the size `s`.
    pub doc: &'static str,
    /// True if the size is a whole number of bits, at least 1.
    pub bits: bool,
    /// Returns the numbers with a fault of the given size; `None` if there are too few numbers, or they have too few bits.
    pub apply: fn(&Numbers, f64) -> Option<Vec<f64>>,
}

/// All kinds of faults.
pub const FAULTS: &[Fault] = &[
    fault("gain", "every number times 1 + s", |numbers, size| {
        Some(numbers.changed(|_, x| x * (1.0 + size)))
    }),
    fault("row", "the numbers of one row times 1 + s", |numbers, size| {
        numbers.part(numbers.cols, size)
    }),
    fault(
        "block_128",
        "128 neighbours in a row times 1 + s, where rows are longer",
        |numbers, size| (numbers.cols > 128).then(|| numbers.part(128, size))?,
    ),
    fault(
        "block_32",
        "32 neighbours in a row times 1 + s, where rows are longer",
        |numbers, size| (numbers.cols > 32).then(|| numbers.part(32, size))?,
    ),
    fault(
        "element",
        "s times the median magnitude of its row added to one number",
        |numbers, size| {
            let (row, at) = numbers.typical;
            Some(numbers.changed(|other, x| if other == at { x + size * numbers.usual[row] } else { x }))
        },
    ),
    fault(
        "bias",
        "s times the median magnitude of its row added to every number",
        |numbers, size| Some(numbers.changed(|at, x| x + size * numbers.usual[at / numbers.cols])),
    ),
    fault(
        "term",
        "a draw of N(0, s²) times the median magnitude of its row added to every number: one of 1/s² terms of random sign is missing",
        |numbers, size| {
            let drawn = &numbers.drawn;
            Some(numbers.changed(|at, x| x + size * drawn[at] * numbers.usual[at / numbers.cols]))
        },
    ),
    Fault {
        bits: true,
        ..fault(
            "bits",
            "the last s bits of every significand are zeros",
            |numbers, size| numbers.rounded(size, |x, lost| f32::from_bits(x.to_bits() >> lost << lost)),
        )
    },
];

/// Roundings to a narrower type: faults without an adjustable size.
pub const NARROWED: [(&str, fn(f32) -> f32); 2] = [
    ("to_bf16", |x| half::bf16::from_f32(x).to_f32()),
    ("to_f16", |x| half::f16::from_f32(x).to_f32()),
];

const fn fault(name: &'static str, doc: &'static str, apply: fn(&Numbers, f64) -> Option<Vec<f64>>) -> Fault {
    Fault {
        name,
        doc,
        bits: false,
        apply,
    }
}

/// Outputs of a correct kernel before they are rounded to the stored type. Faults are applied to these numbers.
pub struct Numbers {
    values: Vec<f64>,
    /// True for elements that no fault changes: infinities, NaN, and elements that must keep their bits.
    kept: Vec<bool>,
    /// Number of elements per row.
    cols: usize,
    /// Number of stored significand bits, without the leading one.
    pub digits: u32,
    /// Median magnitude of each row, over the nonzero elements that faults may change.
    usual: Vec<f64>,
    /// Index of a typical row, whose median magnitude is the median over all rows; and index of an element of this magnitude in
    /// the row.
    typical: (usize, usize),
    drawn: Vec<f64>,
}

impl Numbers {
    /// Groups values in rows of `cols`; `None` if no element can be changed.
    pub fn new(values: Vec<f64>, kept: &dyn Fn(usize) -> bool, cols: usize, digits: u32) -> Option<Self> {
        let is_kept = |at: usize| !values[at].is_finite() || kept(at);
        let kept: Vec<bool> = (0..values.len()).map(is_kept).collect();
        let of_row = |row: usize| (row * cols..((row + 1) * cols).min(values.len())).filter(|at| !kept[*at]);
        let usual = |row: usize| {
            let sizes = of_row(row).map(|at| values[at].abs());
            let mut sizes: Vec<f64> = sizes.filter(|size| *size > 0.0).collect();
            sizes.sort_by(f64::total_cmp);
            sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)
        };
        let usual: Vec<f64> = (0..values.len().div_ceil(cols)).map(usual).collect();
        let mut rows: Vec<usize> = (0..usual.len()).filter(|row| usual[*row] > 0.0).collect();
        rows.sort_by(|a, b| usual[*a].total_cmp(&usual[*b]));
        let row = *rows.get(rows.len() / 2)?;
        let off = |at: &usize| (values[*at].abs() / usual[row]).ln().abs();
        let at = of_row(row).min_by(|a, b| off(a).total_cmp(&off(b)))?;
        let mut rng = stream(0, "power");
        let drawn = StandardNormal.sample_iter(&mut rng).take(values.len()).collect();
        Some(Self {
            values,
            kept,
            cols,
            digits,
            usual,
            typical: (row, at),
            drawn,
        })
    }

    /// Returns the numbers rounded to a narrower type; `None` if their own type is not wider.
    pub fn narrowed(&self, round: fn(f32) -> f32) -> Option<Vec<f64>> {
        (self.digits > 10).then(|| self.changed(|_, x| round(x as f32).into()))
    }

    fn changed(&self, change: impl Fn(usize, f64) -> f64) -> Vec<f64> {
        let of = |(at, x): (usize, &f64)| if self.kept[at] { *x } else { change(at, *x) };
        self.values.iter().enumerate().map(of).collect()
    }

    /// Returns the numbers after `len` neighbouring elements, including the typical element, are multiplied by 1 + `size`.
    fn part(&self, len: usize, size: f64) -> Option<Vec<f64>> {
        let (row, at) = self.typical;
        let first = row * self.cols + (at - row * self.cols) / len * len;
        let part = first..(first + len).min((row + 1) * self.cols);
        Some(self.changed(|at, x| if part.contains(&at) { x * (1.0 + size) } else { x }))
    }

    /// Returns the numbers with the last `bits` stored bits changed by `round`. `round` gets an f32 and the number of its last
    /// bits to change.
    fn rounded(&self, bits: f64, round: fn(f32, u32) -> f32) -> Option<Vec<f64>> {
        let bits = bits as u32;
        let unused = 23 - self.digits;
        let stored = |x: f64| match unused {
            0 => x as f32,
            _ => half::bf16::from_f32(x as f32).to_f32(),
        };
        (bits <= self.digits).then(|| self.changed(|_, x| round(stored(x), bits + unused).into()))
    }
}
