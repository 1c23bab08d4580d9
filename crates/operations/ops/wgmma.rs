//! Steps of Hopper's matrix instruction `wgmma`, D = A·Bᵀ + C, at every width N that kernels use.
//!
//! This is not an operation of a model. It verifies on the device how tensor cores round sums: outputs must equal
//! [`ulplab_core::accumulator`] bit for bit.

use rayon::prelude::*;
use safetensors::Dtype;

use super::data::f32_bytes;
use super::grid::{Grid, pairs};
use super::{Batch, Buffer, Case, Data, Inputs, Judge, KernelOp, Problem};
use ulplab_core::accumulator::{Accumulator, Factor, Operand, WGMMA_BF16, WGMMA_E4M3};
use ulplab_core::formats::E4M3;

/// Numbers of columns of D (the N of an instruction) that are tested.
const WIDTHS: [i64; 9] = [8, 16, 24, 32, 64, 96, 128, 192, 256];

/// Number of rows of D (the M of an instruction).
const ROWS: usize = 64;

/// Minimum number of elements of D in the cases named `step`, which cover all kinds of edge inputs.
const VECTORS: i64 = 1 << 20;

pub(super) const WGMMA: KernelOp = KernelOp {
    name: "wgmma",
    doc: "steps of the matrix instruction of Hopper, D = A·Bᵀ + C, in E4M3 and bfloat16",
    cases: || pairs(&["e4m3", "bf16"], &WIDTHS, of_type),
    problem,
    ..KernelOp::NONE
};

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [tiles, width, terms] = case.sizes(["M", "N", "K"]);
    let accumulator = accumulator(case);
    let rows = Rows {
        operand: accumulator.operand,
        terms,
        kinds: match case.inputs {
            Inputs::Edges => &KINDS,
            _ => &[Kind::Normal],
        },
    };
    let a = rows.codes("a", tiles * ROWS, ROWS, data);
    let b = rows.codes("b", tiles * width, width, data);
    let c = rows.sums(tiles * ROWS * width, ROWS * width, data);
    let want = want(accumulator, [&a, &b], &c, [width, terms]);
    let (dtype, bytes) = match accumulator.operand {
        Operand::E4m3 => (Dtype::U8, 1),
        Operand::Bf16 => (Dtype::BF16, 2),
    };
    let buffer = |name, rows, codes: &[u16]| {
        let codes = codes.iter().flat_map(|code| code.to_le_bytes().into_iter().take(bytes));
        Buffer::input(name, dtype, &[tiles, rows, terms], codes.collect())
    };
    let shape = [tiles, ROWS, width];
    let buffers = vec![
        buffer("a", ROWS, &a),
        buffer("b", width, &b),
        Buffer::f32("c", &shape, &c),
    ];
    Ok(Problem {
        flops: (2 * tiles * ROWS * width * terms) as u64,
        batch: Some(Batch::new("M", &["a", "b", "c", "d"])),
        ..Problem::new(
            buffers,
            vec![Judge::equal("d", Dtype::F32, &shape, f32_bytes(&want), WHY)],
        )
    })
}

const WHY: &str = "tensor cores cut the terms of a step to a fixed number of bits below the largest exponent and add them exactly \
                   (crates/core/accumulator.rs), so every bit is defined";

fn of_type(operand: &'static str, width: i64) -> Vec<Case> {
    let step: i64 = if operand == "e4m3" { 32 } else { 16 };
    let name = width.to_string();
    let keys = [("operand", operand), ("width", &name)];
    let dims = move |(tiles, steps): (i64, i64)| vec![("M", tiles), ("N", width), ("K", step * steps)];
    // An instruction reads 32 bytes of a row per step, so 128 bytes take four steps.
    Grid::new(format!("{operand}.n{width}"), &keys, dims)
        .edges("step", (VECTORS / (ROWS as i64 * width) + 1, 1))
        .large("random", (13, 1))
        .edges("chain", (2 * KINDS.len() as i64 + 1, 4))
        .done()
}

fn accumulator(case: &Case) -> &'static Accumulator {
    match case.key("operand") {
        "e4m3" => &WGMMA_E4M3,
        _ => &WGMMA_BF16,
    }
}

