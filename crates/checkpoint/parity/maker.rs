//! A maker is a hypothesis about the quantizer that made the stored bytes: a rule, its global scales, and a change of its input.

use super::Cause;
use super::levels::Level;
use super::place::{Origin, index_of};
use super::problem::{Cell, Problem, canonical, largest};
use super::rounded::{cut_to_bf16, through, to_bf16, to_f16, to_tf32};
use super::rules::approximate;
use ulplab_core::formats::{E4M3, E5M2, Format, Group, Scale, Select, Single};

/// A hypothetical fault of the input: a change of the values before quantization.
pub struct Input {
    /// Description of the fault that follows the words "the input is", e.g. "negated".
    pub detail: &'static str,
    /// Cause to report if a quantizer with this changed input reproduces the stored bytes.
    pub cause: Cause,
    change: Change,
}

enum Change {
    Value(fn(f32) -> f32),
    Place(Origin),
}

const fn value(detail: &'static str, change: fn(f32) -> f32) -> Input {
    let (cause, change) = (Cause::Input, Change::Value(change));
    Input { detail, cause, change }
}

const fn place(detail: &'static str, change: Origin) -> Input {
    let (cause, change) = (Cause::Layout, Change::Place(change));
    Input { detail, cause, change }
}

/// All faults of the input that the search tests.
pub const INPUTS: &[Input] = &[
    value("cut off at zero: negative values became 0 (ReLU)", |x| {
        if x < 0.0 { 0.0 } else { x }
    }),
    value("without its sign: magnitudes were quantized", f32::abs),
    value("negated", |x| -x),
    value("rounded to bf16 first (double rounding)", to_bf16),
    value("truncated to bf16 first", cut_to_bf16),
    value("rounded to f16 first (double rounding)", to_f16),
    value("rounded to TF32 first (double rounding)", to_tf32),
    value("rounded to E5M2 first (double rounding)", |x| through(&E5M2, x)),
    value("rounded to E4M3 first (double rounding)", |x| through(&E4M3, x)),
    value(
        "without positive values: they became 0",
        |x| if x > 0.0 { 0.0 } else { x },
    ),
    value("squared", |x| x * x),
    value("the SiLU of the source", |x| x / (1.0 + (-x).exp())),
    value("clamped to ±1", |x| x.clamp(-1.0, 1.0)),
    value("clamped to ±6", |x| x.clamp(-6.0, 6.0)),
    value(
        "with NaN and infinities made 0",
        |x| if x.is_finite() { x } else { 0.0 },
    ),
    value("rounded to integers", f32::round_ties_even),
    place(
        "transposed",
        |[r, c], [rows, cols]| {
            if rows == cols { [c, r] } else { [usize::MAX; 2] }
        },
    ),
    place("read in column order", |[r, c], [rows, cols]| {
        let at = c * rows + r;
        [at / cols, at % cols]
    }),
    place("written in column order", |[r, c], [rows, cols]| {
        let at = r * cols + c;
        [at % rows, at / rows]
    }),
    place("the row before, not its own", |[r, c], _| [r.wrapping_sub(1), c]),
    place("the next row, not its own", |[r, c], _| [r + 1, c]),
    place("the rows in reverse order", |[r, c], [rows, _]| [rows - 1 - r, c]),
    place("the columns in reverse order", |[r, c], [_, cols]| [r, cols - 1 - c]),
    place("with every two rows exchanged", |[r, c], _| [r ^ 1, c]),
    place("with every two columns exchanged", |[r, c], _| [r, c ^ 1]),
    place("the column before, not its own", |[r, c], _| [r, c.wrapping_sub(1)]),
    place("the next column, not its own", |[r, c], _| [r, c + 1]),
    place("with the halves of each row exchanged", |[r, c], [_, cols]| {
        [r, (c + cols / 2) % cols]
    }),
    place("with the halves of each row interleaved", |[r, c], [_, cols]| {
        [r, c / 2 + c % 2 * (cols / 2)]
    }),
    place("with even columns before odd ones in each row", |[r, c], [_, cols]| {
        [r, c * 2 % cols + c * 2 / cols]
    }),
    place("with the halves of the rows exchanged", |[r, c], [rows, _]| {
        [(r + rows / 2) % rows, c]
    }),
];

/// A hypothesis about the quantizer: a rule, its global scales, and a change of its input.
#[derive(Clone)]
pub struct Maker {
    /// The format, including the rule that computes the scales.
    pub format: Format,
    /// The global scales in the form that the rule stores (amax, scale or reciprocal); empty if the format has none.
    pub globals: Vec<f32>,
    /// The relation between `globals` and the stored global scales.
    pub level: Level,
    /// The change of the values before quantization; `None` if the source values were quantized.
    pub input: Option<&'static Input>,
}

impl Maker {
    /// Creates a quantizer of the source values, without a change of the input.
    pub fn new(format: &Format, level: Level, globals: Vec<f32>) -> Self {
        Self {
            format: *format,
            globals,
            level,
            input: None,
        }
    }

    /// Creates a quantizer with the rule of a format and the stored global scales.
    pub fn as_stored(problem: &Problem, format: &Format) -> Self {
        Self::new(format, Level::AsStored, problem.stored.global.clone())
    }

