//! Faults of a known size in numbers that a right kernel writes.

use rand_distr::{Distribution, StandardNormal};
use ulplab_core::random::stream;

/// Kind of fault with an adjustable magnitude, called its size `s`.
pub struct Fault {
    /// Its name in files.
    pub name: &'static str,
    /// Change of the numbers, given its size `s`.
    pub doc: &'static str,
    /// True if sizes are numbers of bits, from 1 on.
    pub bits: bool,
    /// Numbers with the fault of a size; none if they are too few for it, or have too few bits.
    pub apply: fn(&Numbers, f64) -> Option<Vec<f64>>,
}

/// All kinds.
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

/// Roundings that have no size.
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

/// Numbers that a right kernel has before they are stored.
pub struct Numbers {
    values: Vec<f64>,
    /// Elements that no fault changes: infinities, NaN, and those whose bits must stay as they were.
    kept: Vec<bool>,
    /// Elements of a row.
    cols: usize,
    /// Bits of the significands that are stored, the leading one not counted.
    pub digits: u32,
    /// The median magnitude of each row, of what faults may change and is not zero.
    usual: Vec<f64>,
    /// A row and an element of it that are about as large as most.
    typical: (usize, usize),
    drawn: Vec<f64>,
}

impl Numbers {
    /// Rows of numbers, none of them if nothing in them can be changed.
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

    /// The numbers rounded to a narrower type; none if theirs is not wider.
    pub fn narrowed(&self, round: fn(f32) -> f32) -> Option<Vec<f64>> {
        (self.digits > 10).then(|| self.changed(|_, x| round(x as f32).into()))
    }

    fn changed(&self, change: impl Fn(usize, f64) -> f64) -> Vec<f64> {
        let of = |(at, x): (usize, &f64)| if self.kept[at] { *x } else { change(at, *x) };
        self.values.iter().enumerate().map(of).collect()
    }

    /// With `len` neighbours in the typical row, among them the typical element, times 1 + `size`.
    fn part(&self, len: usize, size: f64) -> Option<Vec<f64>> {
        let (row, at) = self.typical;
        let first = row * self.cols + (at - row * self.cols) / len * len;
        let part = first..(first + len).min((row + 1) * self.cols);
        Some(self.changed(|at, x| if part.contains(&at) { x * (1.0 + size) } else { x }))
    }

    /// With the last bits of what is stored treated by `round`, which gets an f32 and how many of its bits these are.
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