/// Computes the expected D of all tiles.
fn want(accumulator: &Accumulator, [a, b]: [&[u16]; 2], c: &[f32], [width, terms]: [usize; 2]) -> Vec<f32> {
    let factors =
        |codes: &[u16]| -> Vec<Factor> { codes.par_iter().map(|code| accumulator.operand.factor(*code)).collect() };
    let (a, b) = (factors(a), factors(b));
    let mut d = c.to_vec();
    d.par_chunks_mut(width).enumerate().for_each(|(row, d)| {
        let a = &a[row * terms..][..terms];
        let b = b[row / ROWS * width * terms..].chunks(terms);
        d.iter_mut().zip(b).for_each(|(d, b)| *d = accumulator.dot(a, b, *d));
    });
    d
}

/// Kind of inputs of a tile. Consecutive tiles use the kinds of [`KINDS`] in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Normal,
    /// Codes with random bits. Their exponents span a little more than the number of bits that a step keeps of its terms.
    AnyCode,
    /// A few large factors among small ones, whose terms are truncated.
    Outliers,
    /// The sums of the two halves of a step nearly cancel.
    Cancelling,
    /// C, the initial sum, has elements of very different magnitudes, some of them large.
    LargeSums,
    /// Nearly all products are zeros of either sign, and C is small.
    ZeroProducts,
    Subnormal,
    /// Factors with any exponent.
    Wide,
    /// NaN and infinities among normal numbers.
    Special,
    /// Sums overflow, if the range of the operands allows it.
    Huge,
    /// All products are zeros of either sign; C has random bits, including zeros of either sign.
    OnlySums,
}

const KINDS: [Kind; 11] = [
    Kind::Normal,
    Kind::AnyCode,
    Kind::Outliers,
    Kind::Cancelling,
    Kind::LargeSums,
    Kind::ZeroProducts,
    Kind::Subnormal,
    Kind::Wide,
    Kind::Special,
    Kind::Huge,
    Kind::OnlySums,
];

/// Generator of the operands of a case.
struct Rows {
    operand: Operand,
    terms: usize,
    kinds: &'static [Kind],
}

impl Rows {
    fn kind(&self, tile: usize) -> Kind {
        self.kinds[tile % self.kinds.len()]
    }

    fn is_e4m3(&self) -> bool {
        self.operand == Operand::E4m3
    }

    /// Draws the codes of `rows` rows of A or B (`name`); each tile has `in_tile` rows.
    fn codes(&self, name: &str, rows: usize, in_tile: usize, data: &Data) -> Vec<u16> {
        let normal = data.normal(&format!("wgmma/{name}"), rows * self.terms);
        let bits = data.words(&format!("wgmma/{name}/bits"), rows * self.terms);
        let mut codes = vec![0; rows * self.terms];
        codes.par_chunks_mut(self.terms).enumerate().for_each(|(row, codes)| {
            let kind = self.kind(row / in_tile);
            let half = self.terms / 2;
            for at in 0..self.terms {
                let (x, bits) = (normal[row * self.terms + at], bits[row * self.terms + at]);
                // The sums of both halves nearly cancel: in A, most codes of the second half repeat the first half; in B, the
                // second half is the negated first half.
                codes[at] = match kind {
                    Kind::Cancelling if name == "a" && at >= half && !bits.is_multiple_of(4) => codes[at - half],
                    Kind::Cancelling if name == "a" => self.nearest(4.0 * x),
                    Kind::Cancelling => {
                        let sign = if at < half { 1.0 } else { -1.0 };
                        self.nearest(sign * 2f32.powi(-((at % half % 16) as i32) / 2))
                    }
                    _ => self.code(kind, x, bits, row % self.terms == at),
                };
            }
        });
        codes
    }