    /// Returns the global scale that applies to a group; 1 if the format has none.
    pub fn global(&self, problem: &Problem, group: usize) -> f32 {
        match (self.format.global, &self.globals[..]) {
            (Some(Group::Token), globals) => globals[problem.grid.place(group)[0]],
            (_, [global, ..]) => *global,
            _ => 1.0,
        }
    }

    /// Returns the quantizer for the elements of one group; `None` if the format has no scales.
    pub(super) fn single(&self, problem: &Problem, group: usize) -> Option<Single> {
        Single::new(&self.format, self.global(problem, group))
    }

    /// True if the rule tries several scales on the values of a block and selects one.
    pub fn selects(&self) -> bool {
        matches!(self.format.scaling.map(|scaling| scaling.scale), Some(Scale::E4m3(rule)) if rule.select != Select::One)
    }

    /// Returns the encoded scale that this quantizer computes for a group. `None` if the format has no scales, if the group is
    /// too large to read, or if the faulty input reads outside of the source.
    pub fn scale(&self, problem: &Problem, group: usize) -> Option<u32> {
        self.format.scaling?;
        if self.input.is_none() && !self.selects() {
            return Some(self.scale_of(problem, group, problem.amax[group], &[]));
        }
        if problem.large() {
            return None;
        }
        let block = self.changed(problem, || problem.block(group), problem.grid.elements(group))?;
        Some(self.scale_of(problem, group, largest(block.iter().copied()), &block))
    }

    /// True if a relative error `by` of the amax explains the stored scale: the rule gives this scale for amax · (1 + `by`) or
    /// amax · (1 - `by`). Always false for a changed input, and for rules that select scales or whose kernels do not use
    /// approximate reciprocals.
    pub fn nearly(&self, problem: &Problem, group: usize, stored: u32, by: f32) -> bool {
        let about = |by: f32| self.scale_of(problem, group, problem.amax[group] * (1.0 + by), &[]) == stored;
        approximate(&self.format) && self.input.is_none() && !self.selects() && (about(by) || about(-by))
    }

    /// Returns the encoded scale of a group with this amax. `block` has the elements of the group; only rules that try several
    /// scales read them.
    pub fn scale_of(&self, problem: &Problem, group: usize, amax: f32, block: &[f32]) -> u32 {
        let bits = match self.selects() {
            true => {
                let bytes = self.format.scale_of(amax, block, self.global(problem, group));
                bytes.first().copied().map_or(0, u32::from)
            }
            false => self.single(problem, group).map_or(0, |single| single.scale(amax)),
        };
        if problem.scale_bytes() == 4 {
            canonical(bits)
        } else {
            bits
        }
    }

    /// Returns the input values at the flat indices `at`, with the fault of the input applied; `None` if the fault reads outside
    /// of the source. `read` returns the source values at these indices.
    fn changed(
        &self,
        problem: &Problem,
        read: impl Fn() -> Vec<f32>,
        at: impl Iterator<Item = usize>,
    ) -> Option<Vec<f32>> {
        match self.input.map(|input| &input.change) {
            None => Some(read()),
            Some(Change::Value(change)) => Some(read().into_iter().map(change).collect()),
            Some(Change::Place(from)) => {
                let size @ [_, cols] = [problem.grid.rows, problem.grid.cols];
                let from = |at: usize| index_of(from([at / cols, at % cols], size), size);
                at.map(|at| Some(problem.source.value(from(at)?))).collect()
            }
        }
    }

    /// Returns `len` input values from flat index `at` on, with the fault of the input applied; `None` if the fault reads outside
    /// of the source.
    pub fn values(&self, problem: &Problem, at: usize, len: usize) -> Option<Vec<f32>> {
        self.changed(problem, || problem.source.read(at, len), at..at + len)
    }

    /// Divides the values `x` of a cell by its scale: returns the inputs of the cast to codes.
    pub fn quotients(&self, problem: &Problem, cell: &Cell, x: &[f32], scale: u32) -> Vec<f32> {
        let Some(single) = self.single(problem, cell.group) else {
            return x.to_vec();
        };
        // Use the amax of the source even if the input was changed: the factor depends on the amax only if the amax is 0.
        let amax = problem.amax[cell.group];
        let factor = single.factor(scale, amax);
        x.iter().map(|x| single.scaled(*x, factor)).collect()
    }

    /// Computes the codes of a cell with the encoded scale `scale`; `None` if the faulty input reads outside of the source.
    pub fn codes(&self, problem: &Problem, cell: &Cell, scale: u32) -> Option<Vec<u16>> {
        let x = self.values(problem, cell.at, cell.len)?;
        let repr = self.format.repr();
        let y = self.quotients(problem, cell, &x, scale);
        Some(y.into_iter().map(|y| repr.encode(y)).collect())
    }
}

/// Name of the rule of a format, with the name of the cast if it is not the default cast of the element.
pub fn name(format: &Format) -> String {
    let rule = format.scaling.map(|scaling| scaling.scale.rule().0);
    match (rule, format.convention) {
        (Some(rule), None) => rule.into(),
        (Some(rule), Some(cast)) => format!("{rule} with the cast of {}", cast.name),
        (None, Some(cast)) => format!("the cast of {}", cast.name),
        (None, None) => format!("the cast to {}", format.element.name),
    }
}
