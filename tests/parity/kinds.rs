//! Many kinds of faults, one planted at a time: what the diagnosis calls each.
//!
//! Half of the kinds were looked at while the diagnosis was written, the other half only measured: `HELD_OUT`.

use ulplab::formats::{E4M3, Encoded, Format, GlobalScale as Under, codec};
use ulplab::packed::Grid;
use ulplab::parity::{Cause, Diagnosis, Stored, diagnose};

use crate::faults::normal;
use crate::oracle::Random;

/// A right tensor that a fault is planted in.
struct Tensor {
    format: Format,
    grid: Grid,
    x: Vec<f32>,
    encoded: Encoded,
}

/// Formats and data: every kind is planted in those that it goes with.
const FORMATS: [&str; 5] = [
    "e2m1/b16:e4m3(te)/t:f32",
    "e2m1/b32:e8m0(rceil)",
    "e4m3/b32:e8m0(rceil)",
    "e4m3/b128:f32(deepgemm)",
    "e4m3/t:f32",
];

fn values(kind: usize, rows: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let mut sizes = |n: usize, spread: f64| -> Vec<f64> { (0..n).map(|_| (spread * normal(random)).exp()).collect() };
    let (by_row, by_col) = (sizes(rows, 0.7), sizes(cols, 0.7));
    let mut x: Vec<f32> = (0..rows * cols)
        .map(|i| match kind {
            0 => normal(random),
            1 => normal(random) * by_row[i / cols] * by_col[i % cols],
            _ => normal(random) * by_row[i / cols] * if random.uniform() < 0.01 { 20.0 } else { 1.0 },
        } as f32)
        .collect();
    if kind == 2 {
        // Blocks of zeros and a constant row.
        x[3 * cols..3 * cols + 32].fill(0.0);
        x[7 * cols..8 * cols].fill(0.75);
    }
    x
}

impl Tensor {
    fn new(format: &str, kind: usize, rows: usize, cols: usize, random: &mut Random) -> Self {
        let format = *codec(format).unwrap().format().unwrap();
        let x = values(kind, rows, cols, random);
        let encoded = format.encode(&x, cols, Under::Own);
        let grid = Grid::new(&format, rows, cols);
        Self {
            format,
            grid,
            x,
            encoded,
        }
    }

    fn part(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self
            .encoded
            .parts
            .iter_mut()
            .find(|part| part.name == name)
            .unwrap()
            .bytes
    }

    fn bits(&self) -> u32 {
        self.format.element.bits
    }

    fn size(&self) -> usize {
        self.format.scaling.unwrap().scale.bytes()
    }

    fn codes(&self) -> Vec<u16> {
        ulplab::packed::codes(&self.format, self.encoded.part("data"))
    }

    fn set_codes(&mut self, codes: &[u16]) {
        *self.part("data") = match self.bits() {
            4 => codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect(),
            _ => codes.iter().map(|code| *code as u8).collect(),
        };
    }

    /// Every code by its flat index and its right code.
    fn recode(&mut self, to: impl Fn(usize, u16) -> u16) {
        let codes: Vec<u16> = self
            .codes()
            .into_iter()
            .enumerate()
            .map(|(i, code)| to(i, code))
            .collect();
        self.set_codes(&codes);
    }

    /// The code at every index is that of another.
    fn reorder(&mut self, from: impl Fn(usize) -> usize) {
        let codes = self.codes();
        self.recode(|i, _| codes[from(i)]);
    }

    /// Codes by another cast of the quotients of the stored scales.
    fn cast(&mut self, cast: impl Fn(usize, f32) -> u16) {
        let y = self.format.quotients(&self.x, &self.encoded);
        let codes: Vec<u16> = y.into_iter().enumerate().map(|(i, y)| cast(i, y)).collect();
        self.set_codes(&codes);
    }

