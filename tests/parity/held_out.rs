//! Kinds of faults that were only measured.

use ulplab::formats::GlobalScale as Under;
use ulplab::formats::{Direction, E4M3, Format};
use ulplab::parity::Cause::{
    Amax, Division, DoubleRounding, Encoding, GlobalScale, Input, Layout, Missing, NibbleOrder, Saturation,
    ScaleRounding, Scaling, Sign, Stale, Stochastic, TieRule, ZeroSign,
};

use super::kinds::{Kind, f32s, four, grouped, kind, largest};

/// Only measured.
pub const HELD_OUT: &[Kind] = &[
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
        t.reorder(|i| ((i / cols) ^ 1) * cols + i % cols);
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
        let unscaled = Format {
            rotation: None,
            convention: None,
            scaling: None,
            global: None,
            ..t.format
        };
        t.cast(|i, y| {
            let random = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut both = [y; 2];
            if unscaled.has_directions().is_ok() {
                unscaled.round_toward(Direction::Stochastic, &mut both, 2, |numbers| {
                    numbers.fill((random >> 17) as u32)
                });
            }
            element.encode(both[0])
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
