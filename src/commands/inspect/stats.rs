//! Statistics of one quantized tensor.

use std::collections::BTreeMap;

use ulplab_checkpoint::packed::{Grid, codes, reach, values};
use ulplab_core::formats::{Encoded, Format};
use ulplab_core::metrics::Pair;

/// Counts of f32 values, by the bits of the value. Non-negative values sort by their bits: zero first, NaN last.
pub type Histogram = BTreeMap<u32, u64>;

/// Counts over the codes and scales of a tensor.
#[derive(Debug, Default)]
pub struct Stats {
    /// Layout of the groups (blocks) of one matrix.
    pub grid: Grid,
    pub elements: u64,
    pub blocks: u64,
    /// Bytes of codes, scales and global scales.
    pub bytes: u64,
    /// Counts of codes by magnitude; for elements of 8 bits or more, by the largest power of two that is not above the magnitude.
    pub codes: Histogram,
    /// Number of elements that decode to NaN or infinity. They do not count as saturated, zero or negative.
    pub nonfinite: u64,
    pub negative: u64,
    /// Number of codes with the largest magnitude of the element type, e.g. ±6 in E2M1. If scales follow the largest magnitude of
    /// their block, every block has such a code; only [`SourceStats::clipped`] counts clipped elements.
    pub saturated: u64,
    pub zeros: u64,
    /// Counts of scales, by the largest power of two that is not above the scale.
    pub scales: Histogram,
    pub nan_scales: u64,
    /// Number of blocks whose codes are all zero.
    pub zero_blocks: u64,
    pub globals: Vec<f32>,
    pub against: Option<SourceStats>,
}

/// Statistics that need the unquantized source tensor.
#[derive(Debug)]
pub struct SourceStats {
    /// Number of non-zero elements (after the rotation, if the format rotates) whose codes are zero.
    pub underflow: u64,
    /// Number of clipped elements. Their magnitude exceeds the largest value that their block can store by more than half of the
    /// distance to the next smaller value. 0 for formats with zero points.
    pub clipped: u64,
    pub nonfinite: u64,
    pub pair: Pair,
    /// Blocks with the lowest SQNR, worst first.
    pub worst: Vec<Worst>,
}

/// Statistics of one block against its source.
#[derive(Clone, Copy, Debug)]
pub struct Worst {
    /// Index of the matrix in the tensor.
    pub expert: usize,
    pub group: usize,
    /// SQNR in dB; infinite if the round trip is exact.
    pub sqnr: f64,
    pub amax: f32,
    pub scale: f32,
    /// Sum of squared errors.
    energy: f64,
}

impl Stats {
    /// Computes the statistics of one matrix (number `expert` of its tensor) from the stored bytes. If `source` is given, also
    /// compares the decoded matrix with it, and keeps the worst blocks, at most `blocks`.
    pub fn new(format: &Format, encoded: &Encoded, source: Option<&[f32]>, blocks: usize, expert: usize) -> Self {
        let (rows, cols) = (encoded.rows, encoded.cols);
        let grid = Grid::new(format, rows, cols);
        let codes = codes(format, encoded.part("data"));
        let mut decoded = vec![0.0; rows * cols];
        format.decode(encoded, &mut decoded);
        let globals = encoded.part("global").as_chunks().0.iter();
        let mut stats = Self {
            elements: (rows * cols) as u64,
            blocks: grid.groups() as u64,
            bytes: encoded.parts.iter().map(|part| part.bytes.len() as u64).sum(),
            globals: globals.map(|b| f32::from_le_bytes(*b)).collect(),
            grid,
            ..Self::default()
        };
        stats.count_codes(format, &codes, &decoded);
        let scales = scales(format, encoded);
        for scale in &scales {
            stats.nan_scales += u64::from(scale.is_nan());
            *stats.scales.entry(power_below(*scale).to_bits()).or_default() += 1;
        }
        stats.against = source.map(|source| {
            let mut worst = worst(source, &decoded, &grid, &scales, expert);
            worst.truncate(blocks);
            let (repr, rotated) = (format.repr(), format.rotated(source));
            // In a format with zero points, a code of zero does not mean a value of zero: test the decoded value instead of the
            // code.
            let shifted = format.zero_point().is_some();
            let lost = |at: &usize| match shifted {
                true => source[*at] != 0.0 && decoded[*at] == 0.0,
                false => rotated[*at] != 0.0 && repr.decode(codes[*at]) == 0.0,
            };
            let (most, kept) = (format.element.max(), format.rotated(&decoded));
            let reach = reach(format);
            let over = |at: &usize| {
                let largest = !shifted && repr.decode(codes[*at]).abs() == most;
                largest && rotated[*at].abs() > kept[*at].abs() * reach
            };
            SourceStats {
                underflow: (0..source.len()).filter(lost).count() as u64,
                clipped: (0..source.len()).filter(over).count() as u64,
                nonfinite: source.iter().filter(|x| !x.is_finite()).count() as u64,
                pair: Pair::new(source, &decoded),
                worst,
            }
        });
        stats
    }