    fn scales(&self) -> Vec<Vec<u8>> {
        self.encoded
            .part("scale")
            .chunks(self.size())
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// Every scale by its row, its column and all right scales.
    fn rescale(&mut self, to: impl Fn(usize, usize, &[Vec<u8>]) -> Vec<u8>) {
        let (scales, across) = (self.scales(), self.grid.count.1);
        *self.part("scale") = (0..scales.len())
            .flat_map(|g| to(g / across, g % across, &scales))
            .collect();
    }

    /// Scales for other largest magnitudes, and codes for these scales.
    fn amax(&mut self, of: impl Fn(&Self, usize, &[f32]) -> f32) {
        let (grid, global) = (self.grid, self.global());
        let scale = |group: usize| {
            let block: Vec<f32> = grid.elements(group).map(|at| self.x[at]).collect();
            self.format.scale_of(of(self, group, &block), &block, global)
        };
        *self.part("scale") = (0..grid.len()).flat_map(scale).collect();
        let repr = self.format.repr();
        self.cast(|_, y| repr.encode(y));
    }

    fn global(&self) -> f32 {
        match self.encoded.part("global") {
            &[a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => 1.0,
        }
    }

    /// Another input, quantized as it should be.
    fn input(&mut self, change: impl Fn(&[f32], usize) -> Vec<f32>) {
        let x = change(&self.x, self.grid.cols);
        self.encoded = self.format.encode(&x, self.grid.cols, Under::Own);
    }

    fn diagnose(&self) -> Diagnosis {
        diagnose(
            &self.x,
            self.grid.cols,
            &Stored::from(&self.encoded),
            &self.format,
            true,
        )
    }
}

/// What is planted, and what a right diagnosis may call it: a cause, or words of its conclusion.
struct Kind {
    name: &'static str,
    plant: fn(&mut Tensor) -> bool,
    causes: &'static [Cause],
    words: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    causes: &'static [Cause],
    words: &'static [&'static str],
    plant: fn(&mut Tensor) -> bool,
) -> Kind {
    Kind {
        name,
        plant,
        causes,
        words,
    }
}

fn four(t: &Tensor) -> bool {
    t.bits() == 4
}

fn grouped(t: &Tensor) -> bool {
    t.grid.len() > 16
}

fn largest(x: impl Iterator<Item = f32>) -> f32 {
    x.map(f32::abs).fold(0.0, f32::max)
}

/// A scale of four bytes; NaN for others, in which such faults are not planted.
fn f32s(s: &[u8]) -> f32 {
    s.try_into().map_or(f32::NAN, f32::from_le_bytes)
}

use Cause::{
    Amax, Division, DoubleRounding, Encoding, GlobalScale, Input, Layout, Missing, NibbleOrder, Saturation,
    ScaleRounding, Scaling, Sign, Stale, Stochastic, Subnormals, TieRule, ZeroSign,
};

/// Looked at while the diagnosis was written.
const LOOKED_AT: &[Kind] = &[
    kind("reciprocal scales", &[Encoding], &["reciprocal"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| match &all[r * across + c][..] {
            [e8m0] => vec![254 - e8m0],
            s => (1.0 / f32s(s)).to_le_bytes().to_vec(),
        });
        t.format.global.is_none()
    }),
    kind("negated", &[Sign], &["negated"], |t| {
        let sign = 1 << (t.bits() - 1);
        t.recode(|_, code| code ^ sign);
        true
    }),
    kind("ReLU of codes", &[Sign, Input], &["ReLU"], |t| {
        let sign = 1 << (t.bits() - 1);
        t.recode(|_, code| if code & sign != 0 { 0 } else { code });
        true
    }),
    kind("ReLU of the input", &[Input, Sign], &["ReLU"], |t| {
        t.input(|x, _| x.iter().map(|x| x.max(0.0)).collect());
        true
    }),
    kind("magnitudes", &[Sign, Input], &["sign"], |t| {
        t.input(|x, _| x.iter().map(|x| x.abs()).collect());
        true
    }),
    kind("reversed rows", &[Layout], &[], |t| {
        let (rows, cols) = (t.grid.rows, t.grid.cols);
        t.reorder(|i| (rows - 1 - i / cols) * cols + i % cols);
        true
    }),
    kind("one row never written", &[Missing], &["never"], |t| {
        let cols = t.grid.cols;
        t.recode(|i, code| if i / cols == 5 { 0 } else { code });
        true
    }),
    kind("never written", &[Missing], &["never"], |t| {
        t.recode(|_, _| 0);
        true
    }),
    kind("GGUF nibbles", &[NibbleOrder], &[], |t| {
        t.reorder(|i| i / 32 * 32 + i % 2 * 16 + i % 32 / 2);
        four(t)
    }),
    kind("AWQ order", &[NibbleOrder], &[], |t| {
        t.reorder(|i| i / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][i % 8]);
        four(t)
    }),
    kind("words of 32 bits swapped", &[Layout], &["bytes of 32-bit"], |t| {
        t.part("data")
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .for_each(|word| word.reverse());
        true
    }),
    kind("scale words swapped", &[Layout], &["32-bit words"], |t| {
        t.part("scale")
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .for_each(|word| word.reverse());
        t.size() == 1
    }),
    kind(
        "every 32nd row's scale of the row before",
        &[Stale],
        &["row before"],
        |t| {
            let across = t.grid.count.1;
            t.rescale(|r, c, all| all[if r % 32 == 31 { r - 1 } else { r } * across + c].clone());
            grouped(t) && t.grid.count.0 > 40
        },
    ),
    kind("amax of the tile in column order", &[Amax], &["column order"], |t| {
        let (down, across) = t.grid.count;
        t.amax(|t, g, _| largest(t.grid.elements(g % down * across + g / down).map(|at| t.x[at])));
        grouped(t)
    }),
    kind("FNUZ codes", &[Encoding], &["FNUZ"], |t| {
        t.recode(|_, code| {
            if code & 0x7f > 0x77 {
                0x7f | code & 0x80
            } else if code & 0x7f < 8 {
                code
            } else {
                code + 8
            }
        });
        t.bits() == 8
    }),
    kind("bf16 scales", &[ScaleRounding], &["bf16"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| {
            half::bf16::from_f32(f32s(&all[r * across + c]))
                .to_f32()
                .to_le_bytes()
                .to_vec()
        });
        t.size() == 4
    }),
    kind("truncated", &[Division], &["toward zero"], |t| {
        let repr = t.format.repr();
        t.cast(|_, y| {
            let code = repr.encode(y);
            if repr.decode(code).abs() > y.abs() {
                code - 1
            } else {
                code
            }
        });
        true
    }),
    kind(
        "double rounding through bf16",
        &[DoubleRounding, Input],
        &["bf16"],
        |t| {
            let repr = t.format.repr();
            t.cast(|_, y| repr.encode(half::bf16::from_f32(y).to_f32()));
            t.bits() == 8
        },
    ),
    kind(
        "scale one above, codes right",
        &[Encoding, ScaleRounding],
        &["above"],
        |t| {
            let across = t.grid.count.1;
            t.rescale(|r, c, all| vec![all[r * across + c][0].saturating_add(1)]);
            t.size() == 1
        },
    ),
    kind("subnormals flushed", &[Subnormals, Encoding], &["subnormal"], |t| {
        let normal = if t.bits() == 4 { 2 } else { 8 };
        let sign = 1 << (t.bits() - 1);
        t.recode(|_, code| if code & (sign - 1) < normal { code & sign } else { code });
        true
    }),
    kind("amax of the first half", &[Amax], &[], |t| {
        t.amax(|_, _, block| largest(block[..block.len() / 2].iter().copied()));
        grouped(t)
    }),
    kind("amax clipped to 0.9", &[Amax], &["0.9"], |t| {
        t.amax(|_, _, block| 0.9 * largest(block.iter().copied()));
        true
    }),
    kind("global twice", &[GlobalScale], &[], |t| {
        let global = 2.0 * t.global();
        *t.part("global") = global.to_le_bytes().to_vec();
        true
    }),
    kind("bits reversed", &[Encoding], &["bits"], |t| {
        let bits = t.bits();
        t.recode(|_, code| code.reverse_bits() >> (16 - bits));
        true
    }),
];
/// Only measured.
const HELD_OUT: &[Kind] = &[
    kind("two's complement", &[Encoding, Sign], &["complement"], |t| {
        let (sign, bits) = (1u16 << (t.bits() - 1), t.bits());
        t.recode(|_, code| {
            if code & sign != 0 {
                (code & (sign - 1)).wrapping_neg() & ((1 << bits) - 1)
            } else {
                code
            }
        });
        true
    }),
    kind("tanh of the input", &[Input], &[], |t| {
        t.input(|x, _| x.iter().map(|x| x.tanh()).collect());
        true
    }),
    kind("clamped to ±2", &[Input, Saturation], &["clamp"], |t| {
        t.input(|x, _| x.iter().map(|x| x.clamp(-2.0, 2.0)).collect());
        true
    }),
    kind("column tail never written", &[Missing], &["never"], |t| {
        let cols = t.grid.cols;
        t.recode(|i, code| if i % cols >= cols - 24 { 0 } else { code });
        true
    }),
    kind("column tail of the row before", &[Stale], &["row before"], |t| {
        let (cols, codes) = (t.grid.cols, t.codes());
        t.recode(|i, code| {
            if i % cols >= cols - 32 && i >= cols {
                codes[i - cols]
            } else {
                code
            }
        });
        true
    }),
    kind("even rows exchanged with odd ones", &[Layout, Stale], &[], |t| {
        let cols = t.grid.cols;
        t.reorder(|i| (i / cols ^ 1) * cols + i % cols);
        true
    }),
    kind("16-bit words swapped in part", &[Layout, NibbleOrder], &[], |t| {
        let half = t.part("data").len() / 2;
        t.part("data")[half..]
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|word| word.reverse());
        true
    }),
    kind("tiles of 16 by 16", &[Layout], &[], |t| {
        let cols = t.grid.cols;
        // Where tile order puts index i.
        t.reorder(move |i| {
            let (tile, inside) = (i / 256, i % 256);
            let (r, c) = (
                tile / (cols / 16) * 16 + inside / 16,
                tile % (cols / 16) * 16 + inside % 16,
            );
            r * cols + c
        });
        true
    }),
    kind(
        "nibbles high first in every second row",
        &[NibbleOrder, Layout],
        &[],
        |t| {
            let cols = t.grid.cols;
            t.reorder(|i| if i / cols % 2 == 1 { i ^ 1 } else { i });
            four(t)
        },
    ),
    kind("shifted by one element", &[Layout, Stale], &["place", "before"], |t| {
        t.reorder(|i| i.saturating_sub(1));
        true
    }),
    kind("scales shifted by a row", &[Layout, Stale], &["row"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| all[r.saturating_sub(1) * across + c].clone());
        grouped(t)
    }),
    kind("scales of the first row of four", &[Stale], &[], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| all[r / 4 * 4 * across + c].clone());
        grouped(t)
    }),
    kind("scales constant", &[Missing], &["all scales"], |t| {
        t.rescale(|_, _, all| all[0].clone());
        grouped(t)
    }),
    kind(
        "scales doubled",
        &[Encoding, Scaling, ScaleRounding],
        &["2", "above"],
        |t| {
            let across = t.grid.count.1;
            t.rescale(|r, c, all| (2.0 * f32s(&all[r * across + c])).to_le_bytes().to_vec());
            t.size() == 4
        },
    ),
    kind("amax stored as scale", &[Encoding, Scaling], &["448"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| (448.0 * f32s(&all[r * across + c])).to_le_bytes().to_vec());
        t.size() == 4
    }),
    kind("f32 bytes swapped", &[Encoding], &["reverse order"], |t| {
        t.part("scale")
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .for_each(|word| word.reverse());
        t.size() == 4
    }),
    kind("scales of f16", &[ScaleRounding], &["f16"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| {
            half::f16::from_f32(f32s(&all[r * across + c]))
                .to_f32()
                .to_le_bytes()
                .to_vec()
        });
        t.size() == 4
    }),
    kind("amax of the row", &[Amax], &["row"], |t| {
        t.amax(|t, g, _| {
            let r = t.grid.place(g)[0];
            largest(t.x[r * t.grid.cols..(r + 1) * t.grid.cols].iter().copied())
        });
        grouped(t)
    }),
    kind("running amax", &[Amax], &["never reset"], |t| {
        let across = t.grid.count.1;
        t.amax(|t, g, _| {
            largest(
                (g / across * across..=g)
                    .flat_map(|g| t.grid.elements(g))
                    .map(|at| t.x[at]),
            )
        });
        grouped(t)
    }),
    kind("mean magnitude", &[Amax], &["mean"], |t| {
        t.amax(|_, _, block| (block.iter().map(|x| f64::from(x.abs())).sum::<f64>() / block.len() as f64) as f32);
        true
    }),
    kind("second largest", &[Amax], &["second"], |t| {
        t.amax(|_, _, block| {
            let mut x: Vec<f32> = block.iter().map(|x| x.abs()).collect();
            x.sort_by(|a, b| b.total_cmp(a));
            x[1]
        });
        grouped(t)
    }),
    kind("max without sign", &[Amax], &["not of their magnitudes"], |t| {
        t.amax(|_, _, block| block.iter().copied().fold(0.0, f32::max));
        grouped(t)
    }),
    kind("amax in the last columns too small", &[Amax], &[], |t| {
        let across = t.grid.count.1;
        t.amax(|_, g, block| {
            let part = if g % across == across - 1 {
                block.len() / 4
            } else {
                block.len()
            };
            largest(block[..part].iter().copied())
        });
        grouped(t)
    }),
    kind(
        "scales twice too small, codes with them",
        &[Amax, ScaleRounding],
        &[],
        |t| {
            t.amax(|_, _, block| 0.5 * largest(block.iter().copied()));
            true
        },
    ),
    kind("floor", &[Division], &["downward"], |t| {
        let repr = t.format.repr();
        t.cast(|_, y| {
            let code = repr.encode(y);
            match repr.decode(code) > y {
                true if y >= 0.0 => code - 1,
                true => code + 1,
                false => code,
            }
        });
        true
    }),
    kind("stochastic rounding", &[Stochastic], &["random"], |t| {
        let element = t.format.element;
        t.cast(|i, y| {
            let random = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ulplab::formats::stochastic(element, y, (random >> 17) as u32)
        });
        true
    }),
    kind("codes without scale", &[Scaling], &["without any scale"], |t| {
        let repr = t.format.repr();
        let codes: Vec<u16> = t.x.iter().map(|x| repr.encode(*x)).collect();
        t.set_codes(&codes);
        true
    }),
    kind("codes of half the quotient", &[Scaling], &["2^-1"], |t| {
        let repr = t.format.repr();
        t.cast(|_, y| repr.encode(y / 2.0));
        true
    }),
    kind("made for 240", &[Scaling, Encoding, Saturation], &["240"], |t| {
        let repr = t.format.repr();
        t.cast(|_, y| repr.encode(y * (240.0 / 448.0)));
        t.bits() == 8
    }),
    kind("codes of E5M2", &[Encoding], &["E5M2"], |t| {
        t.cast(|_, y| ulplab::formats::E5M2.encode(y));
        t.bits() == 8
    }),
    kind("codes of the next block's scale", &[Stale], &["next block"], |t| {
        let right = t.encoded.clone();
        let across = t.grid.count.1;
        t.rescale(|r, c, all| all[r * across + (c + 1).min(across - 1)].clone());
        let repr = t.format.repr();
        t.cast(|_, y| repr.encode(y));
        let scale = right.part("scale").to_vec();
        *t.part("scale") = scale;
        grouped(t)
    }),
    kind("largest code missing", &[Saturation, Encoding], &[], |t| {
        let top = if t.bits() == 4 { 7 } else { 0x7e };
        let sign = 1 << (t.bits() - 1);
        t.recode(|_, code| if code & (sign - 1) == top { code - 1 } else { code });
        true
    }),
    kind("−0 stored as +0", &[ZeroSign], &["zero", "−0"], |t| {
        let sign = 1 << (t.bits() - 1);
        t.recode(|_, code| if code == sign { 0 } else { code });
        true
    }),
    kind("ties away", &[TieRule], &[], |t| {
        t.x.iter_mut().for_each(|x| *x = (*x * 4.0).round() / 4.0);
        t.encoded = t.format.encode(&t.x, t.grid.cols, Under::Own);
        let repr = t.format.repr();
        t.cast(|_, y| {
            let code = repr.encode(y);
            let next = f64::from(repr.decode(code)) + f64::from(repr.decode(code + 1));
            if f64::from(y) * 2.0 == next && repr.decode(code).abs() < y.abs() {
                code + 1
            } else {
                code
            }
        });
        true
    }),
    kind("bit 0 stuck at 0", &[Encoding], &["bit 0"], |t| {
        t.recode(|_, code| code & !1);
        true
    }),
    kind("input rounded to bf16", &[Input, DoubleRounding], &["bf16"], |t| {
        t.input(|x, _| x.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect());
        t.bits() == 8
    }),
    kind("input transposed within", &[Layout], &["column order"], |t| {
        let rows = t.grid.rows;
        t.input(move |x, cols| (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect());
        true
    }),
    kind("rows dealt to two", &[Layout], &[], |t| {
        let (rows, cols) = (t.grid.rows, t.grid.cols);
        t.reorder(|i| (i / cols % (rows / 2) * 2 + i / cols / (rows / 2)) * cols + i % cols);
        true
    }),
    kind("global of the sum", &[GlobalScale], &[], |t| {
        let global = t.global() / 6.0;
        *t.part("global") = global.to_le_bytes().to_vec();
        true
    }),
    kind("random order in blocks", &[Layout], &["order"], |t| {
        let order = [3, 11, 0, 7, 14, 2, 9, 5, 1, 15, 8, 12, 4, 10, 6, 13];
        t.reorder(|i| i / 16 * 16 + order[i % 16]);
        true
    }),
    kind("random bytes in one row", &[], &["unknown"], |t| {
        let cols = t.grid.cols;
        let top = if t.bits() == 4 { 15 } else { 0x7e };
        t.recode(|i, code| {
            if i / cols == 9 {
                (i as u32).wrapping_mul(2_654_435_761) as u16 % top
            } else {
                code
            }
        });
        true
    }),
    kind("E8M0 as E4M3 half", &[ScaleRounding], &["E4M3"], |t| {
        let across = t.grid.count.1;
        t.rescale(|r, c, all| {
            E4M3.decode(E4M3.encode(f32s(&all[r * across + c])))
                .to_le_bytes()
                .to_vec()
        });
        t.size() == 4
    }),
];

