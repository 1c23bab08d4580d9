//! The inputs of a diagnosis (source values and stored bytes), and samples of their elements and groups (elements under one
//! scale).

use std::sync::atomic::AtomicUsize;

use rayon::prelude::*;

use super::StoredBytes;
use crate::packed::Grid;
use ulplab_core::formats::{Format, Group};
use ulplab_core::tensorfile::Tensor;

/// Maximum number of elements of a cell (row segment under one scale).
const CELL: usize = 128;
/// Minimum and maximum number of groups, and of cells (short row segments under one scale), in a sample.
const GROUPS: (usize, usize) = (16, 1024);
/// Number of rows that are read and compared at a time (a strip) if the groups are taller than 256 rows.
const STRIP: usize = 16;
/// Maximum number of elements of a group for tests that read every element, e.g. hypotheses about a faulty input.
const LARGE: usize = 1 << 15;

/// The source values, read on demand.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    values: Values<'a>,
    /// The format that defines the rotation; `None` if the values are not rotated.
    rotation: Option<Format>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    Slice(&'a [f32]),
    Tensor(Tensor<'a>),
}

impl<'a> Source<'a> {
    /// A source of values in memory.
    pub fn slice(x: &'a [f32]) -> Self {
        let values = Values::Slice(x);
        Self { values, rotation: None }
    }

    /// A source in a file: a tensor with a numeric type.
    pub fn tensor(tensor: Tensor<'a>) -> Self {
        let values = Values::Tensor(tensor);
        Self { values, rotation: None }
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        match self.values {
            Values::Slice(x) => x.len(),
            Values::Tensor(tensor) => tensor.bytes.len() / (tensor.dtype.bitsize() / 8).max(1),
        }
    }

    /// Value at a flat index.
    pub fn value(&self, at: usize) -> f32 {
        match (self.values, self.rotation) {
            (Values::Slice(x), None) => x[at],
            _ => self.read(at, 1)[0],
        }
    }

    /// Returns `len` values from flat index `at` on, rotated if the format rotates its input (Hadamard).
    pub fn read(&self, at: usize, len: usize) -> Vec<f32> {
        let size = self.rotation.and_then(|format| format.rotation).unwrap_or(1);
        let (start, end) = (at / size * size, (at + len).div_ceil(size) * size);
        let mut values = match self.values {
            Values::Slice(x) => x[start..end].to_vec(),
            Values::Tensor(tensor) => {
                let width = tensor.dtype.bitsize() / 8;
                let bytes = &tensor.bytes[start * width..end * width];
                Tensor { bytes, ..tensor }.to_f32().unwrap_or_default()
            }
        };
        if let Some(format) = self.rotation {
            values = format.rotated(&values);
            values.drain(..at - start);
            values.truncate(len);
        }
        values
    }
}

/// A cell: consecutive elements of one row that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub group: usize,
    /// Flat index, in the tensor, of the first element of the cell.
    pub at: usize,
    pub len: usize,
}

/// Inputs of the diagnosis of one tensor: source, format, groups and stored bytes.
pub struct Problem<'a> {
    pub source: Source<'a>,
    /// The format without its rotation, because the source already rotates the values.
    pub format: Format,
    pub grid: Grid,
    pub stored: &'a StoredBytes<'a>,
    /// Largest magnitude of each group; NaN if the group has a NaN.
    pub amax: Vec<f32>,
    /// Number of elements compared with a rule so far, for a progress bar.
    pub done: &'a AtomicUsize,
}

/// A deterministic sample of groups and of cells, spread over the whole tensor.
pub struct Sample {
    pub groups: Vec<usize>,
    pub cells: Vec<Cell>,
}

impl<'a> Problem<'a> {
    pub fn new(
        source: Source<'a>,
        cols: usize,
        stored: &'a StoredBytes<'a>,
        format: &Format,
        done: &'a AtomicUsize,
    ) -> Self {
        let rotation = format.rotation.map(|_| *format);
        let source = Source { rotation, ..source };
        let format = Format {
            rotation: None,
            ..*format
        };
        let grid = Grid::new(&format, source.elements() / cols, cols);
        let mut problem = Self {
            source,
            format,
            grid,
            stored,
            amax: Vec::new(),
            done,
        };
        problem.amax = problem.measure();
        problem
    }

    /// Returns the number of rows of a strip (rows that are compared at a time), and the number of strips.
    pub fn strips(&self) -> (usize, usize) {
        let tile = self.grid.tile.0;
        let height = if tile > 256 { STRIP } else { tile };
        (height, self.grid.rows.div_ceil(height))
    }

    /// Returns the flat index of the first element of strip number `index`, and the number of elements of the strip.
    pub fn strip(&self, index: usize) -> (usize, usize) {
        let height = self.strips().0;
        let rows = height.min(self.grid.rows - index * height);
        (index * height * self.grid.cols, rows * self.grid.cols)
    }

    /// Returns the index of the row of groups in which a strip (rows that are compared at a time) lies.
    pub fn row_of_groups(&self, strip: usize) -> usize {
        strip * self.strips().0 / self.grid.tile.0
    }