    fn count_codes(&mut self, format: &Format, codes: &[u16], decoded: &[f32]) {
        let (element, values) = (format.element, values(format));
        // For each code, counts two numbers: all elements with this code, and the elements with this code that decode to a finite
        // value.
        let mut counts = vec![(0u64, 0u64); values.len()];
        let mut filled = vec![false; self.grid.groups()];
        for (index, (code, decoded)) in codes.iter().zip(decoded).enumerate() {
            let count = &mut counts[usize::from(*code)];
            *count = (count.0 + 1, count.1 + u64::from(decoded.is_finite()));
            if values[usize::from(*code)] != 0.0 {
                filled[self.grid.group_of(index)] = true;
            }
        }
        self.zero_blocks = filled.iter().filter(|filled| !**filled).count() as u64;
        for (value, (all, finite)) in values.into_iter().zip(counts).filter(|(_, (all, _))| *all > 0) {
            let bin = match element.bits {
                ..8 => value.abs(),
                _ => power_below(value.abs()),
            };
            *self.codes.entry(bin.to_bits()).or_default() += all;
            self.nonfinite += all - finite;
            self.negative += if value < 0.0 { finite } else { 0 };
            self.saturated += if value.abs() == element.max() { finite } else { 0 };
            self.zeros += if value == 0.0 { finite } else { 0 };
        }
    }

    /// Adds the statistics of another matrix of the same tensor.
    #[must_use]
    pub fn and(mut self, later: Self, blocks: usize) -> Self {
        for (histogram, later) in [(&mut self.codes, later.codes), (&mut self.scales, later.scales)] {
            for (bin, count) in later {
                *histogram.entry(bin).or_default() += count;
            }
        }
        self.globals.extend(later.globals);
        let against = self.against.zip(later.against).map(|(against, later)| {
            let mut worst = [against.worst, later.worst].concat();
            sort(&mut worst);
            worst.truncate(blocks);
            SourceStats {
                underflow: against.underflow + later.underflow,
                clipped: against.clipped + later.clipped,
                nonfinite: against.nonfinite + later.nonfinite,
                pair: against.pair.and(later.pair),
                worst,
            }
        });
        Self {
            elements: self.elements + later.elements,
            blocks: self.blocks + later.blocks,
            bytes: self.bytes + later.bytes,
            nonfinite: self.nonfinite + later.nonfinite,
            negative: self.negative + later.negative,
            saturated: self.saturated + later.saturated,
            zeros: self.zeros + later.zeros,
            nan_scales: self.nan_scales + later.nan_scales,
            zero_blocks: self.zero_blocks + later.zero_blocks,
            against,
            ..self
        }
    }

    pub fn bits_per_element(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elements.max(1) as f64
    }
}

/// Returns the statistics of all blocks of a matrix, the worst block first.
fn worst(source: &[f32], decoded: &[f32], grid: &Grid, scales: &[f32], expert: usize) -> Vec<Worst> {
    let of = |group| {
        let (mut signal, mut energy, mut amax) = (0.0, 0.0, 0.0f32);
        for index in grid.elements(group) {
            let (x, y) = (f64::from(source[index]), f64::from(decoded[index]));
            signal += x * x;
            energy += (x - y) * (x - y);
            amax = amax.max(source[index].abs());
        }
        let sqnr = match energy {
            0.0 => f64::INFINITY,
            _ => 10.0 * (signal / energy).log10(),
        };
        Worst {
            expert,
            group,
            sqnr,
            amax,
            scale: scales.get(group).copied().unwrap_or(1.0),
            energy,
        }
    };
    let mut worst: Vec<Worst> = (0..grid.groups()).map(of).collect();
    sort(&mut worst);
    worst
}

/// Sorts blocks by SQNR, the lowest first. Blocks with NaN come before all others.
fn sort(worst: &mut [Worst]) {
    let number = |sqnr: f64| if sqnr.is_nan() { f64::NEG_INFINITY } else { sqnr };
    let key = |worst: &Worst| number(worst.sqnr);
    worst.sort_by(|a, b| key(a).total_cmp(&key(b)).then(b.energy.total_cmp(&a.energy)));
}

/// Returns the decoded scales of the blocks.
fn scales(format: &Format, encoded: &Encoded) -> Vec<f32> {
    let Some(scaling) = format.scaling else {
        return Vec::new();
    };
    let bytes = encoded.part("scale").chunks_exact(scaling.scale.bytes());
    bytes.map(|bytes| scaling.scale.value(bytes)).collect()
}

/// Returns the largest power of two that is not above a magnitude. Zero, infinity and NaN stay as they are.
fn power_below(x: f32) -> f32 {
    match x {
        _ if x.is_nan() => f32::NAN,
        _ if x.is_infinite() || x == 0.0 => x,
        _ if x.is_normal() => f32::from_bits(x.to_bits() & 0x7f80_0000),
        // A subnormal: keep only its highest set bit.
        _ => f32::from_bits(1 << (31 - x.to_bits().leading_zeros())),
    }
}
