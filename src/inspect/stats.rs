//! What is to be told of one quantized tensor.

use std::collections::BTreeMap;

use crate::formats::{Encoded, Format};
use crate::metrics::Pair;
use crate::packed::{Grid, codes};

/// Counts by the bits of what they are counted for: positive f32 sort by their bits, zero first, NaN last.
pub type Histogram = BTreeMap<u32, u64>;

/// Counts over the codes and scales of a tensor.
#[derive(Debug)]
pub struct Stats {
    pub grid: Grid,
    pub bits_per_element: f64,
    /// By magnitude; of elements of 8 bits or more by the power of two below it.
    pub codes: Histogram,
    pub negative: u64,
    /// Codes of the largest magnitude.
    pub saturated: u64,
    pub zeros: u64,
    /// By the power of two below them.
    pub scales: Histogram,
    pub nan_scales: u64,
    /// Blocks whose codes are all zero.
    pub zero_blocks: u64,
    pub globals: Vec<f32>,
    pub against: Option<Against>,
}

/// What is known only beside the source.
#[derive(Debug)]
pub struct Against {
    /// Elements that are not zero, rotated where the format rotates, and whose codes are.
    pub underflow: u64,
    pub nonfinite: u64,
    pub pair: Pair,
    /// The blocks of least SQNR, worst first.
    pub worst: Vec<Worst>,
}

/// One block beside its source.
#[derive(Clone, Copy, Debug)]
pub struct Worst {
    pub group: usize,
    /// In dB; infinite where nothing is lost.
    pub sqnr: f64,
    pub amax: f32,
    pub scale: f32,
    /// Σ error².
    energy: f64,
}

impl Stats {
    /// Of the stored bytes, and of `source` beside them; of the worst blocks at most `blocks`.
    pub fn new(format: &Format, encoded: &Encoded, source: Option<&[f32]>, blocks: usize) -> Self {
        let (rows, cols) = (encoded.rows, encoded.cols);
        let grid = Grid::new(format, rows, cols);
        let codes = codes(format, encoded.part("data"));
        let (element, repr) = (format.element, format.repr());
        let mut stats = Self {
            grid,
            bits_per_element: encoded.parts.iter().map(|part| part.bytes.len()).sum::<usize>() as f64 * 8.0
                / (rows * cols).max(1) as f64,
            codes: Histogram::new(),
            negative: 0,
            saturated: 0,
            zeros: 0,
            scales: Histogram::new(),
            nan_scales: 0,
            zero_blocks: 0,
            globals: encoded
                .part("global")
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
            against: None,
        };
        let mut filled = vec![false; grid.len()];
        for (index, code) in codes.iter().enumerate() {
            let value = repr.decode(*code);
            let bin = if element.bits < 8 {
                value.abs()
            } else {
                power_below(value.abs())
            };
            *stats.codes.entry(bin.to_bits()).or_default() += 1;
            stats.negative += u64::from(value < 0.0);
            stats.saturated += u64::from(value.abs() == element.max());
            stats.zeros += u64::from(value == 0.0);
            if value != 0.0 {
                filled[grid.group_of(index)] = true;
            }
        }
        stats.zero_blocks = filled.iter().filter(|filled| !**filled).count() as u64;
        let scales = scales(format, encoded);
        for scale in &scales {
            stats.nan_scales += u64::from(scale.is_nan());
            *stats.scales.entry(power_below(*scale).to_bits()).or_default() += 1;
        }
        stats.against = source.map(|source| Against::new(format, encoded, source, &grid, &codes, &scales, blocks));
        stats
    }
}

impl Against {
    fn new(
        format: &Format,
        encoded: &Encoded,
        source: &[f32],
        grid: &Grid,
        codes: &[u16],
        scales: &[f32],
        blocks: usize,
    ) -> Self {
        let repr = format.repr();
        let mut decoded = vec![0.0; source.len()];
        format.decode(encoded, &mut decoded);
        let rotated = format.rotated(source);
        // Where there are zero points, the value of a code is not its number.
        let shifted = format.zero_point().is_some();
        let lost = |at: &usize| match shifted {
            true => source[*at] != 0.0 && decoded[*at] == 0.0,
            false => rotated[*at] != 0.0 && repr.decode(codes[*at]) == 0.0,
        };
        let mut worst: Vec<Worst> = (0..grid.len())
            .map(|group| {
                let (mut signal, mut energy, mut amax) = (0.0, 0.0, 0.0f32);
                for index in grid.elements(group) {
                    let (x, y) = (f64::from(source[index]), f64::from(decoded[index]));
                    signal += x * x;
                    energy += (x - y) * (x - y);
                    amax = amax.max(source[index].abs());
                }
                let sqnr = if energy == 0.0 {
                    f64::INFINITY
                } else {
                    10.0 * (signal / energy).log10()
                };
                Worst {
                    group,
                    sqnr,
                    amax,
                    scale: scales.get(group).copied().unwrap_or(1.0),
                    energy,
                }
            })
            .collect();
        // A block with NaN is worse than any other.
        let key = |worst: &Worst| {
            if worst.sqnr.is_nan() {
                f64::NEG_INFINITY
            } else {
                worst.sqnr
            }
        };
        worst.sort_by(|a, b| key(a).total_cmp(&key(b)).then(b.energy.total_cmp(&a.energy)));
        worst.truncate(blocks);
        Self {
            underflow: (0..source.len()).filter(lost).count() as u64,
            nonfinite: source.iter().filter(|x| !x.is_finite()).count() as u64,
            pair: Pair::new(source, &decoded),
            worst,
        }
    }
}

/// The values of the scales next to the elements.
fn scales(format: &Format, encoded: &Encoded) -> Vec<f32> {
    let Some(scaling) = format.scaling else {
        return Vec::new();
    };
    let bytes = encoded.part("scale").chunks_exact(scaling.scale.bytes());
    bytes.map(|bytes| scaling.scale.value(bytes)).collect()
}

/// The largest power of two not above a magnitude; zero, infinity and NaN as they are.
fn power_below(x: f32) -> f32 {
    match x {
        _ if x.is_nan() => f32::NAN,
        _ if x.is_infinite() || x == 0.0 => x,
        _ if x.is_normal() => f32::from_bits(x.to_bits() & 0x7f80_0000),
        // The highest set bit of a subnormal.
        _ => f32::from_bits(1 << (31 - x.to_bits().leading_zeros())),
    }
}