    fn measure(&self) -> Vec<f32> {
        let (across, cols, width) = (self.grid.count.1, self.grid.cols, self.grid.tile.1);
        let strip = |index: usize| {
            let (at, len) = self.strip(index);
            let mut largest = vec![0u32; across];
            for row in self.source.read(at, len).chunks_exact(cols) {
                for (block, largest) in row.chunks(width).zip(&mut largest) {
                    *largest = block.iter().fold(*largest, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
                }
            }
            largest
        };
        let strips: Vec<Vec<u32>> = (0..self.strips().1).into_par_iter().map(strip).collect();
        let mut amax = vec![0u32; self.grid.groups()];
        for (index, strip) in strips.into_iter().enumerate() {
            let row = &mut amax[self.row_of_groups(index) * across..][..across];
            row.iter_mut().zip(strip).for_each(|(max, x)| *max = x.max(*max));
        }
        amax.into_iter().map(f32::from_bits).collect()
    }

    /// True if groups are larger than `LARGE`: tests that read every element of a group are then skipped.
    pub fn large(&self) -> bool {
        self.grid.tile.0 * self.grid.tile.1 > LARGE
    }

    /// Number of bytes of a scale.
    pub fn scale_bytes(&self) -> usize {
        self.format.scaling.map_or(0, |scaling| scaling.scale.bytes())
    }

    /// Returns the encoded scale at an index of the buffer; `None` beyond its end. All f32 NaN become the same bits.
    pub fn scale_at(&self, place: usize) -> Option<u32> {
        let size = self.scale_bytes();
        match *self.stored.scale.get(place.checked_mul(size)?..)?.get(..size)? {
            [byte] => Some(byte.into()),
            [low, high] => Some(u16::from_le_bytes([low, high]).into()),
            [a, b, c, d] => Some(canonical(u32::from_le_bytes([a, b, c, d]))),
            _ => None,
        }
    }

    /// Returns the code at an index of the buffer; `None` beyond its end.
    pub fn code_at(&self, place: usize) -> Option<u16> {
        let data = self.stored.data;
        match self.format.element.stored_bits() {
            4 => Some(u16::from(data.get(place / 2)? >> (4 * (place % 2)) & 0xf)),
            16 => Some(u16::from_le_bytes(*data.get(place.checked_mul(2)?..)?.first_chunk()?)),
            _ => data.get(place).copied().map(u16::from),
        }
    }

    /// Decodes a block scale from its bits, without the factor of the global scale.
    pub fn value(&self, bits: u32) -> f32 {
        self.format.scaling.map_or(1.0, |scaling| {
            scaling.scale.value(&bits.to_le_bytes()[..scaling.scale.bytes()])
        })
    }

    /// Returns the largest magnitude of the elements that global scale number `index` applies to.
    pub fn amax_under(&self, index: usize) -> f32 {
        let across = self.grid.count.1;
        let part = match self.format.global {
            Some(Group::Token) => &self.amax[index * across..(index + 1) * across],
            _ => &self.amax,
        };
        largest(part.iter().copied())
    }

    /// Source values of a group, row by row.
    pub fn block(&self, group: usize) -> Vec<f32> {
        let (rows, columns) = self.grid.bounds(group);
        let row = |r: usize| self.source.read(r * self.grid.cols + columns.start, columns.len());
        rows.flat_map(row).collect()
    }

    /// Returns one cell (row segment) of a group, selected by the number `random`.
    pub fn some_cell(&self, group: usize, random: u64) -> Cell {
        let (rows, columns) = self.grid.bounds(group);
        let segments = columns.len().div_ceil(CELL) as u64;
        let row = rows.start + (random % rows.len() as u64) as usize;
        let column = columns.start + (random / 1009 % segments) as usize * CELL;
        self.cell_of(row * self.grid.cols + column)
    }

    /// Returns the cell (row segment) that contains the element with flat index `at`.
    pub fn cell_of(&self, at: usize) -> Cell {
        let group = self.grid.group_of(at);
        let (_, columns) = self.grid.bounds(group);
        let column = at % self.grid.cols - columns.start;
        let start = column / CELL * CELL;
        let (at, len) = (at - (column - start), CELL.min(columns.len() - start));
        Cell { group, at, len }
    }

    /// Returns a sample of groups and a sample of cells (row segments), each with about `elements` elements in total.
    pub fn sample(&self, elements: usize) -> Sample {
        let (height, width) = self.grid.tile;
        let number = |size: usize| (elements / size.max(1)).clamp(GROUPS.0, GROUPS.1);
        let groups = spread(self.grid.groups(), number(height * width));
        let cells = number(width.min(CELL));
        let some_cell = |group: usize| self.some_cell(group, mix(group as u64));
        let mut chosen: Vec<Cell> = match self.grid.groups() {
            // If there are only a few large groups, take several cells (row segments) of each group.
            few if few < cells => {
                let places = spread(self.grid.rows * self.grid.cols, cells);
                places.into_iter().map(|at| self.cell_of(at)).collect()
            }
            all => spread(all, cells).into_iter().map(some_cell).collect(),
        };
        chosen.dedup();
        Sample { groups, cells: chosen }
    }
}

/// Returns `number` ascending indices below `all`: one at a pseudo-random place in each of `number` equal ranges. The first and
/// the last index are always included.
pub fn spread(all: usize, number: usize) -> Vec<usize> {
    if all <= number {
        return (0..all).collect();
    }
    let step = all as f64 / number as f64;
    let pick = |i: usize| {
        let start = (i as f64 * step) as usize;
        let room = (((i + 1) as f64 * step) as usize - start).max(1) as u64;
        match i {
            0 => 0,
            _ if i + 1 == number => all - 1,
            _ => (start + (mix(i as u64) % room) as usize).min(all - 1),
        }
    };
    (0..number).map(pick).collect()
}

/// Hashes a number to 64 pseudo-random bits, so that samples are the same in every run.
pub fn mix(x: u64) -> u64 {
    let x = (x.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Largest magnitude; NaN if any value is NaN.
pub fn largest(values: impl Iterator<Item = f32>) -> f32 {
    f32::from_bits(values.map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// Replaces the bits of any f32 NaN by the bits of one fixed NaN.
pub fn canonical(bits: u32) -> u32 {
    if f32::from_bits(bits).is_nan() {
        0x7fc0_0000
    } else {
        bits
    }
}