/// Counts of right, honestly unknown and wrong, and what was wrong.
fn measure(kinds: &[Kind], formats: usize) -> ([usize; 3], String) {
    let (mut counts, mut misses) = ([0; 3], String::new());
    for (k, kind) in kinds.iter().enumerate() {
        let mut planted = 0;
        for f in (0..FORMATS.len()).map(|f| (f + k) % FORMATS.len()) {
            let format = FORMATS[f];
            let (rows, cols) = [(128, 256), (80, 320)][(k + f) % 2];
            let mut random = Random((k * 100 + f) as u64);
            let mut tensor = Tensor::new(format, (k + f) % 3, rows, cols, &mut random);
            if kind.causes.contains(&GlobalScale) && tensor.format.global.is_none() {
                continue;
            }
            let right = tensor.encoded.clone();
            if !(kind.plant)(&mut tensor) || tensor.encoded == right {
                continue;
            }
            if planted == formats {
                break;
            }
            planted += 1;
            let diagnosis = tensor.diagnose();
            let said = diagnosis.conclusion();
            let is = |cause: &Cause| kind.causes.contains(cause);
            let verdict = match diagnosis.cause() {
                Some(cause) if is(&cause) || kind.words.iter().any(|words| said.contains(words)) => 0,
                Some(Cause::Unknown) => 1,
                _ => 2,
            };
            counts[verdict] += 1;
            if verdict > 0 {
                misses += &format!("{} {format}: {said}\n", kind.name);
            }
        }
    }
    (counts, misses)
}

fn judge(formats: usize) {
    let measured =
        [("looked at", LOOKED_AT), ("held out", HELD_OUT)].map(|(name, kinds)| (name, measure(kinds, formats)));
    for (name, ([right, unknown, wrong], misses)) in &measured {
        println!("{name}: {right} right, {unknown} unknown, {wrong} wrong\n{misses}");
    }
    for (name, ([right, unknown, wrong], misses)) in measured {
        let all = right + unknown + wrong;
        assert!(
            right * 100 >= all * 90 && wrong * 100 <= all * 5,
            "{name}: {right} of {all}\n{misses}"
        );
    }
}

/// In one format each.
#[test]
fn most_kinds_of_faults_get_their_name() {
    judge(1);
}

#[test]
#[ignore = "takes a minute"]
fn most_kinds_of_faults_get_their_name_in_all_formats() {
    judge(FORMATS.len());
}
