//! Kinds of faults that were looked at while the diagnosis was written.

use ulplab::parity::Cause::{
    Amax, Division, DoubleRounding, Encoding, GlobalScale, Input, Layout, Missing, NibbleOrder, ScaleRounding, Sign,
    Stale, Subnormals,
};

use super::kinds::{Kind, f32s, four, grouped, kind, largest};

/// Looked at while the diagnosis was written.
pub const LOOKED_AT: &[Kind] = &[
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