    fn code(&self, kind: Kind, x: f32, bits: u32, chosen: bool) -> u16 {
        let (low, pick) = (bits as u16, bits >> 16);
        let sign = if self.is_e4m3() { low & 0x80 } else { low & 0x8000 };
        // Code with this biased exponent, and with random sign and fraction.
        let with_exponent = |biased: u32| match self.operand {
            Operand::E4m3 => low & 0x87 | (biased as u16) << 3,
            Operand::Bf16 => low & 0x807f | (biased as u16) << 7,
        };
        // Random code without NaN and infinities; bfloat16 exponents are at most `most`.
        let any = |most: u32| match self.operand {
            Operand::E4m3 if low & 0x7f == 0x7f => 0,
            Operand::E4m3 => low & 0xff,
            Operand::Bf16 => with_exponent(1 + pick % most),
        };
        match kind {
            Kind::Normal | Kind::LargeSums | Kind::Cancelling => {
                self.nearest(if self.is_e4m3() { 16.0 * x } else { x })
            }
            Kind::AnyCode if self.is_e4m3() => any(0),
            Kind::AnyCode => with_exponent(107 + pick % 40),
            Kind::Outliers if chosen || pick.is_multiple_of(8) => self.nearest(x * 2f32.powi((low % 3).into())),
            Kind::Outliers => {
                let binades = if self.is_e4m3() { 9 } else { 16 };
                self.nearest(x * 2f32.powi(-i32::from(low % binades)))
            }
            Kind::ZeroProducts if pick.is_multiple_of(6) => self.nearest(x),
            Kind::ZeroProducts | Kind::OnlySums => sign,
            Kind::Subnormal => match (self.operand, pick % 4) {
                (Operand::E4m3, 0) => with_exponent(1),
                (Operand::Bf16, 0) => with_exponent(120 + pick / 4 % 10),
                (Operand::Bf16, 1) => with_exponent(1),
                _ => with_exponent(0),
            },
            Kind::Wide if self.is_e4m3() && !pick.is_multiple_of(3) => sign,
            Kind::Wide => any(254),
            Kind::Special if pick.is_multiple_of(100) => match (self.operand, pick / 100 % 3) {
                (Operand::E4m3, _) => sign | 0x7f,
                (Operand::Bf16, 0) => sign | 0x7f81,
                (Operand::Bf16, _) => sign | 0x7f80,
            },
            Kind::Special if pick.is_multiple_of(20) => sign,
            Kind::Special => self.nearest(x),
            Kind::Huge if self.is_e4m3() => with_exponent(14),
            Kind::Huge => with_exponent(188 + pick % 3),
        }
    }

    /// Encodes a number to the nearest code.
    fn nearest(&self, x: f32) -> u16 {
        match self.operand {
            Operand::E4m3 => E4M3.encode(x),
            Operand::Bf16 => half::bf16::from_f32(x).to_bits(),
        }
    }

    /// Draws the elements of C; each tile has `in_tile` elements.
    fn sums(&self, len: usize, in_tile: usize, data: &Data) -> Vec<f32> {
        let mut sums = data.normal("wgmma/c", len);
        let bits = data.words("wgmma/c/bits", len);
        sums.par_iter_mut().zip(bits).enumerate().for_each(|(at, (c, bits))| {
            *c = self.sum(self.kind(at / in_tile), *c, bits);
        });
        sums
    }

    fn sum(&self, kind: Kind, x: f32, bits: u32) -> f32 {
        let small = |binades: u32| x * 2f32.powi(-((bits >> 8) as i32 % binades as i32));
        // Random bits as an f32. If they encode a NaN or an infinity, one changed exponent bit makes the number finite.
        let any = f32::from_bits(if bits >> 23 & 0xff == 0xff {
            bits ^ 1 << 23
        } else {
            bits
        });
        match kind {
            Kind::Normal if self.is_e4m3() => 1000.0 * x,
            Kind::Normal => 4.0 * x,
            Kind::LargeSums => small(30) * 2f32.powi(30),
            Kind::ZeroProducts => small(60),
            Kind::Wide => any,
            Kind::OnlySums if bits % 5 == 1 => 0f32.copysign(any),
            Kind::OnlySums if bits % 5 == 2 => f32::from_bits(any.to_bits() & 0x807f_ffff),
            Kind::OnlySums => any,
            Kind::Special if bits.is_multiple_of(30) => {
                [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN][(bits / 30 % 4) as usize]
            }
            Kind::Special => x,
            _ if bits.is_multiple_of(2) => 0.0,
            Kind::AnyCode => f32::from_bits(bits & 0x807f_ffff | (97 + (bits >> 24) % 60) << 23),
            Kind::Outliers => small(20),
            Kind::Cancelling => small(24),
            Kind::Subnormal => small(if self.is_e4m3() { 30 } else { 140 }),
            Kind::Huge => f32::MAX.copysign(x) * [1.0, 0.5, 0.75][(bits >> 1) as usize % 3],
        }
    }
}
